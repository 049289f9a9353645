/* Depthwise convolutions whose vectors hold adjacent filters, for any taps, strides and sizes: a chunk transposes a block
   of the channels of as many filters as a vector has lanes, sums up the products, and transposes the sums. */

/* to[x][lane] of `count` adjacent elements of each plane; `gap` floats follow every `width` positions. */
static void go_depthwise_turn(const float *const *planes, int64_t at, int64_t count, int64_t width, int64_t gap,
                              float *to) {
    int64_t x = 0;
    for (int64_t i = 0; i < count; i += LANES_w) {
        const int some = (int)go_least(count - i, LANES_w);
        f32_w v[LANES_w];
        if (some == LANES_w) {
            GO_UNROLL for (int lane = 0; lane < LANES_w; lane++) v[lane] = load_f32_w(planes[lane] + at + i);
        } else {
            GO_UNROLL for (int lane = 0; lane < LANES_w; lane++) v[lane] = load_part_f32_w(planes[lane] + at + i, some);
        }
        go_transpose(v);
        GO_UNROLL for (int lane = 0; lane < LANES_w; lane++) {
            if (lane >= some) break;
            store_f32_w(to, v[lane]);
            to += LANES_w;
            if (++x == width) x = 0, to += gap;
        }
    }
}

/* The input of a block of positions: to[z][y][x][lane], with zeros outside of the planes. */
static void go_depthwise_input(const go_conv *c, const float *const *planes, const int64_t *start, const int64_t *block,
                               float *to) {
    int64_t first[3], low[3], high[3];
    int outside = 0;
    for (int axis = 0; axis < 3; axis++) {
        const int64_t length = (block[axis] - 1) * c->stride[axis] + (c->kernel[axis] - 1) * c->dilation[axis] + 1;
        first[axis] = start[axis] * c->stride[axis] - c->pad[axis];
        low[axis] = first[axis] < 0 ? -first[axis] : 0;
        high[axis] = go_least(length, c->in[axis] - first[axis]);
        outside |= low[axis] > 0 || high[axis] < length;
    }
    if (outside) memset(to, 0, (size_t)(c->plane * LANES_w) * sizeof(float));
    const int64_t width = high[2] - low[2], rows = high[1] - low[1], whole = width == c->in[2];
    if (width <= 0 || rows <= 0) return;
    for (int64_t z = low[0]; z < high[0]; z++)
        for (int64_t y = low[1]; y < high[1]; y += whole ? rows : 1) {
            const int64_t at = ((first[0] + z) * c->in[1] + first[1] + y) * c->in[2] + first[2] + low[2];
            go_depthwise_turn(planes, at, whole ? rows * width : width, width, (c->pitch[1] - width) * LANES_w,
                              to + (z * c->pitch[0] + y * c->pitch[1] + low[2]) * LANES_w);
        }
}

/* to[position][lane] of `positions` adjacent positions, whose inputs are `step` floats apart. */
GO_INLINE void go_depthwise_sums(const float *x, const int64_t *offset, int64_t taps, const float *weights, f32_w bias,
                                 int64_t step, const int positions, float *to) {
    f32_w sum[GO_DEPTHWISE_POSITIONS];
    GO_UNROLL for (int i = 0; i < positions; i++) sum[i] = splat_f32_w(0);
    for (int64_t tap = 0; tap < taps; tap++) {
        const f32_w weight = load_f32_w(weights + tap * LANES_w);
        const float *at = x + offset[tap];
        GO_UNROLL for (int i = 0; i < positions; i++) sum[i] = fma_w(load_f32_w(at + i * step), weight, sum[i]);
    }
    GO_UNROLL for (int i = 0; i < positions; i++) store_f32_w(to + i * LANES_w, sum[i] + bias);
}

/* A row of positions, in register blocks of nearly equal sizes. */
static void go_depthwise_row(const float *x, const int64_t *offset, int64_t taps, const float *weights, f32_w bias,
                             int64_t step, int64_t count, float *to) {
    int64_t blocks = go_ceil_div(count, GO_DEPTHWISE_POSITIONS);
    for (; blocks > 0; blocks--) {
        const int64_t some = go_ceil_div(count, blocks);
        switch (some) {
#define GO_CASE(n) case n: go_depthwise_sums(x, offset, taps, weights, bias, step, n, to); break;
            GO_CASE(1) GO_CASE(2) GO_CASE(3) GO_CASE(4) GO_CASE(5) GO_CASE(6) GO_CASE(7) GO_CASE(8)
#undef GO_CASE
        }
        x += some * step, to += some * LANES_w, count -= some;
    }
}

/* to[lane][point] of from[point][lane] */
static void go_depthwise_turn_back(const float *from, int64_t points, float *to) {
    for (int64_t p = 0; p < points; p += LANES_w) {
        const int some = (int)go_least(points - p, LANES_w);
        f32_w v[LANES_w];
        GO_UNROLL for (int lane = 0; lane < LANES_w; lane++)
            v[lane] = lane < some ? load_f32_w(from + (p + lane) * LANES_w) : splat_f32_w(0);
        go_transpose(v);
        GO_UNROLL for (int lane = 0; lane < LANES_w; lane++) store_part_f32_w(to + lane * points + p, v[lane], some);
    }
}

/* A block of positions of an image, for as many filters as a vector has lanes. */
GO_INLINE void go_depthwise_filters(go_depthwise *d, const int64_t *start, const int64_t *block, int64_t image,
                                     int64_t first, float *x, void (*finish)(void *, int64_t, int64_t, const void *),
                                     void *data) {
    const go_conv *c = &d->c;
    const int64_t count = go_least(d->filters - first, LANES_w);
    const int64_t points = block[0] * block[1] * block[2], size = c->in[0] * c->in[1] * c->in[2];
    float *const sums = x + c->plane * LANES_w, *const turned = sums + points * LANES_w;
    const float *planes[LANES_w];
    for (int64_t lane = 0; lane < LANES_w; lane++) /* the last filter, repeated */
        planes[lane] = c->x + (image * c->groups + (first + go_least(lane, count - 1)) / c->filters) * size;
    go_depthwise_input(c, planes, start, block, x);
    const float *const weights = c->weights + first * c->taps;
    const f32_w bias = c->bias ? load_part_f32_w(c->bias + first, (int)count) : splat_f32_w(0);
    for (int64_t row = 0; row < block[0] * block[1]; row++) {
        const int64_t z = row / block[1] * c->stride[0], y = row % block[1] * c->stride[1];
        int64_t low = 0, high = c->kernel[1];
        if (c->kernel[0] == 1) go_depthwise_inside(c, start[1] + row % block[1], &low, &high);
        const int64_t tap = low * c->kernel[2], taps = c->kernel[0] * (high - low) * c->kernel[2];
        go_depthwise_row(x + (z * c->pitch[0] + y * c->pitch[1]) * LANES_w, c->offset + tap, taps,
                         weights + tap * LANES_w, bias, c->stride[2] * LANES_w, block[2], sums + row * block[2] * LANES_w);
    }
    go_depthwise_turn_back(sums, points, turned);
    /* Positions that are adjacent in the output: whole rows, and whole planes of them */
    const int64_t rows = block[2] < c->out[2] ? 1 : block[1] < c->out[1] ? block[1] : block[0] * block[1];
    for (int64_t lane = 0; lane < count; lane++)
        for (int64_t row = 0; row < block[0] * block[1]; row += rows) {
            const int64_t z = start[0] + row / block[1], y = start[1] + row % block[1];
            const int64_t plane = (image * d->filters + first + lane) * c->points;
            const int64_t place = plane + (z * c->out[1] + y) * c->out[2] + start[2];
            finish(data, place, rows * block[2], turned + lane * points + row * block[2]);
        }
}
