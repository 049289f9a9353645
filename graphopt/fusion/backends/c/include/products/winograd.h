/* Convolutions of stride 1 by Winograd's minimal filtering (Lavin and Gray, "Fast algorithms for convolutional neural
   networks", 2016): two adjacent outputs of three taps take four products instead of six, along the width, and along
   the height if the kernel has one; more taps are groups of three, whose products are added before the inverse
   transform. Tiles are 2 outputs wide, and vectors hold adjacent tiles. Where a result is not finite, a difference of
   inputs may have overflowed, or infinities of other outputs' inputs may have become NaN: it is computed directly. */

enum {
    GO_WINOGRAD_SUM = 64,         /* like GO_CONV_SUM: fewer, as the transforms round as well */
    GO_WINOGRAD_BUFFER = 1 << 17, /* floats of the transformed input of a chunk */
    GO_WINOGRAD_BLOCKS = 4,       /* blocks of tiles below which threads share transformed inputs */
    GO_WINOGRAD_CHANNELS = 16,
    GO_WINOGRAD_FILTERS = 32,     /* filters of a chunk then */
};

typedef struct {
    go_conv c; /* of one channel: its positions are tiles, its stride is 2, and its taps are those that tiles read */
    const float *weights; /* as in the model; those of c are packed */
    int64_t channels, filters, groups, in[3], out[3], kernel[3], pad[3]; /* of the convolution */
    int64_t sets[2];               /* of three taps, along the height and width */
    int tall;                      /* whether the height is transformed */
    int64_t *offset, depth[2][2]; /* of sums, with and without the last sets */
    int64_t width, apart;          /* floats between transformed channels, and between elements of the transform */
    float *inputs;                 /* transformed inputs of all chunks, if there are few; otherwise NULL */
    int64_t transforms;            /* chunks of these transforms, of GO_WINOGRAD_CHANNELS each */
} go_winograd;

/* Sums of transformed products with the transform's last row leave out a set of less than three taps, which is 0. */
GO_INLINE int64_t go_winograd_sets(int64_t taps, int element) {
    return element == 3 ? taps / 3 : go_ceil_div(taps, 3);
}

/* Floats of the packed weights of a filter. */
static int64_t go_winograd_depth(int64_t channels, int64_t height, int64_t width) {
    int64_t depth = 0;
    for (int i = 0; i < (height > 1 ? 4 : 1); i++)
        for (int j = 0; j < 4; j++)
            depth += channels * (height > 1 ? go_winograd_sets(height, i) : 1) * go_winograd_sets(width, j);
    return depth;
}

static size_t go_winograd_packed(int64_t filters, int64_t channels, int64_t height, int64_t width) {
    const int64_t lanes = go_conv_lanes(filters);
    const int64_t rows = go_round_up(filters, lanes);
    return (size_t)(rows * go_winograd_depth(channels, height, width)) * sizeof(float);
}

/* The coefficient of a tap for an element of the transform. */
GO_INLINE double go_winograd_tap(int element, int64_t tap) {
    if (element == 0) return tap == 0;
    if (element == 3) return tap == 2;
    return element == 2 && tap == 1 ? -0.5 : 0.5;
}

/* [filters / lanes][element of the height][of the width][set of the height][of the width][channels][lanes] */
static void go_winograd_pack(const float *from, int64_t filters, int64_t channels, int64_t height, int64_t width,
                             float *to) {
    const int64_t lanes = go_conv_lanes(filters), tall = height > 1;
    for (int64_t first = 0; first < filters; first += lanes)
        for (int i = 0; i < (tall ? 4 : 1); i++)
            for (int j = 0; j < 4; j++)
                for (int64_t p = 0; p < (tall ? go_winograd_sets(height, i) : 1); p++)
                    for (int64_t q = 0; q < go_winograd_sets(width, j); q++)
                        for (int64_t channel = 0; channel < channels; channel++)
                            for (int64_t f = first; f < first + lanes; f++) {
                                double sum = 0;
                                for (int64_t y = 3 * p; f < filters && y < height && y < 3 * p + 3; y++)
                                    for (int64_t x = 3 * q; x < width && x < 3 * q + 3; x++)
                                        sum += (tall ? go_winograd_tap(i, y - 3 * p) : 1) * go_winograd_tap(j, x - 3 * q)
                                             * from[((f * channels + channel) * height + y) * width + x];
                                *to++ = (float)sum;
                            }
}

/* Sets all other members; returns the number of chunks. `offset` has room for 4 times channels * sets. */
static int64_t go_winograd_plan(go_winograd *w, int64_t *offset) {
    go_conv *c = &w->c;
    c->points = c->out[0] * c->out[1] * c->out[2];
    go_conv_merge(c);
    w->channels = c->channels, w->filters = c->filters, w->tall = c->kernel[1] > 1;
    c->channels = 1, c->by_position = c->copied = 1, c->images = 1;
    w->sets[0] = w->sets[1] = 1;
    for (int axis = 0; axis < 3; axis++) {
        w->in[axis] = c->in[axis], w->out[axis] = c->out[axis], w->kernel[axis] = c->kernel[axis];
        w->pad[axis] = c->pad[axis];
        if (axis < 2 - w->tall) continue;
        w->sets[axis - 1] = go_ceil_div(c->kernel[axis], 3);
        c->kernel[axis] = 3 * w->sets[axis - 1] + 1, c->stride[axis] = 2;
        c->out[axis] = go_ceil_div(c->out[axis], 2);
    }
    if (!c->points || !c->batch || !c->filters) return 0;
    const int64_t sets = w->sets[0] * w->sets[1], elements = w->tall ? 16 : 4;
    const int64_t tile = GO_CONV_COLUMNS * LANES_w; /* rows of a plane rarely are multiples of it: they need more room */
    const int64_t most = GO_WINOGRAD_BUFFER * (1 + w->tall) / (elements * sets * (w->channels + 1));
    for (int axis = 0; axis < 3; axis++) c->block[axis] = c->out[axis];
    for (;;) {
        const int64_t tiles = c->block[0] * c->block[1] * c->block[2];
        const double work = (double)(tiles * w->filters) * (double)(w->channels * elements * sets);
        if (tiles <= tile || (tiles <= most && (work <= GO_CONV_WORK / 4 || tiles < 4 * tile))) break;
        const int axis = c->block[0] > 1 ? 0 : c->block[1] > 1 ? 1 : 2;
        const int64_t half = go_ceil_div(c->block[axis], 2);
        c->block[axis] = axis < 2 ? half : go_round_up(half, tile);
        if (axis == 2 && c->block[2] <= tile) break;
    }
    int64_t chunks = c->batch;
    for (int axis = 0; axis < 3; axis++) {
        c->blocks[axis] = go_ceil_div(c->out[axis], c->block[axis]);
        chunks *= c->blocks[axis];
    }
    /* Few blocks: their inputs are transformed first, by parts of the channels, and then read by parts of the filters. */
    const int shared = chunks < GO_WINOGRAD_BLOCKS && w->filters > GO_WINOGRAD_FILTERS;
    c->part = shared ? GO_WINOGRAD_FILTERS : w->filters;
    c->parts = go_ceil_div(w->filters, c->part);
    w->transforms = shared ? chunks * go_ceil_div(w->channels, GO_WINOGRAD_CHANNELS) : 0;
    go_conv_layout(c);
    w->width = (go_ceil_div(c->block[0] * c->block[1] * c->block[2], LANES_w) + 1) * LANES_w;
    if (w->width % 256 == 0) w->width += LANES_w;
    w->apart = sets * w->channels * w->width; /* not a multiple of 1 KB, whose lines compete in caches */
    w->apart += (w->apart % 256 ? 0 : LANES_w);
    w->offset = offset;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            int64_t *at = w->offset + (i * 2 + j) * w->channels * sets;
            w->depth[i][j] = 0;
            const int64_t tall = i && w->tall ? w->kernel[1] / 3 : w->sets[0], wide = j ? w->kernel[2] / 3 : w->sets[1];
            for (int64_t p = 0; p < tall; p++)
                for (int64_t q = 0; q < wide; q++)
                    for (int64_t channel = 0; channel < w->channels; channel++)
                        at[w->depth[i][j]++] = ((p * w->sets[1] + q) * w->channels + channel) * w->width;
        }
    return chunks * c->parts;
}

/* The transform of four inputs. */
GO_INLINE void go_winograd_inputs(const f32_w *from, int64_t step, f32_w *to) {
    to[0] = from[0] - from[2 * step];
    to[step] = from[step] + from[2 * step];
    to[2 * step] = from[2 * step] - from[step];
    to[3 * step] = from[step] - from[3 * step];
}

/* to[element][set][channel][tile] of one channel; `plane` is its copy, by residues of 2. */
GO_INLINE void go_winograd_forward(const go_winograd *w, const float *plane, const int64_t *block, const int tall,
                                   float *to) {
    const go_conv *c = &w->c;
    const int64_t part = c->pitch[0] * c->length[0], apart = w->apart;
    for (int64_t p = 0; p < w->sets[0]; p++)
        for (int64_t q = 0; q < w->sets[1]; q++) {
            const float *at[16];
            for (int i = 0; i < (tall ? 4 : 1); i++)
                for (int j = 0; j < 4; j++) {
                    const int64_t y = 3 * p + i, x = 3 * q + j;
                    at[i * 4 + j] = plane + x % 2 * part + x / 2;
                    if (tall) at[i * 4 + j] += y % 2 * part * c->phases[2] + y / 2 * c->pitch[1];
                }
            float *out = to + (p * w->sets[1] + q) * w->channels * w->width;
            for (int64_t row = 0; row < block[0] * block[1]; row++) {
                const int64_t from = row / block[1] * c->pitch[0] + row % block[1] * c->pitch[1];
                for (int64_t x = 0; x < block[2]; x += LANES_w) {
                    f32_w d[16], v[16];
#pragma GCC unroll 16
                    for (int k = 0; k < (tall ? 16 : 4); k++) d[k] = load_f32_w(at[k] + from + x);
                    if (tall) {
#pragma GCC unroll 4
                        for (int k = 0; k < 4; k++) go_winograd_inputs(d + k, 4, v + k);
#pragma GCC unroll 4
                        for (int k = 0; k < 4; k++) go_winograd_inputs(v + 4 * k, 1, d + 4 * k);
                    } else {
                        go_winograd_inputs(d, 1, v);
#pragma GCC unroll 4
                        for (int k = 0; k < 4; k++) d[k] = v[k];
                    }
#pragma GCC unroll 16
                    for (int k = 0; k < (tall ? 16 : 4); k++) store_f32_w(out + k * apart + row * block[2] + x, d[k]);
                }
            }
            for (int k = 0; k < (tall ? 16 : 4); k++)
                store_f32_w(out + k * apart + block[0] * block[1] * block[2], splat_f32_w(0));
        }
}

/* The two outputs of four sums. */
GO_INLINE void go_winograd_outputs(const f32_w *from, int64_t step, f32_w *to, int64_t apart) {
    to[0] = from[0] + from[step] + from[2 * step];
    to[apart] = from[step] - from[2 * step] - from[3 * step];
}

/* line[row][x] of `columns` vectors of tiles, whose sums are from[element][..]; a sum of 0, NaN where one is not finite. */
GO_INLINE f32_w go_winograd_inverse(const float *from, int64_t apart, int columns, float bias, const int tall,
                                  float *line, int64_t wide) {
    f32_w zero = splat_f32_w(0);
    for (int column = 0; column < columns; column++) {
        f32_w s[16], t[8], y[4];
#pragma GCC unroll 16
        for (int k = 0; k < (tall ? 16 : 4); k++) s[k] = load_f32_w(from + k * apart + column * LANES_w);
        if (tall) {
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) go_winograd_outputs(s + k, 4, t + k, 4);
            go_winograd_outputs(t, 1, y, 1);
            go_winograd_outputs(t + 4, 1, y + 2, 1);
        } else {
            go_winograd_outputs(s, 1, y, 1);
        }
#pragma GCC unroll 2
        for (int row = 0; row < (tall ? 2 : 1); row++) {
            const f32_w a = y[2 * row] + splat_f32_w(bias), b = y[2 * row + 1] + splat_f32_w(bias);
            zero += (a - a) + (b - b);
            float *to = line + row * wide + column * 2 * LANES_w;
            go_zip(a, b, to);
        }
    }
    return zero;
}

/* One output, directly. */
static float go_winograd_direct(const go_winograd *w, const float *image, int64_t f, int64_t z, int64_t y, int64_t x) {
    float sum = 0;
    for (int64_t channel = 0; channel < w->channels; channel++)
        for (int64_t i = 0; i < w->kernel[1]; i++)
            for (int64_t j = 0; j < w->kernel[2]; j++) {
                const int64_t row = y + i - w->pad[1], column = x + j - w->pad[2];
                if (row < 0 || row >= w->in[1] || column < 0 || column >= w->in[2]) continue;
                sum += w->weights[((f * w->channels + channel) * w->kernel[1] + i) * w->kernel[2] + j]
                     * image[((channel * w->in[0] + z) * w->in[1] + row) * w->in[2] + column];
            }
    return w->c.bias ? sum + w->c.bias[f] : sum;
}

/* Filters first ... end - 1 at a block of tiles, from the transformed input v. */
GO_INLINE void go_winograd_blocks(const go_winograd *w, const float *image, int64_t number, const int64_t *start,
                                  const int64_t *block, int64_t first, int64_t end, const int tall, const float *v,
                                  float *sums,
                                  void (*finish)(void *, int64_t, int64_t, const void *), void *data) {
    const int64_t tiles = block[0] * block[1] * block[2], tile = GO_CONV_COLUMNS * LANES_w, wide = 2 * tile;
    const int64_t sets = w->sets[0] * w->sets[1], lanes = go_conv_lanes(w->filters);
    const int64_t most = go_least(lanes, GO_CONV_FILTERS), cell = GO_CONV_FILTERS * tile;
    const int64_t packed = go_winograd_depth(w->channels, tall ? w->kernel[1] : 1, w->kernel[2]);
    float line[4 * GO_CONV_COLUMNS * LANES_w];
    for (int64_t t = 0; t < tiles; t += tile) {
        const int64_t width = go_least(tile, tiles - t);
        const int columns = (int)go_ceil_div(width, LANES_w);
        for (int64_t f = first; f < end; f += most) {
            const float *weights = w->c.weights + f / lanes * lanes * packed + f % lanes;
            const int64_t some = go_least(most, end - f);
            int number_of_columns = columns;
            for (int k = 0; k < (tall ? 16 : 4); k++) {
                const int i = tall && k / 4 == 3, j = k % 4 == 3;
                const int64_t *offset = w->offset + (i * 2 + j) * w->channels * sets;
                number_of_columns = go_conv_block(offset, w->depth[i][j], GO_WINOGRAD_SUM, v + k * w->apart + t, weights,
                                                  lanes, NULL, some, columns, sums + k * cell);
                weights += w->depth[i][j] * lanes;
            }
            const int64_t apart = number_of_columns * LANES_w;
            for (int64_t g = 0; g < some; g++) {
                const float bias = w->c.bias ? w->c.bias[f + g] : 0;
                float zero[LANES_w], rest = 0;
                store_f32_w(zero, go_winograd_inverse(sums + g * apart, cell, columns, bias, tall, line, wide));
                for (int lane = 0; lane < LANES_w; lane++) rest += zero[lane];
                const int finite = rest == 0;
                const int64_t plane = (number * w->filters + f + g) * w->c.points;
                for (int64_t lane = 0; lane < width;) {
                    const int64_t x = (t + lane) % block[2], y = (t + lane) / block[2] % block[1];
                    const int64_t z = start[0] + (t + lane) / block[2] / block[1];
                    const int64_t length = go_least(width - lane, block[2] - x), left = 2 * (start[2] + x);
                    const int64_t count = go_least(2 * length, w->out[2] - left);
                    for (int row = 0; row < (tall ? 2 : 1); row++) {
                        const int64_t top = tall ? 2 * (start[1] + y) + row : start[1] + y;
                        if (top >= w->out[1]) continue;
                        float *values = line + row * wide + 2 * lane;
                        for (int64_t n = 0; n < count && !finite; n++)
                            if (values[n] - values[n] != 0)
                                values[n] = go_winograd_direct(w, image, f + g, z, top, left + n);
                        finish(data, plane + (z * w->out[1] + top) * w->out[2] + left, count, values);
                    }
                    lane += length;
                }
            }
        }
    }
}

/* Floats of the transformed input of a block. */
GO_INLINE int64_t go_winograd_floats(const go_winograd *w) { return (w->tall ? 16 : 4) * w->apart + LANES_w; }

/* Channels first ... end - 1 of a block, transformed to v; `copy` has room for one of them. */
static void go_winograd_channels(const go_winograd *w, int64_t image, const int64_t *start, const int64_t *block,
                                 int64_t first, int64_t end, float *copy, float *v) {
    const int64_t size = w->in[0] * w->in[1] * w->in[2];
    for (int64_t channel = first; channel < end; channel++) {
        go_conv_copy(&w->c, w->c.x + (image * w->channels + channel) * size, start, copy);
        if (w->tall) go_winograd_forward(w, copy, block, 1, v + channel * w->width);
        else go_winograd_forward(w, copy, block, 0, v + channel * w->width);
    }
}

/* Makes room for the transformed inputs, if they are shared; whether there is memory. */
static int go_winograd_share(go_winograd *w) {
    if (!w->transforms) return 1;
    const int64_t blocks = w->transforms / go_ceil_div(w->channels, GO_WINOGRAD_CHANNELS);
    return (w->inputs = malloc((size_t)(blocks * go_winograd_floats(w)) * sizeof(float))) != NULL;
}

/* A chunk of the transforms of shared inputs. */
__attribute__((unused)) static void go_winograd_transform(void *data, size_t chunk) {
    go_winograd *const w = data;
    const go_conv *c = &w->c;
    int64_t start[3], block[3];
    const int64_t parts = go_ceil_div(w->channels, GO_WINOGRAD_CHANNELS), number = (int64_t)chunk / parts;
    const int64_t image = go_conv_locate(c, number, start, block);
    const int64_t first = (int64_t)chunk % parts * GO_WINOGRAD_CHANNELS;
    const int64_t end = go_least(first + GO_WINOGRAD_CHANNELS, w->channels);
    float *copy = malloc((size_t)(w->c.plane + LANES_w) * sizeof(float));
    if (copy) go_winograd_channels(w, image, start, block, first, end, copy, w->inputs + number * go_winograd_floats(w));
    else __atomic_store_n(&w->c.failed, 1, __ATOMIC_RELAXED);
    free(copy);
}

/* A chunk of the products: a block of tiles of an image, and a part of the filters. */
GO_INLINE void go_winograd_chunk(go_winograd *w, size_t chunk, void (*finish)(void *, int64_t, int64_t, const void *),
                                 void *data) {
    go_conv *c = &w->c;
    int64_t start[3], block[3];
    const int64_t first = (int64_t)chunk % c->parts * c->part, end = go_least(first + c->part, w->filters);
    const int64_t number = (int64_t)chunk / c->parts, image = go_conv_locate(c, number, start, block);
    const int64_t own = w->inputs ? 0 : go_winograd_floats(w) + c->plane + LANES_w;
    const int64_t sums = (w->tall ? 16 : 4) * GO_CONV_FILTERS * GO_CONV_COLUMNS * LANES_w;
    float *memory = malloc((size_t)(sums + own) * sizeof(float));
    if (!memory) {
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *v = w->inputs ? w->inputs + number * go_winograd_floats(w) : memory + sums;
    if (!w->inputs) go_winograd_channels(w, image, start, block, 0, w->channels, v + go_winograd_floats(w), v);
    const float *x = c->x + image * w->channels * w->in[0] * w->in[1] * w->in[2];
    if (w->tall) go_winograd_blocks(w, x, image, start, block, first, end, 1, v, memory, finish, data);
    else go_winograd_blocks(w, x, image, start, block, first, end, 0, v, memory, finish, data);
    free(memory);
}
