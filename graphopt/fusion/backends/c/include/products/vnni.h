/* Products of bytes on machines that multiply four pairs of bytes in each lane, and add them without saturation. On
   other machines, products in single precision are as fast. */
#if GO_LEVEL == 4
#define GO_VNNI __attribute__((target("avx512vnni")))
#define GO_QUAD 64 /* bytes of a vector: 16 columns of 4 values along k */

/* Whether sums of `depth` products are exact. */
GO_INLINE int go_has_integers(int64_t depth) { return depth <= 32768 && __builtin_cpu_supports("avx512vnni"); }

/* B, packed: for each panel of 32 columns the quads of bytes of both vectors, k by k, as signed numbers; sums of
   columns, and their Euclidean norms after subtraction of the zero point. Rows and columns beyond are 0. */
typedef struct {
    int64_t panels, quads;
    size_t sums, norms, bytes; /* positions, and the size of the whole */
} go_integers_layout;

GO_INLINE go_integers_layout go_integers_layout_of(int64_t depth, int64_t columns) {
    go_integers_layout found = {go_ceil_div(columns, 32), go_ceil_div(depth, 4), 0, 0, 0};
    found.sums = (size_t)(found.panels * found.quads) * 2 * GO_QUAD;
    found.norms = found.sums + (size_t)found.panels * 32 * 4;
    found.bytes = found.norms + (size_t)found.panels * 32 * 4;
    return found;
}

GO_INLINE size_t go_integers_size(int64_t batches, int64_t depth, int64_t columns) {
    return go_has_integers(depth) ? (size_t)batches * go_integers_layout_of(depth, columns).bytes : 0;
}

/* Rows k to k + 3 of 16 columns, interleaved; `inside` has the columns that exist. */
GO_INLINE __m512i go_integers_quads(const char *from, int64_t columns, int64_t rows, uint16_t inside) {
    __m128i row[4];
    for (int i = 0; i < 4; i++)
        row[i] = i < rows ? _mm_maskz_loadu_epi8(inside, from + i * columns) : _mm_setzero_si128();
    const __m128i a = _mm_unpacklo_epi8(row[0], row[1]), b = _mm_unpackhi_epi8(row[0], row[1]);
    const __m128i c = _mm_unpacklo_epi8(row[2], row[3]), d = _mm_unpackhi_epi8(row[2], row[3]);
    const __m256i low = _mm256_set_m128i(_mm_unpackhi_epi16(a, c), _mm_unpacklo_epi16(a, c));
    const __m256i high = _mm256_set_m128i(_mm_unpackhi_epi16(b, d), _mm_unpacklo_epi16(b, d));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* The same for a transposed B: the rows of a column are adjacent, and columns are `depth` bytes apart. */
GO_INLINE __m512i go_integers_turned_quads(const char *from, int64_t depth, int64_t rows, int64_t count) {
    int32_t quads[16] = {0};
    for (int64_t j = 0; j < 16 && j < count; j++) {
        if (rows == 4) memcpy(&quads[j], from + j * depth, 4);
        else memcpy(&quads[j], from + j * depth, (size_t)rows);
    }
    return _mm512_loadu_si512(quads);
}

/* All bits of the bytes of `rows` rows and the columns `inside`. */
GO_INLINE __m512i go_integers_quads_mask(int64_t rows, uint16_t inside) {
    const __m512i all = _mm512_set1_epi32((int32_t)_bzhi_u32(~0U, (unsigned)(8 * rows)));
    return _mm512_maskz_mov_epi32(inside, all);
}

/* 16 columns of B, written to every other vector of `to`; their sums, and sums of squares. Rows of B that is turned are
   next to each other. */
GO_INLINE GO_VNNI void go_integers_columns(const char *from, int64_t depth, int64_t columns, int64_t count,
                                           int type, int is_turned, char *to, int32_t *sums, int32_t *squares) {
    const uint16_t inside = (uint16_t)(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
    const __m512i flip = _mm512_set1_epi8(type == GO_U8 ? (char)128 : 0), ones = _mm512_set1_epi8(1);
    __m512i total = _mm512_setzero_si512(), low = total, high = total; /* of pairs in columns 0 to 7, and 8 to 15 */
    for (int64_t k = 0; k < depth; k += 4, from += is_turned ? 4 : 4 * columns, to += 2 * GO_QUAD) {
        const int64_t rows = depth - k < 4 ? depth - k : 4;
        const __m512i exists = go_integers_quads_mask(rows, inside);
        const __m512i quads = is_turned ? go_integers_turned_quads(from, depth, rows, count)
                                        : go_integers_quads(from, columns, rows, inside);
        const __m512i x = _mm512_and_si512(_mm512_xor_si512(quads, flip), exists);
        const __m512i first = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(x));
        const __m512i second = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(x, 1));
        _mm512_storeu_si512(to, x);
        total = _mm512_dpbusd_epi32(total, ones, x);
        low = _mm512_add_epi32(low, _mm512_madd_epi16(first, first));
        high = _mm512_add_epi32(high, _mm512_madd_epi16(second, second));
    }
    _mm512_storeu_si512(sums, total);
    int32_t pairs[32];
    _mm512_storeu_si512(pairs, low);
    _mm512_storeu_si512(pairs + 16, high);
    for (int i = 0; i < 16; i++) squares[i] = pairs[2 * i] + pairs[2 * i + 1];
}

GO_NOINLINE GO_VNNI void go_integers_pack_one(const void *from, int64_t depth, int64_t columns, int type,
                                              int32_t zero, int is_turned, char *to) {
    const go_integers_layout layout = go_integers_layout_of(depth, columns);
    int32_t *const sums = (int32_t *)(to + layout.sums);
    float *const norms = (float *)(to + layout.norms);
    const int64_t offset = zero - (type == GO_U8 ? 128 : 0);
    for (int64_t j = 0; j < layout.panels * 32; j += 16) {
        char *const panel = to + j / 32 * layout.quads * 2 * GO_QUAD + j % 32 * 4;
        int32_t squares[16];
        const char *const first = (const char *)from + (is_turned ? j * depth : j);
        if (is_turned) go_integers_columns(first, depth, columns, columns - j, type, 1, panel, sums + j, squares);
        else go_integers_columns(first, depth, columns, columns - j, type, 0, panel, sums + j, squares);
        for (int i = 0; i < 16; i++)
            norms[j + i] = __builtin_sqrtf((float)((uint32_t)squares[i] + offset * (depth * offset - 2 * sums[j + i])));
    }
}

GO_INLINE void go_integers_pack(const void *from, int64_t batches, int64_t depth, int64_t columns, int type,
                                int32_t zero, int is_turned, void *to) {
    if (!go_has_integers(depth)) return;
    const size_t bytes = go_integers_layout_of(depth, columns).bytes;
    for (int64_t i = 0; i < batches; i++)
        go_integers_pack_one((const char *)from + i * depth * columns, depth, columns, type, zero, is_turned,
                             (char *)to + (size_t)i * bytes);
}

GO_INLINE GO_VNNI void go_integers_tile(int rows, const uint8_t *a, int64_t a_step, const char *b, int64_t quads,
                                        int32_t *c, int64_t c_step) {
    __m512i sums[12][2];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = _mm512_setzero_si512();
    for (int64_t k = 0; k < quads; k++, b += 2 * GO_QUAD) {
        const __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + GO_QUAD);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            int32_t quad;
            memcpy(&quad, a + i * a_step + 4 * k, 4);
            const __m512i x = _mm512_set1_epi32(quad);
            sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], x, b0);
            sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], x, b1);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        _mm512_storeu_si512(c + i * c_step, sums[i][0]);
        _mm512_storeu_si512(c + i * c_step + 16, sums[i][1]);
    }
}

GO_NOINLINE GO_VNNI void go_integers_panel(int64_t rows, const uint8_t *a, int64_t a_step, const char *b,
                                           int64_t quads, int32_t *c, int64_t c_step) {
#define GO_TILES(count) \
    for (; rows >= count; rows -= count, a += count * a_step, c += count * c_step) \
    go_integers_tile(count, a, a_step, b, quads, c, c_step)
    GO_TILES(12);
    GO_TILES(8);
    GO_TILES(4);
    GO_TILES(2);
    GO_TILES(1);
#undef GO_TILES
}

/* A row of A as numbers without sign, filled up with zeros to `bytes`; its sum, and its norm after subtraction of the
   zero point. */
GO_INLINE void go_integers_row(const void *from, int64_t depth, int64_t bytes, int type, int32_t zero, uint8_t *to,
                               int32_t *sum, float *norm) {
    const __m512i flip = _mm512_set1_epi8(type == GO_I8 ? (char)128 : 0);
    __m512i sums = _mm512_setzero_si512(), squares = sums;
    for (int64_t k = 0; k < depth; k += 64) {
        const uint64_t inside = depth - k < 64 ? _bzhi_u64(~0ULL, (unsigned)(depth - k)) : ~0ULL;
        const __m512i x = _mm512_maskz_loadu_epi8(inside, (const char *)from + k);
        const __m512i y = _mm512_maskz_mov_epi8(inside, _mm512_xor_si512(x, flip));
        const __m512i low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(y));
        const __m512i high = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(y, 1));
        if (depth - k < 64) _mm512_mask_storeu_epi8(to + k, inside, y);
        else _mm512_storeu_si512(to + k, y); /* masked stores are slow on some machines */
        sums = _mm512_add_epi64(sums, _mm512_sad_epu8(y, _mm512_setzero_si512()));
        squares = _mm512_add_epi32(squares, _mm512_madd_epi16(low, low));
        squares = _mm512_add_epi32(squares, _mm512_madd_epi16(high, high));
    }
    memset(to + depth, 0, (size_t)(bytes - depth));
    const int64_t total = _mm512_reduce_add_epi64(sums), offset = zero + (type == GO_I8 ? 128 : 0);
    *sum = (int32_t)total;
    const uint32_t square = (uint32_t)_mm512_reduce_add_epi32(squares);
    *norm = __builtin_sqrtf((float)(square + offset * (depth * offset - 2 * total)));
}

/* Elements of the quantized result, in single precision. */
#define GO_TOGETHER 4 /* sums that are computed at once, as each waits for its last addition */
typedef struct {
    const go_quantized *product;
    const char *packed;   /* b of the batch */
    float a[256], b[256]; /* numbers by their bytes, those of b without scales of columns */
    int64_t row[GO_TOGETHER], column[GO_TOGETHER];
    int8_t *to[GO_TOGETHER];
    int count;
} go_elements;

GO_INLINE void go_begin_elements(go_elements *each, const go_quantized *p, const char *packed) {
    each->product = p, each->packed = packed, each->count = 0;
    for (int q = 0; q < 256; q++) {
        const int32_t value = (int8_t)q + (p->b_type == GO_U8 ? 128 : 0); /* packed numbers have a sign */
        each->a[q] = (float)((p->a_type == GO_U8 ? q : (int8_t)q) - p->a_zero) * p->a_scale;
        each->b[q] = (float)(value - p->b_zero) * (p->b_scales ? 1 : p->b_scale);
    }
}

GO_NOINLINE void go_quantize_elements(go_elements *each) {
    const go_quantized *const p = each->product;
    const int64_t quads = go_ceil_div(p->depth, 4), block = go_low_depth(p->columns, p->depth); /* a multiple of 4 */
    float total[GO_TOGETHER], scale[GO_TOGETHER];
    const uint8_t *a[GO_TOGETHER], *b[GO_TOGETHER];
    for (int i = 0; i < GO_TOGETHER; i++) {
        const int at = i < each->count ? i : 0;
        const int64_t column = each->column[at];
        a[i] = (const uint8_t *)p->a + (p->batch * p->rows + each->row[at]) * p->depth;
        b[i] = (const uint8_t *)each->packed + column / 32 * quads * 2 * GO_QUAD + column % 32 * 4;
        scale[i] = p->b_scales ? p->b_scales[column] : 1;
        total[i] = go_bias_at(&p->bias, column);
    }
    for (int64_t first = 0; first < p->depth; first += block) {
        float sum[GO_TOGETHER] = {0};
        const int64_t stop = first + block < p->depth ? first + block : p->depth;
        for (int64_t k = first; k < stop; k += 4)
            for (int64_t j = k; j < k + 4 && j < stop; j++)
#pragma GCC unroll 4
                for (int i = 0; i < GO_TOGETHER; i++) {
                    const float y = each->b[b[i][k / 4 * 2 * GO_QUAD + j - k]] * scale[i];
                    sum[i] = __builtin_fmaf(each->a[a[i][j]], y, sum[i]);
                }
        for (int i = 0; i < GO_TOGETHER; i++) total[i] += sum[i];
    }
    const go_quantizer q = p->bounds;
    for (int i = 0; i < each->count; i++) *each->to[i] = go_quantize_one(&q, total[i] / p->scale);
    each->count = 0;
}

/* Part `index`, of as many parts as in single precision; 0 if there is no memory. `finish` stores numbers of the type
   of the result. */
GO_NOINLINE int go_quantized_integers(const go_quantized *product, int64_t index, go_low_finish finish, void *run) {
    go_quantized p = *product;
    const int a_type = p.a_type, b_type = p.b_type, type = p.type;
    const int64_t parts = go_low_parts(p.rows, p.columns);
    p.batch = index / parts;
    const go_low_part part = go_low_part_at(index % parts, p.rows, p.columns, p.depth, 0);
    const go_integers_layout layout = go_integers_layout_of(p.depth, p.columns);
    const char *const packed = (const char *)p.packed + (p.shares_b ? 0 : (size_t)p.batch * layout.bytes);
    const int64_t a_step = 4 * layout.quads + 64, c_step = go_round_up(part.columns, 32) + 16;
    char *memory = malloc((size_t)(part.rows * (a_step + 8) + part.rows * c_step * 4) + 64);
    if (memory == NULL) return 0;
    int32_t *const c = (int32_t *)(memory + (64 - (uintptr_t)memory % 64)), *const row_sums = c + part.rows * c_step;
    float *const row_norms = (float *)(row_sums + part.rows);
    uint8_t *const a = (uint8_t *)(row_norms + part.rows);
    for (int64_t i = 0; i < part.rows; i++) {
        const char *from = (const char *)p.a + (p.batch * p.rows + part.first_row + i) * p.depth;
        go_integers_row(from, p.depth, 4 * layout.quads, a_type, p.a_zero, a + i * a_step, &row_sums[i], &row_norms[i]);
    }
    for (int64_t j = 0; j < part.columns; j += 32) {
        const char *b = packed + (part.first_column + j) / 32 * layout.quads * 2 * GO_QUAD;
        go_integers_panel(part.rows, a, a_step, b, layout.quads, c + j, c_step);
    }
    /* sum (a - za) (b - zb) = sum a b - za sum b - zb sum a + depth za zb, of a and b as they were multiplied */
    const int32_t za = p.a_zero + (a_type == GO_I8 ? 128 : 0), zb = p.b_zero - (b_type == GO_U8 ? 128 : 0);
    const int32_t *const b_sums = (const int32_t *)(packed + layout.sums) + part.first_column;
    const float *const b_norms = (const float *)(packed + layout.norms) + part.first_column;
    const go_quantizer q = p.bounds;
    float bias[GO_LOW_WIDTH + LANES_w] = {0}; /* divided by the scale */
    if (go_has_bias(&p.bias))
        for (int64_t j = 0; j < part.columns; j++) bias[j] = go_bias_at(&p.bias, part.first_column + j) / p.scale;
    /* In units of u |a| |b|, u = 2^-24: dequantization moves a product by at most 2. An addition moves the sum by a
       third of a unit of the sum in the root mean square, independently of the others, and sums are at most |a| |b|:
       6 standard deviations of a block, and of the sum of blocks (Higham, Mary: A New Approach to Probabilistic
       Rounding Error Analysis). */
    const int64_t block = go_low_depth(p.columns, p.depth) < p.depth ? go_low_depth(p.columns, p.depth) : p.depth;
    const float roots = 1.5f * __builtin_sqrtf((float)block) + 2 * __builtin_sqrtf((float)p.depth / (float)block);
    const float reach = (2 + roots) * 0x1p-24f;
    /* Rounding errors of values other than products; sums of blocks are added to the bias. */
    const float of_bias = 0x1p-21f + 2 * __builtin_sqrtf((float)p.depth / (float)block) * 0x1p-24f;
    go_elements uncertain;
    go_begin_elements(&uncertain, &p, packed);
    for (int64_t i = 0; i < part.rows; i++) {
        const int32_t offset = (int32_t)p.depth * za * zb - zb * row_sums[i];
        int32_t *const values = c + i * c_step;
        for (int64_t j = 0; j < part.columns; j += LANES_w) {
            const int left = part.columns - j < LANES_w ? (int)(part.columns - j) : LANES_w;
            const i32_w exact = load_i32_w(values + j) - za * load_i32_w(b_sums + j) + offset;
            f32_w scale = splat_f32_w(p.b_scale);
            if (p.b_scales) scale = load_part_f32_w(p.b_scales + part.first_column + j, left);
            scale = scale * p.a_scale;
            if (type == GO_FLOATS) {
                store_f32_w(values + j, i32_to_f32_w(exact) * scale);
                continue;
            }
            const f32_w factor = abs_f32_w(scale);
            scale = scale / p.scale;
            const f32_w x = i32_to_f32_w(exact) * scale;
            const f32_w add = load_f32_w(bias + j);
            const f32_w bounded = go_bounded(&q, x + add), whole = round_even_w(bounded);
            const f32_w margin = load_f32_w(b_norms + j) * (reach * row_norms[i]) * scale + abs_f32_w(x) * 0x1p-21f +
                                 abs_f32_w(add) * of_bias;
            /* Negated comparisons are true for NaN. */
            const i32_w near = ~(0.5f - abs_f32_w(bounded - whole) >= abs_f32_w(margin)) | ~(factor <= GO_MOST_SCALE);
            unsigned mask = (unsigned)_mm512_movepi32_mask((__m512i)near) & (unsigned)((1ull << left) - 1);
            int8_t *const to = (int8_t *)values + j; /* behind what is still read */
            store_i8_w(to, i32_to_i8_w(go_whole(&q, whole)));
            for (; mask; mask &= mask - 1) {
                const int at = uncertain.count++, lane = __builtin_ctz(mask);
                uncertain.row[at] = part.first_row + i;
                uncertain.column[at] = part.first_column + j + lane;
                uncertain.to[at] = to + lane;
                if (uncertain.count == GO_TOGETHER) go_quantize_elements(&uncertain);
            }
        }
    }
    if (uncertain.count > 0) go_quantize_elements(&uncertain);
    for (int64_t i = 0; i < part.rows; i++)
        finish(run, (p.batch * p.rows + part.first_row + i) * p.columns + part.first_column, part.columns,
               c + i * c_step);
    free(memory);
    return 1;
}
#else
GO_INLINE int go_has_integers(int64_t depth) { return (void)depth, 0; }
GO_INLINE size_t go_integers_size(int64_t batches, int64_t depth, int64_t columns) {
    return (void)batches, (void)depth, (void)columns, (size_t)0;
}
GO_INLINE void go_integers_pack(const void *from, int64_t batches, int64_t depth, int64_t columns, int type,
                                int32_t zero, int is_turned, void *to) {
    (void)from, (void)batches, (void)depth, (void)columns, (void)type, (void)zero, (void)is_turned, (void)to;
}
GO_INLINE int go_quantized_integers(const go_quantized *product, int64_t index, go_low_finish finish, void *run) {
    return (void)product, (void)index, (void)finish, (void)run, 0;
}
#endif
