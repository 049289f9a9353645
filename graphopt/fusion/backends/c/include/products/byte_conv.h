/* Convolutions of bytes in 2 dimensions, exact modulo 2^32, without a matrix of patches: the input becomes groups of
   channels (byte_tiles.h), padded with its zero point, one plane for each remainder of a position divided by the stride.
   Then the positions of the output that a vector holds are adjacent in the input at each tap. Rows of positions are as
   far apart as rows of planes, so that some positions beyond the end of a row are computed and dropped.

   In groups of four bytes, those of weights are signed, and those of the input unsigned. */
enum {
    GO_CONV_BLOCK = 4 * GO_BYTE_ROWS, /* filters of a part */
    GO_CONV_BAND = 512                /* positions of a part, if rows are short */
};

typedef struct {
    int x_type, w_type, type;
    const void *x, *packed;
    const void *x_zero, *w_zeros, *zero; /* numbers of these types, `zero` of the result; NULL for 0 */
    const float *x_scale, *w_scales, *scale;
    int w_zeros_vary, w_scales_vary;     /* whether there is one for each filter */
    const int32_t *bias;                 /* of each filter, or NULL */
    int64_t batch, channels, filters, in[2], out[2], kernel[2], stride[2], dilation[2], pad[2];
    int size;                            /* numbers of a group */
    int64_t sets, groups;                /* of channels, and of products of a sum */
    int64_t phases[2], length[2], plane; /* of the planes of a set; their elements are groups */
    int32_t *input;                      /* planes of each image and set */
    int64_t *offset;                     /* of each group of a sum, in elements */
    int subtracts;                       /* whether sums of inputs are subtracted */
    int64_t rows, bands, blocks;         /* rows of a part, and numbers of parts */
    int failed;
} go_byte_conv;

/* Sets the sizes along an axis. */
GO_INLINE void go_byte_conv_axis(go_byte_conv *c, int axis, int64_t in, int64_t kernel, int64_t stride,
                                 int64_t dilation, int64_t before, int64_t after, int same) {
    c->in[axis] = in, c->kernel[axis] = kernel, c->stride[axis] = stride, c->dilation[axis] = dilation;
    c->out[axis] = go_conv_size(in, kernel, stride, dilation, before, after, same);
    c->pad[axis] = go_conv_pad(in, c->out[axis], kernel, stride, dilation, before, same);
}

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
    }
#define GO_CONV_CASE(count, kind) \
    case count + (GO_BYTE_ROWS > count ? 0 : 256): \
        go_byte_conv_tile_##kind(GO_BYTE_ROWS > count ? count : 1, w, x, offset, groups, c, c_step); \
        break;

/* The number of rows of the next tile; `rows` remain. */
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

GO_INLINE void go_byte_conv_panel(int size, int64_t rows, const char *w, const int32_t *x, const int64_t *offset,
                                  int64_t groups, int32_t *c, int64_t c_step) {
#if GO_LEVEL == 4
    if (size == 4) {
        go_byte_conv_panel_quads(rows, w, x, offset, groups, c, c_step);
        return;
    }
#endif
    (void)size;
    go_byte_conv_panel_pairs(rows, w, x, offset, groups, c, c_step);
}

/* Packed weights: for each tile, its filters, group by group; then a filter of ones, and the sums of filters. */
GO_INLINE size_t go_byte_filters_size(int64_t filters, int64_t channels, int64_t taps) {
    const int64_t size = go_group_size(), groups = go_ceil_div(channels, size) * taps;
    return (size_t)((filters + 1) * groups + filters) * 4;
}

GO_NOINLINE void go_byte_filters_pack(const void *from, int64_t filters, int64_t channels, int64_t taps, int type,
                                    void *to) {
    const int size = go_group_size();
    const int64_t sets = go_ceil_div(channels, size), groups = sets * taps;
    const int32_t shift = go_panel_shift(type, size);
    int32_t *const sums = (int32_t *)to + (filters + 1) * groups;
    for (int64_t f = 0; f <= filters; f++) {
        const int64_t block = f / GO_CONV_BLOCK * GO_CONV_BLOCK; /* tiles begin anew in each block */
        int64_t first = block, count = 1;
        const int64_t last = go_least(block + GO_CONV_BLOCK, filters);
        if (f < filters)
            while (count = go_byte_conv_rows(last - first), f >= first + count) first += count;
        else first = f;
        char *const tile = (char *)to + (first * groups + f - first) * 4;
        int32_t sum = 0;
        for (int64_t k = 0; k < groups; k++) {
            int32_t x[4] = {0};
            for (int i = 0; i < size; i++) {
                const int64_t channel = k / taps * size + i;
                if (channel >= channels) continue;
                x[i] = f == filters ? 1 : go_byte_at(from, (f * channels + channel) * taps + k % taps, type) + shift;
                sum += x[i];
            }
            const uint32_t pair = ((uint32_t)x[0] & 0xffff) | (uint32_t)x[1] << 16;
            const uint32_t low = ((uint32_t)x[0] & 0xff) | ((uint32_t)x[1] & 0xff) << 8;
            const uint32_t group = size == 2 ? pair : low | ((uint32_t)x[2] & 0xff) << 16 | (uint32_t)x[3] << 24;
            memcpy(tile + k * count * 4, &group, 4);
        }
        if (f < filters) sums[f] = sum;
    }
}

/* Plans a convolution whose axes are set; returns whether there is memory. */
GO_NOINLINE int go_byte_conv_plan(go_byte_conv *c) {
    const int64_t taps = c->kernel[0] * c->kernel[1];
    c->size = go_group_size();
    c->sets = go_ceil_div(c->channels, c->size);
    c->groups = c->sets * taps;
    for (int i = 0; i < 2; i++) {
        const int64_t reach = (c->kernel[i] - 1) * c->dilation[i];
        c->phases[i] = go_least(c->stride[i], reach + 1);
        c->length[i] = c->out[i] + reach / c->stride[i];
    }
    c->plane = c->length[0] * c->length[1];
    const int64_t set = c->phases[0] * c->phases[1] * c->plane;
    c->offset = malloc((size_t)c->groups * sizeof *c->offset);
    c->input = malloc((size_t)(c->batch * c->sets * set + GO_BYTE_COLUMNS) * 4);
    if (c->offset == NULL || c->input == NULL) return 0;
    for (int64_t k = 0; k < c->groups; k++) {
        const int64_t y = k % taps / c->kernel[1] * c->dilation[0], x = k % c->kernel[1] * c->dilation[1];
        const int64_t phase = y % c->stride[0] * c->phases[1] + x % c->stride[1];
        c->offset[k] = k / taps * set + phase * c->plane + y / c->stride[0] * c->length[1] + x / c->stride[1];
    }
    const int64_t zeros = c->w_zeros_vary ? c->filters : 1;
    c->subtracts = 0;
    for (int64_t i = 0; i < zeros; i++)
        c->subtracts |= go_byte_at(c->w_zeros, i, c->w_type) + go_panel_shift(c->w_type, c->size) != 0;
    c->rows = go_least(c->out[0], c->length[1] < GO_CONV_BAND ? GO_CONV_BAND / c->length[1] : 1);
    c->bands = go_ceil_div(c->out[0], c->rows);
    c->blocks = go_ceil_div(c->filters, GO_CONV_BLOCK);
    return 1;
}

GO_INLINE int32_t go_byte_conv_zero(const go_byte_conv *c) {
    return go_byte_at(c->x_zero, 0, c->x_type) + go_row_shift(c->x_type, c->size);
}

/* The groups of one row of the input, for a set of `count` channels. */
GO_INLINE void go_conv_groups(const go_byte_conv *c, const char *from, int size, int64_t count, int32_t *to) {
    const int32_t shift = go_row_shift(c->x_type, size);
    const int64_t step = c->in[0] * c->in[1];
    for (int64_t j = 0; j < c->in[1]; j += LANES_w) {
        const int left = c->in[1] - j < LANES_w ? (int)(c->in[1] - j) : LANES_w;
        i32_w x[4];
        for (int i = 0; i < size; i++) x[i] = i < count ? go_bytes(from, i * step + j, left, c->x_type) + shift : splat_i32_w(0);
        if (left == LANES_w) store_i32_w(to + j, go_group(x, size));
        else store_part_i32_w(to + j, go_group(x, size), left);
    }
}

/* The planes of one set of channels of one image. */
GO_NOINLINE void go_byte_conv_input(void *conv, size_t index) {
    go_byte_conv *const c = conv;
    const int64_t image = (int64_t)index / c->sets, set = (int64_t)index % c->sets;
    const int64_t count = go_least(c->size, c->channels - set * c->size), width = c->in[1];
    const char *const from = (const char *)c->x + (image * c->channels + set * c->size) * c->in[0] * width;
    const uint32_t z = (uint32_t)go_byte_conv_zero(c);
    const int32_t fill = (int32_t)(c->size == 2 ? (z & 0xffff) | z << 16 : z * 0x01010101u);
    int32_t *to = c->input + (int64_t)index * c->phases[0] * c->phases[1] * c->plane;
    int32_t *const row = malloc((size_t)width * 4);
    if (row == NULL) {
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    const int direct = c->stride[1] == 1 && c->pad[1] + width <= c->length[1]; /* rows are copied whole */
    for (int64_t p = 0; p < c->phases[0]; p++, to += c->phases[1] * c->plane)
        for (int64_t i = 0; i < c->length[0]; i++) {
            const int64_t y = i * c->stride[0] + p - c->pad[0];
            const int inside = y >= 0 && y < c->in[0];
            if (inside) {
                const char *const line = from + y * width;
                int32_t *const groups = direct ? to + i * c->length[1] + c->pad[1] : row;
                if (c->size == 4) go_conv_groups(c, line, 4, count, groups);
                else go_conv_groups(c, line, 2, count, groups);
            }
            for (int64_t q = 0; q < c->phases[1]; q++) {
                int32_t *const out = to + q * c->plane + i * c->length[1];
                const int64_t before = c->pad[1] - q, step = c->stride[1], length = c->length[1];
                int64_t first = before > 0 ? go_ceil_div(before, step) : 0; /* the elements of the input */
                int64_t stop = width + before > 0 ? go_ceil_div(width + before, step) : 0;
                stop = inside ? go_least(stop, length) : 0;
                first = go_least(first, stop);
                for (int64_t j = 0; j < first; j++) out[j] = fill;
                if (!direct)
                    for (int64_t j = first; j < stop; j++) out[j] = row[j * step - before];
                for (int64_t j = stop; j < length; j++) out[j] = fill;
            }
        }
    free(row);
}

/* Computes a part; `finish` stores numbers of the type of the result. */
GO_INLINE void go_byte_conv_part(go_byte_conv *c, int64_t index, int type, go_low_finish finish, void *run) {
    const int64_t block = index % c->blocks, band = index / c->blocks % c->bands, image = index / c->blocks / c->bands;
    const int64_t first = block * GO_CONV_BLOCK, filters = go_least(GO_CONV_BLOCK, c->filters - first);
    const int64_t top = band * c->rows, rows = go_least(c->rows, c->out[0] - top), pitch = c->length[1];
    const int64_t points = (rows - 1) * pitch + c->out[1];
    const int64_t step = go_round_up(points, GO_BYTE_COLUMNS) + 16;
    int32_t *const sums = malloc((size_t)((filters + 1) * step) * 4), *const totals = sums + filters * step;
    if (sums == NULL) {
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    const int32_t *const x = c->input + image * c->sets * c->phases[0] * c->phases[1] * c->plane + top * pitch;
    const char *const w = (const char *)c->packed;
    for (int64_t j = 0; j < points; j += GO_BYTE_COLUMNS) {
        go_byte_conv_panel(c->size, filters, w + first * c->groups * 4, x + j, c->offset, c->groups, sums + j, step);
        if (c->subtracts)
            go_byte_conv_panel(c->size, 1, w + c->filters * c->groups * 4, x + j, c->offset, c->groups, totals + j, step);
    }
    /* sum (x - zx) (w - zw) = sum x w - zx sum w - zw sum x + depth zx zw, of x and w as they were multiplied */
    const int32_t *const w_sums = (const int32_t *)w + (c->filters + 1) * c->groups;
    const int32_t zx = go_byte_conv_zero(c), depth = (int32_t)(c->channels * c->kernel[0] * c->kernel[1]);
    const int quantizes = type == GO_U8 || type == GO_I8;
    const go_quantizer q = go_quantizer_of(quantizes ? go_byte_at(c->zero, 0, type) : 0, type);
    for (int64_t i = 0; i < filters; i++) {
        const int64_t f = first + i;
        int32_t *const values = sums + i * step;
        const int32_t zw = go_byte_at(c->w_zeros, c->w_zeros_vary ? f : 0, c->w_type) + go_panel_shift(c->w_type, c->size);
        const int32_t offset = (c->bias ? c->bias[f] : 0) + depth * zx * zw - zx * w_sums[f];
        float scale = 0;
        if (quantizes) scale = c->x_scale[0] * c->w_scales[c->w_scales_vary ? f : 0] / c->scale[0];
        for (int64_t j = 0; j < points; j += LANES_w) {
            i32_w exact = load_i32_w(values + j) + offset;
            if (c->subtracts) exact -= load_i32_w(totals + j) * zw;
            if (quantizes) go_quantize(&q, i32_to_f32_w(exact) * scale, (char *)values + j);
            else store_i32_w(values + j, exact);
        }
        const int64_t at = ((image * c->filters + f) * c->out[0] + top) * c->out[1];
        const int64_t together = pitch == c->out[1] ? rows : 1; /* rows that are next to each other */
        for (int64_t r = 0; r < rows; r += together)
            finish(run, at + r * c->out[1], together * c->out[1],
                   (const char *)values + r * pitch * (quantizes ? 1 : 4));
    }
    free(sums);
}
