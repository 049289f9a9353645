/* The input of a convolution of bytes as planes of groups (byte_conv_plan.h). */

/* Numbers of a row of the input with its padding, as far as groups contain them, and room for whole vectors. */
GO_INLINE int64_t go_byte_conv_line(const go_byte_conv *c) {
    return (c->length[1] - 1) * c->stride[1] + c->phases[1] + (c->along - 1) * c->dilation[1] + 2 * GO_LINE;
}

/* The memory of go_byte_conv_planes, in bytes. */
GO_INLINE size_t go_byte_conv_row_size(const go_byte_conv *c) {
    return (size_t)((c->along > 1 ? go_byte_conv_line(c) * 5 : c->in[1] * 4) + 2 * GO_LINE);
}

/* to[x] = from[step x] */
GO_INLINE void go_every(const int32_t *from, int64_t step, int64_t count, int32_t *to) {
    int64_t x = 0;
    if (step == 2)
        for (; x + LANES_w < count; x += LANES_w) { /* the last vector is not read whole */
            const f32_w low = load_f32_w((const float *)(from + 2 * x));
            store_f32_w((float *)(to + x), go_even(low, load_f32_w((const float *)(from + 2 * x) + LANES_w)));
        }
    for (; x < count; x++) to[x] = from[x * step];
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

/* A row of the planes of a set of `count` channels; `line` is the row of the input. */
GO_INLINE void go_conv_row_of_channels(const go_byte_conv *c, const char *line, int64_t count, int32_t fill,
                                       int32_t *row, int32_t *to) {
    const int direct = c->stride[1] == 1 && c->pad[1] + c->in[1] <= c->length[1]; /* rows are copied whole */
    if (line != NULL) {
        int32_t *const groups = direct ? to + c->pad[1] : row;
        if (c->size == 4) go_conv_groups(c, line, 4, count, groups);
        else go_conv_groups(c, line, 2, count, groups);
    }
    for (int64_t q = 0; q < c->phases[1]; q++, to += c->plane) {
        const int64_t before = c->pad[1] - q, step = c->stride[1], length = c->length[1];
        int64_t first = before > 0 ? go_ceil_div(before, step) : 0; /* the elements of the input */
        int64_t stop = c->in[1] + before > 0 ? go_ceil_div(c->in[1] + before, step) : 0;
        stop = line != NULL ? go_least(stop, length) : 0;
        first = go_least(first, stop);
        for (int64_t j = 0; j < first; j++) to[j] = fill;
        if (!direct) go_every(row + first * step - before, step, stop - first, to + first);
        for (int64_t j = stop; j < length; j++) to[j] = fill;
    }
}

#if GO_LEVEL == 4
/* to[x] = the four bytes from[step x] to from[step x + 3], moved by `flip`; `step` is 1 or 2. */
GO_INLINE void go_conv_quads(const char *from, int64_t step, int64_t count, char flip, int32_t *to) {
    const __m512i one = _mm512_setr_epi32(0, 1, 0, 0, 1, 2, 0, 0, 2, 3, 0, 0, 3, 4, 0, 0);
    const __m512i two = _mm512_setr_epi32(0, 1, 2, 0, 2, 3, 4, 0, 4, 5, 6, 0, 6, 7, 8, 0);
    const __m128i by_one = _mm_setr_epi8(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6);
    const __m128i by_two = _mm_setr_epi8(0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9);
    const __m512i words = step == 1 ? one : two, bytes = _mm512_broadcast_i32x4(step == 1 ? by_one : by_two);
    for (int64_t x = 0; x < count; x += 16) {
        const __m512i near = _mm512_permutexvar_epi32(words, _mm512_loadu_si512(from + step * x));
        const __m512i quads = _mm512_xor_si512(_mm512_shuffle_epi8(near, bytes), _mm512_set1_epi8(flip));
        if (count - x >= 16) _mm512_storeu_si512(to + x, quads);
        else store_part_i32_w(to + x, (i32_w)quads, (int)(count - x));
    }
}
#endif

/* A row of the planes of a single channel; `line` is the padded row of the input, whose numbers are as there. */
GO_INLINE void go_conv_row_of_taps(const go_byte_conv *c, const char *line, int32_t *row, int32_t *to) {
#if GO_LEVEL == 4
    if (c->size == 4 && c->dilation[1] == 1 && c->stride[1] <= 2) {
        for (int64_t q = 0; q < c->phases[1]; q++, to += c->plane)
            go_conv_quads(line + q, c->stride[1], c->length[1], (char)go_row_shift(c->x_type, 4), to);
        return;
    }
#endif
    const int32_t shift = go_row_shift(c->x_type, c->size);
    const int64_t count = (c->length[1] - 1) * c->stride[1] + c->phases[1];
    for (int64_t j = 0; j < count; j += LANES_w) {
        i32_w x[4];
        for (int i = 0; i < c->size; i++) x[i] = go_bytes(line, j + i * c->dilation[1], LANES_w, c->x_type) + shift;
        store_i32_w(row + j, go_group(x, c->size));
    }
    for (int64_t q = 0; q < c->phases[1]; q++) go_every(row + q, c->stride[1], c->length[1], to + q * c->plane);
}

/* The planes of one set of channels of a convolution of an image; `memory` has go_byte_conv_row_size bytes. */
GO_NOINLINE void go_byte_conv_planes(const go_byte_conv *c, int64_t image, int64_t conv, int64_t set, void *memory,
                                     int32_t *to) {
    const int64_t channel = (image * c->convs + conv) * c->channels + set * c->size, width = c->in[1];
    const int64_t count = go_least(c->size, c->channels - set * c->size);
    const char *const from = (const char *)c->x + channel * c->in[0] * width;
    const uint32_t z = (uint32_t)go_byte_conv_zero(c);
    const int32_t fill = (int32_t)(c->size == 2 ? (z & 0xffff) | z << 16 : z * 0x01010101u);
    int32_t *const row = memory;
    char *const line = (char *)memory + go_byte_conv_line(c) * 4; /* for a single channel */
    if (c->along > 1) memset(line, (char)go_byte_at(c->x_zero, 0, c->x_type), (size_t)go_byte_conv_line(c));
    const int64_t inside = go_byte_conv_line(c) - c->pad[1];
    for (int64_t p = 0; p < c->phases[0]; p++, to += c->phases[1] * c->plane)
        for (int64_t i = 0; i < c->length[0]; i++) {
            const int64_t y = i * c->stride[0] + p - c->pad[0];
            const char *const source = y >= 0 && y < c->in[0] ? from + y * width : NULL;
            int32_t *const out = to + i * c->length[1];
            if (c->along == 1) {
                go_conv_row_of_channels(c, source, count, fill, row, out);
            } else if (source != NULL) {
                if (inside > 0) memcpy(line + c->pad[1], source, (size_t)go_least(width, inside));
                go_conv_row_of_taps(c, line, row, out);
            } else {
                for (int64_t q = 0; q < c->phases[1]; q++)
                    for (int64_t j = 0; j < c->length[1]; j++) out[q * c->plane + j] = fill;
            }
        }
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
