/* Convolutions of dequantized operands with a quantized result: dequantize, convolve, add the bias, clamp, quantize.

   The result has the bits of those operators in single precision, with products added in the order of onnxruntime
   (low_bits.h). It is computed on integers, except for elements whose exact value is so close to the midpoint of two
   quantized values that the rounding of sums decides (vnni.h has the margin). */
enum {
    GO_CONV_NORMS = 64,   /* minimum products of a sum for which norms of inputs are computed instead of bounded */
    GO_CONV_ELEMENTS = 8, /* sums in single precision that are computed together */
    GO_CONV_TERMS = 128   /* products whose operands are dequantized together: a divisor of all blocks but the last */
};

typedef struct {
    go_byte_conv c;             /* without bias */
    const void *weights;        /* not packed */
    go_bias bias;               /* of each filter */
    float low, high;            /* bounds of the result before quantization */
    go_quantizer bounds;        /* with the same bounds */
    int64_t block;              /* products of a partial sum */
    float reach, norm;          /* margin in units of norms and scales, and an upper bound of norms */
    float *norms;               /* of the inputs at each position of each convolution, or NULL */
    float x_values[256];        /* dequantized inputs, indexed by their bytes */
} go_quantized_conv;

/* Plans a convolution whose axes are set; returns 0 if an allocation fails. */
GO_NOINLINE int go_quantized_conv_plan(go_quantized_conv *p) {
    go_byte_conv *const c = &p->c;
    if (!go_byte_conv_plan(c)) return 0;
    const int32_t zero = go_byte_at(c->x_zero, 0, c->x_type), lowest = c->x_type == GO_I8 ? -128 : 0;
    for (int q = 0; q < 256; q++)
        p->x_values[q] = (float)((c->x_type == GO_U8 ? q : (int8_t)q) - zero) * c->x_scale[0];
    const int64_t depth = go_byte_conv_depth(c), most = go_low_depth(c->out[0] * c->out[1], depth);
    p->block = go_least(most, depth);
    const float roots = 1.5f * __builtin_sqrtf((float)p->block) + 2 * __builtin_sqrtf((float)depth / (float)p->block);
    p->reach = (2 + roots) * 0x1p-24f;
    const int type = c->type;
    p->bounds = go_bounds_of(p->low, p->high, c->scale[0], go_byte_at(c->zero, 0, type), type);
    const int32_t below = zero - lowest, above = lowest + 255 - zero;
    p->norm = (float)(below > above ? below : above) * __builtin_sqrtf((float)depth);
    if (c->input == NULL || depth < GO_CONV_NORMS) return 1;
    const int64_t count = c->batch * c->convs * c->out[0] * c->length[1] + GO_CONV_WIDE;
    p->norms = malloc((size_t)count * sizeof *p->norms);
    return p->norms != NULL;
}

/* The index in `norms` of row `row` of a convolution of an image. */
GO_INLINE int64_t go_quantized_conv_row(const go_byte_conv *c, int64_t image, int64_t conv, int64_t row) {
    return ((image * c->convs + conv) * c->out[0] + row) * c->length[1];
}

/* The number of bands whose norms are computed after the planes of the input, by go_parallel. */
GO_INLINE int64_t go_quantized_conv_bands(const go_quantized_conv *p) {
    return p->norms ? p->c.batch * p->c.convs * p->c.bands : 0;
}

GO_NOINLINE void go_quantized_conv_norms(void *product, size_t index) {
    go_quantized_conv *const p = product;
    go_byte_conv *const c = &p->c;
    const int64_t band = (int64_t)index % c->bands, at = (int64_t)index / c->bands, top = band * c->rows;
    const int64_t points = (go_least(c->rows, c->out[0] - top) - 1) * c->length[1] + c->out[1];
    const char *const ones = (const char *)((const int32_t *)c->packed + c->layout.ones);
    const int32_t *const x = c->input + at * c->sets * go_byte_conv_set(c) + top * c->length[1];
    const int32_t zx = go_byte_conv_zero(c), depth = go_byte_conv_depth(c);
    float *const to = p->norms + go_quantized_conv_row(c, 0, at, top);
    int32_t *const sums = malloc((size_t)go_byte_conv_step(c) * 4);
    if (sums == NULL) {
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    go_byte_conv_sums(c, 1, ones, x, points, sums, 0);
    for (int64_t j = 0; j < points; j += LANES_w) {
        i32_w squares = splat_i32_w(0);
        for (int64_t k = 0; k < c->groups; k++) {
            const i32_w group = load_i32_w(x + c->offset[k] + j);
            const i32_w even = group & 0xff00ff, odd = group >> 8 & 0xff00ff; /* of four bytes */
            if (c->size == 4) squares = go_dot_pairs(go_dot_pairs(squares, even, even), odd, odd);
            else squares = go_dot_pairs(squares, group, group);
        }
        /* at least sum (x - zx)^2: groups of the padding may have zero points beyond the last channel */
        const f32_w norms = sqrt_w(i32_to_f32_w(squares - 2 * zx * load_i32_w(sums + j) + depth * zx * zx));
        if (j + LANES_w <= points) store_f32_w(to + j, norms);
        else store_part_f32_w(to + j, norms, (int)(points - j));
    }
    free(sums);
}

/* Elements of the result in single precision. */
typedef struct {
    const go_quantized_conv *product;
    const char *x; /* the channels of the convolution of an image */
    int64_t filter[GO_CONV_ELEMENTS], top[GO_CONV_ELEMENTS], left[GO_CONV_ELEMENTS]; /* positions of first taps */
    int8_t *to[GO_CONV_ELEMENTS];
    int count;
} go_conv_elements;

/* a b + c with the rounding of float products at this level. */
GO_INLINE float go_multiply_add(float a, float b, float c) {
#if GO_LEVEL == 2
    return a * b + c;
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/* The index in a plane of the input for a tap of an element, or -1 for padding. */
GO_INLINE int64_t go_conv_tap(const go_conv_elements *each, int at, int64_t y, int64_t x) {
    const go_byte_conv *const c = &each->product->c;
    const int64_t row = each->top[at] + y * c->dilation[0], column = each->left[at] + x * c->dilation[1];
    const int inside = row >= 0 && row < c->in[0] && column >= 0 && column < c->in[1];
    return inside ? row * c->in[1] + column : -1;
}

/* Dequantizes the inputs of an element, for `count` products from product `first` on. */
GO_NOINLINE void go_conv_inputs(const go_conv_elements *each, int at, int64_t first, int64_t count, float *to) {
    const go_quantized_conv *const p = each->product;
    const int64_t height = p->c.kernel[0], width = p->c.kernel[1], taps = height * width;
    const int64_t step = p->c.in[0] * p->c.in[1];
    const uint8_t *plane = (const uint8_t *)each->x + first / taps * step;
    int64_t tap = first % taps, position[GO_CONV_TERMS];
    const int few = taps <= GO_CONV_TERMS;
    for (int64_t y = 0; few && y < height; y++)
        for (int64_t x = 0; x < width; x++) position[y * width + x] = go_conv_tap(each, at, y, x);
    for (int64_t k = 0; k < count; k++) {
        const int64_t near = few ? position[tap] : go_conv_tap(each, at, tap / width, tap % width);
        to[k] = near >= 0 ? p->x_values[plane[near]] : 0;
        if (++tap == taps) tap = 0, plane += step;
    }
}

/* Dequantizes the weights of a filter in the same way. */
GO_NOINLINE void go_conv_weights(const go_quantized_conv *p, int64_t filter, int64_t first, int64_t count, float *to) {
    const go_byte_conv *const c = &p->c;
    const char *const from = (const char *)p->weights + filter * go_byte_conv_depth(c) + first;
    const int32_t zero = go_byte_at(c->w_zeros, c->w_zeros_vary ? filter : 0, c->w_type);
    const float scale = c->w_scales[c->w_scales_vary ? filter : 0];
    for (int64_t k = 0; k < count; k += LANES_w) {
        const int left = count - k < LANES_w ? (int)(count - k) : LANES_w;
        store_f32_w(to + k, i32_to_f32_w(go_bytes(from, k, left, c->w_type) - zero) * scale);
    }
}

/* Computes the elements, at least one and at most `lanes`. */
GO_INLINE void go_quantize_conv_lanes(const go_conv_elements *each, const int lanes) {
    const go_quantized_conv *const p = each->product;
    const int64_t depth = go_byte_conv_depth(&p->c);
    float total[GO_CONV_ELEMENTS] = {0}, sum[GO_CONV_ELEMENTS] = {0};
    float x[GO_CONV_ELEMENTS][GO_CONV_TERMS], w[GO_CONV_ELEMENTS][GO_CONV_TERMS];
    for (int64_t first = 0; first < depth; first += GO_CONV_TERMS) {
        const int64_t count = go_least(GO_CONV_TERMS, depth - first);
        for (int i = 0; i < lanes; i++) {
            const int at = i < each->count ? i : 0;
            go_conv_inputs(each, at, first, count, x[i]);
            go_conv_weights(p, each->filter[at], first, count, w[i]);
        }
        if (first % p->block == 0)
            for (int i = 0; i < lanes; i++) total[i] += sum[i], sum[i] = 0;
        for (int64_t k = 0; k < count; k++)
            GO_UNROLL for (int i = 0; i < lanes; i++) sum[i] = go_multiply_add(x[i][k], w[i][k], sum[i]);
    }
    for (int i = 0; i < each->count; i++) {
        const float result = total[i] + sum[i] + go_bias_at(&p->bias, each->filter[i]);
        *each->to[i] = go_quantize_one(&p->bounds, result / p->c.scale[0]);
    }
}

GO_NOINLINE void go_quantize_conv_elements(go_conv_elements *each) {
    if (each->count > 4) go_quantize_conv_lanes(each, GO_CONV_ELEMENTS);
    else if (each->count > 2) go_quantize_conv_lanes(each, 4);
    else if (each->count > 1) go_quantize_conv_lanes(each, 2);
    else if (each->count > 0) go_quantize_conv_lanes(each, 1);
    each->count = 0;
}

/* The lanes in which a > b or either is NaN, as a bit mask. */
GO_INLINE unsigned go_exceeds(f32_w a, f32_w b) {
#if GO_LEVEL == 4
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NLE_UQ);
#elif GO_LEVEL == 3
    return (unsigned)_mm256_movemask_ps((__m256)~(a <= b));
#elif GO_LEVEL == 2
    return (unsigned)_mm_movemask_ps((__m128)~(a <= b));
#else
    const i32_w more = ~(a <= b);
    unsigned bits = 0;
    for (int i = 0; i < LANES_w; i++) bits |= (unsigned)(more[i] & 1) << i;
    return bits;
#endif
}

/* Adds the elements of a filter whose lanes are set in `near`; the first lane is position `j` of the block. */
GO_NOINLINE void go_conv_add_elements(go_conv_elements *each, const go_byte_conv_block *b, int64_t filter, int64_t j,
                                      unsigned near, int8_t *to) {
    const go_byte_conv *const c = b->conv;
    for (; near; near &= near - 1) {
        const int lane = __builtin_ctz(near), at = each->count;
        const int64_t row = (j + lane) / c->out[1], column = (j + lane) % c->out[1];
        each->filter[at] = filter, each->to[at] = to + lane;
        each->top[at] = (b->top + row) * c->stride[0] - c->pad[0];
        each->left[at] = column * c->stride[1] - c->pad[1];
        if (++each->count == GO_CONV_ELEMENTS) go_quantize_conv_elements(each);
    }
}

/* Quantizes the sums of a block. */
GO_INLINE void go_quantized_conv_results(const go_byte_conv_block *b, int type) {
    const go_byte_conv *const c = b->conv;
    const go_quantized_conv *const p = (const go_quantized_conv *)c;
    const int64_t channels = (b->image * c->convs + b->at) * c->channels;
    const go_quantizer q = p->bounds;
    go_conv_elements uncertain; /* large */
    uncertain.product = p, uncertain.count = 0;
    (void)type;
    uncertain.x = (const char *)c->x + channels * c->in[0] * c->in[1];
    const float *const norms = p->norms ? p->norms + go_quantized_conv_row(c, b->image, b->at, b->top) : NULL;
    for (int64_t i = 0; i < b->count; i++) {
        const go_byte_conv_filter f = go_byte_conv_filter_of(b, i);
        int32_t *const values = b->sums + i * b->step;
        const float factor = c->x_scale[0] * c->w_scales[c->w_scales_vary ? f.number : 0], scale = factor / c->scale[0];
        const float bias = go_bias_at(&p->bias, f.number) / c->scale[0];
        const int32_t square = b->w_squares[i] - f.zero * (2 * b->w_sums[i] - go_byte_conv_depth(c) * f.zero);
        const float reach = __builtin_fabsf(p->reach * __builtin_sqrtf((float)square) * scale);
        /* In addition, the rounding error of unclamped values is at most 8 units of the value and of its terms. */
        float certain = 0.5f - (256 + 2 * __builtin_fabsf(bias)) * 0x1p-21f - (norms ? 0 : p->norm * reach);
        if (!(__builtin_fabsf(factor) <= GO_MOST_SCALE)) certain = -1; /* sums may be NaN */
        for (int64_t row = 0; row < b->rows; row++)
            for (int64_t j = 0; j < b->width; j += LANES_w) {
                const int64_t from = row * b->pitch + j, at = row * b->width + j;
                const f32_w y = i32_to_f32_w(go_byte_conv_exact(b, &f, values, from)) * scale + bias;
                const f32_w bounded = go_bounded(&q, y), rounded = round_even_w(bounded);
                f32_w most = splat_f32_w(certain);
                if (norms) most = fma_w(load_f32_w(norms + from), splat_f32_w(-reach), most);
                int8_t *const to = (int8_t *)values + at; /* this overwrites only sums that were read before */
                store_i8_w(to, i32_to_i8_w(go_whole(&q, rounded)));
                unsigned near = go_exceeds(abs_f32_w(bounded - rounded), most);
                if (__builtin_expect(near == 0, 1)) continue;
                if (b->width - j < LANES_w) near &= (1u << (b->width - j)) - 1;
                go_conv_add_elements(&uncertain, b, f.number, at, near, to);
            }
    }
    go_quantize_conv_elements(&uncertain);
}
