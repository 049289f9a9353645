/* Tiles of exact products of bytes, modulo 2^32. A lane of 32 bits has a group of numbers along k: four bytes, on machines
   that multiply four pairs of bytes without saturation, otherwise two numbers of 16 bits. Rows of the left operand are
   consecutive groups; panels of the right one have the groups of GO_BYTE_COLUMNS columns, k by k.

   In groups of four bytes, those of rows are unsigned, and those of panels signed: bytes of the other kind are shifted by
   128, for which the zero points compensate. */
#define GO_BYTE_COLUMNS (2 * LANES_w)   /* of a panel */
#if GO_LEVEL == 4 || defined(__aarch64__)
#define GO_BYTE_ROWS 12 /* of a tile: 24 registers of sums */
#elif GO_LEVEL == 3
#define GO_BYTE_ROWS 6
#else
#define GO_BYTE_ROWS 4
#endif
#define GO_BYTE_STEP (2 * GO_BYTES)     /* bytes of a panel between groups */
#define GO_BYTE_PAD 64                  /* bytes between rows: rows 4 KB apart would share few lines of a cache */

/* Numbers of a group. */
#if GO_LEVEL == 4
GO_INLINE int go_group_size(void) { return __builtin_cpu_supports("avx512vnni") ? 4 : 2; }
#else
GO_INLINE int go_group_size(void) { return 2; }
#endif

/* The shifts of the numbers of a row and of a panel. */
GO_INLINE int32_t go_row_shift(int type, int size) { return size == 4 && type == GO_I8 ? 128 : 0; }
GO_INLINE int32_t go_panel_shift(int type, int size) { return size == 4 && type == GO_U8 ? -128 : 0; }

/* A group of each lane, of two numbers or four. */
GO_INLINE i32_w go_group(const i32_w *x, int size) {
    if (size == 2) return (x[0] & 0xffff) | x[1] << 16;
    return (x[0] & 0xff) | (x[1] & 0xff) << 8 | (x[2] & 0xff) << 16 | x[3] << 24;
}

/* Sums of two products. */
GO_INLINE i32_w go_dot_pairs(i32_w sums, i32_w a, i32_w b) {
#if GO_LEVEL == 4
    return (i32_w)_mm512_add_epi32((__m512i)sums, _mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif GO_LEVEL == 3
    return (i32_w)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16((__m256i)a, (__m256i)b));
#elif GO_LEVEL == 2
    return (i32_w)_mm_add_epi32((__m128i)sums, _mm_madd_epi16((__m128i)a, (__m128i)b));
#else
    return sums + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* The functions of one kind of groups. A tile has `rows` rows. */
#define GO_BYTE_TILES(kind, target, dot) \
    GO_INLINE target void go_tile_##kind(int rows, const char *a, int64_t a_step, const char *b, int64_t groups, \
                                         int32_t *c, int64_t c_step) { \
        i32_w sums[GO_BYTE_ROWS][2]; \
        _Pragma("GCC unroll 12") for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = splat_i32_w(0); \
        for (int64_t k = 0; k < groups; k++, b += GO_BYTE_STEP) { \
            const i32_w b0 = load_i32_w(b), b1 = load_i32_w(b + GO_BYTES); \
            _Pragma("GCC unroll 12") for (int i = 0; i < rows; i++) { \
                const i32_w x = load_one_i32_w(a + i * a_step + 4 * k); \
                sums[i][0] = dot(sums[i][0], x, b0); \
                sums[i][1] = dot(sums[i][1], x, b1); \
            } \
        } \
        _Pragma("GCC unroll 12") for (int i = 0; i < rows; i++) { \
            store_i32_w(c + i * c_step, sums[i][0]); \
            store_i32_w(c + i * c_step + LANES_w, sums[i][1]); \
        } \
    } \
    GO_NOINLINE target void go_panel_##kind(int64_t rows, const char *a, int64_t a_step, const char *b, int64_t groups, \
                                          int32_t *c, int64_t c_step) { \
        for (; rows >= GO_BYTE_ROWS; rows -= GO_BYTE_ROWS, a += GO_BYTE_ROWS * a_step, c += GO_BYTE_ROWS * c_step) \
            go_tile_##kind(GO_BYTE_ROWS, a, a_step, b, groups, c, c_step); \
        if (GO_BYTE_ROWS > 8 && rows >= 8) { \
            go_tile_##kind(GO_BYTE_ROWS > 8 ? 8 : 1, a, a_step, b, groups, c, c_step); \
            rows -= 8, a += 8 * a_step, c += 8 * c_step; \
        } \
        if (GO_BYTE_ROWS > 4 && rows >= 4) { \
            go_tile_##kind(GO_BYTE_ROWS > 4 ? 4 : 1, a, a_step, b, groups, c, c_step); \
            rows -= 4, a += 4 * a_step, c += 4 * c_step; \
        } \
        if (rows >= 2) { \
            go_tile_##kind(2, a, a_step, b, groups, c, c_step); \
            rows -= 2, a += 2 * a_step, c += 2 * c_step; \
        } \
        if (rows) go_tile_##kind(1, a, a_step, b, groups, c, c_step); \
    }
GO_BYTE_TILES(pairs, , go_dot_pairs)
#if GO_LEVEL == 4
GO_INLINE __attribute__((target("avx512vnni"))) i32_w go_dot_quads(i32_w sums, i32_w a, i32_w b) {
    return (i32_w)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
}
GO_BYTE_TILES(quads, __attribute__((target("avx512vnni"))), go_dot_quads)
#endif
#undef GO_BYTE_TILES

/* c = a b for `rows` rows, and the columns of a panel. */
GO_INLINE void go_byte_panel(int size, int64_t rows, const char *a, int64_t a_step, const char *b, int64_t groups,
                             int32_t *c, int64_t c_step) {
#if GO_LEVEL == 4
    if (size == 4) {
        go_panel_quads(rows, a, a_step, b, groups, c, c_step);
        return;
    }
#endif
    (void)size;
    go_panel_pairs(rows, a, a_step, b, groups, c, c_step);
}

/* A row of bytes as groups, filled up with zeros; returns the sum of its numbers. */
GO_INLINE int32_t go_byte_row(const void *from, int64_t depth, int type, int size, char *to) {
    const int64_t groups = go_ceil_div(depth, size), width = 4 / size;
    int32_t sum = 0;
#if GO_LEVEL == 4
    if (size == 4) {
        const __m512i flip = _mm512_set1_epi8((char)go_row_shift(type, 4));
        __m512i sums = _mm512_setzero_si512();
        for (int64_t k = 0; k < depth; k += 64) {
            const uint64_t inside = depth - k < 64 ? _bzhi_u64(~0ULL, (unsigned)(depth - k)) : ~0ULL;
            const __m512i x = _mm512_maskz_loadu_epi8(inside, (const char *)from + k);
            const __m512i y = _mm512_maskz_mov_epi8(inside, _mm512_xor_si512(x, flip));
            if (depth - k < 64) _mm512_mask_storeu_epi8(to + k, inside, y);
            else _mm512_storeu_si512(to + k, y); /* masked stores are slow on some machines */
            sums = _mm512_add_epi64(sums, _mm512_sad_epu8(y, _mm512_setzero_si512()));
        }
        sum = (int32_t)_mm512_reduce_add_epi64(sums);
    }
#endif
    if (size == 2) {
        i32_w sums = splat_i32_w(0);
        int64_t k = 0;
        for (; k + LANES_w <= depth; k += LANES_w) {
            const i32_w x = go_bytes(from, k, LANES_w, type);
            sums += x;
            store_u16_w(to + 2 * k, narrow_u16_w((u32_w)x));
        }
        for (int i = 0; i < LANES_w; i++) sum += sums[i];
        for (; k < depth; k++) {
            const int16_t x = type == GO_U8 ? ((const uint8_t *)from)[k] : ((const int8_t *)from)[k];
            memcpy(to + 2 * k, &x, 2);
            sum += x;
        }
    }
    memset(to + depth * width, 0, (size_t)(4 * groups - depth * width));
    return sum;
}

/* The right operand, packed: panels, and the sums of columns. */
typedef struct {
    int64_t panels, groups;
    size_t sums, bytes; /* position of the sums, and the size of the whole */
} go_byte_layout;

GO_INLINE go_byte_layout go_byte_layout_of(int64_t depth, int64_t columns, int size) {
    go_byte_layout found = {go_ceil_div(columns, GO_BYTE_COLUMNS), go_ceil_div(depth, size), 0, 0};
    found.sums = (size_t)(found.panels * found.groups) * GO_BYTE_STEP;
    found.bytes = (found.sums + (size_t)found.panels * GO_BYTE_COLUMNS * 4 + 63) / 64 * 64;
    return found;
}

GO_INLINE size_t go_byte_size(int64_t batches, int64_t depth, int64_t columns) {
    return (size_t)batches * go_byte_layout_of(depth, columns, go_group_size()).bytes;
}

/* Columns of one vector; those beyond `count` are zeros moved by the shift. `step` is that between rows, in bytes. */
GO_INLINE void go_byte_columns(const char *from, int64_t step, int64_t depth, int count, int type, int size, char *to,
                               int32_t *sums) {
    const int32_t shift = go_panel_shift(type, size);
    i32_w total = splat_i32_w(0);
    for (int64_t k = 0; k < depth; k += size, from += size * step, to += GO_BYTE_STEP) {
        i32_w x[4];
        for (int i = 0; i < size; i++) {
            x[i] = splat_i32_w(0);
            if (k + i < depth) x[i] = go_bytes(from, i * step, count, type) + shift;
            total += x[i];
        }
        store_i32_w(to, go_group(x, size));
    }
    store_i32_w(sums, total);
}

GO_NOINLINE void go_byte_pack_one(const void *from, int64_t depth, int64_t columns, int type, int size, char *to) {
    const go_byte_layout layout = go_byte_layout_of(depth, columns, size);
    int32_t *const sums = (int32_t *)(to + layout.sums);
    for (int64_t j = 0; j < layout.panels * GO_BYTE_COLUMNS; j += LANES_w) {
        char *const panel = to + j / GO_BYTE_COLUMNS * layout.groups * GO_BYTE_STEP + j % GO_BYTE_COLUMNS * 4;
        const int64_t left = columns - j < 0 ? 0 : columns - j;
        const int count = left < LANES_w ? (int)left : LANES_w;
        const char *const first = (const char *)from + j;
        if (size == 4) go_byte_columns(first, columns, depth, count, type, 4, panel, sums + j);
        else go_byte_columns(first, columns, depth, count, type, 2, panel, sums + j);
    }
}

GO_INLINE void go_byte_pack(const void *from, int64_t batches, int64_t depth, int64_t columns, int type, void *to) {
    const int size = go_group_size();
    const size_t bytes = go_byte_layout_of(depth, columns, size).bytes;
    for (int64_t i = 0; i < batches; i++)
        go_byte_pack_one((const char *)from + i * depth * columns, depth, columns, type, size,
                         (char *)to + (size_t)i * bytes);
}
