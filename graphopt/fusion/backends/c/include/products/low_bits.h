/* Matrix products of operands that are stored as small integers, and computed as floats: a block of B's columns is
   dequantized into a panel that stays in the first cache, and multiplied with all rows of a block of A.

   Each element of the result adds its products in the order of k, block by block of `depth`: the order does not depend
   on the position of the element, or on the number of threads. It is that of onnxruntime's product of floats (MLAS,
   sgemm), with which the results are bit-identical on machines that multiply and add in one instruction. */
#define GO_LOW_COLUMNS GO_GEMM_WIDE /* of a panel */
#define GO_LOW_BLOCK (8 * GO_GEMM_ROWS) /* rows that share a dequantized panel */
#define GO_LOW_WIDTH 256               /* columns of a chunk of work */
#define GO_LOW_PAD 16                  /* floats between rows: rows 4 KB apart would share few lines of a cache */

/* c = a b, or c + a b, for one panel. */
GO_NOINLINE void go_low_panel(int64_t rows, const float *a, int64_t a_step, const float *b, int64_t depth, float *c,
                            int64_t c_step, int adds) {
    for (int64_t tiles = go_ceil_div(rows, GO_GEMM_ROWS); tiles > 0; tiles--) {
        const int64_t some = go_ceil_div(rows, tiles); /* tiles of about equal size */
        go_gemm_tiles[some][2](depth, a, a_step, b, GO_LOW_COLUMNS, 0, NULL, c, c_step, LANES_w, adds);
        rows -= some, a += some * a_step, c += some * c_step;
    }
}

/* The number of products that onnxruntime adds before it starts another sum, in a product of `columns` and `depth`. */
GO_INLINE int64_t go_low_depth(int64_t columns, int64_t depth) {
    int64_t n = 128, k = 128;
    if (columns < depth)
        while (n > 16 && n / 2 >= columns) n /= 2, k *= 2;
    return k;
}

/* A part of a product: at most GO_LOW_BLOCK rows and GO_LOW_WIDTH columns. */
typedef struct {
    int64_t first_row, rows, first_column, columns;
    int64_t depth, block; /* products of an element, and of those that are added before another sum begins */
    int64_t at, stride;   /* position of the product's first element in the result, and of the next row */
    const float *initial; /* initial value of the sum of each column of the part, or NULL */
} go_low_part;

/* Parts of a product of `rows` and `columns`. */
GO_INLINE int64_t go_low_parts(int64_t rows, int64_t columns) {
    return go_ceil_div(rows, GO_LOW_BLOCK) * go_ceil_div(columns, GO_LOW_WIDTH);
}

GO_INLINE go_low_part go_low_part_at(int64_t index, int64_t rows, int64_t columns, int64_t depth, int64_t block) {
    const int64_t across = go_ceil_div(columns, GO_LOW_WIDTH);
    const int64_t i = index / across * GO_LOW_BLOCK, j = index % across * GO_LOW_WIDTH;
    return (go_low_part){i, rows - i < GO_LOW_BLOCK ? rows - i : GO_LOW_BLOCK,
                         j, columns - j < GO_LOW_WIDTH ? columns - j : GO_LOW_WIDTH, depth, block, 0, columns, NULL};
}

/* Computes a part. `load_rows` writes floats of A, rows `to_step` apart; `load_panel` writes those of B, with any
   numbers in columns beyond `count`. `finish` stores rows, to which `bias` is added if it is not NULL. Returns 0 if
   there is no memory. */
typedef void (*go_low_load_rows)(const void *operands, int64_t row, int64_t count, int64_t k, int64_t depth, float *to,
                                 int64_t to_step);
typedef void (*go_low_load_panel)(const void *operands, int64_t k, int64_t depth, int64_t column, int64_t count,
                                  float *to);
typedef void (*go_low_finish)(void *run, int64_t at, int64_t count, const void *values);

GO_NOINLINE int go_low_product(const void *operands, const go_low_part *part, go_low_load_rows load_rows,
                             go_low_load_panel load_panel, const float *bias, go_low_finish finish, void *run) {
    const int64_t block = part->block < part->depth ? part->block : part->depth;
    const int64_t a_step = block + GO_LOW_PAD;
    const int64_t c_step = go_round_up(part->columns, GO_LOW_COLUMNS) + GO_LOW_PAD;
    const size_t count = (size_t)(part->rows * (a_step + c_step) + block * GO_LOW_COLUMNS);
    char *memory = malloc(count * sizeof(float) + GO_LINE);
    if (memory == NULL) return 0;
    float *const b = go_next_line(memory);
    float *const a = b + block * GO_LOW_COLUMNS, *const c = a + part->rows * a_step;
    if (part->depth == 0) memset(c, 0, (size_t)(part->rows * c_step) * sizeof *c);
    for (int64_t i = 0; part->initial != NULL && i < part->rows; i++)
        memcpy(c + i * c_step, part->initial, (size_t)part->columns * sizeof *c);
    for (int64_t k = 0; k < part->depth; k += block) {
        const int64_t depth = part->depth - k < block ? part->depth - k : block;
        load_rows(operands, part->first_row, part->rows, k, depth, a, a_step);
        for (int64_t j = 0; j < part->columns; j += GO_LOW_COLUMNS) {
            const int64_t left = part->columns - j;
            load_panel(operands, k, depth, part->first_column + j, left < GO_LOW_COLUMNS ? left : GO_LOW_COLUMNS, b);
            go_low_panel(part->rows, a, a_step, b, depth, c + j, c_step,
                         k > 0 || part->initial != NULL);
        }
    }
    for (int64_t i = 0; i < part->rows; i++) {
        float *const values = c + i * c_step;
        if (bias != NULL)
            for (int64_t j = 0; j < part->columns; j++) values[j] += bias[part->first_column + j];
        finish(run, part->at + (part->first_row + i) * part->stride + part->first_column, part->columns, values);
    }
    free(memory);
    return 1;
}
