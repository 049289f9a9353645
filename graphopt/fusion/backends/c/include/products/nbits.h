/* Weights of MatMulNBits: integers of 4 or 8 bits without sign, with a scale and a zero point for each column and each
   block of `size` values along k.

   In a model, column n has its blocks one after the other, two values of 4 bits in a byte, the first in the low half.
   Packed, a panel of GO_LOW_COLUMNS columns has its values of one k one after the other: for 4 bits, the low halves are
   the first half of the columns. Scales and zero points are floats, for each panel and block. Columns beyond the last
   one have scales of 0. */
GO_INLINE int64_t go_nbits_panels(int64_t columns) { return (columns + GO_LOW_COLUMNS - 1) / GO_LOW_COLUMNS; }

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

/* The values of one k less their zero points, as floats. */
GO_INLINE void go_nbits_values(const uint8_t *at, int bits, int has_zeros, f32_w z0, f32_w z1, f32_w *v0, f32_w *v1) {
    if (bits == 4) {
        const i32_w both = u8_to_i32_w(load_u8_w(at));
#if GO_LEVEL == 4
        /* The low four bits of an index select one of 16 numbers. */
        const __m512 zero = _mm512_set1_ps(has_zeros ? 0 : -8);
        const __m512 table = _mm512_add_ps(
            zero, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        *v0 = (f32_w)_mm512_permutexvar_ps((__m512i)both, table);
        *v1 = (f32_w)_mm512_permutexvar_ps((__m512i)(both >> 4), table);
        if (has_zeros) *v0 -= z0, *v1 -= z1;
#else
        *v0 = i32_to_f32_w(both & 15) - (has_zeros ? z0 : splat_f32_w(8));
        *v1 = i32_to_f32_w(both >> 4) - (has_zeros ? z1 : splat_f32_w(8));
#endif
    } else {
        *v0 = u8_to_f32_w(load_u8_w(at)) - (has_zeros ? z0 : splat_f32_w(128));
        *v1 = u8_to_f32_w(load_u8_w(at + LANES_w)) - (has_zeros ? z1 : splat_f32_w(128));
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

GO_NOINLINE void go_nbits_load_rows(const void *operands, int64_t row, int64_t count, int64_t k, int64_t depth,
                                    float *to, int64_t to_step) {
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
    const go_nbits *const weights = operands;
    const int64_t size = weights->size, panel = column / GO_LOW_COLUMNS;
    const int64_t row = go_nbits_row(bits);
    const uint8_t *at = weights->values + (panel * weights->blocks * size + k) * row;
    for (int64_t block = k / size; depth > 0; block++) {
        const int64_t place = (panel * weights->blocks + block) * GO_LOW_COLUMNS;
        const f32_w s0 = load_f32_w(weights->scales + place), s1 = load_f32_w(weights->scales + place + LANES_w);
        f32_w z0 = s0, z1 = s1;
        if (has_zeros) z0 = load_f32_w(weights->zeros + place), z1 = load_f32_w(weights->zeros + place + LANES_w);
        const int64_t count = depth < size ? depth : size;
        for (int64_t i = 0; i < count; i++, at += row, to += GO_LOW_COLUMNS) {
            f32_w v0, v1;
            go_nbits_values(at, bits, has_zeros, z0, z1, &v0, &v1);
            store_f32_w(to, v0 * s0);
            store_f32_w(to + LANES_w, v1 * s1);
        }
        depth -= count;
    }
}

/* At most GO_NBITS_FEW rows times a panel, dequantized in registers. The sum of each block is scaled. */
#define GO_NBITS_FEW 4
GO_INLINE void go_nbits_rows(const go_nbits *product, int rows, int bits, int has_zeros, int64_t panel, float *c) {
    const int64_t row = go_nbits_row(bits), depth = product->depth, size = product->size;
    const uint8_t *at = product->values + panel * product->blocks * size * row;
    const f32_w nothing = splat_f32_w(0);
    f32_w sums[GO_NBITS_FEW][2];
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = nothing;
    for (int64_t block = 0; block < product->blocks; block++) {
        const int64_t place = (panel * product->blocks + block) * GO_LOW_COLUMNS;
        f32_w z0 = nothing, z1 = nothing, even[GO_NBITS_FEW][2], odd[GO_NBITS_FEW][2];
        if (has_zeros) z0 = load_f32_w(product->zeros + place), z1 = load_f32_w(product->zeros + place + LANES_w);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) even[i][0] = even[i][1] = odd[i][0] = odd[i][1] = nothing;
        const float *a = product->a + block * size;
        int64_t left = depth - block * size < size ? depth - block * size : size;
        for (; left >= 2; left -= 2, a += 2, at += 2 * row) {
            f32_w v0, v1, w0, w1;
            go_nbits_values(at, bits, has_zeros, z0, z1, &v0, &v1);
            go_nbits_values(at + row, bits, has_zeros, z0, z1, &w0, &w1);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                const f32_w x = load_one_f32_w(a + i * depth), y = load_one_f32_w(a + i * depth + 1);
                even[i][0] = fma_w(x, v0, even[i][0]);
                even[i][1] = fma_w(x, v1, even[i][1]);
                odd[i][0] = fma_w(y, w0, odd[i][0]);
                odd[i][1] = fma_w(y, w1, odd[i][1]);
            }
        }
        if (left > 0) {
            f32_w v0, v1;
            go_nbits_values(at, bits, has_zeros, z0, z1, &v0, &v1);
#pragma GCC unroll 4
            for (int i = 0; i < rows; i++) {
                const f32_w x = load_one_f32_w(a + i * depth);
                even[i][0] = fma_w(x, v0, even[i][0]);
                even[i][1] = fma_w(x, v1, even[i][1]);
            }
        }
        const f32_w s0 = load_f32_w(product->scales + place), s1 = load_f32_w(product->scales + place + LANES_w);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
            sums[i][0] = fma_w(even[i][0] + odd[i][0], s0, sums[i][0]);
            sums[i][1] = fma_w(even[i][1] + odd[i][1], s1, sums[i][1]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        store_f32_w(c + i * GO_LOW_WIDTH, sums[i][0]);
        store_f32_w(c + i * GO_LOW_WIDTH + LANES_w, sums[i][1]);
    }
}

/* For each number of bits, without and with zero points: a panel, and few rows times a panel. */
typedef void (*go_nbits_few)(const go_nbits *product, int64_t panel, float *c);
#define GO_NBITS(name, bits, has_zeros) \
    GO_NOINLINE void go_nbits_panel_##name(const void *operands, int64_t k, int64_t depth, int64_t column, \
                                         int64_t count, float *to) { \
        (void)count; \
        go_nbits_panel(operands, bits, has_zeros, k, depth, column, to); \
    } \
    GO_NOINLINE void go_nbits_few_##name(const go_nbits *product, int64_t panel, float *c) { \
        if (product->rows == 1) go_nbits_rows(product, 1, bits, has_zeros, panel, c); \
        else if (product->rows == 2) go_nbits_rows(product, 2, bits, has_zeros, panel, c); \
        else if (product->rows == 3) go_nbits_rows(product, 3, bits, has_zeros, panel, c); \
        else go_nbits_rows(product, 4, bits, has_zeros, panel, c); \
    }
GO_NBITS(4, 4, 0)
GO_NBITS(4_zeros, 4, 1)
GO_NBITS(8, 8, 0)
GO_NBITS(8_zeros, 8, 1)
#undef GO_NBITS

/* Part `index` of a product, of go_low_parts parts; 0 if there is no memory. */
GO_NOINLINE int go_nbits_product(const go_nbits *product, int64_t index, go_low_load_panel load_panel, go_nbits_few few,
                                 go_low_finish finish, void *run) {
    const int64_t block = product->size < 128 ? 128 : product->size;
    const go_low_part part = go_low_part_at(index, product->rows, product->columns, product->depth, block);
    if (product->rounds)
        return go_low_product(product, &part, go_nbits_load_rounded_rows, load_panel, product->bias, finish, run);
    if (product->rows > GO_NBITS_FEW)
        return go_low_product(product, &part, go_nbits_load_rows, load_panel, product->bias, finish, run);
    float c[GO_NBITS_FEW * GO_LOW_WIDTH];
    for (int64_t j = 0; j < part.columns; j += GO_LOW_COLUMNS)
        few(product, (part.first_column + j) / GO_LOW_COLUMNS, c + j);
    for (int64_t i = 0; i < product->rows; i++) {
        float *const values = c + i * GO_LOW_WIDTH;
        if (product->bias != NULL)
            for (int64_t j = 0; j < part.columns; j++) values[j] += product->bias[part.first_column + j];
        finish(run, i * product->columns + part.first_column, part.columns, values);
    }
    return 1;
}
