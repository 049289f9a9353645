/* The work items of a convolution of bytes: a block of filters at a band of positions, or all filters of several
   convolutions. */

/* Exact sums of a block of filters at a band of positions, whose first row is `top`. */
typedef struct {
    const go_byte_conv *conv;
    int64_t image, at, first, count;     /* filters `first` to `first` + `count` of the convolution `at` */
    int64_t top, rows, width, pitch;     /* rows of adjacent results, and the pitch of their sums */
    int32_t *sums;                       /* of products of stored operands; `step` is the distance of filters */
    int64_t step;
    const int32_t *w_sums, *w_squares;   /* of each filter of the block */
    const int32_t *totals;               /* sums of the inputs at each position, NULL for zero points of 0 */
} go_byte_conv_block;

/* Converts the sums to results in place, and removes the gaps between rows. */
typedef void (*go_byte_conv_convert)(const go_byte_conv_block *block, int type);

/* Filter `i` of a block: its index among the filters of all convolutions, its zero point, and the integer to add to
   sums: sum (x - zx) (w - zw) = sum x w - zx sum w - zw sum x + depth zx zw, for the stored operands x and w. */
typedef struct {
    int64_t number;
    int32_t zero, offset;
} go_byte_conv_filter;

GO_INLINE int32_t go_byte_conv_depth(const go_byte_conv *c) {
    return (int32_t)(c->channels * c->kernel[0] * c->kernel[1]);
}

GO_INLINE go_byte_conv_filter go_byte_conv_filter_of(const go_byte_conv_block *b, int64_t i) {
    const go_byte_conv *const c = b->conv;
    const int64_t f = b->at * c->filters + b->first + i;
    const int32_t zx = go_byte_conv_zero(c), zero = go_byte_at(c->w_zeros, c->w_zeros_vary ? f : 0, c->w_type);
    const int32_t zw = zero + go_panel_shift(c->w_type, c->size);
    return (go_byte_conv_filter){f, zw, go_byte_conv_depth(c) * zx * zw - zx * b->w_sums[i]};
}

/* The exact integer sums at a vector of positions. */
GO_INLINE i32_w go_byte_conv_exact(const go_byte_conv_block *b, const go_byte_conv_filter *f, const int32_t *sums,
                                   int64_t j) {
    const i32_w exact = load_i32_w(sums + j) + f->offset;
    return b->totals ? exact - load_i32_w(b->totals + j) * f->zero : exact;
}

GO_INLINE void go_byte_conv_results(const go_byte_conv_block *b, int type) {
    const go_byte_conv *const c = b->conv;
    const int quantizes = type == GO_U8 || type == GO_I8;
    const go_quantizer q = go_quantizer_of(quantizes ? go_byte_at(c->zero, 0, type) : 0, type);
    for (int64_t i = 0; i < b->count; i++) {
        const go_byte_conv_filter f = go_byte_conv_filter_of(b, i);
        int32_t *const values = b->sums + i * b->step;
        const int32_t bias = c->bias ? c->bias[f.number] : 0;
        float scale = 0;
        if (quantizes) scale = c->x_scale[0] * c->w_scales[c->w_scales_vary ? f.number : 0] / c->scale[0];
        for (int64_t row = 0; row < b->rows; row++)
            for (int64_t j = 0; j < b->width; j += LANES_w) {
                const int64_t to = row * b->width + j;
                const i32_w exact = go_byte_conv_exact(b, &f, values, row * b->pitch + j) + bias;
                if (quantizes) go_quantize(&q, i32_to_f32_w(exact) * scale, (char *)values + to);
                else if (b->width - j >= LANES_w) store_i32_w(values + to, exact);
                else store_part_i32_w(values + to, exact, (int)(b->width - j));
            }
    }
}

/* The distance between the sums of two filters, in 32-bit elements. */
GO_INLINE int64_t go_byte_conv_step(const go_byte_conv *c) {
    return go_round_up((c->rows - 1) * c->length[1] + c->out[1], GO_CONV_WIDE) + 16;
}

/* Computes a block of filters at a band of positions. `planes` is the input of the convolution, and `sums` has space for
   the sums of one additional filter. */
GO_INLINE void go_byte_conv_band(const go_byte_conv *c, int64_t image, int64_t conv, int64_t block, int64_t band,
                                 const int32_t *planes, int32_t *sums, int type, go_byte_conv_convert convert,
                                 go_low_finish finish, void *run) {
    const int64_t first = block * GO_CONV_BLOCK, filters = go_least(GO_CONV_BLOCK, c->filters - first);
    const int64_t top = band * c->rows, rows = go_least(c->rows, c->out[0] - top), pitch = c->length[1];
    const int64_t points = (rows - 1) * pitch + c->out[1], step = go_byte_conv_step(c);
    const go_byte_filters layout = c->layout;
    const int32_t *const w = (const int32_t *)c->packed + conv * layout.whole;
    const int32_t *const x = planes + top * pitch;
    int32_t *const totals = sums + filters * step;
    go_byte_conv_sums(c, filters, (const char *)(w + first * c->groups), x, points, sums, step);
    if (c->subtracts) go_byte_conv_sums(c, 1, (const char *)(w + layout.ones), x, points, totals, step);
    const go_byte_conv_block whole = {
        .conv = c, .image = image, .at = conv, .first = first, .count = filters, .top = top, .pitch = pitch,
        .rows = pitch == c->out[1] ? 1 : rows, .width = pitch == c->out[1] ? points : c->out[1],
        .sums = sums, .step = step, .w_sums = w + layout.sums + first, .w_squares = w + layout.squares + first,
        .totals = c->subtracts ? totals : NULL};
    convert(&whole, type);
    for (int64_t i = 0; i < filters; i++) {
        const int64_t f = (image * c->convs + conv) * c->filters + first + i;
        finish(run, (f * c->out[0] + top) * c->out[1], rows * c->out[1], sums + i * step);
    }
}

/* Computes a part; `finish` stores numbers of the type of the result. */
GO_INLINE void go_byte_conv_part(go_byte_conv *c, int64_t index, int type, go_byte_conv_convert convert,
                                 go_low_finish finish, void *run) {
    const int64_t set = go_byte_conv_set(c), planes = c->input ? 0 : set + GO_CONV_WIDE;
    const int64_t numbers = (go_least(GO_CONV_BLOCK, c->filters) + 1) * go_byte_conv_step(c) + planes;
    int32_t *const sums = malloc((size_t)numbers * 4 + (c->input ? 0 : go_byte_conv_row_size(c)));
    if (sums == NULL) {
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    if (c->input) {
        const int64_t block = index % c->blocks, band = index / c->blocks % c->bands;
        const int64_t at = index / c->blocks / c->bands; /* index of the convolution within the image */
        const int32_t *const input = c->input + at * c->sets * set;
        go_byte_conv_band(c, at / c->convs, at % c->convs, block, band, input, sums, type, convert, finish, run);
    } else {
        const int64_t parts = go_ceil_div(c->convs, c->together), image = index / parts;
        const int64_t first = index % parts * c->together, last = go_least(first + c->together, c->convs);
        int32_t *const own = sums + numbers - planes;
        for (int64_t conv = first; conv < last; conv++) {
            go_byte_conv_planes(c, image, conv, 0, sums + numbers, own);
            for (int64_t band = 0; band < c->bands; band++)
                go_byte_conv_band(c, image, conv, 0, band, own, sums, type, convert, finish, run);
        }
    }
    free(sums);
}
