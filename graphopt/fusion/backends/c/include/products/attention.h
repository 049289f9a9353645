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
   h / group. The keys are those of the past and then new ones; the present is both, as a result. Past and present are
   [batch, heads / group, length, depth], and may be the same memory. */
typedef struct {
    const float *q, *k, *v;
    const float *past_k, *past_v; /* NULL for none */
    float *present_k, *present_v; /* NULL for none */
    const int32_t *lengths;       /* of each batch, the last key of past and new ones; NULL for all */
    const float *cosines, *sines; /* of each position, [positions, turned]; NULL for no rotary embedding */
    const void *mask; /* floats to add, or bytes that are 0 for keys to ignore; NULL for none */
    int64_t batch, heads, group, queries, depth, width;
    int64_t added, past, present; /* numbers of new keys, and lengths of the past and the present */
    int64_t window;               /* queries use the last `window` keys alone; 0 for all */
    int64_t turned;               /* pairs of elements of a head that are rotated: with distance 1, or `turned` */
    int is_interleaved;
    int64_t q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row;
    int64_t mask_batch, mask_head, mask_row, mask_key; /* mask_key is 0 or 1 */
    int64_t out_batch, out_head, out_row;
    float scale, cap; /* scores s become cap tanh(s / cap), unless cap is 0 */
    int is_causal; /* whether query i uses the past and the new keys 0 ... i alone; there is no mask then */
    int is_exact;  /* whether hidden keys are excluded; otherwise, the lowest float is added to their scores */
    int zeros;     /* whether queries whose scores are all -infinity have results of 0 */
    int is_guarded; /* whether weights of NaN become 0 */
    int is_prompt; /* whether the past is ignored */
    int is_joined; /* whether the present has the past before the queries are computed */
    int is_boolean;
    int is_zero; /* whether rows that the mask hides from all keys are 0: no summand exceeds the lowest float */
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
    int64_t from[GO_ATTENTION_ROWS], keys[GO_ATTENTION_ROWS]; /* the first key of each row, and that after the last */
    int is_new[GO_ATTENTION_ROWS];                            /* whether no block of a row is computed yet */
    int is_plain;                                             /* whether other keys have no influence */
} go_attention_memory;

/* The number of keys of the past, and of all keys, of a batch. */
GO_INLINE int64_t go_attention_past(const go_attention *a, int64_t batch) {
    return a->is_prompt ? 0 : a->lengths ? a->lengths[batch] + 1 - a->added : a->past;
}
GO_INLINE int64_t go_attention_keys(const go_attention *a, int64_t batch) {
    const int64_t most = go_attention_past(a, batch) + a->added;
    return a->lengths && a->lengths[batch] + 1 < most ? a->lengths[batch] + 1 : most;
}

/* Divides the attention into chunks of work; returns their number. */
__attribute__((unused)) static size_t go_attention_plan(go_attention *a) {
    const int64_t rows = a->group * a->queries;
    a->blocks = go_ceil_div(rows, GO_ATTENTION_ROWS);
    a->is_joined = a->present_k && (a->blocks != 1 || a->past_k == a->present_k);
    a->parts = a->batch * (a->heads / a->group) * a->blocks;
    const double keys = (double)(a->past + a->added), share = (double)rows / (double)a->blocks;
    const double each = share * keys * (double)(a->depth + a->width);
    const double step = (double)GO_ATTENTION_CHUNK / (each < 1 ? 1 : each);
    a->step = step < 1 || a->parts < 1 ? 1 : step >= (double)a->parts ? a->parts : (int64_t)step;
    return (size_t)go_ceil_div(a->parts, a->step);
}

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

/* The scores of a row before the softmax: scaled, capped and masked; returns their maximum. Keys before `from` and from
   `hidden` on are hidden. Scores after the last key are -infinity. */
GO_INLINE f32_w go_attention_scores(const go_attention *a, float *x, const void *mask, int64_t count, int64_t from,
                                    int64_t hidden, int *is_open) {
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
        if (hidden < t + m || from > t) {
            const int some = hidden <= t ? 0 : hidden < t + m ? (int)(hidden - t) : m;
            const int none = from <= t ? 0 : from < t + m ? (int)(from - t) : m;
            const i32_w shown = first_i32_w(some) & ~first_i32_w(none);
            y = select_f32_w(shown, y, a->is_exact ? splat_f32_w(-__builtin_inff()) : y - __FLT_MAX__);
        }
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
        const int64_t some = own->is_plain && left < count ? left : count, from = own->from[row] - at;
        const f32_w before = splat_f32_w(own->most[row]);
        const f32_w most = max_f32_w(before, go_attention_scores(a, x, mask, some, from, left, &own->is_open[row]));
        f32_w sum = splat_f32_w(0);
        int64_t t = 0;
        for (; t < some; t += LANES_w) {
            const f32_w y = exp_w(load_f32_w(x + t) - most);
            store_f32_w(x + t, y);
            sum += y;
        }
        for (; t < count; t += LANES_w) store_f32_w(x + t, splat_f32_w(0));
        own->factor[row] = own->is_new[row] ? 0 : exp_w(before - most)[0];
        own->sum[row] = (own->is_new[row] ? 0 : own->sum[row] * own->factor[row]) + sum_across_f32_w(sum)[0];
        own->most[row] = most[0];
    }
}

/* The rows `first` ... `first` + `rows` - 1 of a chunk, with the keys `at` ... `at` + `count` - 1. */
GO_INLINE void go_attention_tile(const go_attention *a, go_attention_memory *own, int64_t first, int64_t rows,
                                 int64_t at, int64_t count, const float *k, int64_t k_row, const float *v,
                                 int64_t v_row, int few) {
    int64_t last = 0, from = INT64_MAX;
    for (int64_t i = first; i < first + rows; i++) {
        last = own->keys[i] > last ? own->keys[i] : last;
        from = own->from[i] < from ? own->from[i] : from;
    }
    if (own->is_plain && from >= at + count) return;
    if (own->is_plain && last - at < count) count = last - at;
    if (count <= 0) return;
    const int64_t depth = a->depth, width = a->width;
    const float *q = own->q + first * depth;
    float *result = own->result + first * width;
    if (few) {
        for (int64_t i = 0; i < rows; i++)
            go_gemm_dots(count, depth, q + i * depth, k, k_row, own->scores + i * GO_ATTENTION_PITCH);
    } else {
        go_gemm_row(rows, count, depth, q, depth, own->k, GO_GEMM_WIDE, depth * GO_GEMM_WIDE, NULL, own->scores,
                    GO_ATTENTION_PITCH);
    }
    go_attention_softmax(a, own, first, rows, at, count);
    const int is_new = own->is_new[first];
    float *part = is_new ? result : own->part;
    go_gemm_row(rows, width, count, own->scores, GO_ATTENTION_PITCH, v, v_row, GO_GEMM_WIDE, NULL, part, width);
    for (int64_t i = first; i < first + rows; i++) own->is_new[i] = 0;
    if (is_new) return;
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

/* Rotates pairs of elements, `far` apart. */
GO_INLINE void go_attention_rotate(const float *restrict x, const float *restrict cosines, const float *restrict sines,
                                   int64_t pairs, int64_t step, int64_t far, float *restrict to) {
    for (int64_t i = 0; i < pairs; i++) {
        to[i * step] = x[i * step] * cosines[i] - x[i * step + far] * sines[i];
        to[i * step + far] = x[i * step] * sines[i] + x[i * step + far] * cosines[i];
    }
}

/* Copies a head and rotates it by the angles of a position. */
GO_INLINE void go_attention_turn(const go_attention *a, const float *from, int64_t position, float *to) {
    memcpy(to, from, (size_t)a->depth * sizeof(float));
    if (!a->cosines) return;
    const float *const cosines = a->cosines + position * a->turned, *const sines = a->sines + position * a->turned;
    if (a->is_interleaved) go_attention_rotate(from, cosines, sines, a->turned, 2, 1, to);
    else go_attention_rotate(from, cosines, sines, a->turned, 1, a->turned, to);
}

/* Appends the new keys and values of a head to the present, after the past if the present is joined first. */
GO_INLINE void go_attention_append(const go_attention *a, size_t index) {
    const int64_t shared = a->heads / a->group, head = (int64_t)index % shared, batch = (int64_t)index / shared;
    const int64_t depth = a->depth, width = a->width, old = go_attention_past(a, batch), all = old + a->added;
    float *const k = a->present_k + (int64_t)index * a->present * depth;
    float *const v = a->present_v + (int64_t)index * a->present * width;
    if (a->is_joined && old && a->past_k != a->present_k) {
        memcpy(k, a->past_k + (int64_t)index * a->past * depth, (size_t)(old * depth) * sizeof(float));
        memcpy(v, a->past_v + (int64_t)index * a->past * width, (size_t)(old * width) * sizeof(float));
    }
    const float *const new_k = a->k + batch * a->k_batch + head * a->k_head;
    const float *const new_v = a->v + batch * a->v_batch + head * a->v_head;
    for (int64_t i = 0; i < a->added; i++) {
        go_attention_turn(a, new_k + i * a->k_row, old + i, k + (old + i) * depth);
        memcpy(v + (old + i) * width, new_v + i * a->v_row, (size_t)width * sizeof(float));
    }
    if (a->past_k == a->present_k) return;
    memset(k + all * depth, 0, (size_t)((a->present - all) * depth) * sizeof(float));
    memset(v + all * width, 0, (size_t)((a->present - all) * width) * sizeof(float));
}

/* Rows of keys and values: of the past, or of the new ones */
typedef struct {
    const float *k, *v;
    int64_t k_row, v_row;
} go_attention_rows;

GO_INLINE go_attention_rows go_attention_old(const go_attention *a, int64_t batch, int64_t head) {
    const int64_t place = (batch * (a->heads / a->group) + head) * a->past;
    return (go_attention_rows){a->past_k + place * a->depth, a->past_v + place * a->width, a->depth, a->width};
}

/* The rows from the key `at` on, of the new ones or, if it is joined, of the present. */
GO_INLINE go_attention_rows go_attention_new(const go_attention *a, int64_t batch, int64_t head, int64_t at) {
    if (!a->present_k) {
        const float *const k = a->k + batch * a->k_batch + head * a->k_head;
        const float *const v = a->v + batch * a->v_batch + head * a->v_head;
        return (go_attention_rows){k, v, a->k_row, a->v_row};
    }
    const int64_t place = (batch * (a->heads / a->group) + head) * a->present + at;
    return (go_attention_rows){a->present_k + place * a->depth, a->present_v + place * a->width, a->depth, a->width};
}

/* Whether hidden keys cannot influence a result: they have no NaN and, if their scores are added, no large numbers. */
GO_INLINE int go_attention_hides(const go_attention *a, const float *q, int64_t rows, go_attention_rows x,
                                 int64_t keys) {
    return (a->is_exact || (go_attention_is_plain(q, rows, a->depth, a->depth) &&
                            go_attention_is_plain(x.k, keys, x.k_row, a->depth))) &&
           go_attention_is_plain(x.v, keys, x.v_row, a->width);
}

/* One block of queries of the heads that share keys; returns whether there was memory. */
GO_INLINE int go_attention_part(const go_attention *a, int64_t part, go_attention_finish *finish, void *data) {
    const int64_t shared = a->heads / a->group, total = a->group * a->queries;
    const int64_t block = part % a->blocks, head = part / a->blocks % shared, batch = part / a->blocks / shared;
    /* Blocks of about equal size, of tiles of about equal size */
    const int64_t start = total * block / a->blocks, rows = total * (block + 1) / a->blocks - start;
    const int64_t tiles = go_ceil_div(rows, GO_GEMM_ROWS);
    const int64_t depth = a->depth, width = a->width, keys = go_attention_keys(a, batch);
    const int64_t past = go_attention_past(a, batch), old = a->is_joined ? 0 : past;
    const int64_t panels = go_ceil_div(keys, GO_GEMM_WIDE);
    const int64_t span = keys < GO_ATTENTION_KEYS ? panels * GO_GEMM_WIDE : GO_ATTENTION_KEYS;
    const int few = rows <= GO_ATTENTION_FEW;
    go_attention_memory memory, *const own = &memory;
    const double sizes = (double)(rows + span) * (depth + width) + (double)GO_GEMM_ROWS * (width + GO_ATTENTION_PITCH);
    float *const floats = sizes < 0x1p40 ? malloc(((size_t)sizes + 6 * 16 + 16) * sizeof(float)) : NULL;
    if (!floats) return 0;
#define GO_NEXT(before, count) ((float *)go_next_line((before) + (count)))
    own->scores = GO_NEXT(floats, 0);
    own->k = GO_NEXT(own->scores, GO_GEMM_ROWS * GO_ATTENTION_PITCH);
    own->v = GO_NEXT(own->k, span * depth);
    own->q = GO_NEXT(own->v, span * width);
    own->result = GO_NEXT(own->q, rows * depth);
    own->part = GO_NEXT(own->result, rows * width);
#undef GO_NEXT
    int hides = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t h = head * a->group + (start + i) / a->queries, query = (start + i) % a->queries;
        const float *const q = a->q + batch * a->q_batch + h * a->q_head + query * a->q_row;
        go_attention_turn(a, q, past + query, own->q + i * depth);
        own->mask[i] = batch * a->mask_batch + h * a->mask_head + query * a->mask_row;
        own->out[i] = batch * a->out_batch + h * a->out_head + query * a->out_row;
        own->most[i] = -__FLT_MAX__;
        own->is_open[i] = !a->is_zero;
        own->is_new[i] = 1;
        own->keys[i] = a->is_causal && past + query < keys ? past + query + 1 : keys;
        own->from[i] = a->window && past + query >= a->window ? past + query + 1 - a->window : 0;
        hides |= own->keys[i] < keys || own->from[i] > 0;
    }
    const go_attention_rows before = go_attention_old(a, batch, head), after = go_attention_new(a, batch, head, old);
    own->is_plain = hides && go_attention_hides(a, own->q, rows, before, old) &&
                    go_attention_hides(a, own->q, rows, after, keys - old);
    for (int64_t at = 0, count; at < keys; at += count) {
        const int is_old = at < old;
        const int64_t left = is_old ? old - at : keys - at, row = is_old ? at : at - old;
        count = left < GO_ATTENTION_KEYS ? left : GO_ATTENTION_KEYS;
        const go_attention_rows from = is_old ? before : after;
        const float *k = from.k + row * from.k_row, *v = from.v + row * from.v_row;
        int64_t v_row = from.v_row;
        if (is_old && a->present_k) { /* the next block of the past, which is then read from a cache */
            const int64_t to = (batch * shared + head) * a->present + at;
            k = memcpy(a->present_k + to * depth, k, (size_t)(count * depth) * sizeof(float));
            v = memcpy(a->present_v + to * width, v, (size_t)(count * width) * sizeof(float));
        }
        if (!few) go_attention_transpose(k, from.k_row, count, depth, own->k);
        if (!few && v_row != width) {
            for (int64_t t = 0; t < count; t++)
                memcpy(own->v + t * width, v + t * v_row, (size_t)width * sizeof(float));
            v = own->v, v_row = width;
        }
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t first = rows * tile / tiles, some = rows * (tile + 1) / tiles - first;
            go_attention_tile(a, own, first, some, at, count, k, from.k_row, v, v_row, few);
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        float *x = own->result + i * width;
        const int has_keys = own->from[i] < own->keys[i]; /* unless the window of a padded query has padded keys alone */
        const int some = has_keys && own->is_open[i] && !(a->zeros && own->sum[i] == 0);
        const float inverse = some ? 1 / own->sum[i] : 0;
        for (int64_t j = 0; j < width; j++) x[j] = some ? x[j] * inverse : 0;
        if (a->is_guarded && !(own->sum[i] > 0)) { /* there is no past */
            for (int64_t j = 0; j < width; j++) x[j] = 0;
            for (int64_t t = 0; t < keys; t++)
                for (int64_t j = 0; j < width; j++) x[j] += 0 * after.v[t * after.v_row + j];
        }
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
