/* Products of a few rows with a packed matrix, in single precision:
     to[r][n] = from[r][n] + sum over k of a[r][k] m[n][k], added in the order of k, in blocks of at most GO_PANEL_DEPTH.
   The matrix has `depth` columns and a multiple of LANES_w rows, filled up with zeros. It is packed in panels of
   `vectors` vectors of rows, the last with fewer: [panel][k][vector][lane]. Each row has a pointer, because rows of
   sequences of different lengths, or of reversed ones, are not equally far apart.

   A single row waits for the second-level cache, which delivers one vector of a matrix while two are multiplied.
   Several rows wait for the multipliers. go_panel_beside computes a panel of a single row and a part of another product
   at once, whose panels are narrow: the more rows share a vector of the matrix, the less the cache has to deliver. */
enum {
    GO_PANEL_WIDE = 4,   /* vectors of panels for single rows */
    GO_PANEL_NARROW = 2, /* vectors of panels for several rows */
    /* Rows of a panel that are summed up at once: in 32 registers, in 16, or without fused products. */
    GO_PANEL_WIDE_ROWS = GO_BYTES == 64 ? 6 : GO_LEVEL == 3 || GO_LEVEL == 0 ? 3 : 2,
    GO_PANEL_NARROW_ROWS = GO_BYTES == 64 ? 8 : GO_LEVEL == 3 || GO_LEVEL == 0 ? 6 : 4,
    GO_PANEL_BESIDE = GO_BYTES == 64 ? 8 : GO_LEVEL == 3 ? 4 : 0, /* rows beside a single one; 0 for none */
    GO_PANEL_DEPTH = 256 /* Rounding errors grow with the number of terms of a block, and with the number of blocks. */
};

/* A product, and how much of it is computed: the panels before `column`, and the terms of that panel before k. */
typedef struct {
    const float *m;
    int64_t depth, columns;
    int vectors; /* of a panel: GO_PANEL_WIDE or GO_PANEL_NARROW */
    const float *const *a, *const *from;
    float *const *to;
    int64_t rows, column, k;
} go_panel_product;

/* The terms from k on of some rows of a panel of `vectors` vectors, from row `first` on */
GO_INLINE void go_panel_sums(const go_panel_product *p, int64_t column, int64_t k, int64_t first, const int rows,
                             const int vectors) {
    const float *const *const a = p->a + first, *const *from = (k ? (const float *const *)p->to : p->from) + first;
    float *const *const to = p->to + first;
    const float *m = p->m + column * p->depth + k * vectors * LANES_w;
    do {
        const int64_t stop = p->depth - k < GO_PANEL_DEPTH ? p->depth : k + GO_PANEL_DEPTH;
        f32_w sum[GO_PANEL_NARROW_ROWS][GO_PANEL_WIDE];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++) sum[r][v] = splat_f32_w(0);
#define GO_TERMS() \
    for (; k < stop; k++, m += vectors * LANES_w) \
        for (int r = 0; r < rows; r++) { \
            const f32_w factor = load_one_f32_w(a[r] + k); \
            for (int v = 0; v < vectors; v++) sum[r][v] = fma_w(factor, load_f32_w(m + v * LANES_w), sum[r][v]); \
        }
        if (rows < 4 && rows < GO_PANEL_WIDE_ROWS) { /* Short rounds cost more than their products. */
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
    } while (k < p->depth);
}

/* The same for all rows, in blocks of equal size, as far as possible */
GO_INLINE void go_panel_rows(const go_panel_product *p, int64_t column, int64_t k, const int vectors) {
    const int most = vectors > GO_PANEL_NARROW ? GO_PANEL_WIDE_ROWS : GO_PANEL_NARROW_ROWS;
#define GO_BLOCK(count) \
    case count: \
        if (count <= most) go_panel_sums(p, column, k, first, count, vectors); \
        break;
    int64_t blocks = go_ceil_div(p->rows, most);
    for (int64_t first = 0, size; first < p->rows; first += size, blocks--) {
        size = go_ceil_div(p->rows - first, blocks);
        switch (size) {
            GO_BLOCK(1) GO_BLOCK(2) GO_BLOCK(3) GO_BLOCK(4) GO_BLOCK(5) GO_BLOCK(6) GO_BLOCK(7) GO_BLOCK(8)
        }
    }
#undef GO_BLOCK
}

/* The panels from `column` up to `stop` for all rows; of the first, the terms from k on */
GO_NOINLINE void go_panel_columns(const go_panel_product *p, int64_t column, int64_t stop, int64_t k) {
    for (int64_t vectors; column < stop; column += vectors * LANES_w, k = 0) {
        const int64_t left = (stop - column) / LANES_w;
        vectors = left < p->vectors ? left : p->vectors;
        if (vectors == 4) go_panel_rows(p, column, k, 4);
        else if (vectors == 3) go_panel_rows(p, column, k, 3);
        else if (vectors == 2) go_panel_rows(p, column, k, 2);
        else go_panel_rows(p, column, k, 1);
    }
}

/* Computes the rest of a product. */
__attribute__((unused)) static void go_panel_finish(go_panel_product *p) {
    go_panel_columns(p, p->column, p->columns, p->k);
    p->column = p->columns, p->k = 0;
}

#if GO_LEVEL >= 3
/* Whether `other` has a part that can be computed beside a panel of another product. */
GO_INLINE int go_panel_has_part(const go_panel_product *other) {
    return other->rows == GO_PANEL_BESIDE && other->column + GO_PANEL_NARROW * LANES_w <= other->columns;
}

/* `terms` terms of a row for a wide panel; see go_panel_beside. */
GO_INLINE void go_panel_row_terms(const float *m, const float *a, int64_t terms, f32_w *sum) {
    for (int64_t k = 0; k < terms; k++) {
        const f32_w factor = load_one_f32_w(a + k);
        for (int v = 0; v < GO_PANEL_WIDE; v++)
            sum[v] = fma_w(factor, load_f32_w(m + (k * GO_PANEL_WIDE + v) * LANES_w), sum[v]);
    }
}

/* Adds the terms before `stop` of the panel of `other` that are in `part`. */
GO_INLINE void go_panel_add_part(go_panel_product *other, int64_t stop, f32_w (*part)[GO_PANEL_NARROW]) {
    const float *const *const from = other->k ? (const float *const *)other->to : other->from;
    for (int r = 0; r < GO_PANEL_BESIDE; r++)
        for (int v = 0; v < GO_PANEL_NARROW; v++) {
            const int64_t at = other->column + v * LANES_w;
            store_f32_w(other->to[r] + at, load_f32_w(from[r] + at) + part[r][v]);
            part[r][v] = splat_f32_w(0);
        }
    other->k = stop;
    if (stop == other->depth) other->k = 0, other->column += GO_PANEL_NARROW * LANES_w;
}

/* The single row of p for `panels` wide panels, each `step` columns after the one before, and beside it parts of `other`:
   a term for `every` terms of p. Returns the number of panels that were computed before `other` was. */
GO_INLINE int64_t go_panel_beside_every(const go_panel_product *p, int64_t column, int64_t step, int64_t panels,
                                        go_panel_product *other, const int every) {
    f32_w part[GO_PANEL_BESIDE][GO_PANEL_NARROW];
    for (int r = 0; r < GO_PANEL_BESIDE; r++)
        for (int v = 0; v < GO_PANEL_NARROW; v++) part[r][v] = splat_f32_w(0);
    int64_t k = other->k; /* terms of the panel of `other`, those before other->k without `part` */
    for (int64_t panel = 0; panel < panels; panel++, column += step) {
        const float *m = p->m + column * p->depth, *a = *p->a;
        f32_w sum[GO_PANEL_WIDE];
        for (int v = 0; v < GO_PANEL_WIDE; v++) sum[v] = splat_f32_w(0);
        int64_t left = p->depth;
        while (left >= every && go_panel_has_part(other)) {
            const float *n = other->m + other->column * other->depth + k * GO_PANEL_NARROW * LANES_w;
            const float *factors[GO_PANEL_BESIDE];
            for (int r = 0; r < GO_PANEL_BESIDE; r++) factors[r] = other->a[r] + k;
            const int64_t terms = left / every < other->depth - k ? left / every : other->depth - k;
            for (int64_t term = 0; term < terms; term++) {
                go_panel_row_terms(m, a, every, sum);
                m += every * GO_PANEL_WIDE * LANES_w, a += every;
                for (int r = 0; r < GO_PANEL_BESIDE; r++) {
                    const f32_w factor = load_one_f32_w(factors[r] + term);
                    for (int v = 0; v < GO_PANEL_NARROW; v++)
                        part[r][v] = fma_w(factor, load_f32_w(n + v * LANES_w), part[r][v]);
                }
                n += GO_PANEL_NARROW * LANES_w;
            }
            left -= terms * every, k += terms;
            if (k == other->depth) go_panel_add_part(other, k, part), k = 0;
        }
        go_panel_row_terms(m, a, left, sum);
        for (int v = 0; v < GO_PANEL_WIDE; v++) {
            const int64_t at = column + v * LANES_w;
            store_f32_w(*p->to + at, load_f32_w(*p->from + at) + sum[v]);
        }
        if (!go_panel_has_part(other)) return panel + 1;
    }
    go_panel_add_part(other, k, part);
    return panels;
}
#endif

/* The number of terms of single rows for each term of a product of several rows beside them: the latter is spread evenly
   over the time of the former, as far as possible */
GO_INLINE int go_panel_every(int64_t columns, int64_t depth, int64_t single_columns, int64_t single_depth) {
    const int64_t terms = columns / GO_PANEL_NARROW * depth, single_terms = single_columns / GO_PANEL_WIDE * single_depth;
    return 4 * terms <= single_terms ? 4 : 2;
}

/* `panels` panels, each `step` columns after the one before, and beside them parts of `other` if possible: a term for
   `every` (2 or 4) terms of p. */
GO_NOINLINE void go_panel_beside(const go_panel_product *p, int64_t column, int64_t step, int64_t panels,
                                 go_panel_product *other, int every) {
#if GO_LEVEL >= 3
    while (panels > 0 && p->rows == 1 && column + GO_PANEL_WIDE * LANES_w <= p->columns && p->depth <= GO_PANEL_DEPTH &&
           go_panel_has_part(other)) {
        const int64_t whole = step > 0 ? (p->columns - column) / step : panels, most = whole < panels ? whole : panels;
        const int64_t done = every == 4 ? go_panel_beside_every(p, column, step, most, other, 4)
                                        : go_panel_beside_every(p, column, step, most, other, 2);
        column += done * step, panels -= done;
    }
#else
    (void)other, (void)every;
#endif
    for (const int64_t width = GO_PANEL_WIDE * LANES_w; panels > 0; panels--, column += step)
        go_panel_columns(p, column, column + width < p->columns ? column + width : p->columns, 0);
}

/* A product whose columns threads share */
typedef struct {
    const go_panel_product *product;
    int64_t columns; /* of a part */
} go_panel_shared;

__attribute__((unused)) static void go_panel_part(void *data, size_t part) {
    const go_panel_shared *const shared = data;
    const int64_t first = (int64_t)part * shared->columns, stop = first + shared->columns;
    const go_panel_product *const p = shared->product;
    go_panel_columns(p, first, stop < p->columns ? stop : p->columns, 0);
}

/* Computes a product in at most GO_PANEL_PARTS parts. */
enum { GO_PANEL_PARTS = 16 };
__attribute__((unused)) static void go_panel_share(go_call *call, const go_panel_product *p) {
    const int64_t width = GO_PANEL_WIDE * LANES_w, panels = go_ceil_div(p->columns, width);
    go_panel_shared shared = {p, go_ceil_div(panels, GO_PANEL_PARTS) * width};
    if (panels > 0) go_parallel(call, go_panel_part, &shared, (size_t)go_ceil_div(p->columns, shared.columns));
}

/* A number of elements rounded up to whole vectors */
GO_INLINE int64_t go_panel_whole(int64_t count) { return go_round_up(count, LANES_w); }
