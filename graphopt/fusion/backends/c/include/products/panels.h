/* Products of a few rows with a packed matrix, in single precision:
     to[r][n] = from[r][n] + sum over k of a[r][k] m[n][k], added in the order of k, in blocks of at most GO_DEPTH.
   The matrix has `depth` columns and a multiple of LANES_w rows, zeros where needed. It is packed in panels of
   GO_PANEL vectors of rows, the last with fewer: [panel][k][vector][lane]. Rows have pointers of their own, because
   those of sequences of different lengths, or of reversed ones, are not equally far apart. */
enum {
    GO_PANEL = 4,
    /* GO_ROWS x GO_PANEL sums are held in registers, beside factors: in 32 registers, in 16, or without fused products. */
    GO_ROWS = GO_BYTES == 64 ? 6 : GO_LEVEL == 3 || GO_LEVEL == 0 ? 3 : 2,
    GO_BESIDE = 4, /* rows of a product that is computed beside another one of one row */
    GO_DEPTH = 256 /* Rounding errors grow with the number of terms of a block, and with that of blocks. */
};

GO_INLINE void go_panel_sums(const float *m, int64_t depth, int64_t column, int64_t k, const float *const *a,
                             const float *const *from, float *const *to, const int rows, const int vectors) {
    m += k * vectors * LANES_w;
    do {
        const int64_t stop = depth - k < GO_DEPTH ? depth : k + GO_DEPTH;
        f32_w sum[GO_ROWS][GO_PANEL];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++) sum[r][v] = splat_f32_w(0);
#define GO_TERMS() \
    for (; k < stop; k++, m += vectors * LANES_w) \
        for (int r = 0; r < rows; r++) { \
            const f32_w factor = load_one_f32_w(a[r] + k); \
            for (int v = 0; v < vectors; v++) sum[r][v] = fma_w(factor, load_f32_w(m + v * LANES_w), sum[r][v]); \
        }
        if (rows < 4 && rows < GO_ROWS) { /* Short rounds cost more than their products. */
#pragma GCC unroll 2
            GO_TERMS()
        } else {
            GO_TERMS()
        }
#undef GO_TERMS
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++) {
                const int64_t at = column + v * LANES_w;
                store_f32_w(to[r] + at, load_f32_w(from[r] + at) + sum[r][v]);
            }
        from = (const float *const *)to;
    } while (k < depth);
}

/* All rows for one panel, from k on: in blocks of equal size, as far as possible */
GO_INLINE void go_panel_rows(const float *m, int64_t depth, int64_t column, int64_t k, const float *const *a,
                             const float *const *from, float *const *to, int64_t rows, const int vectors) {
#define GO_BLOCK(count) \
    case count: go_panel_sums(m, depth, column, k, a, from, to, count, vectors); break
    for (int64_t left = rows, blocks = (rows + GO_ROWS - 1) / GO_ROWS, size; left > 0; left -= size, blocks--) {
        size = (left + blocks - 1) / blocks;
        switch (size) {
            GO_BLOCK(1);
            GO_BLOCK(2);
#if GO_BYTES == 64
            GO_BLOCK(3);
            GO_BLOCK(4);
            GO_BLOCK(5);
            GO_BLOCK(6);
#elif GO_LEVEL == 3 || GO_LEVEL == 0
            GO_BLOCK(3);
#endif
        }
        a += size, from += size, to += size;
    }
#undef GO_BLOCK
}

/* Panel `column` of the matrix for all rows, from k on */
GO_INLINE void go_panel(const float *m, int64_t depth, int64_t columns, int64_t column, int64_t k, const float *const *a,
                        const float *const *from, float *const *to, int64_t rows) {
    const int64_t vectors = (columns - column) / LANES_w;
    m += column * depth;
    if (vectors >= 4) go_panel_rows(m, depth, column, k, a, from, to, rows, 4);
    else if (vectors == 3) go_panel_rows(m, depth, column, k, a, from, to, rows, 3);
    else if (vectors == 2) go_panel_rows(m, depth, column, k, a, from, to, rows, 2);
    else go_panel_rows(m, depth, column, k, a, from, to, rows, 1);
}

/* A product that is computed bit by bit: up to element k of panel `column`. */
typedef struct {
    const float *m;
    int64_t depth, columns;
    const float *const *a, *const *from;
    float *const *to;
    int64_t rows, column, k;
} go_product;

/* Computes the rest of a product. */
GO_NOINLINE void go_finish_product(go_product *p) {
    for (; p->column < p->columns; p->column += GO_PANEL * LANES_w, p->k = 0)
        go_panel(p->m, p->depth, p->columns, p->column, p->k, p->a, p->k ? (const float *const *)p->to : p->from, p->to,
                 p->rows);
}

#if GO_BYTES == 64
/* A row's sums for a panel, and in the same loop those of GO_BESIDE rows of another product, which advance one step for
   two of the row. A single row waits for the second-level cache, and several rows for the multipliers. */
GO_INLINE void go_panel_beside(const float *m, int64_t depth, const float *a, const float *from, float *to,
                               go_product *p) {
    f32_w sum[GO_PANEL], other[GO_BESIDE][GO_PANEL];
    const int64_t rounds = depth / 2 < p->depth - p->k ? depth / 2 : p->depth - p->k;
    const float *const *const start = p->k ? (const float *const *)p->to : p->from;
    const float *beside = p->m + p->column * p->depth + p->k * GO_PANEL * LANES_w;
    const float *factors[GO_BESIDE];
    for (int r = 0; r < GO_BESIDE; r++) factors[r] = p->a[r] + p->k;
    for (int v = 0; v < GO_PANEL; v++) sum[v] = splat_f32_w(0);
    for (int r = 0; r < GO_BESIDE; r++)
        for (int v = 0; v < GO_PANEL; v++) other[r][v] = splat_f32_w(0);
    for (int64_t round = 0; round < rounds; round++, beside += GO_PANEL * LANES_w) {
        for (int k = 0; k < 2; k++, a++, m += GO_PANEL * LANES_w) {
            const f32_w factor = load_one_f32_w(a);
            for (int v = 0; v < GO_PANEL; v++) sum[v] = fma_w(factor, load_f32_w(m + v * LANES_w), sum[v]);
        }
        for (int r = 0; r < GO_BESIDE; r++) {
            const f32_w factor = load_one_f32_w(factors[r] + round);
            for (int v = 0; v < GO_PANEL; v++)
                other[r][v] = fma_w(factor, load_f32_w(beside + v * LANES_w), other[r][v]);
        }
    }
    for (int64_t k = 2 * rounds; k < depth; k++, a++, m += GO_PANEL * LANES_w) {
        const f32_w factor = load_one_f32_w(a);
        for (int v = 0; v < GO_PANEL; v++) sum[v] = fma_w(factor, load_f32_w(m + v * LANES_w), sum[v]);
    }
    for (int v = 0; v < GO_PANEL; v++) store_f32_w(to + v * LANES_w, load_f32_w(from + v * LANES_w) + sum[v]);
    for (int r = 0; r < GO_BESIDE; r++)
        for (int v = 0; v < GO_PANEL; v++) {
            const int64_t at = p->column + v * LANES_w;
            store_f32_w(p->to[r] + at, load_f32_w(start[r] + at) + other[r][v]);
        }
    p->k += rounds;
    if (p->k == p->depth) p->k = 0, p->column += GO_PANEL * LANES_w;
}
#endif

/* The product of `rows` rows with a matrix, the last panels first if `backward`: calls alternate, because the panels
   that were read last are still in the nearest cache. Parts of `beside` are computed meanwhile. */
GO_NOINLINE void go_rows(const float *m, int64_t depth, int64_t columns, int backward,
                         const float *const *a, const float *const *from, float *const *to,
                         int64_t rows, go_product *beside) {
    const int64_t width = GO_PANEL * LANES_w, panels = (columns + width - 1) / width;
    (void)beside; /* vectors of 64 bytes alone */
    for (int64_t i = 0; i < panels; i++) {
        const int64_t column = (backward ? panels - 1 - i : i) * width;
#if GO_BYTES == 64
        if (rows == 1 && column + width <= columns && beside->rows == GO_BESIDE &&
            beside->column + width <= beside->columns && depth <= 2 * GO_DEPTH) {
            go_panel_beside(m + column * depth, depth, *a, *from + column, *to + column, beside);
            continue;
        }
#endif
        go_panel(m, depth, columns, column, 0, a, from, to, rows);
    }
}

/* A product whose panels threads share */
typedef struct {
    go_product product;
    int64_t panels; /* of a part */
} go_shared_product;

__attribute__((unused)) static void go_shared_part(void *data, size_t part) {
    const go_shared_product *const shared = data;
    go_product p = shared->product;
    const int64_t width = shared->panels * GO_PANEL * LANES_w, last = ((int64_t)part + 1) * width;
    for (p.column = last - width; p.column < last && p.column < p.columns; p.column += GO_PANEL * LANES_w)
        go_panel(p.m, p.depth, p.columns, p.column, 0, p.a, p.from, p.to, p.rows);
}

/* Computes a product in at most GO_PARTS parts. */
enum { GO_PARTS = 16 };
__attribute__((unused)) static void go_share_product(go_call *call, const go_product *p) {
    const int64_t panels = (p->columns + GO_PANEL * LANES_w - 1) / (GO_PANEL * LANES_w);
    go_shared_product shared = {*p, (panels + GO_PARTS - 1) / GO_PARTS};
    if (panels > 0) go_parallel(call, go_shared_part, &shared, (size_t)((panels + shared.panels - 1) / shared.panels));
}

/* A number of elements rounded up to whole vectors */
GO_INLINE int64_t go_whole(int64_t count) { return (count + LANES_w - 1) / LANES_w * LANES_w; }

/* Packs `groups` x `size` rows [groups][size][depth], each group with zeros up to go_whole(size). */
__attribute__((unused)) static void go_pack_rows(const float *from, int64_t groups, int64_t size, int64_t depth,
                                                 float *to) {
    const int64_t whole = go_whole(size), columns = groups * whole;
    for (int64_t column = 0; column < columns; column += GO_PANEL * LANES_w) {
        const int64_t width = columns - column < GO_PANEL * LANES_w ? columns - column : GO_PANEL * LANES_w;
        for (int64_t i = 0; i < width; i++) {
            const int64_t group = (column + i) / whole, row = (column + i) % whole;
            const float *const source = from + (group * size + row) * depth;
            float *const target = to + column * depth + i;
            for (int64_t k = 0; k < depth; k++) target[k * width] = row < size ? source[k] : 0;
        }
    }
}
