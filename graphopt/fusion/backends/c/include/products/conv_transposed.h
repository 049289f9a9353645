/* Transposed convolutions of floats in 1 to 3 dimensions (ONNX ConvTranspose), without a matrix of patches. Along an axis
   of stride s, output s q + p, counted from the first one before padding, is the sum of the products of input q - j with
   the taps t for which t dilation = s j + p. Thus each phase p is a convolution of stride 1 with some of the taps.
   Phases of the last axis with the same j are filters of one convolution; their sums are interleaved. */

enum {
    GO_TRANSPOSED_SUM = 16,   /* products summed up in registers, at least; see go_transposed_sums */
    GO_TRANSPOSED_ROWS = 8192 /* floats of the sums of a part of the filters, before they are interleaved */
};

/* Of the axes depth, height and width */
typedef struct {
    int64_t kernel[3], stride[3], dilation[3];
} go_transposed_axes;

typedef struct {
    go_conv c; /* the convolution of positions q, whose taps are the numbers j */
    const go_transposed_axes *axes;
    int64_t filters, out[3], pad[3], first[3]; /* of a group; of the result; the first position q */
    int64_t tile, packed;                      /* positions of a tile; floats of the weights of a group */
} go_transposed;

/* The end of the range of phases of an axis from `phase` on that have the same numbers j. */
GO_INLINE int64_t go_transposed_range(const go_transposed_axes *a, int axis, int64_t phase) {
    const int64_t more = a->kernel[axis] % a->stride[axis]; /* phases with one tap more than others */
    if (a->dilation[axis] > 1) return phase + 1;
    return phase < more ? more : a->stride[axis];
}

/* The next tap of a phase from `tap` on, or the number of taps. */
GO_INLINE int64_t go_transposed_tap(const go_transposed_axes *a, int axis, int64_t phase, int64_t tap) {
    if (a->dilation[axis] == 1) {
        const int64_t next = phase + go_ceil_div(tap > phase ? tap - phase : 0, a->stride[axis]) * a->stride[axis];
        return go_least(next, a->kernel[axis]);
    }
    while (tap < a->kernel[axis] && tap * a->dilation[axis] % a->stride[axis] != phase) tap++;
    return tap;
}

/* Numbers j of an axis are less than this. */
GO_INLINE int64_t go_transposed_reach(const go_transposed_axes *a, int axis) {
    return (a->kernel[axis] - 1) * a->dilation[axis] / a->stride[axis] + 1;
}

GO_INLINE int64_t go_transposed_taps(const go_transposed_axes *a, int axis, int64_t phase) {
    int64_t count = 0;
    for (int64_t tap = 0; (tap = go_transposed_tap(a, axis, phase, tap)) < a->kernel[axis]; tap++) count++;
    return count;
}

/* The size of the result along an axis, and the padding before it; `more` is the output padding, `same` is 1 for
   SAME_UPPER and 2 for SAME_LOWER, and `size` is the given size, or -1. */
GO_INLINE int64_t go_transposed_size(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t before,
                                     int64_t after, int64_t more, int same, int64_t size, int64_t *pad) {
    const int64_t whole = (in - 1) * stride + more + (kernel - 1) * dilation + 1;
    if (same || size >= 0) {
        const int64_t all = whole - (size >= 0 ? size : in * stride), total = all > 0 ? all : 0;
        before = same == 1 ? total / 2 : total - total / 2;
        after = total - before;
    }
    if (pad) *pad = before;
    return size >= 0 ? size : whole - before - after;
}

GO_INLINE void go_transposed_axis(go_transposed *t, int axis, int64_t in, int64_t kernel, int64_t stride,
                                  int64_t dilation, int64_t before, int64_t after, int64_t more, int same,
                                  int64_t size) {
    t->c.in[axis] = in;
    t->out[axis] = go_transposed_size(in, kernel, stride, dilation, before, after, more, same, size, &t->pad[axis]);
}

/* Floats of the packed weights of a group. */
GO_NOINLINE int64_t go_transposed_floats(const go_transposed_axes *a, int64_t filters, int64_t channels) {
    int64_t floats = 0;
    for (int64_t r = 0; r < a->stride[0] * a->stride[1]; r++) {
        const int64_t taps = go_transposed_taps(a, 0, r / a->stride[1]) * go_transposed_taps(a, 1, r % a->stride[1]);
        for (int64_t p = 0, end; p < a->stride[2]; p = end) {
            end = go_transposed_range(a, 2, p);
            const int64_t rows = filters * (end - p), lanes = go_conv_lanes(rows);
            floats += go_round_up(rows, lanes) * channels * taps * go_transposed_taps(a, 2, p);
        }
    }
    return floats;
}

GO_NOINLINE size_t go_transposed_packed(const go_transposed_axes *a, int64_t groups, int64_t channels, int64_t filters) {
    return (size_t)(groups * go_transposed_floats(a, filters, channels)) * sizeof(float);
}

/* [group][row of phases][range of phases][filter and phase / lanes][channel][tap][lanes] of [channel][filter][tap] */
GO_NOINLINE void go_transposed_pack(const float *from, const go_transposed_axes *a, int64_t groups, int64_t channels,
                                    int64_t filters, float *to) {
    const int64_t *kernel = a->kernel, taps = kernel[0] * kernel[1] * kernel[2];
    for (int64_t group = 0; group < groups; group++, from += channels * filters * taps)
        for (int64_t r = 0; r < a->stride[0] * a->stride[1]; r++)
            for (int64_t p = 0, end; p < a->stride[2]; p = end) {
                end = go_transposed_range(a, 2, p);
                const int64_t rows = filters * (end - p), lanes = go_conv_lanes(rows), upper = r / a->stride[1];
                const int64_t lower = r % a->stride[1], count = go_transposed_taps(a, 2, p);
                for (int64_t first = 0; first < rows; first += lanes)
                    for (int64_t channel = 0; channel < channels; channel++)
                        for (int64_t z = 0; (z = go_transposed_tap(a, 0, upper, z)) < kernel[0]; z++)
                            for (int64_t y = 0; (y = go_transposed_tap(a, 1, lower, y)) < kernel[1]; y++)
                                for (int64_t i = 0; i < count; i++, to += lanes)
                                    for (int64_t row = first; row < first + lanes; row++) {
                                        const int64_t phase = p + row % (end - p), filter = row / (end - p);
                                        int64_t x = go_transposed_tap(a, 2, phase, 0);
                                        for (int64_t n = 0; n < i; n++) x = go_transposed_tap(a, 2, phase, x + 1);
                                        to[row - first] = row >= rows ? 0
                                            : from[((channel * filters + filter) * kernel[0] + z) * kernel[1] * kernel[2]
                                                   + y * kernel[2] + x];
                                    }
            }
}

/* Sets all other members; returns the number of chunks. `offset` has room for an offset of each channel and tap. */
__attribute__((unused)) static int64_t go_transposed_plan(go_transposed *t, int64_t *offset) {
    go_conv *c = &t->c;
    const go_transposed_axes *a = t->axes;
    for (int axis = 0; axis < 3; axis++) {
        const int64_t end = t->pad[axis] + t->out[axis] - 1;
        t->first[axis] = t->pad[axis] / a->stride[axis];
        c->out[axis] = end / a->stride[axis] - t->first[axis] + 1;
        c->kernel[axis] = go_transposed_reach(a, axis);
        c->stride[axis] = c->dilation[axis] = 1;
        c->pad[axis] = c->kernel[axis] - 1 - t->first[axis];
    }
    t->filters = c->filters;
    t->packed = go_transposed_floats(a, t->filters, c->channels);
    c->points = c->out[0] * c->out[1] * c->out[2];
    c->taps = c->kernel[0] * c->kernel[1] * c->kernel[2], c->depth = c->channels * c->taps, c->offset = offset;
    if (!c->points || !c->batch || !c->groups || !t->filters || !t->out[0] || !t->out[1] || !t->out[2]) return 0;
    c->filters = t->filters * a->stride[2]; /* for the estimate of the work */
    go_conv_choose(c, 1);
    c->reach = (c->kernel[0] - 1) * c->pitch[0] + (c->kernel[1] - 1) * c->pitch[1] + c->kernel[2] - 1
             + (c->channels - 1) * c->plane;
    int64_t most = 1;
    for (int64_t p = 0, end; p < a->stride[2]; p = end) {
        end = go_transposed_range(a, 2, p);
        const int64_t rows = go_least(go_conv_lanes(t->filters * (end - p)), GO_CONV_FILTERS);
        most = rows > most ? rows : most;
    }
    t->tile = go_conv_columns(most) * LANES_w;
    for (int64_t r = 0; r < a->stride[0] * a->stride[1]; r++)
        for (int64_t p = 0; p < a->stride[2]; p = go_transposed_range(a, 2, p))
            for (int64_t channel = 0; channel < c->channels; channel++)
                for (int64_t z = 0; (z = go_transposed_tap(a, 0, r / a->stride[1], z)) < a->kernel[0]; z++)
                    for (int64_t y = 0; (y = go_transposed_tap(a, 1, r % a->stride[1], y)) < a->kernel[1]; y++)
                        for (int64_t x = 0; (x = go_transposed_tap(a, 2, p, x)) < a->kernel[2]; x++) {
                            const int64_t tap[3] = {z, y, x};
                            *offset = channel * c->plane;
                            for (int axis = 0; axis < 3; axis++) {
                                const int64_t j = tap[axis] * a->dilation[axis] / a->stride[axis];
                                *offset += (c->kernel[axis] - 1 - j) * c->pitch[axis];
                            }
                            offset++;
                        }
    return c->batch * c->groups * c->blocks[0] * c->blocks[1] * c->blocks[2];
}

/* to[position][phase] of from[phase][position], whose rows are `apart` floats apart, plus a bias */
GO_INLINE void go_transposed_interleave(const float *from, int64_t apart, int64_t phases, int64_t width, f32_w bias,
                                        float *to) {
    for (int64_t i = 0; i < width; i += LANES_w) {
        if (phases == 1) store_f32_w(to + i, load_f32_w(from + i) + bias);
        else if (phases == 2) go_zip(load_f32_w(from + i) + bias, load_f32_w(from + apart + i) + bias, to + 2 * i);
    }
    if (phases <= 2) return;
    for (int64_t p = 0; p < phases; p++)
        for (int64_t i = 0; i < width; i++) to[i * phases + p] = from[p * apart + i] + bias[0];
}

/* The sums of filters first ... first + count - 1 for a tile of `width` positions, from x on, in a row of phases:
   to[filter][position][phase]. `rows` has room for those of a filter, if phases have different taps. */
GO_NOINLINE void go_transposed_sums(const go_transposed *t, const float *x, int64_t shift, int64_t width, int64_t group,
                                    int64_t row, const float *weights, const int64_t *offset, int64_t first,
                                    int64_t count, float *rows, float *to) {
    const go_conv *c = &t->c;
    const go_transposed_axes *a = t->axes;
    const int64_t stride = a->stride[2], whole = stride * t->tile;
    const int64_t taps = go_transposed_taps(a, 0, row / a->stride[1]) * go_transposed_taps(a, 1, row % a->stride[1]);
    const float *bias = c->bias ? c->bias + group * t->filters : NULL;
    /* One product for each channel: onnxruntime adds up the sums of taps, which has smaller rounding errors. */
    const int64_t most_products = go_least(c->channels, GO_CONV_SUM);
    const int64_t span = most_products < GO_TRANSPOSED_SUM ? GO_TRANSPOSED_SUM : most_products;
    float values[64 * LANES_w] __attribute__((aligned(64)));
    for (int64_t p = 0, end; p < stride; p = end) {
        end = go_transposed_range(a, 2, p);
        const int64_t phases = end - p, all = t->filters * phases, lanes = go_conv_lanes(all);
        const int64_t depth = c->channels * taps * go_transposed_taps(a, 2, p);
        const int64_t most = go_least(lanes, GO_CONV_FILTERS), last = (first + count) * phases;
        const int direct = phases == stride && most % phases == 0;
        for (int64_t k = first * phases; k < last;) {
            const int64_t step = go_least(go_least(most, last - k), most - k % most);
            const int columns = (int)go_ceil_div(width + shift, LANES_w);
            const int wide = go_conv_block(offset, depth, span, x - shift, weights + k / lanes * lanes * depth + k % lanes,
                                           lanes, NULL, step, columns, values);
            for (int64_t i = 0; i < step; i += direct ? phases : 1) {
                const int64_t f = (k + i) / phases, phase = p + (k + i) % phases;
                const float *from = values + i * wide * LANES_w + shift;
                if (direct)
                    go_transposed_interleave(from, wide * LANES_w, phases, width, splat_f32_w(bias ? bias[f] : 0),
                                             to + (f - first) * whole);
                else memcpy(rows + (f - first) * whole + phase * t->tile, from, (size_t)width * sizeof(float));
            }
            k += step;
        }
        if (end == stride && !direct)
            for (int64_t f = 0; f < count; f++)
                go_transposed_interleave(rows + f * whole, t->tile, stride, width,
                                         splat_f32_w(bias ? bias[first + f] : 0), to + f * whole);
        weights += go_round_up(all, lanes) * depth, offset += depth;
    }
}

/* A tile of `width` positions from x on, for all phases and filters of a group. */
GO_INLINE void go_transposed_tile(const go_transposed *t, const float *x, int64_t shift, int64_t width, int64_t image,
                                  int64_t group, const go_conv_run *runs, int number, float *rows, float *lines,
                                  void (*finish)(void *, int64_t, int64_t, const void *), void *data) {
    const go_conv *c = &t->c;
    const go_transposed_axes *a = t->axes;
    const int64_t stride = a->stride[2], part = go_ceil_div(GO_TRANSPOSED_ROWS, stride * t->tile);
    const float *weights = c->weights + group * t->packed;
    const int64_t *offset = c->offset;
    for (int64_t r = 0; r < a->stride[0] * a->stride[1]; r++) {
        for (int64_t first = 0; first < t->filters; first += part) {
            const int64_t count = go_least(part, t->filters - first);
            go_transposed_sums(t, x, shift, width, group, r, weights, offset, first, count, rows, lines);
            const int64_t plane = (image * c->groups + group) * t->filters + first;
            for (int n = 0; n < number; n++) {
                const int64_t q = runs[n].at / c->out[2];
                const int64_t left = (t->first[2] + runs[n].at % c->out[2]) * stride - t->pad[2];
                const int64_t z = (t->first[0] + q / c->out[1]) * a->stride[0] + r / a->stride[1] - t->pad[0];
                const int64_t y = (t->first[1] + q % c->out[1]) * a->stride[1] + r % a->stride[1] - t->pad[1];
                const int64_t low = left < 0 ? -left : 0, high = go_least(runs[n].count * stride, t->out[2] - left);
                if (z < 0 || z >= t->out[0] || y < 0 || y >= t->out[1] || low >= high) continue;
                for (int64_t f = 0; f < count; f++)
                    finish(data, (((plane + f) * t->out[0] + z) * t->out[1] + y) * t->out[2] + left + low, high - low,
                           lines + f * stride * t->tile + runs[n].lane * stride + low);
            }
        }
        for (int64_t p = 0, end; p < stride; p = end) {
            end = go_transposed_range(a, 2, p);
            const int64_t of = t->filters * (end - p), lanes = go_conv_lanes(of);
            const int64_t taps = go_transposed_taps(a, 0, r / a->stride[1]) * go_transposed_taps(a, 1, r % a->stride[1]);
            const int64_t depth = c->channels * taps * go_transposed_taps(a, 2, p);
            weights += go_round_up(of, lanes) * depth, offset += depth;
        }
    }
}

/* A chunk: a block of positions of an image, for the filters of a group. */
GO_INLINE void go_transposed_chunk(go_transposed *t, size_t chunk, void (*finish)(void *, int64_t, int64_t, const void *),
                                   void *data) {
    go_conv *c = &t->c;
    int64_t start[3], block[3];
    const int64_t at = go_conv_locate(c, (int64_t)chunk, start, block), group = at % c->groups, image = at / c->groups;
    const int64_t copy = c->copied ? c->channels * c->plane + 8 * LANES_w : 0, stride = t->axes->stride[2];
    const int64_t sums = GO_TRANSPOSED_ROWS + stride * t->tile + 2 * LANES_w;
    float *const rows = malloc((size_t)(copy + 2 * sums) * sizeof(float));
    if (!rows) {
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    const float *x = c->x + (image * c->groups + group) * c->channels * c->in[0] * c->in[1] * c->in[2];
    if (c->copied) {
        go_conv_copy(c, x, start, rows + 2 * sums);
        x = rows + 2 * sums;
    } else {
        for (int axis = 0; axis < 3; axis++) x += start[axis] * c->pitch[axis];
    }
    const float *end = c->copied ? NULL : c->x + c->batch * c->groups * c->channels * c->plane;
    const int64_t flat = (block[0] - 1) * c->pitch[0] + (block[1] - 1) * c->pitch[1] + block[2];
    go_conv_run runs[8 * LANES_w];
    for (int64_t j = 0; j < flat; j += t->tile) {
        const int64_t width = go_least(t->tile, flat - j), beyond = end ? x + j + c->reach + t->tile - end : 0;
        const int number = go_conv_runs(c, start, block, j, width, runs);
        go_transposed_tile(t, x + j, beyond > 0 ? beyond : 0, width, image, group, runs, number, rows, rows + sums, finish,
                           data);
    }
    free(rows);
}

/* Writes the result for an empty input: the bias. */
GO_INLINE void go_transposed_nothing(const go_transposed *t, void (*finish)(void *, int64_t, int64_t, const void *),
                                     void *data) {
    enum { COUNT = 4 * LANES_w };
    const int64_t plane = t->out[0] * t->out[1] * t->out[2], filters = t->c.groups * t->c.filters;
    float values[COUNT];
    for (int64_t row = 0; row < t->c.batch * filters; row++) {
        for (int i = 0; i < COUNT; i++) values[i] = t->c.bias ? t->c.bias[row % filters] : 0;
        for (int64_t i = 0; i < plane; i += COUNT)
            finish(data, row * plane + i, go_least(COUNT, plane - i), values);
    }
}
