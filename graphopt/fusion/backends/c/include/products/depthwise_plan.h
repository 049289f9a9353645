/* Depthwise convolutions: each filter reads one channel. Vectors hold adjacent positions of rows, or adjacent filters. */

enum {
    GO_DEPTHWISE_INPUT = 16384, /* floats of the input of a chunk, at most where it can be divided */
    GO_DEPTHWISE_POSITIONS = 8, /* of a register block */
    GO_DEPTHWISE_ROWS = 4,      /* of a register block of rows */
    GO_DEPTHWISE_STRIP = 4096,  /* floats of the input of a block of rows */
    GO_DEPTHWISE_WORK = 1 << 16 /* multiply-adds of a chunk of rows, at least if there are enough filters */
};

typedef struct {
    go_conv c;       /* a group is a channel */
    int64_t filters; /* of all channels */
} go_depthwise;

__attribute__((unused)) static size_t go_depthwise_packed(int64_t filters, int64_t taps) {
    return (size_t)(go_round_up(filters, LANES_w) * taps) * sizeof(float);
}

/* [filters / lanes][taps][lanes] */
__attribute__((unused)) static void go_depthwise_pack(const float *from, int64_t filters, int64_t taps, float *to) {
    for (int64_t first = 0; first < filters; first += LANES_w)
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t f = first; f < first + LANES_w; f++) *to++ = f < filters ? from[f * taps + tap] : 0;
}

/* Divides the output into blocks whose inputs have at most `most` floats, if possible. */
static void go_depthwise_divide(go_conv *c, int64_t most) {
    for (int axis = 0; axis < 3; axis++) c->block[axis] = c->out[axis];
    for (;;) {
        go_conv_layout(c);
        const int axis = c->block[0] > 1 ? 0 : c->block[1] > 1 ? 1 : 2;
        if (c->plane <= most || c->block[axis] == 1) break;
        c->block[axis] = go_ceil_div(c->block[axis], 2);
    }
    for (int axis = 0; axis < 3; axis++) c->blocks[axis] = go_ceil_div(c->out[axis], c->block[axis]);
}

/* The taps of a column that are inside of the input for a row of the output: from *low to below *high. */
GO_INLINE void go_depthwise_inside(const go_conv *c, int64_t row, int64_t *low, int64_t *high) {
    const int64_t top = row * c->stride[1] - c->pad[1];
    *low = top < 0 ? go_least(go_ceil_div(-top, c->dilation[1]), c->kernel[1]) : 0;
    *high = top < c->in[1] ? go_least(go_ceil_div(c->in[1] - top, c->dilation[1]), c->kernel[1]) : 0;
    if (*high < *low) *high = *low;
}

/* Whether vectors of adjacent positions are faster, by times measured with AVX-512: the time of a vector of products, and
   of the copies and transpositions for it. */
static int go_depthwise_by_row(const go_depthwise *d) {
    const go_conv *c = &d->c;
    if (c->kernel[0] * c->in[0] * c->out[0] > 1 || c->pad[0] || (c->taps != 9 && c->taps != 25)) return 0;
    if (c->kernel[1] != c->kernel[2] || c->dilation[1] * c->dilation[2] > 1 || c->stride[1] > 2 || c->stride[2] > 2)
        return 0;
    double inside = 0; /* taps */
    for (int64_t row = 0; row < c->out[1]; row++) {
        int64_t low, high;
        go_depthwise_inside(c, row, &low, &high);
        inside += (double)((high - low) * c->kernel[2]);
    }
    const double rows = (double)c->out[1], copy = 6.0 * (double)(c->stride[1] * c->stride[2]);
    const double by_row = rows * (double)(go_ceil_div(c->out[2], LANES_w) * d->filters) * (1.8 * (double)c->taps + copy);
    const double vectors = (double)(c->out[2] * go_ceil_div(d->filters, LANES_w));
    return by_row < vectors * (inside + rows * (20 + copy));
}

/* Sets all other members; returns the number of chunks. `offset` has room for an offset of each tap. */
__attribute__((unused)) static int64_t go_depthwise_plan(go_depthwise *d, int64_t *offset) {
    go_conv *c = &d->c;
    d->filters = c->groups * c->filters;
    go_conv_merge(c);
    c->taps = c->kernel[0] * c->kernel[1] * c->kernel[2];
    c->points = c->out[0] * c->out[1] * c->out[2];
    c->offset = offset, c->copied = 1, c->channels = 1;
    if (!c->points || !c->batch || !d->filters) return 0;
    c->by_position = go_depthwise_by_row(d);
    c->part = 1;
    if (c->by_position) {
        go_depthwise_divide(c, GO_DEPTHWISE_STRIP);
        c->part = go_least(go_ceil_div(GO_DEPTHWISE_WORK, c->block[1] * c->block[2] * c->taps), d->filters);
        c->parts = go_ceil_div(d->filters, c->part);
    } else {
        go_depthwise_divide(c, GO_DEPTHWISE_INPUT / LANES_w);
        c->parts = go_ceil_div(d->filters, LANES_w);
    }
    int64_t *at = offset;
    for (int64_t z = 0; z < c->kernel[0]; z++)
        for (int64_t y = 0; y < c->kernel[1]; y++)
            for (int64_t x = 0; x < c->kernel[2]; x++) {
                const int64_t rows = z * c->dilation[0] * c->pitch[0] + y * c->dilation[1] * c->pitch[1];
                *at++ = (rows + x * c->dilation[2]) * LANES_w;
            }
    return c->batch * c->parts * c->blocks[0] * c->blocks[1] * c->blocks[2];
}
