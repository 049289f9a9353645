/* Convolutions whose vectors hold adjacent filters: positions are anywhere in the input. */

/* Sums of products from ... end - 1 of `vectors` vectors of filters at `rows` positions, added to to[row]. */
GO_INLINE void go_conv_dots(const go_conv *c, const float *x, const int64_t *at, const float *weights, int64_t from,
                            int64_t end, const int rows, const int vectors, float *to) {
    const int64_t *offset = c->offset, apart = c->depth * LANES_w;
    f32_w sum[12][4];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sum[i][j] = splat_f32_w(0);
    for (int64_t r = from; r < end; r++) {
        const float *one = x + offset[r];
        f32_w w[4];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) w[j] = load_f32_w(weights + j * apart + r * LANES_w);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            const f32_w v = splat_f32_w(one[at[i]]);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sum[i][j] = fma_w(v, w[j], sum[i][j]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            float *cell = to + (i * vectors + j) * LANES_w;
            store_f32_w(cell, load_f32_w(cell) + sum[i][j]);
        }
}

GO_INLINE int64_t go_conv_rows(int64_t vectors) {
#if GO_LEVEL == 4
    return vectors > 3 ? 6 : vectors > 2 ? 8 : 12;
#elif GO_LEVEL == 3
    return vectors > 1 ? 6 : 12;
#else
    return vectors > 1 ? 4 : 8;
#endif
}

/* The same for a block of registers with at most `rows` positions. */
static void go_conv_dot(const go_conv *c, const float *x, const int64_t *at, const float *weights, int64_t from,
                        int64_t end, int64_t vectors, int64_t rows, float *to) {
#if GO_LEVEL == 4
    if (vectors == 4 && rows <= 2) go_conv_dots(c, x, at, weights, from, end, 2, 4, to);
    else if (vectors == 4 && rows <= 4) go_conv_dots(c, x, at, weights, from, end, 4, 4, to);
    else if (vectors == 4) go_conv_dots(c, x, at, weights, from, end, 6, 4, to);
    else if (vectors == 3) go_conv_dots(c, x, at, weights, from, end, 8, 3, to);
    else if (vectors == 2) go_conv_dots(c, x, at, weights, from, end, 12, 2, to);
    else go_conv_dots(c, x, at, weights, from, end, 12, 1, to);
#elif GO_LEVEL == 3
    (void)rows;
    if (vectors == 2) go_conv_dots(c, x, at, weights, from, end, 6, 2, to);
    else go_conv_dots(c, x, at, weights, from, end, 12, 1, to);
#else
    (void)rows;
    if (vectors == 2) go_conv_dots(c, x, at, weights, from, end, 4, 2, to);
    else go_conv_dots(c, x, at, weights, from, end, 8, 1, to);
#endif
}

/* to[filter][point] of from[point][filter]; `filters` is a multiple of the lanes. */
static void go_conv_transpose(const float *from, int64_t points, int64_t filters, float *to) {
    for (int64_t p = 0; p < points; p += 16)
        for (int64_t f = 0; f < filters; f++)
            for (int64_t q = p; q < go_least(points, p + 16); q++) to[f * points + q] = from[q * filters + f];
}

/* Filters first ... first + count - 1 of a group at the positions of a block of `images` images. at[] is the place of
   each position in x, repeated up to a multiple of the rows of a block; `sums` and `turned` are scratch memory. */
GO_INLINE void go_conv_filters(const go_conv *c, const float *x, int64_t image, int64_t images, int64_t group,
                               const int64_t *start, const int64_t *block, int64_t first, int64_t count,
                               const int64_t *at, float *sums, float *turned,
                               void (*finish)(void *, int64_t, int64_t, const void *), void *data) {
    const int64_t points = block[0] * block[1] * block[2], whole = points == c->points, all = images * points;
    const int64_t packed = go_round_up(c->filters, LANES_w) * c->depth;
    const float *bias = c->bias ? c->bias + group * c->filters : NULL;
    for (int64_t k = first; k < first + count; k += GO_CONV_VECTORS * LANES_w) {
        const int64_t some = go_least(GO_CONV_VECTORS * LANES_w, first + count - k);
        const int64_t vectors = go_ceil_div(some, LANES_w), rows = go_conv_rows(vectors), wide = vectors * LANES_w;
        const float *weights = c->weights + group * packed + k * c->depth;
        for (int64_t f = 0; f < wide; f++) sums[f] = bias && f < some ? bias[k + f] : 0;
        for (int64_t p = 1; p < go_round_up(all, rows); p++)
            memcpy(sums + p * wide, sums, (size_t)wide * sizeof(float));
        for (int64_t from = 0; from < c->depth; from += GO_CONV_SUM) {
            const int64_t end = go_least(c->depth, from + GO_CONV_SUM);
            for (int64_t p = 0; p < all; p += rows)
                go_conv_dot(c, x, at + p, weights, from, end, vectors, all - p, sums + p * wide);
        }
        for (int64_t n = 0; n < images; n++) {
            go_conv_transpose(sums + n * points * wide, points, wide, turned);
            const int64_t plane = ((image + n) * c->groups + group) * c->filters + k;
            const int64_t calls = whole ? 1 : some * block[0] * block[1];
            for (int64_t i = 0; i < calls; i++) {
                const int64_t y = i % block[1], z = i / block[1] % block[0], f = i / block[1] / block[0];
                const int64_t row = ((start[0] + z) * c->out[1] + start[1] + y) * c->out[2] + start[2];
                if (whole) finish(data, plane * c->points, some * points, turned);
                else finish(data, (plane + f) * c->points + row, block[2], turned + i * block[2]);
            }
        }
    }
}
