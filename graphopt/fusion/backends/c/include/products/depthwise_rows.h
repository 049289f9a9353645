/* Depthwise convolutions of 3×3 and 5×5 taps whose vectors hold adjacent positions of a row: a vector of inputs is read
   once for the products of several rows of the output. */

/* The rows of a plane that a block reads, by residues of the strides. Padding is not written. */
static void go_depthwise_copy(const go_conv *c, const float *plane, const int64_t *start, float *to) {
    for (int64_t p = 0; p < c->phases[1]; p++)
        for (int64_t q = 0; q < c->phases[2]; q++, to += c->length[1] * c->length[2]) {
            const int64_t step = c->stride[2], top = start[1] * c->stride[1] - c->pad[1] + p;
            const int64_t left = start[2] * step - c->pad[2] + q, low = left < 0 ? go_ceil_div(-left, step) : 0;
            const int64_t high = go_least(c->length[2], left < c->in[2] ? go_ceil_div(c->in[2] - left, step) : 0);
            for (int64_t y = 0; y < c->length[1]; y++) {
                const int64_t row = top + y * c->stride[1];
                if (row < 0 || row >= c->in[1]) continue;
                float *const line = to + y * c->length[2];
                for (int64_t x = low; x < high; x += LANES_w) {
                    const int some = (int)go_least(high - x, LANES_w);
                    const float *from = plane + row * c->in[2] + left + x * step;
                    f32_w v;
                    if (step == 1) {
                        v = load_part_f32_w(from, some);
                    } else {
                        const int more = 2 * some - 1 - LANES_w;
                        v = load_part_f32_w(from, more > 0 ? LANES_w : 2 * some - 1);
                        v = go_even(v, more > 0 ? load_part_f32_w(from + LANES_w, more) : v);
                    }
                    store_part_f32_w(line + x, v, some);
                }
            }
        }
}

/* gcc reads a vector again for each of its products. */
#if GO_LEVEL >= 2
#define GO_LOADED(v) __asm__("" : "+v"(v))
#else
#define GO_LOADED(v)
#endif

/* The sums of a block of `rows` rows: to[row][x] for `count` columns. The input has parts by the residues of rows and
   columns by the strides, part[0] and part[1] floats apart. */
GO_INLINE void go_depthwise_block(const float *x, int64_t pitch, const int64_t *part, const float *weights, float bias,
                                  const int taps, const int down, const int right, const int rows, int64_t count,
                                  float *to) {
    f32_w weight[25];
#pragma GCC unroll 25
    for (int tap = 0; tap < taps * taps; tap++) weight[tap] = splat_f32_w(weights[tap]);
    for (int64_t i = 0; i < count; i += LANES_w) {
        f32_w sum[GO_DEPTHWISE_ROWS];
        GO_UNROLL for (int row = 0; row < rows; row++) sum[row] = splat_f32_w(0);
        GO_UNROLL for (int residue = 0; residue < down; residue++) {
            const float *at = x + residue * part[0] + i;
            GO_UNROLL for (int y = 0; y < rows - 1 + (taps - residue + down - 1) / down; y++, at += pitch) {
                __asm__("" : "+r"(at)); /* one address for all taps of a row */
                GO_UNROLL for (int tap = 0; tap < taps; tap++) {
                    f32_w v = load_f32_w(at + tap / right + (tap % right ? part[1] : 0));
                    GO_LOADED(v);
                    GO_UNROLL for (int row = 0; row < rows; row++) {
                        const int of = residue + (y - row) * down;
                        if (row <= y && of < taps) sum[row] = fma_w(v, weight[of * taps + tap], sum[row]);
                    }
                }
            }
        }
        GO_UNROLL for (int row = 0; row < rows; row++) {
            const f32_w y = sum[row] + splat_f32_w(bias);
            if (i + LANES_w <= count) store_f32_w(to + row * count + i, y);
            else store_part_f32_w(to + row * count + i, y, (int)(count - i));
        }
    }
}

/* The same for any number of rows, with `taps` by `taps` taps and strides `down` and `right`. */
typedef void go_depthwise_strip(const float *x, int64_t pitch, const int64_t *part, const float *weights, float bias,
                                int64_t rows, int64_t count, float *to);
#define GO_DEPTHWISE_STRIPS(taps, down, right) \
    GO_NOINLINE void go_depthwise_strip_##taps##_##down##_##right( \
        const float *x, int64_t pitch, const int64_t *part, const float *weights, float bias, int64_t rows, \
        int64_t count, float *to) { \
        for (; rows >= GO_DEPTHWISE_ROWS; rows -= GO_DEPTHWISE_ROWS) { \
            go_depthwise_block(x, pitch, part, weights, bias, taps, down, right, GO_DEPTHWISE_ROWS, count, to); \
            x += GO_DEPTHWISE_ROWS * pitch, to += GO_DEPTHWISE_ROWS * count; \
        } \
        if (rows >= 2) { \
            go_depthwise_block(x, pitch, part, weights, bias, taps, down, right, 2, count, to); \
            x += 2 * pitch, to += 2 * count, rows -= 2; \
        } \
        if (rows) go_depthwise_block(x, pitch, part, weights, bias, taps, down, right, 1, count, to); \
    }
#define GO_DEPTHWISE_EACH(make) \
    make(3, 1, 1) make(3, 1, 2) make(3, 2, 1) make(3, 2, 2) make(5, 1, 1) make(5, 1, 2) make(5, 2, 1) make(5, 2, 2)
GO_DEPTHWISE_EACH(GO_DEPTHWISE_STRIPS)

GO_INLINE go_depthwise_strip *go_depthwise_strip_of(const go_conv *c) {
#define GO_CASE(taps, down, right) \
    if (c->kernel[2] == taps && c->stride[1] == down && c->stride[2] == right) \
        return go_depthwise_strip_##taps##_##down##_##right;
    GO_DEPTHWISE_EACH(GO_CASE)
#undef GO_CASE
    return NULL;
}

/* A block of rows of some filters of an image. */
GO_INLINE void go_depthwise_rows(go_depthwise *d, const int64_t *start, const int64_t *block, int64_t image,
                                 int64_t first, int64_t count, float *x,
                                 void (*finish)(void *, int64_t, int64_t, const void *), void *data) {
    const go_conv *c = &d->c;
    const int64_t size = c->in[1] * c->in[2], points = block[1] * block[2];
    const int64_t phase = c->pitch[0], part[] = {phase * c->phases[2], phase};
    go_depthwise_strip *const strip = go_depthwise_strip_of(c);
    float *const sums = x + c->plane + 2 * LANES_w, *const weights = sums + points;
    memset(x, 0, (size_t)c->plane * sizeof(float));
    for (int64_t f = first; f < first + count; f++) {
        go_depthwise_copy(c, c->x + (image * c->groups + f / c->filters) * size, start, x);
        for (int64_t tap = 0; tap < c->taps; tap++)
            weights[tap] = c->weights[(f / LANES_w * c->taps + tap) * LANES_w + f % LANES_w];
        strip(x, c->pitch[1], part, weights, c->bias ? c->bias[f] : 0, block[1], block[2], sums);
        const int64_t at = ((image * d->filters + f) * c->out[1] + start[1]) * c->out[2] + start[2];
        const int64_t calls = block[2] < c->out[2] ? block[1] : 1;
        for (int64_t i = 0; i < calls; i++) finish(data, at + i * c->out[2], points / calls, sums + i * block[2]);
    }
}
