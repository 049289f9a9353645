/* Pointwise convolutions of floats: the product of the filters [filters, channels] with each image [channels, points].
   The channels are read from one or several inputs, the parts of a concatenation, and are scaled, shifted and
   rectified while a chunk of work copies its points to panels for gemm_tiles.h. */

enum {
    GO_POINTWISE_PARTS = 8,   /* inputs, at most */
    GO_POINTWISE_POINTS = 512, /* of a chunk, at most */
    GO_POINTWISE_PANELS = 1 << 17, /* floats in the panels of a chunk, which stay in a core's cache */
    GO_POINTWISE_CHUNKS = 8,  /* of a convolution, if it has enough points */
};

typedef struct {
    const float *x; /* the channels of the first image */
    int64_t channels;
} go_pointwise_part;

typedef struct {
    const float *weights, *bias; /* weights are packed; a bias of NULL is 0 */
    const float *scale, *shift;  /* of each channel; NULL if channels are not scaled */
    int rectified;               /* whether negative values are replaced by 0 after that */
    go_pointwise_part parts[GO_POINTWISE_PARTS];
    int part_count;
    int64_t batch, filters, channels, points;
    float *out; /* the address of the result if it is the product; otherwise NULL */
    int64_t rows, row_blocks, columns, column_blocks; /* the division into chunks of work */
} go_pointwise;

/* The distance of packed filters: rows a multiple of 2 KB apart are in the same few lines of a cache. */
GO_INLINE int64_t go_pointwise_pitch(int64_t channels) {
    const int64_t pitch = go_round_up(channels, LANES_w);
    return pitch % 512 ? pitch : pitch + LANES_w;
}
__attribute__((unused)) static size_t go_pointwise_size(int64_t filters, int64_t channels) {
    return (size_t)(filters * go_pointwise_pitch(channels)) * sizeof(float);
}
__attribute__((unused)) static void go_pointwise_pack(const float *from, int64_t filters, int64_t channels, float *to) {
    const int64_t pitch = go_pointwise_pitch(channels);
    for (int64_t i = 0; i < filters; i++) {
        memcpy(to + i * pitch, from + i * channels, (size_t)channels * sizeof(float));
        memset(to + i * pitch + channels, 0, (size_t)(pitch - channels) * sizeof(float));
    }
}

/* Scale and shift of `channels` channels: of a BatchNormalization, whose operands are all NULL if there is none, and then
   of a factor and an addend, which may be NULL. */
__attribute__((unused)) static void go_pointwise_affine(int64_t channels, const float *const *norm, double epsilon,
                                                        const float *factor, const float *addend, float *scale,
                                                        float *shift) {
    for (int64_t i = 0; i < channels; i++) {
        double a = 1, b = 0;
        if (norm[0]) {
            a = (double)norm[0][i] / __builtin_sqrt((double)norm[3][i] + epsilon);
            b = (double)norm[1][i] - (double)norm[2][i] * a;
        }
        if (factor) {
            a *= (double)factor[i];
            if (norm[0]) b *= (double)factor[i]; /* 0 times infinity would be NaN */
        }
        if (addend) b += (double)addend[i];
        scale[i] = (float)a, shift[i] = (float)b;
    }
}

/* Divides the convolution, whose dims are not 0 except channels, into chunks of work; returns their number. */
__attribute__((unused)) static size_t go_pointwise_plan(go_pointwise *w) {
    const int64_t channels = w->channels > 0 ? w->channels : 1;
    int64_t columns = GO_POINTWISE_PANELS / channels / GO_GEMM_WIDE * GO_GEMM_WIDE;
    if (columns > GO_POINTWISE_POINTS) columns = GO_POINTWISE_POINTS;
    const int64_t least = 2 * GO_GEMM_WIDE;
    if (columns < least) columns = least;
    while (columns > least && go_ceil_div(w->points, columns) * w->batch < GO_POINTWISE_CHUNKS) columns -= GO_GEMM_WIDE;
    w->column_blocks = go_ceil_div(w->points, columns);
    columns = go_ceil_div(w->points, w->column_blocks); /* blocks of about equal size */
    w->columns = go_round_up(columns, GO_GEMM_WIDE);
    w->column_blocks = go_ceil_div(w->points, w->columns);
    /* Each block of filters copies the points again. */
    const int64_t tiles = go_ceil_div(w->filters, GO_GEMM_ROWS), each = 8;
    int64_t blocks = GO_POINTWISE_CHUNKS / (w->column_blocks * w->batch);
    if (blocks > tiles / each) blocks = tiles / each;
    if (blocks < 1) blocks = 1;
    w->rows = go_ceil_div(tiles, blocks) * GO_GEMM_ROWS;
    w->row_blocks = go_ceil_div(w->filters, w->rows);
    return (size_t)(w->batch * w->row_blocks * w->column_blocks);
}

GO_INLINE f32_w go_pointwise_value(f32_w x, f32_w scale, f32_w shift, const int scaled, const int rectified) {
    if (scaled) x = fma_w(x, scale, shift);
    return rectified ? more_w(splat_f32_w(0), x) : x;
}

/* Copies `count` points of all channels to panels of GO_GEMM_WIDE columns. */
GO_INLINE void go_pointwise_copy(const go_pointwise *w, int64_t image, int64_t start, int64_t count, float *to,
                                 const int scaled, const int rectified) {
    const int64_t panel = w->channels * GO_GEMM_WIDE;
    int64_t channel = 0;
    for (int part = 0; part < w->part_count; part++) {
        const int64_t channels = w->parts[part].channels;
        const float *from = w->parts[part].x + image * channels * w->points + start;
        for (int64_t i = 0; i < channels; i++, channel++, from += w->points) {
            const f32_w scale = splat_f32_w(scaled ? w->scale[channel] : 1);
            const f32_w shift = splat_f32_w(scaled ? w->shift[channel] : 0);
            float *target = to + channel * GO_GEMM_WIDE;
            int64_t j = 0;
            for (; j + GO_GEMM_WIDE <= count; j += GO_GEMM_WIDE, target += panel) {
                const f32_w x = load_f32_w(from + j), y = load_f32_w(from + j + LANES_w);
                store_f32_w(target, go_pointwise_value(x, scale, shift, scaled, rectified));
                store_f32_w(target + LANES_w, go_pointwise_value(y, scale, shift, scaled, rectified));
            }
            for (int64_t side = 0; j < count; j += LANES_w, side += LANES_w) {
                const f32_w x = load_part_f32_w(from + j, count - j < LANES_w ? (int)(count - j) : LANES_w);
                store_f32_w(target + side, go_pointwise_value(x, scale, shift, scaled, rectified));
            }
        }
    }
}

/* Adds the bias to `rows` rows of `count` results. */
GO_INLINE void go_pointwise_bias(const float *bias, int64_t rows, int64_t count, float *c, int64_t c_m) {
    for (int64_t i = 0; i < rows; i++, c += c_m) {
        const f32_w b = splat_f32_w(bias[i]);
        int64_t j = 0;
        for (; j + LANES_w <= count; j += LANES_w) store_f32_w(c + j, load_f32_w(c + j) + b);
        if (j < count) store_part_f32_w(c + j, load_part_f32_w(c + j, (int)(count - j)) + b, (int)(count - j));
    }
}

typedef void go_pointwise_finish(void *data, int64_t at, int64_t count, const void *values);

/* Computes one chunk of work; sets *failed if memory is short. */
GO_INLINE void go_pointwise_chunk(const go_pointwise *w, size_t chunk, go_pointwise_finish *finish, void *data,
                                  int *failed) {
    const int64_t blocks = w->row_blocks * w->column_blocks, image = (int64_t)chunk / blocks;
    const int64_t block = (int64_t)chunk % blocks;
    const int64_t first = block / w->column_blocks * w->rows, start = block % w->column_blocks * w->columns;
    const int64_t rows = w->filters - first < w->rows ? w->filters - first : w->rows;
    const int64_t count = w->points - start < w->columns ? w->points - start : w->columns;
    const int64_t panels = go_ceil_div(count, GO_GEMM_WIDE), depth = w->channels;
    const int64_t own = w->out ? 0 : GO_GEMM_ROWS * count;
    float *const memory = malloc((size_t)(panels * depth * GO_GEMM_WIDE + own) * sizeof(float) + GO_LINE);
    if (!memory) {
        __atomic_store_n(failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *const b = go_next_line(memory);
    float *const results = b + panels * depth * GO_GEMM_WIDE;
    if (w->scale && w->rectified) go_pointwise_copy(w, image, start, count, b, 1, 1);
    else if (w->scale) go_pointwise_copy(w, image, start, count, b, 1, 0);
    else if (w->rectified) go_pointwise_copy(w, image, start, count, b, 0, 1);
    else go_pointwise_copy(w, image, start, count, b, 0, 0);
    const int64_t pitch = go_pointwise_pitch(depth);
    int64_t done = 0;
    for (int64_t tiles = go_ceil_div(rows, GO_GEMM_ROWS); tiles > 0; tiles--) {
        const int64_t some = go_ceil_div(rows - done, tiles), row = first + done; /* tiles of about equal size */
        const int64_t at = (image * w->filters + row) * w->points + start;
        float *const c = w->out ? w->out + at : results;
        const int64_t c_m = w->out ? w->points : count;
        go_gemm_row(some, count, depth, w->weights + row * pitch, pitch, b, GO_GEMM_WIDE, depth * GO_GEMM_WIDE, NULL, c,
                    c_m);
        if (w->bias) go_pointwise_bias(w->bias + row, some, count, c, c_m);
        if (!w->out) {
            if (count == w->points) finish(data, at, some * count, c);
            else
                for (int64_t i = 0; i < some; i++) finish(data, at + i * w->points, count, c + i * count);
        }
        done += some;
    }
    free(memory);
}
