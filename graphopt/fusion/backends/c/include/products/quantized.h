/* Products of quantized operands, (q - zero) scale, whose result may be quantized: dequantize, multiply, quantize.

   The result has the bits of those operators in single precision, with products added in the order of low_bits.h. On a
   machine that multiplies bytes (vnni.h), a quantized result is computed on integers. Single precision is used for
   elements whose exact product is so close to the middle of two quantized numbers that the rounding of sums decides. */
typedef struct {
    int a_type, b_type, type;
    const void *a, *b;                    /* [batches, rows, depth] and [batches or 1, depth, columns] */
    int64_t batches, rows, columns, depth;
    int shares_b;                         /* whether all batches have one b */
    float a_scale, b_scale, scale;        /* scale is that of a quantized result */
    int32_t a_zero, b_zero, zero;
    const float *b_scales;                /* of each column; NULL if all are b_scale */
    const void *b_zeros;                  /* of each column; NULL if all are b_zero */
    int is_turned;                        /* whether b is [columns, depth] */
    go_bias bias;                         /* of each column */
    go_quantizer bounds;                  /* bounds of a quantized result */
    const void *packed;                   /* b for vnni.h, or NULL */
    int64_t batch;                        /* of the part that is computed */
} go_quantized;

/* Rows of A as floats. */
GO_NOINLINE void go_quantized_rows(const void *operands, int64_t row, int64_t count, int64_t k, int64_t depth,
                                   float *to, int64_t to_step) {
    const go_quantized *const p = operands;
    const int type = p->a_type;
    for (int64_t i = 0; i < count; i++, to += to_step) {
        const int64_t at = (p->batch * p->rows + row + i) * p->depth + k;
        if (type == GO_FLOATS) {
            memcpy(to, (const float *)p->a + at, (size_t)depth * sizeof(float));
            continue;
        }
        for (int64_t j = 0; j < depth; j += LANES_w) {
            const int left = depth - j < LANES_w ? (int)(depth - j) : LANES_w;
            const f32_w x = i32_to_f32_w(go_bytes(p->a, at + j, left, type) - p->a_zero) * p->a_scale;
            if (left == LANES_w) store_f32_w(to + j, x);
            else store_part_f32_w(to + j, x, left);
        }
    }
}

/* A panel of B as floats. */
GO_NOINLINE void go_quantized_panel(const void *operands, int64_t k, int64_t depth, int64_t column, int64_t count,
                                    float *to) {
    const go_quantized *const p = operands;
    const int type = p->b_type;
    const int first = (int)(count < LANES_w ? count : LANES_w), second = (int)count - first;
    f32_w s0 = splat_f32_w(p->b_scale), s1 = s0;
    i32_w z0 = splat_i32_w(p->b_zero), z1 = z0;
    if (p->b_scales) {
        s0 = load_part_f32_w(p->b_scales + column, first);
        s1 = load_part_f32_w(p->b_scales + column + first, second);
    }
    if (p->b_zeros) {
        z0 = go_bytes(p->b_zeros, column, first, type);
        z1 = go_bytes(p->b_zeros, column + first, second, type);
    }
    if (p->is_turned) {
        for (int64_t i = 0; i < depth; i++, to += GO_LOW_COLUMNS)
            for (int64_t j = 0; j < GO_LOW_COLUMNS; j++) {
                const int64_t c = column + (j < count ? j : 0);
                const int32_t zero = p->b_zeros ? go_byte_at(p->b_zeros, c, type) : p->b_zero;
                const float scale = p->b_scales ? p->b_scales[c] : p->b_scale;
                to[j] = (float)(go_byte_at(p->b, c * p->depth + k + i, type) - zero) * scale;
            }
        return;
    }
    int64_t at = ((p->shares_b ? 0 : p->batch * p->depth) + k) * p->columns + column;
    for (int64_t i = 0; i < depth; i++, at += p->columns, to += GO_LOW_COLUMNS) {
        store_f32_w(to, i32_to_f32_w(go_bytes(p->b, at, first, type) - z0) * s0);
        store_f32_w(to + LANES_w, i32_to_f32_w(go_bytes(p->b, at + first, second, type) - z1) * s1);
    }
}

/* Quantizes `count` floats. */
GO_NOINLINE void go_quantize_row(const go_quantized *p, const float *from, int64_t count, void *to) {
    const go_quantizer q = p->bounds;
    for (int64_t j = 0; j < count; j += LANES_w) {
        const int left = count - j < LANES_w ? (int)(count - j) : LANES_w;
        const f32_w x = load_part_f32_w(from + j, left) / p->scale;
        const i32_w whole = go_whole(&q, round_even_w(go_bounded_or_nan(&q, x)));
        if (left == LANES_w) store_i8_w((char *)to + j, i32_to_i8_w(whole)); /* masked stores are slow on some machines */
        else store_part_i8_w((char *)to + j, i32_to_i8_w(whole), left);
    }
}

/* Part `index` in single precision, of go_low_parts for each batch; 0 if there is no memory. `finish` stores floats. */
GO_INLINE int go_quantized_floats(const go_quantized *product, int64_t index, go_low_finish finish, void *run) {
    go_quantized p = *product;
    const int64_t parts = go_low_parts(p.rows, p.columns);
    p.batch = index / parts;
    go_low_part part = go_low_part_at(index % parts, p.rows, p.columns, p.depth, go_low_depth(p.columns, p.depth));
    part.at = p.batch * p.rows * p.columns;
    float initial[GO_LOW_WIDTH];
    if (go_has_bias(&p.bias)) {
        for (int64_t j = 0; j < part.columns; j++) initial[j] = go_bias_at(&p.bias, part.first_column + j);
        part.initial = initial;
    }
    return go_low_product(&p, &part, go_quantized_rows, go_quantized_panel, NULL, finish, run);
}
