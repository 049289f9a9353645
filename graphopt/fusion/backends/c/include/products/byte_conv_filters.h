/* Sums of products of a convolution of bytes, in tiles of filters by positions, and the weights packed for them. */
/* The dot products of a tile. */
#define GO_BYTE_CONV(kind, target, dot) \
    GO_INLINE target void go_byte_conv_tile_##kind(int rows, const char *w, const int32_t *x, const int64_t *offset, \
                                                   int64_t groups, int32_t *c, int64_t c_step) { \
        i32_w sums[GO_BYTE_ROWS][2]; \
        _Pragma("GCC unroll 12") for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = splat_i32_w(0); \
        for (int64_t k = 0; k < groups; k++, w += 4 * rows) { \
            const i32_w x0 = load_i32_w(x + offset[k]), x1 = load_i32_w(x + offset[k] + LANES_w); \
            _Pragma("GCC unroll 12") for (int i = 0; i < rows; i++) { \
                const i32_w y = load_one_i32_w(w + 4 * i); \
                sums[i][0] = dot(sums[i][0], x0, y); \
                sums[i][1] = dot(sums[i][1], x1, y); \
            } \
        } \
        _Pragma("GCC unroll 12") for (int i = 0; i < rows; i++) { \
            store_i32_w(c + i * c_step, sums[i][0]); \
            store_i32_w(c + i * c_step + LANES_w, sums[i][1]); \
        } \
    } \
    GO_NOINLINE target void go_byte_conv_panel_##kind(int64_t rows, const char *w, const int32_t *x, \
                                                      const int64_t *offset, int64_t groups, int32_t *c, \
                                                      int64_t c_step) { \
        while (rows > 0) { \
            const int count = go_byte_conv_rows(rows); \
            switch (count) { \
            case GO_BYTE_ROWS: go_byte_conv_tile_##kind(GO_BYTE_ROWS, w, x, offset, groups, c, c_step); break; \
            GO_CONV_CASE(8, kind) \
            GO_CONV_CASE(4, kind) \
            GO_CONV_CASE(2, kind) \
            default: go_byte_conv_tile_##kind(1, w, x, offset, groups, c, c_step); \
            } \
            rows -= count, w += count * groups * 4, c += count * c_step; \
        } \
    } \
    GO_INLINE target void go_byte_conv_vectors_##kind(int count, const char *w, const int32_t *x, \
                                                      const int64_t *offset, int64_t groups, int32_t *c) { \
        i32_w sums[4]; \
        GO_UNROLL for (int i = 0; i < count; i++) sums[i] = splat_i32_w(0); \
        for (int64_t k = 0; k < groups; k++) { \
            const i32_w y = load_one_i32_w(w + 4 * k); \
            GO_UNROLL for (int i = 0; i < count; i++) \
                sums[i] = dot(sums[i], load_i32_w(x + offset[k] + i * LANES_w), y); \
        } \
        GO_UNROLL for (int i = 0; i < count; i++) store_i32_w(c + i * LANES_w, sums[i]); \
    } \
    GO_NOINLINE target void go_byte_conv_strip_##kind(const char *w, const int32_t *x, const int64_t *offset, \
                                                      int64_t groups, int64_t points, int32_t *c) { \
        for (; points > GO_BYTE_COLUMNS; points -= GO_CONV_WIDE, x += GO_CONV_WIDE, c += GO_CONV_WIDE) \
            go_byte_conv_vectors_##kind(4, w, x, offset, groups, c); \
        if (points > LANES_w) go_byte_conv_vectors_##kind(2, w, x, offset, groups, c); \
        else if (points > 0) go_byte_conv_vectors_##kind(1, w, x, offset, groups, c); \
    }
#define GO_CONV_CASE(count, kind) \
    case count + (GO_BYTE_ROWS > count ? 0 : 256): \
        go_byte_conv_tile_##kind(GO_BYTE_ROWS > count ? count : 1, w, x, offset, groups, c, c_step); \
        break;

/* The number of rows of the next tile, of the `rows` that remain. */
GO_INLINE int go_byte_conv_rows(int64_t rows) {
    if (rows >= GO_BYTE_ROWS) return GO_BYTE_ROWS;
    return rows >= 8 ? 8 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
}
GO_BYTE_CONV(pairs, , go_dot_pairs)
#if GO_LEVEL == 4
GO_BYTE_CONV(quads, __attribute__((target("avx512vnni"))), go_dot_quads)
#endif
#undef GO_BYTE_CONV
#undef GO_CONV_CASE

/* Sums of `rows` filters at `points` positions; c_step is the distance between the sums of two filters. */
GO_INLINE void go_byte_conv_sums(const go_byte_conv *conv, int64_t rows, const char *w, const int32_t *x,
                                 int64_t points, int32_t *c, int64_t c_step) {
    const int64_t groups = conv->groups, *const offset = conv->offset;
#if GO_LEVEL == 4
    if (conv->size == 4) {
        if (rows == 1) go_byte_conv_strip_quads(w, x, offset, groups, points, c);
        else
            for (int64_t j = 0; j < points; j += GO_BYTE_COLUMNS)
                go_byte_conv_panel_quads(rows, w, x + j, offset, groups, c + j, c_step);
        return;
    }
#endif
    if (rows == 1) go_byte_conv_strip_pairs(w, x, offset, groups, points, c);
    else
        for (int64_t j = 0; j < points; j += GO_BYTE_COLUMNS)
            go_byte_conv_panel_pairs(rows, w, x + j, offset, groups, c + j, c_step);
}

GO_INLINE size_t go_byte_filters_size(int64_t convs, int64_t filters, int64_t channels, int64_t height, int64_t width) {
    return (size_t)(convs * go_byte_filters_of(filters, channels, height, width).whole) * 4;
}

GO_NOINLINE void go_byte_filters_pack_one(const void *from, int64_t filters, int64_t channels, int64_t height,
                                          int64_t width, int type, int32_t *to) {
    const int size = go_group_size();
    const go_byte_filters layout = go_byte_filters_of(filters, channels, height, width);
    const int64_t along = go_byte_along(channels, size), words = go_byte_words(channels, width, size);
    const int32_t shift = go_panel_shift(type, size);
    for (int64_t f = 0; f <= filters; f++) {
        const int64_t block = f / GO_CONV_BLOCK * GO_CONV_BLOCK; /* no tile spans two blocks */
        int64_t first = block, count = 1;
        const int64_t last = go_least(block + GO_CONV_BLOCK, filters);
        if (f < filters)
            while (count = go_byte_conv_rows(last - first), f >= first + count) first += count;
        else first = f;
        int32_t *const tile = to + first * layout.groups + f - first;
        int32_t sum = 0, square = 0;
        for (int64_t k = 0; k < layout.groups; k++) {
            int32_t x[4] = {0};
            for (int i = 0; i < size; i++) {
                const int64_t channel = along > 1 ? 0 : k / (height * words) * size + i;
                const int64_t column = along > 1 ? k % words * size + i : k % words;
                if (channel >= channels || column >= width) continue;
                const int64_t tap = ((f * channels + channel) * height + k / words % height) * width + column;
                x[i] = f == filters ? 1 : go_byte_at(from, tap, type) + shift;
                sum += x[i];
                square += x[i] * x[i];
            }
            const uint32_t pair = ((uint32_t)x[0] & 0xffff) | (uint32_t)x[1] << 16;
            const uint32_t low = ((uint32_t)x[0] & 0xff) | ((uint32_t)x[1] & 0xff) << 8;
            tile[k * count] = (int32_t)(size == 2 ? pair : low | ((uint32_t)x[2] & 0xff) << 16 | (uint32_t)x[3] << 24);
        }
        if (f < filters) to[layout.sums + f] = sum, to[layout.squares + f] = square;
    }
}

GO_INLINE void go_byte_filters_pack(const void *from, int64_t convs, int64_t filters, int64_t channels, int64_t height,
                                    int64_t width, int type, void *to) {
    const int64_t step = filters * channels * height * width;
    const int64_t whole = go_byte_filters_of(filters, channels, height, width).whole;
    for (int64_t i = 0; i < convs; i++)
        go_byte_filters_pack_one((const char *)from + i * step, filters, channels, height, width, type,
                                 (int32_t *)to + i * whole);
}
