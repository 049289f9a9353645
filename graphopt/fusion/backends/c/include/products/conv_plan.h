/* Direct convolutions of floats in 1 to 3 dimensions (ONNX Conv): no matrix of patches is stored. A sum over the
   `depth` pairs of a channel and a tap is a loop over offsets into the input. Vectors hold adjacent positions of the
   output, or adjacent filters where the rows of the output are short. */

enum {
    GO_CONV_SUM = 128,       /* products summed up in registers, before they are added to the sum in memory */
    GO_CONV_BUFFER = 65536,  /* floats of the copy of the input that a chunk reads */
    GO_CONV_POINTS = 192,    /* positions of a chunk whose vectors hold filters */
    GO_CONV_WORK = 1 << 23,  /* multiply-adds of a chunk, at most where it can be divided */
    GO_CONV_FILTERS = GO_LEVEL == 4 ? 8 : 4, /* rows of a register block of positions */
    GO_CONV_COLUMNS = GO_LEVEL == 2 || !GO_LEVEL ? 2 : 3, /* and its vectors */
    GO_CONV_VECTORS = GO_LEVEL == 4 ? 4 : 2, /* vectors of a register block of filters */
    GO_CONV_ROWS = GO_LEVEL == 2 || !GO_LEVEL ? 4 : 6, /* and its positions */
};

/* Sizes of axes are those of depth, height and width. Channels and filters are those of one group. */
typedef struct {
    const float *x, *weights, *bias; /* weights are packed; a bias of NULL is 0 */
    int64_t batch, groups, channels, filters, in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
    int64_t taps, depth;
    int by_position, copied;
    int64_t images, block[3], blocks[3], parts, part; /* of a chunk; a part is a range of filters */
    int64_t phases[3], length[3], pitch[3], plane;    /* of the input that a chunk reads; a plane is a channel */
    int64_t points;                                   /* positions of an image */
    int64_t *offset, reach;                           /* of each product of a sum, and their largest */
    int failed;
} go_conv;

/* Filters that weights are packed in: as many as a vector has lanes, or fewer where there are not as many. */
GO_INLINE int64_t go_conv_lanes(int64_t filters) {
    int64_t lanes = 1;
    while (lanes < filters && lanes < LANES_w) lanes *= 2;
    return lanes;
}

/* Sets the sizes along an axis. */
GO_INLINE void go_conv_axis(go_conv *c, int axis, int64_t in, int64_t kernel, int64_t stride, int64_t dilation,
                            int64_t before, int64_t after, int same) {
    c->in[axis] = in, c->kernel[axis] = kernel, c->stride[axis] = stride, c->dilation[axis] = dilation;
    c->out[axis] = go_conv_size(in, kernel, stride, dilation, before, after, same);
    c->pad[axis] = go_conv_pad(in, c->out[axis], kernel, stride, dilation, before, same);
}

__attribute__((unused)) static size_t go_conv_packed(int64_t groups, int64_t filters, int64_t depth) {
    const int64_t lanes = go_conv_lanes(filters);
    return (size_t)(groups * go_round_up(filters, lanes) * depth) * sizeof(float);
}

/* [group][filters / lanes][depth][lanes] */
__attribute__((unused)) static void go_conv_pack(const float *from, int64_t groups, int64_t filters, int64_t depth,
                                                 float *to) {
    const int64_t lanes = go_conv_lanes(filters);
    for (int64_t group = 0; group < groups; group++, from += filters * depth)
        for (int64_t first = 0; first < filters; first += lanes)
            for (int64_t r = 0; r < depth; r++)
                for (int64_t lane = 0; lane < lanes; lane++)
                    *to++ = first + lane < filters ? from[(first + lane) * depth + r] : 0;
}

/* Merges an axis with the next one if that has one tap, no padding and no stride. */
static void go_conv_merge(go_conv *c) {
    for (int again = 0; again < 2; again++) {
        if (c->kernel[2] != 1 || c->stride[2] != 1 || c->in[2] != c->out[2] || c->pad[2]) return;
        if (c->stride[1] != 1) return;
        const int64_t width = c->in[2];
        c->in[2] *= c->in[1], c->out[2] *= c->out[1];
        c->kernel[2] = c->kernel[1], c->dilation[2] = c->dilation[1] * width, c->pad[2] = c->pad[1] * width;
        c->in[1] = c->in[0], c->out[1] = c->out[0], c->kernel[1] = c->kernel[0], c->stride[1] = c->stride[0];
        c->dilation[1] = c->dilation[0], c->pad[1] = c->pad[0];
        c->in[0] = c->out[0] = c->kernel[0] = c->stride[0] = c->dilation[0] = 1, c->pad[0] = 0;
    }
}

static int64_t go_conv_gcd(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* Residues of taps by the stride: tap t has the residue number t % period. */
GO_INLINE int64_t go_conv_period(const go_conv *c, int axis) {
    return c->by_position ? c->stride[axis] / go_conv_gcd(c->stride[axis], c->dilation[axis]) : 1;
}

/* The layout of the input that a chunk reads: for vectors of positions, elements a stride apart are adjacent. */
static void go_conv_layout(go_conv *c) {
    int64_t plane = 1;
    for (int axis = 2; axis >= 0; axis--) {
        const int64_t extent = (c->kernel[axis] - 1) * c->dilation[axis];
        c->phases[axis] = go_least(c->kernel[axis], go_conv_period(c, axis));
        c->length[axis] = c->by_position ? c->block[axis] + extent / c->stride[axis]
                                         : (c->block[axis] - 1) * c->stride[axis] + extent + 1;
        if (!c->copied) c->phases[axis] = 1, c->length[axis] = c->in[axis];
        c->pitch[axis] = plane;
        plane *= c->length[axis];
    }
    c->plane = plane * c->phases[0] * c->phases[1] * c->phases[2];
    /* Planes of a multiple of 1 KB would compete for the same lines of a cache. */
    if (c->copied && c->channels > 1 && c->plane % 256 < LANES_w) c->plane += LANES_w;
}

/* Multiply-adds of vectors and the equivalent for the copy of an image, as estimated. */
static double go_conv_cost(const go_conv *c) {
    const double sums = (double)c->depth * (double)c->groups;
    double copy = c->copied ? (double)c->plane * (double)c->channels * (double)c->groups : 0, blocks = 1;
    for (int axis = 0; axis < 3; axis++) blocks *= (double)c->blocks[axis];
    copy *= blocks * (double)c->parts;
    if (!c->by_position) {
        const double vectors = (double)(c->points * go_ceil_div(c->filters, LANES_w));
        return vectors * (sums * 1.1 + (double)c->groups * LANES_w) + copy * 0.25;
    }
    const int64_t row = c->block[0] * c->block[1] * go_ceil_div(c->block[2], LANES_w);
    const int64_t flat = (c->block[0] - 1) * c->pitch[0] + (c->block[1] - 1) * c->pitch[1] + c->block[2];
    const int64_t vectors = go_least(row, go_ceil_div(flat, LANES_w));
    const int64_t filters = c->filters < GO_CONV_FILTERS ? go_conv_lanes(c->filters)
                                                         : go_round_up(c->filters, 4);
    return blocks * (double)(vectors * filters) * sums + copy * (c->stride[2] > 1 ? 1.5 : 0.25);
}

static void go_conv_split(go_conv *c) {
    const double each = (double)c->filters * (double)c->depth; /* multiply-adds of a position */
    const int64_t step = GO_CONV_COLUMNS * LANES_w;
    for (;;) {
        const int64_t points = c->block[0] * c->block[1] * c->block[2];
        go_conv_layout(c);
        const int fits = (!c->copied || c->plane * c->channels <= GO_CONV_BUFFER)
                      && (c->by_position || points <= GO_CONV_POINTS);
        if (fits && (points <= GO_CONV_POINTS || (double)points * each <= GO_CONV_WORK)) break;
        const int axis = c->block[0] > 1 ? 0 : c->block[1] > 1 ? 1 : 2;
        const int64_t least = axis == 2 && c->by_position ? step : 1;
        if (c->block[axis] <= least) break;
        c->block[axis] = go_ceil_div(c->block[axis], 2);
        if (axis == 2 && c->by_position) c->block[axis] = go_round_up(c->block[axis], step);
    }
    c->images = 1;
    if (!c->by_position && c->block[0] == c->out[0] && c->block[1] == c->out[1] && c->block[2] == c->out[2]) {
        const double points = (double)c->points;
        while (c->images < c->batch && (double)(c->images + 1) * points <= GO_CONV_POINTS
               && (double)c->images * points * each <= GO_CONV_WORK
               && (!c->copied || (c->images + 1) * c->plane * c->channels <= GO_CONV_BUFFER))
            c->images++;
    }
    for (int axis = 0; axis < 3; axis++) c->blocks[axis] = go_ceil_div(c->out[axis], c->block[axis]);
    const double points = (double)(c->images * c->block[0] * c->block[1] * c->block[2]);
    const int64_t unit = LANES_w * GO_CONV_VECTORS;
    c->part = c->filters;
    while (c->part > unit && points * (double)c->depth * (double)c->part > GO_CONV_WORK)
        c->part = go_round_up(go_ceil_div(c->part, 2), unit);
    c->parts = go_ceil_div(c->filters, c->part);
}

static void go_conv_choose(go_conv *c, int by_position) {
    int pads = 0, strided = 0, large = 0;
    c->by_position = by_position;
    for (int axis = 0; axis < 3; axis++) {
        const int64_t last = (c->out[axis] - 1) * c->stride[axis] + (c->kernel[axis] - 1) * c->dilation[axis];
        pads |= c->pad[axis] != 0 || last - c->pad[axis] >= c->in[axis];
        strided |= c->stride[axis] > 1;
        c->block[axis] = c->out[axis];
    }
    c->copied = 0;
    go_conv_layout(c);
    const int64_t elements = c->batch * c->groups * c->channels * c->plane;
    const int64_t reach = (c->channels - 1) * c->plane + (c->kernel[0] - 1) * c->dilation[0] * c->pitch[0]
                        + (c->kernel[1] - 1) * c->dilation[1] * c->pitch[1]
                        + (c->kernel[2] - 1) * c->dilation[2];
    /* Many planes are on as many pages, or compete for lines: a copy is faster. */
    large = c->channels > 16 && (c->plane >= 4096 || c->plane % 256 == 0);
    c->copied = by_position ? pads || strided || large || elements < reach + 8 * LANES_w : pads;
    go_conv_split(c);
}

/* Sets all other members from the sizes; returns the number of chunks. `offset` has room for `depth` offsets. */
__attribute__((unused)) static int64_t go_conv_plan(go_conv *c, int64_t *offset) {
    c->points = c->out[0] * c->out[1] * c->out[2];
    go_conv_merge(c);
    c->taps = c->kernel[0] * c->kernel[1] * c->kernel[2];
    c->depth = c->channels * c->taps;
    c->offset = offset;
    if (!c->points || !c->batch || !c->groups || !c->filters) return 0;
    go_conv_choose(c, 1);
    if (go_conv_lanes(c->filters) == LANES_w) {
        const double cost = go_conv_cost(c);
        go_conv_choose(c, 0);
        if (go_conv_cost(c) >= cost) go_conv_choose(c, 1);
    }
    int64_t period[3], phase[3], r = 0, stride[3];
    c->reach = 0;
    for (int axis = 0; axis < 3; axis++) {
        period[axis] = go_conv_period(c, axis);
        stride[axis] = c->by_position ? c->stride[axis] : 1;
    }
    const int64_t part = c->pitch[0] * c->length[0];
    phase[2] = part, phase[1] = phase[2] * c->phases[2], phase[0] = phase[1] * c->phases[1];
    for (int64_t z = 0; z < c->kernel[0]; z++)
        for (int64_t y = 0; y < c->kernel[1]; y++)
            for (int64_t x = 0; x < c->kernel[2]; x++) {
                const int64_t tap[3] = {z, y, x};
                int64_t at = 0;
                for (int axis = 0; axis < 3; axis++) {
                    if (tap[axis] == 0) continue;
                    at += tap[axis] % period[axis] * phase[axis]
                        + tap[axis] * c->dilation[axis] / stride[axis] * c->pitch[axis];
                }
                c->offset[r++] = at;
                if (at > c->reach) c->reach = at;
            }
    for (; r < c->depth; r++) c->offset[r] = c->offset[r - c->taps] + c->plane;
    if (c->channels > 1) c->reach += (c->channels - 1) * c->plane;
    return go_ceil_div(c->batch, c->images) * c->groups * c->blocks[0] * c->blocks[1] * c->blocks[2] * c->parts;
}

/* The block of positions with a number: start[] and block[] are its first position and its sizes. Returns the rest of the
   number. */
static int64_t go_conv_locate(const go_conv *c, int64_t number, int64_t *start, int64_t *block) {
    for (int axis = 2; axis >= 0; axis--) {
        start[axis] = number % c->blocks[axis] * c->block[axis];
        block[axis] = go_least(c->block[axis], c->out[axis] - start[axis]);
        number /= c->blocks[axis];
    }
    return number;
}

/* One row of the copy: elements `step` apart, from coordinate `at`; zeros are outside of the row's `width`. */
GO_INLINE void go_conv_copy_row(float *to, int64_t count, const float *row, int64_t width, int64_t at, int64_t step) {
    int64_t first = at < 0 ? go_least(count, go_ceil_div(-at, step)) : 0;
    int64_t end = at + (count - 1) * step < width ? count : at >= width ? 0 : go_ceil_div(width - at, step);
    if (!row) first = count;
    if (end < first) end = first;
    for (int64_t i = 0; i < first; i++) to[i] = 0;
    int64_t i = first;
    if (step == 1) {
        for (; i + LANES_w <= end; i += LANES_w) store_f32_w(to + i, load_f32_w(row + at + i));
        if (i < end) store_part_f32_w(to + i, load_part_f32_w(row + at + i, (int)(end - i)), (int)(end - i));
        i = end;
    }
    if (step == 2) {
        const float *from = row + at + 2 * i;
        for (; i + LANES_w < end; i += LANES_w, from += 2 * LANES_w)
            store_f32_w(to + i, go_even(load_f32_w(from), load_f32_w(from + LANES_w)));
        const int rest = (int)(end - i), more = 2 * rest - 1 - LANES_w;
        if (more > 0) {
            const f32_w last = load_part_f32_w(from + LANES_w, more);
            store_part_f32_w(to + i, go_even(load_f32_w(from), last), rest);
            i = end;
        } else if (rest > 0) {
            const f32_w first = load_part_f32_w(from, 2 * rest - 1);
            store_part_f32_w(to + i, go_even(first, first), rest);
            i = end;
        }
    }
    for (; i < end; i++) to[i] = row[at + i * step];
    for (int64_t i = end; i < count; i++) to[i] = 0;
}

/* The channels of an image that a chunk reads, padded; for vectors of positions, by residues of the stride. */
__attribute__((unused)) static void go_conv_copy(const go_conv *c, const float *image, const int64_t *start, float *to) {
    int64_t step[3], size = c->in[0] * c->in[1] * c->in[2];
    for (int axis = 0; axis < 3; axis++) step[axis] = c->by_position ? c->stride[axis] : 1;
    for (int64_t channel = 0; channel < c->channels; channel++, image += size) {
        float *at = to + channel * c->plane;
        for (int64_t p = 0; p < c->phases[0]; p++)
            for (int64_t q = 0; q < c->phases[1]; q++)
                for (int64_t s = 0; s < c->phases[2]; s++) {
                    int64_t first[3] = {p, q, s};
                    for (int axis = 0; axis < 3; axis++)
                        first[axis] = start[axis] * c->stride[axis] - c->pad[axis]
                                    + (c->by_position ? first[axis] * c->dilation[axis] % c->stride[axis] : 0);
                    for (int64_t z = 0; z < c->length[0]; z++)
                        for (int64_t y = 0; y < c->length[1]; y++, at += c->length[2]) {
                            const int64_t depth = first[0] + z * step[0], height = first[1] + y * step[1];
                            const int inside = depth >= 0 && depth < c->in[0] && height >= 0 && height < c->in[1];
                            const float *row = inside ? image + (depth * c->in[1] + height) * c->in[2] : NULL;
                            go_conv_copy_row(at, c->length[2], row, c->in[2], first[2], step[2]);
                        }
                }
    }
}
