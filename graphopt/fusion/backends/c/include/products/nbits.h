/* Weights of MatMulNBits: integers of 4 or 8 bits without sign, with a scale and a zero point for each column and each
   block of `size` values along k.

   In a model, column n has its blocks one after the other, two values of 4 bits in a byte, the first in the low half.
   Packed, a panel of GO_LOW_COLUMNS columns has its values of one k one after the other: for 4 bits, the low halves are
   the first half of the columns. Scales and zero points are floats, for each panel and block. Columns beyond the last
   one have scales of 0. */
GO_INLINE int64_t go_nbits_panels(int64_t columns) { return go_ceil_div(columns, GO_LOW_COLUMNS); }

/* Bytes of a panel for one k. */
GO_INLINE int64_t go_nbits_row(int bits) { return bits == 4 ? GO_LOW_COLUMNS / 2 : GO_LOW_COLUMNS; }

GO_INLINE size_t go_nbits_size(int64_t columns, int64_t blocks, int bits, int64_t size) {
    return (size_t)(go_nbits_panels(columns) * blocks * size * go_nbits_row(bits));
}

GO_NOINLINE void go_nbits_pack(const uint8_t *from, int64_t columns, int64_t blocks, int bits, int64_t size,
                               uint8_t *to) {
    const int64_t depth = blocks * size, row = go_nbits_row(bits), bytes = depth * bits / 8;
    memset(to, 0, go_nbits_size(columns, blocks, bits, size));
    for (int64_t n = 0; n < columns; n++) {
        const int64_t lane = n % GO_LOW_COLUMNS;
        uint8_t *const panel = to + n / GO_LOW_COLUMNS * depth * row;
        const uint8_t *const column = from + n * bytes;
        for (int64_t k = 0; k < depth; k++) {
            if (bits == 8) {
                panel[k * row + lane] = column[k];
            } else {
                const int value = column[k / 2] >> (k % 2 * 4) & 15;
                panel[k * row + lane % LANES_w] |= (uint8_t)(lane < LANES_w ? value : value << 4);
            }
        }
    }
}

GO_INLINE size_t go_nbits_parameters_size(int64_t columns, int64_t blocks) {
    return (size_t)(go_nbits_panels(columns) * blocks * GO_LOW_COLUMNS) * sizeof(float);
}

GO_NOINLINE void go_nbits_pack_scales(const float *from, int64_t columns, int64_t blocks, float *to) {
    memset(to, 0, go_nbits_parameters_size(columns, blocks));
    for (int64_t n = 0; n < columns; n++)
        for (int64_t b = 0; b < blocks; b++)
            to[(n / GO_LOW_COLUMNS * blocks + b) * GO_LOW_COLUMNS + n % GO_LOW_COLUMNS] = from[n * blocks + b];
}

/* `from` has bytes, each column beginning with a new one: for 4 bits two zero points in each. */
GO_NOINLINE void go_nbits_pack_zeros(const uint8_t *from, int64_t columns, int64_t blocks, int bits, float *to) {
    const int64_t bytes = (blocks * bits + 7) / 8;
    memset(to, 0, go_nbits_parameters_size(columns, blocks));
    for (int64_t n = 0; n < columns; n++)
        for (int64_t b = 0; b < blocks; b++) {
            const int value = bits == 8 ? from[n * bytes + b] : from[n * bytes + b / 2] >> (b % 2 * 4) & 15;
            to[(n / GO_LOW_COLUMNS * blocks + b) * GO_LOW_COLUMNS + n % GO_LOW_COLUMNS] = (float)value;
        }
}

/* Numbers that go_nbits_values subtracts from the integers of a block. Integers of 4 bits become floats by arithmetic on
   bits: 2^23 + v has the bits of 2^23 and those of v, and 2^19 + v those of 16 v. At level 4, the low half is looked up in
   a table instead: both ways together use most units of a core. */
GO_INLINE void go_nbits_offsets(int bits, const float *zeros, f32_w *z0, f32_w *z1) {
    const f32_w middle = splat_f32_w((float)(1 << (bits - 1)));
    *z0 = zeros ? load_f32_w(zeros) : middle;
    *z1 = zeros ? load_f32_w(zeros + LANES_w) : middle;
    if (bits != 4) return;
    if (GO_LEVEL != 4) *z0 += splat_f32_w(1 << 23);
    *z1 += splat_f32_w(1 << 19);
}

/* The values of one k less their zero points, as floats. */
GO_INLINE void go_nbits_values(const uint8_t *at, int bits, int has_zeros, f32_w z0, f32_w z1, f32_w *v0, f32_w *v1) {
    if (bits == 4) {
        const i32_w both = u8_to_i32_w(load_u8_w(at));
#if GO_LEVEL == 4
        const f32_w integers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const f32_w table = has_zeros ? integers : integers - splat_f32_w(8);
        *v0 = (f32_w)_mm512_permutexvar_ps((__m512i)both, (__m512)table); /* by the low four bits */
        if (has_zeros) *v0 -= z0;
#else
        (void)has_zeros;
        *v0 = (f32_w)((both & 15) | 0x4b000000) - z0;
#endif
        *v1 = (f32_w)((both & 240) | 0x49000000) - z1;
    } else {
        *v0 = u8_to_f32_w(load_u8_w(at)) - z0;
        *v1 = u8_to_f32_w(load_u8_w(at + LANES_w)) - z1;
    }
}

/* The operands of a product: packed weights, and A with rows of `depth` floats. */
typedef struct {
    const uint8_t *values;
    const float *scales, *zeros; /* without zeros, all zero points are 2^(bits - 1) */
    const float *a, *bias;       /* bias may be NULL */
    int64_t rows, columns, depth, blocks, size;
    int rounds; /* whether blocks of A are rounded to 8 bits, with the largest magnitude as 127 */
} go_nbits;

GO_NOINLINE void go_nbits_load_rows(const void *operands, int64_t row, int64_t count, int64_t k, int64_t depth, float *to,
                                  int64_t to_step) {
    const go_nbits *const product = operands;
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * to_step, product->a + (row + i) * product->depth + k, (size_t)depth * sizeof(float));
}

/* 127 / most; 0 if there is no such number, so that blocks of tiny numbers become 0. */
GO_INLINE float go_nbits_inverse(float most) { return most > 127 / __FLT_MAX__ ? 127 / most : 0; }

/* The same with rounded blocks: numbers that onnxruntime multiplies as integers at accuracy level 4. */
GO_NOINLINE void go_nbits_load_rounded_rows(const void *operands, int64_t row, int64_t count, int64_t k, int64_t depth,
                                          float *to, int64_t to_step) {
    const go_nbits *const product = operands;
    go_nbits_load_rows(operands, row, count, k, depth, to, to_step);
    for (int64_t i = 0; i < count; i++)
        for (int64_t first = 0; first < depth; first += product->size) {
            float *const block = to + i * to_step + first;
            float most = 0;
            const int64_t size = depth - first < product->size ? depth - first : product->size;
            for (int64_t j = 0; j < size; j++) {
                const float x = __builtin_fabsf(block[j]);
                most = most < x ? x : most;
            }
            const float inverse = go_nbits_inverse(most), scale = most / 127;
            for (int64_t j = 0; j < size; j++) block[j] = __builtin_rintf(block[j] * inverse) * scale;
        }
}

/* A panel of `depth` values from `k` on, a multiple of the size of blocks. */
GO_INLINE void go_nbits_panel(const void *operands, int bits, int has_zeros, int64_t k, int64_t depth, int64_t column,
                              float *to) {
    const go_nbits *const product = operands;
    const int64_t size = product->size, row = go_nbits_row(bits);
    const int64_t first = column / GO_LOW_COLUMNS * product->blocks + k / size;
    const uint8_t *at = product->values + first * size * row;
    for (int64_t place = first * GO_LOW_COLUMNS; depth > 0; place += GO_LOW_COLUMNS, depth -= size) {
        const f32_w s0 = load_f32_w(product->scales + place), s1 = load_f32_w(product->scales + place + LANES_w);
        f32_w z0, z1, v0, v1;
        go_nbits_offsets(bits, has_zeros ? product->zeros + place : NULL, &z0, &z1);
        for (int64_t i = depth < size ? depth : size; i > 0; i--, at += row, to += GO_LOW_COLUMNS) {
            go_nbits_values(at, bits, has_zeros, z0, z1, &v0, &v1);
            store_f32_w(to, v0 * s0);
            store_f32_w(to + LANES_w, v1 * s1);
        }
    }
}
/* Adds to c, or sets it to, the product of a tile of rows of A with `count` blocks of a panel, from `block` on. Weights
   are dequantized in registers, and the sum of each block is scaled. Needs few registers besides sums, so that tiles are as
   tall as those of floats. */
typedef void go_nbits_tile(const go_nbits *product, int64_t panel, int64_t block, int64_t count, const float *a,
                           int64_t a_m, float *c);
GO_INLINE void go_nbits_rows(const go_nbits *product, const int rows, int bits, int has_zeros, int64_t panel,
                             int64_t block, int64_t count, const float *a, int64_t a_m, float *c) {
    const int64_t row = go_nbits_row(bits), size = product->size;
    const uint8_t *at = product->values + (panel * product->blocks + block) * size * row;
    const int pairs = rows <= 2; /* two sums of each element: few sums would wait for each other */
    int64_t place = (panel * product->blocks + block) * GO_LOW_COLUMNS, left = product->depth - block * size;
    for (int adds = block > 0; count > 0; count--, a += size, place += GO_LOW_COLUMNS, left -= size, adds = 1) {
        GO_GEMM_POINTERS(a, a_m, rows);
        const int64_t depth = left < size ? left : size;
        f32_w z0, z1, v0, v1, sums[GO_GEMM_ROWS][2] = {0}, others[GO_GEMM_ROWS][2] = {0};
        go_nbits_offsets(bits, has_zeros ? product->zeros + place : NULL, &z0, &z1);
        int64_t k = 0;
        for (; pairs && k + 2 <= depth; k += 2, at += 2 * row) {
            f32_w w0, w1;
            go_nbits_values(at, bits, has_zeros, z0, z1, &v0, &v1);
            go_nbits_values(at + row, bits, has_zeros, z0, z1, &w0, &w1);
            GO_UNROLL for (int i = 0; i < rows; i++) {
                const f32_w x = splat_f32_w(GO_GEMM_ELEMENT(a_m, i, k)), y = splat_f32_w(GO_GEMM_ELEMENT(a_m, i, k + 1));
                sums[i][0] = fma_w(x, v0, sums[i][0]);
                sums[i][1] = fma_w(x, v1, sums[i][1]);
                others[i][0] = fma_w(y, w0, others[i][0]);
                others[i][1] = fma_w(y, w1, others[i][1]);
            }
        }
        for (; k < depth; k++, at += row) {
            go_nbits_values(at, bits, has_zeros, z0, z1, &v0, &v1);
            GO_UNROLL for (int i = 0; i < rows; i++) {
                const f32_w x = splat_f32_w(GO_GEMM_ELEMENT(a_m, i, k));
                sums[i][0] = fma_w(x, v0, sums[i][0]);
                sums[i][1] = fma_w(x, v1, sums[i][1]);
            }
        }
        const f32_w s0 = load_f32_w(product->scales + place), s1 = load_f32_w(product->scales + place + LANES_w);
        GO_UNROLL for (int i = 0; i < rows; i++) {
            float *const to = c + i * GO_LOW_WIDTH;
            if (pairs) sums[i][0] += others[i][0], sums[i][1] += others[i][1];
            store_f32_w(to, adds ? fma_w(sums[i][0], s0, load_f32_w(to)) : sums[i][0] * s0);
            store_f32_w(to + LANES_w, adds ? fma_w(sums[i][1], s1, load_f32_w(to + LANES_w)) : sums[i][1] * s1);
        }
    }
}

/* For each number of bits, without and with zero points: a panel, and tiles of each number of rows. */
#define GO_NBITS_TILE(kind, bits, has_zeros, rows) \
    GO_NOINLINE void go_nbits_tile_##kind##_##rows(const go_nbits *product, int64_t panel, int64_t block, int64_t count, \
                                                 const float *a, int64_t a_m, float *c) { \
        go_nbits_rows(product, rows, bits, has_zeros, panel, block, count, a, a_m, c); \
    }
#define GO_NBITS_ENTRY(kind, bits, has_zeros, rows) [rows] = go_nbits_tile_##kind##_##rows,
#define GO_NBITS_EACH(make, ...) \
    make(__VA_ARGS__, 1) make(__VA_ARGS__, 2) make(__VA_ARGS__, 3) make(__VA_ARGS__, 4) make(__VA_ARGS__, 5) \
    make(__VA_ARGS__, 6) GO_NBITS_MORE(make, __VA_ARGS__)
#if GO_GEMM_ROWS == 14
#define GO_NBITS_MORE(make, ...) \
    make(__VA_ARGS__, 7) make(__VA_ARGS__, 8) make(__VA_ARGS__, 9) make(__VA_ARGS__, 10) make(__VA_ARGS__, 11) \
    make(__VA_ARGS__, 12) make(__VA_ARGS__, 13) make(__VA_ARGS__, 14)
#elif GO_GEMM_ROWS == 8
#define GO_NBITS_MORE(make, ...) make(__VA_ARGS__, 7) make(__VA_ARGS__, 8)
#else
#define GO_NBITS_MORE(make, ...)
#endif
#define GO_NBITS(kind, bits, has_zeros) \
    GO_NOINLINE void go_nbits_panel_##kind(const void *operands, int64_t k, int64_t depth, int64_t column, \
                                         int64_t count, float *to) { \
        (void)count; \
        go_nbits_panel(operands, bits, has_zeros, k, depth, column, to); \
    } \
    GO_NBITS_EACH(GO_NBITS_TILE, kind, bits, has_zeros) \
    __attribute__((unused)) static go_nbits_tile *const go_nbits_tiles_##kind[] = { \
        GO_NBITS_EACH(GO_NBITS_ENTRY, kind, bits, has_zeros)};
GO_NBITS(4, 4, 0)
GO_NBITS(4_zeros, 4, 1)
GO_NBITS(8, 8, 0)
GO_NBITS(8_zeros, 8, 1)

/* Part `index` of a product, of go_low_parts parts; 0 if there is no memory. */
#define GO_NBITS_DEPTH 256 /* of rows that are copied: a multiple of the size of blocks */
#define GO_NBITS_FEW 4     /* rows that are read in place */
GO_NOINLINE int go_nbits_product(const go_nbits *product, int64_t index, go_low_load_panel load_panel,
                               go_nbits_tile *const *tiles, go_low_finish finish, void *run) {
    const int64_t size = product->size, rows = product->rows, block = size < 128 ? 128 : size;
    const go_low_part part = go_low_part_at(index, rows, product->columns, product->depth, block);
    if (product->rounds)
        return go_low_product(product, &part, go_nbits_load_rounded_rows, load_panel, product->bias, finish, run);
    if (rows > GO_GEMM_ROWS)
        return go_low_product(product, &part, go_nbits_load_rows, load_panel, product->bias, finish, run);
    const int is_copied = rows > GO_NBITS_FEW;
    const int64_t step = is_copied ? GO_NBITS_DEPTH : product->blocks * size;
    const int64_t a_m = is_copied ? GO_NBITS_DEPTH + GO_LOW_PAD : product->depth;
    float c[GO_GEMM_ROWS * GO_LOW_WIDTH] __attribute__((aligned(GO_LINE)));
    float copy[GO_GEMM_ROWS * (GO_NBITS_DEPTH + GO_LOW_PAD)];
    for (int64_t k = 0; k < product->depth; k += step) {
        const int64_t depth = product->depth - k < step ? product->depth - k : step;
        if (is_copied) go_nbits_load_rows(product, 0, rows, k, depth, copy, a_m);
        for (int64_t j = 0; j < part.columns; j += GO_LOW_COLUMNS)
            tiles[rows](product, (part.first_column + j) / GO_LOW_COLUMNS, k / size, go_ceil_div(depth, size),
                        is_copied ? copy : product->a, a_m, c + j);
    }
    for (int64_t i = 0; i < rows; i++) {
        float *const values = c + i * GO_LOW_WIDTH;
        if (product->bias != NULL)
            for (int64_t j = 0; j < part.columns; j++) values[j] += product->bias[part.first_column + j];
        finish(run, i * product->columns + part.first_column, part.columns, values);
    }
    return 1;
}
