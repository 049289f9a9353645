/* Products with weights of few bits and rounded rows on integers (vnni.h).

   Packed, a panel of 32 columns has quads of values along k: for 4 bits, the low halves of 64 bytes are the first 16
   columns. */
#if GO_LEVEL == 4
GO_INLINE int go_nbits_has_integers(int bits, int64_t size, int has_zeros) {
    return size <= 256 && size % 16 == 0 && !(bits == 8 && has_zeros) && go_has_integers(size);
}

GO_NOINLINE void go_nbits_pack_quads(const uint8_t *from, int64_t columns, int64_t blocks, int bits, int64_t size,
                                     uint8_t *to) {
    const int64_t depth = blocks * size, bytes = depth * bits / 8, panel_bytes = depth * go_nbits_row(bits);
    memset(to, 0, go_nbits_size(columns, blocks, bits, size));
    for (int64_t n = 0; n < columns; n++) {
        const int64_t lane = n % 16, half = n % 32 / 16;
        uint8_t *const panel = to + n / 32 * panel_bytes;
        for (int64_t k = 0; k < depth; k++) {
            if (bits == 8) {
                panel[k / 4 * 128 + half * 64 + lane * 4 + k % 4] = from[n * bytes + k];
            } else {
                const int value = from[n * bytes + k / 2] >> (k % 2 * 4) & 15;
                panel[k / 4 * 64 + lane * 4 + k % 4] |= (uint8_t)(value << (half * 4));
            }
        }
    }
}

/* A panel less its zero points, as bytes with a sign, and 128 times the sums of its blocks. */
GO_NOINLINE GO_VNNI void go_nbits_open_panel(const go_nbits *product, int bits, int64_t panel, int8_t *to,
                                             int32_t *sums) {
    const int64_t quads = product->size / 4;
    const uint8_t *at = product->values + panel * product->blocks * product->size * go_nbits_row(bits);
    const __m512i low = _mm512_set1_epi8(15), ones = _mm512_set1_epi8(1), repeat = _mm512_set1_epi32(0x01010101);
    for (int64_t block = 0; block < product->blocks; block++, sums += 32) {
        __m512i z0 = _mm512_set1_epi8(bits == 4 ? 8 : (char)128), z1 = z0;
        __m512i s0 = _mm512_setzero_si512(), s1 = s0;
        if (product->zeros) {
            const float *zeros = product->zeros + (panel * product->blocks + block) * 32;
            z0 = _mm512_mullo_epi32(_mm512_cvtps_epi32(_mm512_loadu_ps(zeros)), repeat);
            z1 = _mm512_mullo_epi32(_mm512_cvtps_epi32(_mm512_loadu_ps(zeros + 16)), repeat);
        }
        for (int64_t i = 0; i < quads; i++, to += 128) {
            __m512i v0 = _mm512_loadu_si512(at), v1;
            if (bits == 4) {
                v1 = _mm512_and_si512(_mm512_srli_epi16(v0, 4), low);
                v0 = _mm512_and_si512(v0, low);
                at += 64;
            } else {
                v1 = _mm512_loadu_si512(at + 64);
                at += 128;
            }
            v0 = _mm512_sub_epi8(v0, z0), v1 = _mm512_sub_epi8(v1, z1);
            s0 = _mm512_dpbusd_epi32(s0, ones, v0), s1 = _mm512_dpbusd_epi32(s1, ones, v1);
            _mm512_storeu_si512(to, v0);
            _mm512_storeu_si512(to + 64, v1);
        }
        _mm512_storeu_si512(sums, _mm512_slli_epi32(s0, 7));
        _mm512_storeu_si512(sums + 16, _mm512_slli_epi32(s1, 7));
    }
}

/* A row of A, rounded to integers, to which 128 is added, and the scales of its blocks. Returns whether the row is
   finite. */
GO_NOINLINE int go_nbits_round_row(const go_nbits *product, const float *row, uint8_t *to, float *scales) {
    int finite = 1;
    for (int64_t block = 0; block < product->blocks; block++) {
        const int64_t first = block * product->size;
        const int64_t count = product->depth - first < product->size ? product->depth - first : product->size;
        __m512 largest = _mm512_setzero_ps();
        for (int64_t k = 0; k < count; k += 16) {
            const __mmask16 inside = (__mmask16)_bzhi_u32(0xffff, count - k < 16 ? (unsigned)(count - k) : 16);
            const __m512 x = _mm512_abs_ps(_mm512_maskz_loadu_ps(inside, row + first + k));
            finite &= !_mm512_cmp_ps_mask(x, _mm512_set1_ps(__builtin_inff()), _CMP_NLT_UQ);
            largest = _mm512_max_ps(largest, x);
        }
        const float most = _mm512_reduce_max_ps(largest), inverse = go_nbits_inverse(most);
        scales[block] = most / 127;
        for (int64_t k = 0; k < product->size; k += 16) {
            const int64_t left = count - k;
            const __mmask16 inside = (__mmask16)_bzhi_u32(0xffff, left < 0 ? 0 : left < 16 ? (unsigned)left : 16);
            const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(inside, row + first + k), _mm512_set1_ps(inverse));
            const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(128));
            _mm_storeu_si128((void *)(to + first + k), _mm512_cvtepi32_epi8(whole));
        }
    }
    return finite;
}

/* Adds the sums of a block, times their scales, to c; 32 columns. */
GO_NOINLINE void go_nbits_add_block(int64_t rows, const int32_t *sums, const int32_t *offsets, const float *scales,
                                    const float *row_scales, int64_t row_scales_step, int adds, float *c,
                                    int64_t c_step) {
    const __m512i o0 = _mm512_loadu_si512(offsets), o1 = _mm512_loadu_si512(offsets + 16);
    const __m512 s0 = _mm512_loadu_ps(scales), s1 = _mm512_loadu_ps(scales + 16);
    for (int64_t i = 0; i < rows; i++, sums += 32, c += c_step) {
        const __m512 scale = _mm512_set1_ps(row_scales[i * row_scales_step]);
        const __m512 x0 = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(sums), o0));
        const __m512 x1 = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(sums + 16), o1));
        const __m512 c0 = adds ? _mm512_loadu_ps(c) : _mm512_setzero_ps();
        const __m512 c1 = adds ? _mm512_loadu_ps(c + 16) : _mm512_setzero_ps();
        _mm512_storeu_ps(c, _mm512_fmadd_ps(x0, _mm512_mul_ps(s0, scale), c0));
        _mm512_storeu_ps(c + 16, _mm512_fmadd_ps(x1, _mm512_mul_ps(s1, scale), c1));
    }
}

/* A row that is not finite, in single precision. */
GO_NOINLINE void go_nbits_float_row(const go_nbits *product, int bits, const float *row, int64_t first, int64_t count,
                                    float *c) {
    const int64_t bytes = product->blocks * product->size * go_nbits_row(bits);
    for (int64_t j = 0; j < count; j++) {
        const int64_t n = first + j, lane = n % 16, half = n % 32 / 16;
        const uint8_t *const panel = product->values + n / 32 * bytes;
        float sum = 0;
        for (int64_t k = 0; k < product->depth; k++) {
            const int64_t place = (n / 32 * product->blocks + k / product->size) * 32 + n % 32;
            const int value = bits == 8 ? panel[k / 4 * 128 + half * 64 + lane * 4 + k % 4]
                                        : panel[k / 4 * 64 + lane * 4 + k % 4] >> (half * 4) & 15;
            const float zero = product->zeros ? product->zeros[place] : (float)(1 << (bits - 1));
            sum += row[k] * (((float)value - zero) * product->scales[place]);
        }
        c[j] = sum;
    }
}

/* Part `index` of a product, of go_low_parts parts; 0 if there is no memory. */
GO_NOINLINE int go_nbits_integers(const go_nbits *product, int bits, int64_t index, go_low_finish finish, void *run) {
    const go_low_part part = go_low_part_at(index, product->rows, product->columns, product->depth, 0);
    const int64_t depth = product->blocks * product->size, a_step = depth + 64;
    const int64_t c_step = go_round_up(part.columns, 32) + 16;
    const size_t panel_bytes = (size_t)depth * 32, sums_bytes = (size_t)product->blocks * 32 * 4;
    const size_t floats = (size_t)(part.rows * (c_step + product->blocks + 1)) * sizeof(float);
    char *memory = malloc(panel_bytes + sums_bytes + floats + (size_t)(part.rows * a_step) + 64);
    if (memory == NULL) return 0;
    int8_t *const panel = go_next_line(memory);
    int32_t *const sums = (int32_t *)(panel + panel_bytes);
    float *const c = (float *)((char *)sums + sums_bytes), *const row_scales = c + part.rows * c_step;
    float *const finite = row_scales + part.rows * product->blocks;
    uint8_t *const a = (uint8_t *)(finite + part.rows);
    for (int64_t i = 0; i < part.rows; i++)
        finite[i] = (float)go_nbits_round_row(product, product->a + (part.first_row + i) * product->depth,
                                              a + i * a_step, row_scales + i * product->blocks);
    for (int64_t j = 0; j < part.columns; j += 32) {
        const int64_t number = (part.first_column + j) / 32;
        go_nbits_open_panel(product, bits, number, panel, sums);
        const float *const scales = product->scales + number * product->blocks * 32;
        for (int64_t block = 0; block < product->blocks; block++) {
            int32_t found[GO_LOW_BLOCK * 32];
            const char *const b = (const char *)panel + block * product->size * 32;
            go_integers_panel(part.rows, a + block * product->size, a_step, b, product->size / 4, found, 32);
            go_nbits_add_block(part.rows, found, sums + block * 32, scales + block * 32, row_scales + block,
                               product->blocks, block > 0, c + j, c_step);
        }
    }
    for (int64_t i = 0; i < part.rows; i++) {
        float *const values = c + i * c_step;
        if (finite[i] == 0)
            go_nbits_float_row(product, bits, product->a + (part.first_row + i) * product->depth, part.first_column,
                               part.columns, values);
        if (product->bias != NULL)
            for (int64_t j = 0; j < part.columns; j++) values[j] += product->bias[part.first_column + j];
        finish(run, (part.first_row + i) * product->columns + part.first_column, part.columns, values);
    }
    free(memory);
    return 1;
}
#else
GO_INLINE int go_nbits_has_integers(int bits, int64_t size, int has_zeros) {
    return (void)bits, (void)size, (void)has_zeros, 0;
}
GO_INLINE void go_nbits_pack_quads(const uint8_t *from, int64_t columns, int64_t blocks, int bits, int64_t size,
                                   uint8_t *to) {
    (void)from, (void)columns, (void)blocks, (void)bits, (void)size, (void)to;
}
GO_INLINE int go_nbits_integers(const go_nbits *product, int bits, int64_t index, go_low_finish finish, void *run) {
    return (void)product, (void)bits, (void)index, (void)finish, (void)run, 0;
}
#endif
