/* Tiles of products of matrices of floats: a few rows of A times a few vectors of columns of B, summed up in registers.
   After Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008. */

/* Rows of a tile, at most: two vectors for each, two of B and an element of A fill the registers. */
#if GO_LEVEL == 4
#define GO_GEMM_ROWS 14
#elif GO_LEVEL >= 2
#define GO_GEMM_ROWS 6
#else
#define GO_GEMM_ROWS 8
#endif
#define GO_GEMM_WIDE (2 * LANES_w) /* columns of a panel of B */
#define GO_GEMM_DEPTH 256          /* terms of a partial sum: rounding errors grow as those of blocked sums */

/* One tile: c[i][j] (+)= sum of a[i][p] b[p][j] over k <= GO_GEMM_DEPTH terms, plus bias[j] if `bias` is not NULL. The
   last vector has `last` columns. */
typedef void go_gemm_tile(int64_t k, const float *a, int64_t a_m, const float *b, int64_t b_k, int64_t b_panel,
                          const float *bias, float *c, int64_t c_m, int last, int add);

/* Pointers to every fifth row of A: their multiples of a_m need few registers. Element p of row i of a tile. */
#define GO_GEMM_POINTERS(a, a_m, rows) \
    const float *const a0 = a, *const a5 = a + (rows > 5 ? 5 * a_m : 0), *const a10 = a + (rows > 10 ? 10 * a_m : 0)
#define GO_GEMM_ELEMENT(a_m, i, p) ((i) < 5 ? a0 : (i) < 10 ? a5 : a10)[(i) % 5 * a_m + (p)]
#define GO_GEMM_NAME(rows, vectors) go_gemm_tile_##rows##_##vectors
#define GO_GEMM_TILE(ROWS, VECTORS) \
    GO_NOINLINE void GO_GEMM_NAME(ROWS, VECTORS)( \
        int64_t k, const float *a, int64_t a_m, const float *b, int64_t b_k, int64_t b_panel, const float *bias, \
        float *c, int64_t c_m, int last, int add) { \
        f32_w sum[ROWS][VECTORS] = {0}; \
        GO_GEMM_POINTERS(a, a_m, ROWS); \
        for (int64_t p = 0; p < k; p++) { \
            f32_w y[VECTORS]; \
            GO_UNROLL for (int j = 0; j < VECTORS - 1; j++) \
                y[j] = load_f32_w(b + (j / 2) * b_panel + (j % 2) * LANES_w); \
            y[VECTORS - 1] = GO_GEMM_LAST(b + ((VECTORS - 1) / 2) * b_panel + ((VECTORS - 1) % 2) * LANES_w); \
            GO_UNROLL for (int i = 0; i < ROWS; i++) { \
                const f32_w x = splat_f32_w(GO_GEMM_ELEMENT(a_m, i, p)); \
                GO_UNROLL for (int j = 0; j < VECTORS; j++) sum[i][j] = fma_w(x, y[j], sum[i][j]); \
            } \
            b += b_k; \
        } \
        if (bias) { \
            GO_UNROLL for (int j = 0; j < VECTORS; j++) { \
                const f32_w x = load_part_f32_w(bias + j * LANES_w, j < VECTORS - 1 ? LANES_w : last); \
                GO_UNROLL for (int i = 0; i < ROWS; i++) sum[i][j] += x; \
            } \
        } \
        GO_UNROLL for (int i = 0; i < ROWS; i++) { \
            float *to = c + i * c_m; \
            GO_UNROLL for (int j = 0; j < VECTORS - 1; j++) { \
                if (add) sum[i][j] += load_f32_w(to + j * LANES_w); \
                store_f32_w(to + j * LANES_w, sum[i][j]); \
            } \
            to += (VECTORS - 1) * LANES_w; \
            if (last == LANES_w) { \
                if (add) sum[i][VECTORS - 1] += load_f32_w(to); \
                store_f32_w(to, sum[i][VECTORS - 1]); \
            } else { \
                if (add) sum[i][VECTORS - 1] += load_part_f32_w(to, last); \
                store_part_f32_w(to, sum[i][VECTORS - 1], last); \
            } \
        } \
    }
#define GO_GEMM_LAST(p) (last == LANES_w ? load_f32_w(p) : load_part_f32_w(p, last))
#if GO_LEVEL == 4
#undef GO_GEMM_LAST
#define GO_GEMM_LAST(p) load_part_f32_w(p, last)
#define GO_GEMM_FEW 6  /* rows of a tile of GO_GEMM_MANY vectors, at most */
#define GO_GEMM_MANY 4
#define GO_GEMM_EACH(make) \
    make(1, 8) make(1, 4) make(2, 4) make(3, 4) make(4, 4) make(5, 4) make(6, 4) make(1, 2) make(2, 2) make(3, 2) \
    make(4, 2) make(5, 2) make(6, 2) make(7, 2) make(8, 2) make(9, 2) make(10, 2) make(11, 2) make(12, 2) make(13, 2) \
    make(14, 2) make(1, 1) make(2, 1) make(3, 1) make(4, 1) make(5, 1) make(6, 1) make(7, 1) make(8, 1) make(9, 1) \
    make(10, 1) make(11, 1) make(12, 1) make(13, 1) make(14, 1)
#else
#define GO_GEMM_FEW 2
#define GO_GEMM_MANY 4
#define GO_GEMM_EACH(make) \
    make(1, 8) make(1, 4) make(2, 4) make(1, 2) make(2, 2) make(3, 2) make(4, 2) make(5, 2) make(6, 2) make(1, 1) \
    make(2, 1) make(3, 1) make(4, 1) make(5, 1) make(6, 1) GO_GEMM_MORE(make)
#if GO_GEMM_ROWS == 8
#define GO_GEMM_MORE(make) make(7, 2) make(8, 2) make(7, 1) make(8, 1)
#else
#define GO_GEMM_MORE(make)
#endif
#endif
GO_GEMM_EACH(GO_GEMM_TILE)
#define GO_GEMM_ENTRY(rows, vectors) [rows][vectors] = GO_GEMM_NAME(rows, vectors),
__attribute__((unused)) static go_gemm_tile *const go_gemm_tiles[GO_GEMM_ROWS + 1][9] = {GO_GEMM_EACH(GO_GEMM_ENTRY)};

/* The number of vectors of the next tile of `rows` rows, if `left` columns are left. */
GO_INLINE int go_gemm_vectors(int64_t rows, int64_t left) {
    if (rows == 1 && left > 7 * LANES_w) return 8;
    if (rows <= GO_GEMM_FEW && left > 3 * LANES_w) return 4;
    return left > LANES_w ? 2 : 1;
}

/* One row of tiles: `rows` rows of A, `n` columns of B from the first of a panel on. Partial sums have `depth` terms. */
__attribute__((unused)) static void go_gemm_row(int64_t rows, int64_t n, int64_t k, const float *a, int64_t a_m,
                                                const float *b, int64_t b_k, int64_t b_panel, const float *bias,
                                                float *c, int64_t c_m) {
    for (int64_t j = 0; j < n;) {
        const int vectors = go_gemm_vectors(rows, n - j);
        const int64_t left = n - j - (vectors - 1) * LANES_w;
        const int last = left < LANES_w ? (int)left : LANES_w;
        const float *from = b + j / GO_GEMM_WIDE * b_panel + j % GO_GEMM_WIDE;
        int64_t p = 0;
        do {
            const int64_t depth = k - p < GO_GEMM_DEPTH ? k - p : GO_GEMM_DEPTH;
            go_gemm_tiles[rows][vectors](depth, a + p, a_m, from + p * b_k, b_k, b_panel,
                                         bias && p + depth == k ? bias + j : NULL, c + j, c_m, last, p > 0);
            p += GO_GEMM_DEPTH;
        } while (p < k);
        j += vectors * LANES_w;
    }
}

/* The same in another order: all columns of a few rows of B, then the next rows. Rows of B that are far apart are read
   in streams, which caches can fetch ahead. */
#define GO_GEMM_STREAMS 8 /* rows of B */
__attribute__((unused)) static void go_gemm_sweep(int64_t rows, int64_t n, int64_t k, const float *a, int64_t a_m,
                                                  const float *b, int64_t b_k, const float *bias, float *c,
                                                  int64_t c_m) {
    int64_t p = 0;
    do {
        const int64_t depth = k - p < GO_GEMM_STREAMS ? k - p : GO_GEMM_STREAMS;
        for (int64_t j = 0; j < n;) {
            const int vectors = go_gemm_vectors(rows, n - j);
            const int64_t left = n - j - (vectors - 1) * LANES_w;
            const int last = left < LANES_w ? (int)left : LANES_w;
            go_gemm_tiles[rows][vectors](depth, a + p, a_m, b + p * b_k + j, b_k, GO_GEMM_WIDE,
                                         bias && p + depth == k ? bias + j : NULL, c + j, c_m, last, p > 0);
            j += vectors * LANES_w;
        }
        p += GO_GEMM_STREAMS;
    } while (p < k);
}

/* c[j] = sum of a[p] b[j][p] over p: the products of a vector with rows of a matrix. */
#define GO_GEMM_DOTS 8 /* rows of b at a time */
GO_INLINE void go_gemm_dot(const int rows, int64_t k, const float *a, const float *b, int64_t b_n, float *c) {
    f32_w sum[GO_GEMM_DOTS] = {0};
    int64_t p = 0;
    for (; p + LANES_w <= k; p += LANES_w) {
        const f32_w x = load_f32_w(a + p);
        GO_UNROLL for (int j = 0; j < rows; j++) sum[j] = fma_w(x, load_f32_w(b + j * b_n + p), sum[j]);
    }
    if (p < k) {
        const f32_w x = load_part_f32_w(a + p, (int)(k - p));
        GO_UNROLL for (int j = 0; j < rows; j++)
            sum[j] = fma_w(x, load_part_f32_w(b + j * b_n + p, (int)(k - p)), sum[j]);
    }
    GO_UNROLL for (int j = 0; j < rows; j++) c[j] = sum_across_f32_w(sum[j])[0];
}
__attribute__((unused)) static void go_gemm_dots(int64_t n, int64_t k, const float *a, const float *b, int64_t b_n,
                                                 float *c) {
    int64_t j = 0;
    for (; j + GO_GEMM_DOTS <= n; j += GO_GEMM_DOTS) go_gemm_dot(GO_GEMM_DOTS, k, a, b + j * b_n, b_n, c + j);
    for (; j < n; j++) go_gemm_dot(1, k, a, b + j * b_n, b_n, c + j);
}
