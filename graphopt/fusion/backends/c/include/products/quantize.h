/* Conversion of 8-bit elements to integers, and quantization: x / scale is clamped, rounded half to even, and added to
   the zero point. */
enum { GO_FLOATS, GO_U8, GO_I8, GO_SUMS }; /* types of operands and results; GO_SUMS are 32-bit integers */

GO_INLINE int32_t go_byte_at(const void *from, int64_t index, int type) {
    if (from == NULL) return 0;
    return type == GO_U8 ? ((const uint8_t *)from)[index] : ((const int8_t *)from)[index];
}

/* A vector of at most `count` elements from `index` on. */
GO_INLINE i32_w go_bytes(const void *from, int64_t index, int count, int type) {
    const char *at = (const char *)from + index;
    if (count >= LANES_w) return type == GO_U8 ? u8_to_i32_w(load_u8_w(at)) : i8_to_i32_w(load_i8_w(at));
    return type == GO_U8 ? u8_to_i32_w(load_part_u8_w(at, count)) : i8_to_i32_w(load_part_i8_w(at, count));
}

/* Bounds of x / scale at which results saturate, the result of NaN before the zero point, and the zero point. */
typedef struct {
    float low, high, nan;
    int32_t zero;
} go_quantizer;

GO_INLINE go_quantizer go_quantizer_of(int32_t zero, int type) {
    const int lowest = type == GO_I8 ? -128 : 0;
    return (go_quantizer){(float)(lowest - zero), (float)(lowest + 255 - zero), (float)(lowest - zero), zero};
}

/* The same for results that are clamped before their division by the scale. Division and rounding are monotonic. */
GO_INLINE go_quantizer go_bounds_of(float low, float high, float scale, int32_t zero, int type) {
    const go_quantizer all = go_quantizer_of(zero, type);
    low = __builtin_rintf(low / scale), high = __builtin_rintf(high / scale);
    low = low > all.low ? low < all.high ? low : all.high : all.low;
    high = high < all.high ? high > all.low ? high : all.low : all.high;
    return (go_quantizer){low, high, all.nan, zero};
}

/* A float bias, an integer bias with one scale or one scale per element, or no bias. */
typedef struct {
    const float *floats;
    const int32_t *integers;
    const float *scales;
    float scale;
} go_bias;

GO_INLINE int go_has_bias(const go_bias *b) { return b->floats != NULL || b->integers != NULL; }
GO_INLINE float go_bias_at(const go_bias *b, int64_t index) {
    if (b->integers) return (float)b->integers[index] * (b->scales ? b->scales[index] : b->scale);
    return b->floats ? b->floats[index] : 0;
}

/* Clamps x; NaN becomes the lower bound. */
GO_INLINE f32_w go_bounded(const go_quantizer *q, f32_w x) {
    return less_w(more_w(x, splat_f32_w(q->low)), splat_f32_w(q->high));
}

/* The same, but NaN becomes `nan`. */
GO_INLINE f32_w go_bounded_or_nan(const go_quantizer *q, f32_w x) {
    const i32_w number = (i32_w)(x == x);
    const f32_w bounded = go_bounded(q, x), nan = splat_f32_w(q->nan);
    return (f32_w)(((i32_w)bounded & number) | ((i32_w)nan & ~number));
}

/* Quantizes clamped and rounded elements. */
GO_INLINE i32_w go_whole(const go_quantizer *q, f32_w rounded) { return f32_to_i32_w(rounded) + q->zero; }

/* Maximum product of two scales for which all sums of products of bytes are finite. */
#define GO_MOST_SCALE 0x1p80f

/* Quantizes a vector x / scale. */
GO_INLINE void go_quantize(const go_quantizer *q, f32_w x, void *to) {
    store_i8_w(to, i32_to_i8_w(go_whole(q, round_even_w(go_bounded(q, x)))));
}

/* Quantizes one element x / scale; returns its 8 bits. */
GO_INLINE int8_t go_quantize_one(const go_quantizer *q, float x) {
    const float bounded = x != x ? q->nan : !(x > q->low) ? q->low : x < q->high ? x : q->high;
    return (int8_t)((int32_t)__builtin_rintf(bounded) + q->zero);
}

/* to[i] = table[from[i]] for unsigned bytes. */
#if GO_LEVEL == 4
GO_INLINE __attribute__((target("avx512vbmi"))) __m512i go_look_up_vector(const __m512i *table, __m512i x) {
    const __m512i low = _mm512_permutex2var_epi8(table[0], x, table[1]);
    const __m512i high = _mm512_permutex2var_epi8(table[2], x, table[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high);
}

GO_NOINLINE __attribute__((target("avx512vbmi"))) void go_look_up_vectors(const uint8_t *table, const uint8_t *from,
                                                                          int64_t count, uint8_t *to) {
    __m512i parts[4];
    GO_UNROLL for (int i = 0; i < 4; i++) parts[i] = _mm512_loadu_si512(table + 64 * i);
    int64_t i = 0;
    for (; i + 64 <= count; i += 64)
        _mm512_storeu_si512(to + i, go_look_up_vector(parts, _mm512_loadu_si512(from + i)));
    if (i == count) return;
    if (count >= 64) { /* the last vector overlaps the one before it */
        i = count - 64;
        _mm512_storeu_si512(to + i, go_look_up_vector(parts, _mm512_loadu_si512(from + i)));
        return;
    }
    const uint64_t inside = _bzhi_u64(~0ULL, (unsigned)count);
    _mm512_mask_storeu_epi8(to, inside, go_look_up_vector(parts, _mm512_maskz_loadu_epi8(inside, from)));
}
#endif

GO_NOINLINE void go_look_up(const uint8_t *table, const void *values, int64_t count, uint8_t *to) {
    const uint8_t *const from = values;
#if GO_LEVEL == 4
    if (__builtin_cpu_supports("avx512vbmi")) {
        go_look_up_vectors(table, from, count, to);
        return;
    }
#endif
    for (int64_t i = 0; i < count; i++) to[i] = table[from[i]];
}
