/* Convolutions whose vectors hold adjacent positions of the output: a block of filters by positions is in registers. */

/* Runs of positions that are adjacent in the output, of those in a tile. */
typedef struct {
    int64_t lane, count, at;
} go_conv_run;

/* to[row][column] = sum of `depth` products, of `span` at a time in registers: `rows` filters, whose weights are
   `lanes` apart, by `columns` vectors of positions. The bias has `filters` elements, or is NULL. */
GO_INLINE void go_conv_sums(const int64_t *offset, int64_t depth, int64_t span, const float *x, const float *weights,
                            int64_t lanes, const float *bias, int64_t filters, const int rows, const int columns,
                            float *to) {
    for (int64_t from = 0; from == 0 || from < depth; from += span) {
        const int64_t end = go_least(depth, from + span);
        f32_w sum[8][8];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < columns; j++) sum[i][j] = splat_f32_w(0);
        for (int64_t r = from; r < end; r++) {
            const float *at = x + offset[r], *weight = weights + r * lanes;
            f32_w v[8];
#pragma GCC unroll 8
            for (int j = 0; j < columns; j++) v[j] = load_f32_w(at + j * LANES_w);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                const f32_w w = splat_f32_w(weight[i]);
#pragma GCC unroll 8
                for (int j = 0; j < columns; j++) sum[i][j] = fma_w(w, v[j], sum[i][j]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            const f32_w first = splat_f32_w(bias && i < filters ? bias[i] : 0);
#pragma GCC unroll 8
            for (int j = 0; j < columns; j++) {
                float *cell = to + (i * columns + j) * LANES_w;
                store_f32_w(cell, sum[i][j] + (from ? load_f32_w(cell) : first));
            }
        }
    }
}

/* Vectors of positions in a block of `rows` filters. */
GO_INLINE int go_conv_columns(int64_t rows) {
#if GO_LEVEL == 4
    return rows > 4 ? 3 : rows > 2 ? 5 : 8;
#elif GO_LEVEL == 3
    return rows > 2 ? 3 : rows > 1 ? 5 : 8;
#else
    return rows > 2 ? 2 : rows > 1 ? 4 : 6;
#endif
}

/* The number of columns of the block that was computed, `columns` or more: to[row][number * LANES_w]. */
static int go_conv_block(const int64_t *offset, int64_t depth, int64_t span, const float *x, const float *weights,
                         int64_t lanes, const float *bias, int64_t filters, int columns, float *to) {
#define GO_CASE(r, n) \
    if (filters <= r && columns <= n && n <= go_conv_columns(r)) { \
        go_conv_sums(offset, depth, span, x, weights, lanes, bias, filters, r, n, to); \
        return n; \
    }
    GO_CASE(1, 1)
    GO_CASE(1, 2)
    GO_CASE(1, 3)
    GO_CASE(1, 4)
    GO_CASE(1, 6)
    GO_CASE(1, 8)
    GO_CASE(2, 1)
    GO_CASE(2, 2)
    GO_CASE(2, 3)
    GO_CASE(2, 4)
    GO_CASE(2, 5)
    GO_CASE(2, 8)
    GO_CASE(4, 1)
    GO_CASE(4, 2)
    GO_CASE(4, 3)
    GO_CASE(4, 5)
#if GO_LEVEL == 4
    GO_CASE(8, 1)
    GO_CASE(8, 2)
    GO_CASE(8, 3)
#endif
#undef GO_CASE
    return 0;
}

/* The runs of a tile of `count` positions from `first`, of rows `pitch` apart in the input of a chunk. */
static int go_conv_runs(const go_conv *c, const int64_t *start, const int64_t *block, int64_t first, int64_t count,
                        go_conv_run *runs) {
    int found = 0;
    int64_t z = first / c->pitch[0], rest = first % c->pitch[0], y = rest / c->pitch[1], x = rest % c->pitch[1];
    for (int64_t lane = 0; lane < count;) {
        if (y < block[1] && x < block[2]) {
            const int64_t length = go_least(count - lane, block[2] - x);
            const int64_t at = ((start[0] + z) * c->out[1] + start[1] + y) * c->out[2] + start[2] + x;
            runs[found++] = (go_conv_run){lane, length, at};
        }
        lane += c->length[2] - x;
        x = 0;
        if (++y == c->length[1]) y = 0, z++;
    }
    return found;
}

/* Filters first ... first + count - 1 of a group at the positions of a block that starts at `start`. */
GO_INLINE void go_conv_positions(const go_conv *c, const float *x, int64_t image, int64_t group, const int64_t *start,
                                 const int64_t *block, int64_t first, int64_t count,
                                 void (*finish)(void *, int64_t, int64_t, const void *), void *data) {
    float values[64 * LANES_w] __attribute__((aligned(64)));
    go_conv_run runs[8 * LANES_w];
    const int64_t lanes = go_conv_lanes(c->filters), packed = go_round_up(c->filters, lanes) * c->depth;
    const int64_t most = go_least(lanes, GO_CONV_FILTERS), widest = go_conv_columns(go_least(count, most));
    const int64_t flat = (block[0] - 1) * c->pitch[0] + (block[1] - 1) * c->pitch[1] + block[2];
    const int64_t tile = widest * LANES_w;
    const int64_t split = block[0] * block[1] * go_ceil_div(block[2], LANES_w);
    const int by_row = split < go_ceil_div(flat, LANES_w);
    const int64_t rows = by_row ? block[0] * block[1] : 1, row = by_row ? block[2] : flat;
    /* The last float that vectors may read, from x. */
    const float *end = c->copied ? NULL : c->x + c->batch * c->groups * c->channels * c->plane;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t base = by_row ? i / block[1] * c->pitch[0] + i % block[1] * c->pitch[1] : 0;
        for (int64_t j = 0; j < row; j += tile) {
            const int64_t width = go_least(tile, row - j);
            const int number = go_conv_runs(c, start, block, base + j, width, runs);
            const float *from = x + base + j;
            const int64_t beyond = end ? from + c->reach + tile - end : 0, shift = beyond > 0 ? beyond : 0;
            for (int64_t k = first; k < first + count;) {
                const int64_t step = go_least(go_least(most, first + count - k), most - k % most);
                const float *weights = c->weights + group * packed + k / lanes * lanes * c->depth + k % lanes;
                const int columns = (int)go_ceil_div(width + shift, LANES_w);
                const float *bias = c->bias ? c->bias + group * c->filters + k : NULL;
                const int wide = go_conv_block(c->offset, c->depth, GO_CONV_SUM, from - shift, weights, lanes, bias, step,
                                               columns, values);
                for (int64_t f = 0; f < step; f++) {
                    const int64_t at = ((image * c->groups + group) * c->filters + k + f) * c->points;
                    for (int n = 0; n < number; n++)
                        finish(data, at + runs[n].at, runs[n].count, values + f * wide * LANES_w + shift + runs[n].lane);
                }
                k += step;
            }
        }
    }
}
