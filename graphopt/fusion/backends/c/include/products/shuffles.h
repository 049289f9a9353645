/* Vectors of floats in another order: transposed squares, every second element, and two vectors in turn. */

#ifdef __clang__
#define GO_PICK(y, a, b, lane) \
    for (int i_ = 0; i_ < LANES_w; i_++) y[i_] = lane[i_] < LANES_w ? a[lane[i_]] : b[lane[i_] - LANES_w];
#else
#define GO_PICK(y, a, b, lane) y = __builtin_shuffle(a, b, lane);
#endif
/* Transposes a square of vectors: exchanges the off-diagonal blocks of squares of 2, 4, 8 ... elements. */
GO_INLINE void go_transpose(f32_w *x) {
    GO_UNROLL for (int step = 1; step < LANES_w; step *= 2) {
        i32_w low = {0}, high = {0};
        GO_UNROLL for (int i = 0; i < LANES_w; i++) {
            low[i] = i & step ? LANES_w + i - step : i;
            high[i] = i & step ? LANES_w + i : i + step;
        }
        GO_UNROLL for (int i = 0; i < LANES_w; i++) {
            if (i & step) continue;
            const f32_w a = x[i], b = x[i + step];
            GO_PICK(x[i], a, b, low)
            GO_PICK(x[i + step], a, b, high)
        }
    }
}
#undef GO_PICK

/* The elements of a and b with even numbers; elements of both in turn, the first or second half. */
#if GO_LEVEL == 4
GO_INLINE f32_w go_even(f32_w a, f32_w b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return (f32_w)_mm512_permutex2var_ps((__m512)a, even, (__m512)b);
}
GO_INLINE void go_zip(f32_w a, f32_w b, float *to) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_or_si512(low, _mm512_set1_epi32(8));
    store_f32_w(to, (f32_w)_mm512_permutex2var_ps((__m512)a, low, (__m512)b));
    store_f32_w(to + LANES_w, (f32_w)_mm512_permutex2var_ps((__m512)a, high, (__m512)b));
}
#elif GO_LEVEL == 3
GO_INLINE f32_w go_even(f32_w a, f32_w b) {
    const __m256 pairs = _mm256_shuffle_ps((__m256)a, (__m256)b, 0x88);
    return (f32_w)_mm256_permute4x64_pd((__m256d)pairs, 0xd8);
}
GO_INLINE void go_zip(f32_w a, f32_w b, float *to) {
    const __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b), high = _mm256_unpackhi_ps((__m256)a, (__m256)b);
    store_f32_w(to, (f32_w)_mm256_permute2f128_ps(low, high, 0x20));
    store_f32_w(to + LANES_w, (f32_w)_mm256_permute2f128_ps(low, high, 0x31));
}
#else
GO_INLINE f32_w go_even(f32_w a, f32_w b) {
    f32_w even;
    for (int i = 0; i < LANES_w / 2; i++) even[i] = a[2 * i], even[LANES_w / 2 + i] = b[2 * i];
    return even;
}
GO_INLINE void go_zip(f32_w a, f32_w b, float *to) {
    for (int i = 0; i < LANES_w; i++) to[2 * i] = a[i], to[2 * i + 1] = b[i];
}
#endif
