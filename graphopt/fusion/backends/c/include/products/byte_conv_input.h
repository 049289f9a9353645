/* The input of a convolution of bytes as planes of groups (byte_conv_plan.h). */

/* The length of a padded row of the input, in bytes: all elements that groups contain, and space for whole vectors. */
GO_INLINE int64_t go_byte_conv_line(const go_byte_conv *c) {
    return (c->length[1] - 1) * c->stride[1] + c->phases[1] + (c->along - 1) * c->dilation[1] + 2 * GO_LINE;
}

/* The size of the buffer of go_byte_conv_planes, in bytes. */
GO_INLINE size_t go_byte_conv_row_size(const go_byte_conv *c) {
    return (size_t)((c->along > 1 ? go_byte_conv_line(c) * 5 : c->in[1] * 4) + 2 * GO_LINE);
}

/* to[x] = from[step x] */
GO_INLINE void go_every(const int32_t *from, int64_t step, int64_t count, int32_t *to) {
    int64_t x = 0;
    if (step == 2)
        for (; x + LANES_w < count; x += LANES_w) { /* a load of the last vector would read out of bounds */
            const f32_w low = load_f32_w((const float *)(from + 2 * x));
            store_f32_w((float *)(to + x), go_even(low, load_f32_w((const float *)(from + 2 * x) + LANES_w)));
        }
    for (; x < count; x++) to[x] = from[x * step];
}

GO_INLINE void go_conv_fill(int32_t fill, int64_t count, int32_t *to) {
    for (int64_t j = 0; j < count; j++) to[j] = fill;
}

/* The groups of one row of the input, for a set of `count` channels. */
GO_INLINE void go_conv_groups(const go_byte_conv *c, const char *from, int size, int64_t count, int32_t *to) {
    const int32_t shift = go_row_shift(c->x_type, size);
    const int64_t step = c->in[0] * c->in[1];
    for (int64_t j = 0; j < c->in[1]; j += LANES_w) {
        const int left = c->in[1] - j < LANES_w ? (int)(c->in[1] - j) : LANES_w;
        i32_w x[4];
        for (int i = 0; i < size; i++)
            x[i] = i < count ? go_bytes(from, i * step + j, left, c->x_type) + shift : splat_i32_w(0);
        if (left == LANES_w) store_i32_w(to + j, go_group(x, size));
        else store_part_i32_w(to + j, go_group(x, size), left);
    }
}

/* Writes a row of the planes of a set of `count` channels; `line` is the row of the input. */
GO_INLINE void go_conv_row_of_channels(const go_byte_conv *c, const char *line, int64_t count, int32_t fill,
                                       int32_t *row, int32_t *to) {
    const int direct = c->stride[1] == 1 && c->pad[1] + c->in[1] <= c->length[1]; /* whole rows are copied */
    if (line != NULL) {
        int32_t *const groups = direct ? to + c->pad[1] : row;
        if (c->size == 4) go_conv_groups(c, line, 4, count, groups);
        else go_conv_groups(c, line, 2, count, groups);
    }
    for (int64_t q = 0; q < c->phases[1]; q++, to += c->plane) {
        const int64_t before = c->pad[1] - q, step = c->stride[1], length = c->length[1];
        int64_t first = before > 0 ? go_ceil_div(before, step) : 0; /* up to stop: the input */
        int64_t stop = c->in[1] + before > 0 ? go_ceil_div(c->in[1] + before, step) : 0;
        stop = line != NULL ? go_least(stop, length) : 0;
        first = go_least(first, stop);
        go_conv_fill(fill, first, to);
        if (!direct) go_every(row + first * step - before, step, stop - first, to + first);
        if (stop < length) go_conv_fill(fill, length - stop, to + stop);
    }
}

/* The row of the input for row `i` of the planes of phase `p`; NULL for padding. */
GO_INLINE const char *go_conv_source(const go_byte_conv *c, const char *from, int64_t p, int64_t i) {
    const int64_t y = i * c->stride[0] + p - c->pad[0];
    return y >= 0 && y < c->in[0] ? from + y * c->in[1] : NULL;
}

/* Writes the planes of a single channel: groups of adjacent taps. `line` is the buffer of a padded row. */
GO_INLINE void go_conv_planes_of_taps(const go_byte_conv *c, const char *from, int32_t fill, char *line, int32_t *row,
                                      int32_t *to) {
    const int32_t shift = go_row_shift(c->x_type, c->size);
    const int64_t count = (c->length[1] - 1) * c->stride[1] + c->phases[1];
    const int64_t inside = go_least(c->in[1], go_byte_conv_line(c) - c->pad[1]);
    memset(line, (char)go_byte_at(c->x_zero, 0, c->x_type), (size_t)go_byte_conv_line(c));
    for (int64_t p = 0; p < c->phases[0]; p++, to += c->phases[1] * c->plane)
        for (int64_t i = 0; i < c->length[0]; i++) {
            const char *const source = go_conv_source(c, from, p, i);
            int32_t *const out = to + i * c->length[1];
            if (source != NULL && inside > 0) {
                memcpy(line + c->pad[1], source, (size_t)inside);
                for (int64_t j = 0; j < count; j += LANES_w) {
                    i32_w x[4];
                    for (int k = 0; k < c->size; k++)
                        x[k] = go_bytes(line, j + k * c->dilation[1], LANES_w, c->x_type) + shift;
                    store_i32_w(row + j, go_group(x, c->size));
                }
                for (int64_t q = 0; q < c->phases[1]; q++)
                    go_every(row + q, c->stride[1], c->length[1], out + q * c->plane);
            } else {
                for (int64_t q = 0; q < c->phases[1]; q++) go_conv_fill(fill, c->length[1], out + q * c->plane);
            }
        }
}

#if GO_LEVEL == 4
/* The same for four adjacent taps and strides up to 2. Rows are written in whole vectors, whose excess the next row
   overwrites. There is no copy in a padded row, because a load that spans several smaller stores stalls. */
GO_INLINE void go_conv_planes_of_quads(const go_byte_conv *c, const char *from, int32_t fill, int32_t *to) {
    const __m512i one = _mm512_setr_epi32(0, 1, 0, 0, 1, 2, 0, 0, 2, 3, 0, 0, 3, 4, 0, 0);
    const __m512i two = _mm512_setr_epi32(0, 1, 2, 0, 2, 3, 4, 0, 4, 5, 6, 0, 6, 7, 8, 0);
    const __m128i by_one = _mm_setr_epi8(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6);
    const __m128i by_two = _mm_setr_epi8(0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9);
    const int64_t step = c->stride[1], width = c->in[1], length = c->length[1];
    const __m512i words = step == 1 ? one : two, bytes = _mm512_broadcast_i32x4(step == 1 ? by_one : by_two);
    const __m512i flip = _mm512_set1_epi8((char)go_row_shift(c->x_type, 4));
    const __m512i zeros = _mm512_xor_si512(_mm512_set1_epi32(fill), flip);
    const int32_t *const end = to + go_byte_conv_set(c);
    for (int64_t p = 0; p < c->phases[0]; p++)
        for (int64_t q = 0; q < c->phases[1]; q++)
            for (int64_t i = 0; i < c->length[0]; i++, to += length) {
                const char *const source = go_conv_source(c, from, p, i);
                for (int64_t x = 0, at = q - c->pad[1]; x < length; x += 16, at += 16 * step) {
                    const int64_t low = at < 0 ? go_least(-at, 64) : 0;
                    const int64_t high = width > at ? go_least(width - at, 64) : 0;
                    const uint64_t before = low < 64 ? _bzhi_u64(~0ULL, (unsigned)low) : ~0ULL;
                    const uint64_t inside = (high < 64 ? _bzhi_u64(~0ULL, (unsigned)high) : ~0ULL) & ~before;
                    __m512i quads = zeros;
                    if (source != NULL) quads = _mm512_mask_loadu_epi8(zeros, inside, source + at);
                    quads = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, quads), bytes);
                    quads = _mm512_xor_si512(quads, flip);
                    if (to + x + 16 <= end) _mm512_storeu_si512(to + x, quads);
                    else store_part_i32_w(to + x, (i32_w)quads, (int)(length - x));
                }
            }
}
#endif

/* Writes the planes of one set of channels of a convolution; `memory` has go_byte_conv_row_size bytes. */
GO_NOINLINE void go_byte_conv_planes(const go_byte_conv *c, int64_t image, int64_t conv, int64_t set, void *memory,
                                     int32_t *to) {
    const int64_t channel = (image * c->convs + conv) * c->channels + set * c->size;
    const char *const from = (const char *)c->x + channel * c->in[0] * c->in[1];
    const uint32_t z = (uint32_t)go_byte_conv_zero(c);
    const int32_t fill = (int32_t)(c->size == 2 ? (z & 0xffff) | z << 16 : z * 0x01010101u);
    int32_t *const row = memory;
#if GO_LEVEL == 4
    if (c->along == 4 && c->dilation[1] == 1 && c->stride[1] <= 2) {
        go_conv_planes_of_quads(c, from, fill, to);
        return;
    }
#endif
    if (c->along > 1) {
        go_conv_planes_of_taps(c, from, fill, (char *)memory + go_byte_conv_line(c) * 4, row, to);
        return;
    }
    const int64_t count = go_least(c->size, c->channels - set * c->size);
    for (int64_t p = 0; p < c->phases[0]; p++, to += c->phases[1] * c->plane)
        for (int64_t i = 0; i < c->length[0]; i++)
            go_conv_row_of_channels(c, go_conv_source(c, from, p, i), count, fill, row, to + i * c->length[1]);
}

/* The planes of one set of channels, for go_parallel. */
GO_NOINLINE void go_byte_conv_input(void *conv, size_t index) {
    go_byte_conv *const c = conv;
    const int64_t set = (int64_t)index % c->sets, at = (int64_t)index / c->sets;
    void *const memory = malloc(go_byte_conv_row_size(c));
    if (memory == NULL) {
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    go_byte_conv_planes(c, at / c->convs, at % c->convs, set, memory, c->input + (int64_t)index * go_byte_conv_set(c));
    free(memory);
}
