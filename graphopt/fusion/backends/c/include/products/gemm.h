/* Products of matrices of floats, C = alpha A B + beta C0 with A [m, k], B [k, n] and C [m, n], for each item of a
   batch. Needs gemm_tiles.h.

   Rows of A are read in place if their elements are adjacent and do not compete for the same lines of a cache, and are
   copied otherwise. B is packed once if it is constant: panels of GO_GEMM_WIDE columns. Otherwise it is read in place,
   or a chunk of work copies its columns to panels. The order of additions depends on shapes only, not on threads. */

#define GO_GEMM_AXES 8 /* axes of a batch, at most */
#ifndef GO_GEMM_CHUNK
#define GO_GEMM_CHUNK (16 * (int64_t)GO_CHUNK) /* multiplications of a chunk of work, about */
#endif
#ifndef GO_GEMM_CACHED
#define GO_GEMM_CACHED (1 << 17) /* elements of an operand that stay in a core's cache */
#endif
#define GO_GEMM_COPIED (1 << 13) /* elements of B that are copied and used at a time: they stay in the first cache */
#define GO_GEMM_BLOCK (8 * GO_GEMM_ROWS) /* rows of a chunk of work, at most */
#ifndef GO_GEMM_GROUP
#define GO_GEMM_GROUP 512
#endif

/* A product; strides are in elements. The strides of a batch are 0 for axes that are broadcast. */
typedef struct {
    const float *a, *b, *c, *bias; /* `bias`: C0, if it is one row that needs no factors */
    int64_t m, n, k;
    int64_t a_m, a_k, b_k, b_n, c_m, c_n;
    int64_t b_panel; /* from one panel of a packed B to the next; 0 if B is not packed */
    float alpha, beta;
    int axes; /* of the batch */
    int64_t batch[GO_GEMM_AXES], a_batch[GO_GEMM_AXES], b_batch[GO_GEMM_AXES];
    float *out; /* where the product is written if nothing follows it; otherwise NULL */
    /* The division into chunks of work */
    int64_t items, rows, columns, row_blocks, column_blocks, total;
} go_gemm;

typedef void go_gemm_finish(void *data, int64_t at, int64_t count, const void *values);

/* to[j][i] = from[i][j] for a square of GO_GEMM_SQUARE rows and columns, in registers. */
#if GO_LEVEL >= 3
#define GO_GEMM_SQUARE 8
GO_INLINE void go_gemm_square(const float *from, int64_t from_m, float *to, int64_t to_m) {
    __m256 x[8], y[8];
    GO_UNROLL for (int i = 0; i < 8; i++) x[i] = _mm256_loadu_ps(from + i * from_m);
    GO_UNROLL for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    GO_UNROLL for (int i = 0; i < 8; i += 4) /* x[i + q] has column q of four rows in each half */
        GO_UNROLL for (int q = 0; q < 4; q++)
            x[i + q] = q % 2 ? _mm256_shuffle_ps(y[i + q / 2], y[i + q / 2 + 2], 0xee)
                             : _mm256_shuffle_ps(y[i + q / 2], y[i + q / 2 + 2], 0x44);
    GO_UNROLL for (int q = 0; q < 4; q++) {
        _mm256_storeu_ps(to + q * to_m, _mm256_permute2f128_ps(x[q], x[q + 4], 0x20));
        _mm256_storeu_ps(to + (q + 4) * to_m, _mm256_permute2f128_ps(x[q], x[q + 4], 0x31));
    }
}
#elif GO_LEVEL == 2
#define GO_GEMM_SQUARE 4
GO_INLINE void go_gemm_square(const float *from, int64_t from_m, float *to, int64_t to_m) {
    __m128 x[4];
    GO_UNROLL for (int i = 0; i < 4; i++) x[i] = _mm_loadu_ps(from + i * from_m);
    _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
    GO_UNROLL for (int i = 0; i < 4; i++) _mm_storeu_ps(to + i * to_m, x[i]);
}
#else
#define GO_GEMM_SQUARE 1
GO_INLINE void go_gemm_square(const float *from, int64_t from_m, float *to, int64_t to_m) {
    (void)from_m, (void)to_m;
    *to = *from;
}
#endif

/* The same for `rows` rows and `columns` columns, in blocks that stay in a cache. */
#define GO_GEMM_TRANSPOSED 64 /* columns of a block */
GO_NOINLINE void go_gemm_transpose(int64_t rows, int64_t columns, const float *from, int64_t from_m, float *to,
                                   int64_t to_m) {
    const int square = GO_GEMM_SQUARE;
    for (int64_t start = 0; start < columns; start += GO_GEMM_TRANSPOSED) {
        const int64_t stop = columns - start < GO_GEMM_TRANSPOSED ? columns : start + GO_GEMM_TRANSPOSED;
        int64_t i = 0;
        for (; i + square <= rows; i += square) {
            int64_t j = start;
            for (; j + square <= stop; j += square)
                go_gemm_square(from + i * from_m + j, from_m, to + j * to_m + i, to_m);
            for (; j < stop; j++)
                for (int64_t p = i; p < i + square; p++) to[j * to_m + p] = from[p * from_m + j];
        }
        for (; i < rows; i++)
            for (int64_t j = start; j < stop; j++) to[j * to_m + i] = from[i * from_m + j];
    }
}

/* The size of a packed B [k, n], in bytes, and its packing; b_k and b_n are the strides of B. */
__attribute__((unused)) static size_t go_gemm_packed_size(int64_t k, int64_t n) {
    if (n == 1) return (size_t)k * sizeof(float);
    return (size_t)(go_round_up(n, GO_GEMM_WIDE) * k) * sizeof(float);
}
__attribute__((unused)) static void go_gemm_pack(const float *b, int64_t k, int64_t n, int64_t b_k, int64_t b_n,
                                                 float *to) {
    const int64_t wide = n == 1 ? 1 : GO_GEMM_WIDE;
    for (int64_t j = 0; j < n; j += wide, to += wide * k) {
        const int64_t count = n - j < wide ? n - j : wide;
        if (b_n == 1) {
            for (int64_t p = 0; p < k; p++) {
                memcpy(to + p * wide, b + p * b_k + j, (size_t)count * sizeof(float));
                memset(to + p * wide + count, 0, (size_t)(wide - count) * sizeof(float));
            }
        } else {
            if (count < wide) memset(to, 0, (size_t)(wide * k) * sizeof(float));
            if (b_k == 1) go_gemm_transpose(count, k, b + j * b_n, b_n, to, wide);
            else
                for (int64_t p = 0; p < k; p++)
                    for (int64_t q = 0; q < count; q++) to[p * wide + q] = b[p * b_k + (j + q) * b_n];
        }
    }
}

/* Sets B to one that was packed. */
GO_INLINE void go_gemm_use_packed(go_gemm *g, const void *packed) {
    g->b = packed;
    g->b_n = 1;
    g->b_k = g->n == 1 ? 1 : GO_GEMM_WIDE;
    g->b_panel = g->n == 1 ? 0 : g->k * GO_GEMM_WIDE;
}

/* Merges axes of the batch with each other and with the rows of A. */
__attribute__((unused)) static void go_gemm_merge(go_gemm *g) {
    int axes = 0;
    for (int axis = 0; axis < g->axes; axis++) {
        if (g->batch[axis] == 1) continue;
        const int before = axes - 1;
        if (axes > 0 && g->a_batch[before] == g->batch[axis] * g->a_batch[axis] &&
            g->b_batch[before] == g->batch[axis] * g->b_batch[axis]) {
            g->batch[before] *= g->batch[axis];
            g->a_batch[before] = g->a_batch[axis];
            g->b_batch[before] = g->b_batch[axis];
            continue;
        }
        g->batch[axes] = g->batch[axis];
        g->a_batch[axes] = g->a_batch[axis];
        g->b_batch[axes] = g->b_batch[axis];
        axes++;
    }
    g->axes = axes;
    if (axes > 0 && g->b_batch[axes - 1] == 0 && (g->m == 1 || g->a_batch[axes - 1] == g->m * g->a_m) && !g->c) {
        if (g->m == 1) g->a_m = g->a_batch[axes - 1];
        g->m *= g->batch[axes - 1];
        g->axes--;
    }
}

GO_INLINE void go_gemm_swap(int64_t *a, int64_t *b) {
    const int64_t c = *a;
    *a = *b;
    *b = c;
}

GO_INLINE int go_gemm_is_dots(const go_gemm *g) {
    return g->b_k == 1 && !g->b_panel && g->m <= (g->k < 128 ? 2 : 4) && g->k > 1;
}
/* Rows of a large B that are far apart: caches do not fetch a few columns of them ahead. */
GO_INLINE int go_gemm_is_far(const go_gemm *g) {
    const int is_large = g->m <= 2 || (double)g->k * (double)g->n > 4 * GO_GEMM_CACHED;
    return g->b_n == 1 && !g->b_panel && g->b_k >= 1024 && is_large;
}
GO_INLINE int go_gemm_copies_a(const go_gemm *g) {
    /* Rows a multiple of 2 KB apart are in the same few lines of a cache. */
    return g->k > 1 && (g->a_k != 1 || (g->m > GO_GEMM_FEW && g->a_m % 512 == 0 && g->n > 4 * GO_GEMM_WIDE));
}
GO_INLINE int go_gemm_copies_b(const go_gemm *g) {
    if (g->b_panel || go_gemm_is_dots(g)) return 0;
    return g->b_n != 1 || (go_gemm_is_far(g) && g->m > GO_GEMM_ROWS);
}

/* Divides the product, whose dims are not 0 except k, into chunks of work; returns their number. */
__attribute__((unused)) static size_t go_gemm_plan(go_gemm *g) {
    go_gemm_merge(g);
    if (g->n == 1 && g->m > 1) { /* a matrix times a vector: the transposed vector times the transposed matrix */
        const float *const a = g->a;
        g->a = g->b;
        g->b = a;
        go_gemm_swap(&g->m, &g->n);
        go_gemm_swap(&g->c_m, &g->c_n);
        go_gemm_swap(&g->a_m, &g->b_n);
        go_gemm_swap(&g->a_k, &g->b_k);
        for (int axis = 0; axis < g->axes; axis++) go_gemm_swap(&g->a_batch[axis], &g->b_batch[axis]);
    }
    if (g->c && g->c_m == 0 && g->c_n == 1 && g->alpha == 1 && g->beta == 1 && !go_gemm_is_dots(g)) {
        g->bias = g->c;
        g->c = NULL;
    }
    const int64_t m = g->m, n = g->n, k = g->k > 0 ? g->k : 1;
    int64_t batches = 1;
    for (int axis = 0; axis < g->axes; axis++) batches *= g->batch[axis];
    int64_t rows = GO_GEMM_CACHED / k;
    rows = rows > GO_GEMM_BLOCK ? GO_GEMM_BLOCK : rows < GO_GEMM_ROWS ? GO_GEMM_ROWS : rows / GO_GEMM_ROWS * GO_GEMM_ROWS;
    if (go_gemm_copies_b(g)) rows *= 4; /* each block of rows copies B */
    if (m <= rows) rows = m;
    const double each = (double)GO_GEMM_CHUNK / (double)k;
    int64_t columns = (double)rows * (double)n <= 2 * each ? n : (int64_t)(each / (double)rows);
    const int64_t step = 4 * GO_GEMM_WIDE;
    columns = columns < step ? step : go_round_up(columns, step);
    if (columns > n) columns = n;
    while (rows > GO_GEMM_ROWS && go_ceil_div(m, rows) * go_ceil_div(n, columns) * batches < 8 &&
           (double)rows * (double)columns > each)
        rows = (rows / GO_GEMM_ROWS + 1) / 2 * GO_GEMM_ROWS;
    g->row_blocks = go_ceil_div(m, rows);
    const int64_t tiles = go_ceil_div(m, GO_GEMM_ROWS); /* blocks of about equal size */
    g->rows = g->row_blocks == 1 ? m : go_ceil_div(tiles, g->row_blocks) * GO_GEMM_ROWS;
    g->row_blocks = go_ceil_div(m, g->rows);
    g->columns = columns;
    g->column_blocks = go_ceil_div(n, columns);
    /* Several items of a batch make a chunk if they are small. */
    g->items = 1;
    if (g->row_blocks == 1 && g->column_blocks == 1) {
        const double items = each / ((double)m * (double)n);
        g->items = items >= (double)batches ? batches : items >= 2 ? (int64_t)items : 1;
    }
    g->total = batches;
    return (size_t)(go_ceil_div(batches, g->items) * g->row_blocks * g->column_blocks);
}

/* values = alpha values + beta C0, for some columns of a row. */
GO_INLINE void go_gemm_scale(const go_gemm *g, int64_t row, int64_t column, int64_t count, float *values) {
    const float *const c = g->c ? g->c + row * g->c_m + column * g->c_n : NULL;
    const f32_w alpha = splat_f32_w(g->alpha), beta = splat_f32_w(g->beta);
    const f32_w one = splat_f32_w(c && !g->c_n ? *c : 0);
    int64_t j = 0;
    for (; !c && j + LANES_w <= count; j += LANES_w) store_f32_w(values + j, load_f32_w(values + j) * alpha);
    for (; j < count; j += LANES_w) {
        const int m = count - j < LANES_w ? (int)(count - j) : LANES_w;
        f32_w x = load_part_f32_w(values + j, m) * alpha;
        if (c) {
            const f32_w y = !g->c_n ? one : g->c_n == 1 ? load_part_f32_w(c + j, m)
                                                        : gather_part_f32_w(c + j * g->c_n, g->c_n, m);
            x = fma_w(beta, y, x);
        }
        store_part_f32_w(values + j, x, m);
    }
}

/* The scratch memory of a chunk of work; NULL where none is needed. */
typedef struct {
    float *a, *b, *c;
} go_gemm_memory;

/* Columns whose part of B stays in a core's cache. */
GO_INLINE int64_t go_gemm_group(const go_gemm *g) {
    const int64_t cached = go_gemm_copies_b(g) ? GO_GEMM_COPIED : GO_GEMM_CACHED;
    int64_t group = cached / (g->k > 0 ? g->k : 1) / GO_GEMM_WIDE * GO_GEMM_WIDE;
    if (group < 4 * GO_GEMM_WIDE) group = 4 * GO_GEMM_WIDE;
    return group > GO_GEMM_GROUP ? GO_GEMM_GROUP : group;
}

/* `rows` rows of A times the columns start ... start + n of B, for one item of the batch. */
GO_INLINE void go_gemm_block(const go_gemm *g, const go_gemm_memory *memory, const float *a, const float *b,
                             int64_t item, int64_t row, int64_t rows, int64_t start, int64_t n, go_gemm_finish *finish,
                             void *data) {
    const int64_t k = g->k, group = go_gemm_group(g);
    const int is_scaled = g->c || g->alpha != 1;
    int64_t a_m = g->a_m;
    a += row * a_m;
    if (memory->a) {
        const int64_t ahead = go_round_up(k + LANES_w, LANES_w); /* at least LANES_w, and no multiple of 2 KB */
        const int64_t to_m = ahead % 512 ? ahead : ahead + LANES_w;
        if (a_m == 1 && rows > 1) go_gemm_transpose(k, rows, a, g->a_k, memory->a, to_m);
        else
            for (int64_t i = 0; i < rows; i++) {
                if (g->a_k == 1) memcpy(memory->a + i * to_m, a + i * a_m, (size_t)k * sizeof(float));
                else
                    for (int64_t p = 0; p < k; p++) memory->a[i * to_m + p] = a[i * a_m + p * g->a_k];
            }
        a = memory->a;
        a_m = to_m;
    }
    for (int64_t j = start; j < start + n; j += group) {
        const int64_t count = start + n - j < group ? start + n - j : group;
        const float *from = b + j / GO_GEMM_WIDE * g->b_panel;
        int64_t b_k = g->b_k, b_panel = g->b_panel;
        if (memory->b) {
            go_gemm_pack(b + j * g->b_n, k, count, g->b_k, g->b_n, memory->b);
            from = memory->b;
            b_k = count == 1 ? 1 : GO_GEMM_WIDE;
            b_panel = k * GO_GEMM_WIDE;
        } else if (!b_panel) {
            from = b + j * g->b_n;
            b_panel = GO_GEMM_WIDE;
        }
        const float *const bias = g->bias ? g->bias + j : NULL;
        int64_t done = 0;
        for (int64_t tiles = go_ceil_div(rows, GO_GEMM_ROWS); tiles > 0; tiles--) {
            const int64_t some = go_ceil_div(rows - done, tiles); /* tiles of about equal size */
            const int64_t at = (item * g->m + row + done) * g->n + j;
            const int is_direct = g->out != NULL;
            float *const c = is_direct ? g->out + at : memory->c;
            const int64_t c_m = is_direct ? g->n : count;
            const float *const x = a + done * a_m;
            if (go_gemm_is_dots(g)) {
                for (int64_t i = 0; i < some; i++) go_gemm_dots(count, k, x + i * a_m, from, g->b_n, c + i * c_m);
            } else if (!memory->b && go_gemm_is_far(g)) {
                go_gemm_sweep(some, count, k, x, a_m, from, b_k, bias, c, c_m);
            } else {
                go_gemm_row(some, count, k, x, a_m, from, b_k, b_panel, bias, c, c_m);
            }
            for (int64_t i = 0; is_scaled && i < some; i++) go_gemm_scale(g, row + done + i, j, count, c + i * c_m);
            if (!is_direct) {
                if (count == g->n) finish(data, at, some * count, c);
                else
                    for (int64_t i = 0; i < some; i++) finish(data, at + i * g->n, count, c + i * count);
            }
            done += some;
        }
    }
}

/* Computes one chunk of work; sets *failed if memory is short. */
GO_INLINE void go_gemm_chunk(const go_gemm *g, size_t chunk, go_gemm_finish *finish, void *data, int *failed) {
    const int64_t blocks = g->row_blocks * g->column_blocks;
    const int64_t first = (int64_t)chunk / blocks * g->items, block = (int64_t)chunk % blocks;
    const int64_t row = block / g->column_blocks * g->rows, column = block % g->column_blocks * g->columns;
    const int64_t rows = g->m - row < g->rows ? g->m - row : g->rows;
    const int64_t columns = g->n - column < g->columns ? g->n - column : g->columns;
    const int64_t group = columns < go_gemm_group(g) ? columns : go_gemm_group(g), k = g->k;
    const int64_t wide = go_round_up(group, GO_GEMM_WIDE);
    const int64_t a = go_gemm_copies_a(g) ? rows * (k + 3 * LANES_w) : 0, b = go_gemm_copies_b(g) ? wide * k : 0;
    const int64_t c = g->out ? 0 : group * (rows < GO_GEMM_ROWS ? rows : GO_GEMM_ROWS);
    go_gemm_memory memory = {NULL, NULL, NULL};
    float *all = NULL;
    if (a + b + c > 0) {
        all = malloc((size_t)(a + b + c) * sizeof(float) + GO_LINE);
        if (!all) {
            __atomic_store_n(failed, 1, __ATOMIC_RELAXED);
            return;
        }
        float *const aligned = go_next_line(all);
        memory.b = b ? aligned : NULL;
        memory.c = c ? aligned + b : NULL;
        memory.a = a ? aligned + b + c : NULL;
    }
    for (int64_t item = first; item < first + g->items && item < g->total; item++) {
        int64_t rest = item, of_a = 0, of_b = 0;
        for (int axis = g->axes - 1; axis >= 0; axis--) {
            const int64_t i = axis ? rest % g->batch[axis] : rest;
            of_a += i * g->a_batch[axis];
            of_b += i * g->b_batch[axis];
            rest /= g->batch[axis];
        }
        go_gemm_block(g, &memory, g->a + of_a, g->b + of_b, item, row, rows, column, columns, finish, data);
    }
    free(all);
}
