/* Attention: softmax(scale Q K^T + mask) V in blocks of keys, whose scores stay in a cache. The maximum and the sum of
   the softmax are those of the blocks so far; a block with a larger maximum rescales them and the result.
   After Milakov and Gimelshein, Online normalizer calculation for softmax, 2018, and Dao et al., FlashAttention, 2022.
   Needs gemm_tiles.h. */

#define GO_ATTENTION_KEYS 256                  /* keys of a block */
#define GO_ATTENTION_PITCH (GO_ATTENTION_KEYS + 16) /* from one row of scores to the next: apart in a cache */
#define GO_ATTENTION_ROWS (8 * GO_GEMM_ROWS)   /* queries of a chunk of work, at most */
#define GO_ATTENTION_CHUNK (16 * (int64_t)GO_CHUNK) /* multiplications of a chunk of work, about */
#define GO_ATTENTION_FEW 2                     /* queries for which keys are not transposed, at most */

/* Strides are in elements; the last axis of Q, K, V and the result is contiguous. Query heads h share the keys of head
   h / group. */
typedef struct {
    const float *q, *k, *v;
    const void *mask; /* floats to add, or bytes that are 0 for keys to ignore; NULL for none */
    int64_t batch, heads, group, queries, keys, depth, width;
    int64_t q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row;
    int64_t mask_batch, mask_head, mask_row, mask_key; /* mask_key is 0 or 1 */
    int64_t out_batch, out_head, out_row;
    float scale, cap; /* scores s become cap tanh(s / cap), unless cap is 0 */
    int is_causal; /* whether query i uses keys 0 ... i alone; there is no mask then */
    int is_boolean, is_zero; /* whether rows that the mask hides from all keys are 0: no summand exceeds the lowest float */
    int64_t blocks;       /* of the queries of the heads that share keys */
    int64_t parts, step;  /* all blocks of all heads, and those of a chunk of work */
} go_attention;

typedef void go_attention_finish(void *data, int64_t at, int64_t count, const void *values);

/* The memory of a chunk */
typedef struct {
    float *q, *k, *v, *scores, *part, *result;
    float most[GO_ATTENTION_ROWS], sum[GO_ATTENTION_ROWS], factor[GO_ATTENTION_ROWS];
    int is_open[GO_ATTENTION_ROWS]; /* whether the mask hides a row from some keys alone */
    int64_t mask[GO_ATTENTION_ROWS], out[GO_ATTENTION_ROWS]; /* the first element of each row */
    int64_t keys[GO_ATTENTION_ROWS];                         /* of each row */
    int is_plain;                                            /* whether other keys have no influence */
} go_attention_memory;

/* Divides the attention into chunks of work; returns their number. */
__attribute__((unused)) static size_t go_attention_plan(go_attention *a) {
    const int64_t rows = a->group * a->queries;
    a->blocks = (rows + GO_ATTENTION_ROWS - 1) / GO_ATTENTION_ROWS;
    a->parts = a->batch * (a->heads / a->group) * a->blocks;
    const double each = (double)rows / (double)a->blocks * (double)a->keys * (double)(a->depth + a->width);
    const double step = (double)GO_ATTENTION_CHUNK / (each < 1 ? 1 : each);
    a->step = step >= (double)a->parts ? a->parts : step >= 1 ? (int64_t)step : 1;
    return (size_t)((a->parts + a->step - 1) / a->step);
}

#ifdef __clang__
#define GO_PICK(y, a, b, lane) \
    for (int i_ = 0; i_ < LANES_w; i_++) y[i_] = lane[i_] < LANES_w ? a[lane[i_]] : b[lane[i_] - LANES_w];
#else
#define GO_PICK(y, a, b, lane) y = __builtin_shuffle(a, b, lane);
#endif
/* Transposes a square of vectors: exchanges the off-diagonal blocks of squares of 2, 4, 8 ... elements. */
GO_INLINE void go_transpose(f32_w *x) {
    GO_UNROLL for (int step = 1; step < LANES_w; step *= 2) {
        i32_w low = {0}, high = {0};
        GO_UNROLL for (int i = 0; i < LANES_w; i++) {
            low[i] = i & step ? LANES_w + i - step : i;
            high[i] = i & step ? LANES_w + i : i + step;
        }
        GO_UNROLL for (int i = 0; i < LANES_w; i++) {
            if (i & step) continue;
            const f32_w a = x[i], b = x[i + step];
            GO_PICK(x[i], a, b, low)
            GO_PICK(x[i + step], a, b, high)
        }
    }
}
#undef GO_PICK

/* Panels of GO_GEMM_WIDE columns of the transposed rows k[0 ... count - 1] of `depth` elements. */
__attribute__((unused)) static void go_attention_transpose(const float *k, int64_t stride, int64_t count, int64_t depth,
                                                           float *to) {
    for (int64_t j = 0; j < count; j += LANES_w) {
        const int64_t rows = count - j < LANES_w ? count - j : LANES_w;
        float *panel = to + j / GO_GEMM_WIDE * GO_GEMM_WIDE * depth + j % GO_GEMM_WIDE;
        for (int64_t p = 0; p < depth; p += LANES_w) {
            const int columns = depth - p < LANES_w ? (int)(depth - p) : LANES_w;
            f32_w x[LANES_w];
            for (int i = 0; i < LANES_w; i++)
                x[i] = i >= rows ? splat_f32_w(0) : load_part_f32_w(k + (j + i) * stride + p, columns);
            go_transpose(x);
            for (int i = 0; i < columns; i++) store_f32_w(panel + (p + i) * GO_GEMM_WIDE, x[i]);
        }
    }
}

/* The summands of `count` scores from key t on. */
GO_INLINE f32_w go_attention_mask(const go_attention *a, const void *mask, int64_t t, int count) {
    if (!a->is_boolean)
        return a->mask_key ? load_part_f32_w((const float *)mask + t, count) : load_one_f32_w(mask);
    uint8_t keep[LANES_w] = {0};
    if (a->mask_key) go_copy_part(keep, (const uint8_t *)mask + t, (size_t)count);
    else memset(keep, *(const uint8_t *)mask, sizeof keep);
    f32_w add;
    for (int i = 0; i < LANES_w; i++) add[i] = keep[i] ? 0 : -__FLT_MAX__;
    return add;
}

/* The scores of a row before the softmax: scaled, capped and masked, those from `hidden` on by the lowest float; returns
   their maximum. Those after the last are -infinity. */
GO_INLINE f32_w go_attention_scores(const go_attention *a, float *x, const void *mask, int64_t count, int64_t hidden,
                                    int *is_open) {
    f32_w most = splat_f32_w(-__FLT_MAX__);
    i32_w open = {0};
    for (int64_t t = 0; t < count; t += LANES_w) {
        const int m = count - t < LANES_w ? (int)(count - t) : LANES_w;
        f32_w y = load_f32_w(x + t) * a->scale;
        if (a->cap != 0) y = tanh_w(y / a->cap) * a->cap;
        if (mask) {
            const f32_w add = go_attention_mask(a, mask, t, m);
            open |= ~(add <= -__FLT_MAX__) & first_i32_w(m);
            y += add;
        }
        if (hidden < t + m)
            y += select_f32_w(first_i32_w(hidden > t ? (int)(hidden - t) : 0), splat_f32_w(0), splat_f32_w(-__FLT_MAX__));
        if (m < LANES_w) y = select_f32_w(first_i32_w(m), y, splat_f32_w(-__builtin_inff()));
        most = more_w(y, most);
        store_f32_w(x + t, y);
    }
    *is_open |= !mask || min_across_i32_w(open)[0];
    return max_across_f32_w(most);
}

/* The softmax of `rows` rows of scores of a block from key `at` on, from row `first` on, without its division. */
GO_INLINE void go_attention_softmax(const go_attention *a, go_attention_memory *own, int64_t first, int64_t rows,
                                    int64_t at, int64_t count) {
    for (int64_t i = 0; i < rows; i++) {
        float *x = own->scores + i * GO_ATTENTION_PITCH;
        const int64_t row = first + i, place = own->mask[row] + at * a->mask_key;
        const void *mask = !a->mask ? NULL
                         : a->is_boolean ? (const void *)((const uint8_t *)a->mask + place)
                                         : (const void *)((const float *)a->mask + place);
        const int64_t left = own->keys[row] > at ? own->keys[row] - at : 0;
        const int64_t some = own->is_plain && left < count ? left : count;
        const f32_w before = splat_f32_w(own->most[row]);
        const f32_w most = max_f32_w(before, go_attention_scores(a, x, mask, some, left, &own->is_open[row]));
        f32_w sum = splat_f32_w(0);
        int64_t t = 0;
        for (; t < some; t += LANES_w) {
            const f32_w y = exp_w(load_f32_w(x + t) - most);
            store_f32_w(x + t, y);
            sum += y;
        }
        for (; t < count; t += LANES_w) store_f32_w(x + t, splat_f32_w(0));
        own->factor[row] = at == 0 ? 0 : exp_w(before - most)[0];
        own->sum[row] = (at == 0 ? 0 : own->sum[row] * own->factor[row]) + sum_across_f32_w(sum)[0];
        own->most[row] = most[0];
    }
}

/* The rows `first` ... `first` + `rows` - 1 of a chunk, with the keys `at` ... `at` + `count` - 1. */
GO_INLINE void go_attention_tile(const go_attention *a, go_attention_memory *own, int64_t first, int64_t rows,
                                 int64_t at, int64_t count, const float *k, const float *v, int64_t v_row, int few) {
    int64_t last = 0;
    for (int64_t i = first; i < first + rows; i++) last = own->keys[i] > last ? own->keys[i] : last;
    if (own->is_plain && last - at < count) count = last - at;
    if (count <= 0) return;
    const int64_t depth = a->depth, width = a->width;
    const float *q = own->q + first * depth;
    float *result = own->result + first * width;
    if (few) {
        for (int64_t i = 0; i < rows; i++)
            go_gemm_dots(count, depth, q + i * depth, k, a->k_row, own->scores + i * GO_ATTENTION_PITCH);
    } else {
        go_gemm_row(rows, count, depth, q, depth, own->k, GO_GEMM_WIDE, depth * GO_GEMM_WIDE, NULL, own->scores,
                    GO_ATTENTION_PITCH);
    }
    go_attention_softmax(a, own, first, rows, at, count);
    float *part = at == 0 ? result : own->part;
    go_gemm_row(rows, width, count, own->scores, GO_ATTENTION_PITCH, v, v_row, GO_GEMM_WIDE, NULL, part, width);
    if (at == 0) return;
    for (int64_t i = 0; i < rows; i++) {
        const f32_w factor = splat_f32_w(own->factor[first + i]);
        for (int64_t x = i * width; x < (i + 1) * width; x += LANES_w) {
            const int m = (i + 1) * width - x < LANES_w ? (int)((i + 1) * width - x) : LANES_w;
            const f32_w y = fma_w(load_part_f32_w(result + x, m), factor, load_part_f32_w(part + x, m));
            store_part_f32_w(result + x, y, m);
        }
    }
}

/* Whether rows have neither NaN nor numbers whose products may overflow. */
__attribute__((unused)) static int go_attention_is_plain(const float *x, int64_t rows, int64_t stride, int64_t depth) {
    i32_w odd = {0};
    for (int64_t i = 0; i < rows; i++)
        for (int64_t p = 0; p < depth; p += LANES_w) {
            const int m = depth - p < LANES_w ? (int)(depth - p) : LANES_w;
            odd |= ~(abs_f32_w(load_part_f32_w(x + i * stride + p, m)) <= 1e16f);
        }
    return min_across_i32_w(odd)[0] == 0;
}

/* One block of queries of the heads that share keys; returns whether there was memory. */
GO_INLINE int go_attention_part(const go_attention *a, int64_t part, go_attention_finish *finish, void *data) {
    const int64_t shared = a->heads / a->group, total = a->group * a->queries;
    const int64_t block = part % a->blocks, head = part / a->blocks % shared, batch = part / a->blocks / shared;
    /* Blocks of about equal size, of tiles of about equal size */
    const int64_t start = total * block / a->blocks, rows = total * (block + 1) / a->blocks - start;
    const int64_t tiles = (rows + GO_GEMM_ROWS - 1) / GO_GEMM_ROWS;
    const int64_t depth = a->depth, width = a->width, keys = a->keys;
    const int64_t span = keys < GO_ATTENTION_KEYS ? (keys + GO_GEMM_WIDE - 1) / GO_GEMM_WIDE * GO_GEMM_WIDE : GO_ATTENTION_KEYS;
    const int few = rows <= GO_ATTENTION_FEW;
    const int copies = !few && a->v_row != width;
    go_attention_memory memory, *const own = &memory;
    const double sizes = (double)rows * (depth + width) + (double)span * (depth + width) + (double)GO_GEMM_ROWS * width;
    float *const floats =
        sizes < 0x1p40 ? malloc(((size_t)sizes + GO_GEMM_ROWS * GO_ATTENTION_PITCH + 6 * 16 + 16) * sizeof(float)) : NULL;
    if (!floats) return 0;
#define GO_NEXT(before, count) ((float *)(((uintptr_t)((before) + (count)) + 63) / 64 * 64))
    own->scores = GO_NEXT(floats, 0);
    own->k = GO_NEXT(own->scores, GO_GEMM_ROWS * GO_ATTENTION_PITCH);
    own->v = GO_NEXT(own->k, span * depth);
    own->q = GO_NEXT(own->v, span * width);
    own->result = GO_NEXT(own->q, rows * depth);
    own->part = GO_NEXT(own->result, rows * width);
#undef GO_NEXT
    for (int64_t i = 0; i < rows; i++) {
        const int64_t h = head * a->group + (start + i) / a->queries, query = (start + i) % a->queries;
        memcpy(own->q + i * depth, a->q + batch * a->q_batch + h * a->q_head + query * a->q_row,
               (size_t)depth * sizeof(float));
        own->mask[i] = batch * a->mask_batch + h * a->mask_head + query * a->mask_row;
        own->out[i] = batch * a->out_batch + h * a->out_head + query * a->out_row;
        own->most[i] = -__FLT_MAX__;
        own->is_open[i] = !a->is_zero;
        own->keys[i] = a->is_causal && query < keys ? query + 1 : keys;
    }
    const float *const k = a->k + batch * a->k_batch + head * a->k_head;
    const float *const v = a->v + batch * a->v_batch + head * a->v_head;
    own->is_plain = a->is_causal && go_attention_is_plain(own->q, rows, depth, depth) &&
                    go_attention_is_plain(k, keys, a->k_row, depth) && go_attention_is_plain(v, keys, a->v_row, width);
    for (int64_t at = 0; at < keys; at += GO_ATTENTION_KEYS) {
        const int64_t count = keys - at < GO_ATTENTION_KEYS ? keys - at : GO_ATTENTION_KEYS;
        if (!few) go_attention_transpose(k + at * a->k_row, a->k_row, count, depth, own->k);
        if (copies)
            for (int64_t t = 0; t < count; t++)
                memcpy(own->v + t * width, v + (at + t) * a->v_row, (size_t)width * sizeof(float));
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t first = rows * tile / tiles;
            go_attention_tile(a, own, first, rows * (tile + 1) / tiles - first, at, count, k + at * a->k_row,
                              copies ? own->v : v + at * a->v_row, copies ? width : a->v_row, few);
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        float *x = own->result + i * width;
        const int some = keys && own->is_open[i];
        const float inverse = some ? 1 / own->sum[i] : 0;
        for (int64_t j = 0; j < width; j++) x[j] = some ? x[j] * inverse : 0;
        finish(data, own->out[i], width, x);
    }
    free(floats);
    return 1;
}

GO_INLINE void go_attention_chunk(const go_attention *a, size_t chunk, go_attention_finish *finish,
                                                       void *data, int *failed) {
    const int64_t start = (int64_t)chunk * a->step, stop = a->parts - start < a->step ? a->parts : start + a->step;
    for (int64_t part = start; part < stop; part++)
        if (!go_attention_part(a, part, finish, data)) __atomic_store_n(failed, 1, __ATOMIC_RELAXED);
}
