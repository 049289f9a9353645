/* Matrix products of bytes, (a - zero of a) (b - zero of b), exact modulo 2^32. The result consists of these integers, or
   is converted to floats and scaled, or quantized again. A may consist of floats, which are first quantized by their
   range.

   Rows of A become groups (byte_tiles.h) before the parts of the result are computed. */
typedef struct {
    int a_type, b_type, type;
    const void *a, *packed;             /* [batches, rows, depth], and b in panels, one for all batches or one for each */
    int64_t batches, rows, columns, depth;
    int shares_b;
    const void *a_zero, *b_zeros;       /* numbers of these types; NULL for 0 */
    const float *a_scale, *b_scales;    /* NULL for a result of integers, and a_scale if A consists of floats */
    int b_zeros_vary, b_scales_vary;    /* whether there is one for each column */
    const float *bias, *scale;          /* of each column, or NULL; of a quantized result */
    const void *zero;                   /* of a quantized result, or NULL */
    int size;                           /* numbers of a group */
    float own_scale;                    /* of A if it consists of floats */
    int32_t own_zero;
    char *rows_of_a;                    /* groups, step bytes between rows */
    int32_t *row_sums;
    int64_t step, block, width, across; /* rows and columns of a part, and parts next to each other */
    float low[64], high[64];            /* of slices of A */
    int failed;
} go_byte_product;

/* Plans a product; returns whether there is memory. */
GO_NOINLINE int go_byte_plan(go_byte_product *p) {
    const int64_t rows = p->batches * p->rows, most = 8 * GO_BYTE_ROWS;
    p->size = go_group_size();
    p->step = go_ceil_div(p->depth, p->size) * 4 + GO_BYTE_PAD;
    p->rows_of_a = malloc((size_t)rows * (size_t)(p->step + 4) + 64);
    if (p->rows_of_a == NULL) return 0;
    p->row_sums = (int32_t *)(p->rows_of_a + rows * p->step);
    const int64_t blocks = go_ceil_div(p->rows, most);
    p->block = go_ceil_div(p->rows, blocks);
    p->block = go_round_up(p->block, GO_BYTE_ROWS);
    p->width = 256;
    const int64_t parts = p->batches * blocks; /* of at least 2^21 products, unless there are many */
    while (p->width > GO_BYTE_COLUMNS && go_ceil_div(p->columns, p->width) * parts < 8 &&
           go_least(p->block, p->rows) * p->width * p->depth > 1 << 22)
        p->width /= 2;
    p->across = go_ceil_div(p->columns, p->width);
    return 1;
}

GO_INLINE int64_t go_byte_parts(const go_byte_product *p) {
    return p->batches * go_ceil_div(p->rows, p->block) * p->across;
}

/* Slices of the rows of all batches. */
GO_INLINE int64_t go_byte_slices(const go_byte_product *p) {
    const int64_t found = p->batches * p->rows * p->depth / 32768;
    return found < 1 ? 1 : found < 64 ? found : 64;
}

/* The range of a slice of floats without its NaN, from infinity down to -infinity if there are no numbers. */
GO_NOINLINE void go_byte_range(void *product, size_t slice) {
    go_byte_product *const p = product;
    const int64_t count = p->batches * p->rows * p->depth, slices = go_byte_slices(p);
    const float *const a = p->a;
    f32_w low[4], high[4];
    for (int i = 0; i < 4; i++) low[i] = splat_f32_w(__builtin_inff()), high[i] = -low[i];
    int64_t at = count * (int64_t)slice / slices;
    const int64_t stop = count * ((int64_t)slice + 1) / slices;
    for (; at + 4 * LANES_w <= stop; at += 4 * LANES_w)
        for (int i = 0; i < 4; i++) {
            const f32_w x = load_f32_w(a + at + i * LANES_w);
            low[i] = less_w(x, low[i]);
            high[i] = more_w(x, high[i]);
        }
    float least = __builtin_inff(), most = -least;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < LANES_w; j++) {
            least = low[i][j] < least ? low[i][j] : least;
            most = high[i][j] > most ? high[i][j] : most;
        }
    for (; at < stop; at++) {
        least = a[at] < least ? a[at] : least;
        most = a[at] > most ? a[at] : most;
    }
    p->low[slice] = least, p->high[slice] = most;
}

/* The scale and zero point of A, after all slices; as in onnxruntime, the scale of NaN alone is NaN, and the zero point
   is 255 if it has no value. */
GO_NOINLINE void go_byte_scale(go_byte_product *p) {
    float least = __builtin_inff(), most = -least;
    for (int64_t i = 0; i < go_byte_slices(p); i++) {
        least = p->low[i] < least ? p->low[i] : least;
        most = p->high[i] > most ? p->high[i] : most;
    }
    const int is_nan = least > most && p->depth > 0;
    least = least < 0 ? least : 0, most = most > 0 ? most : 0; /* 0 is in the range */
    p->own_scale = is_nan ? __builtin_nanf("") : least == most ? 1 : (most - least) / 255;
    const float zero = 0 - least / p->own_scale;
    p->own_zero = (int32_t)__builtin_rintf(!(zero < 255) ? 255 : zero > 0 ? zero : 0);
}

/* A row of floats as groups. */
GO_INLINE int32_t go_byte_row_of_floats(const float *from, int64_t depth, float scale, int32_t zero, int size, char *to) {
    const go_quantizer q = go_quantizer_of(zero, GO_U8);
    const int64_t width = 4 / size, groups = go_ceil_div(depth, size);
    i32_w sums = splat_i32_w(0);
    for (int64_t k = 0; k < depth; k += LANES_w) {
        const int left = depth - k < LANES_w ? (int)(depth - k) : LANES_w;
        const f32_w x = (left < LANES_w ? load_part_f32_w(from + k, left) : load_f32_w(from + k)) / scale;
        i32_w whole = go_whole(&q, round_even_w(go_bounded(&q, x)));
        if (left < LANES_w) { /* masked stores are slow on some machines */
            whole &= first_i32_w(left);
            if (size == 4) store_part_u8_w(to + k, i32_to_u8_w(whole), left);
            else store_part_u16_w(to + 2 * k, narrow_u16_w((u32_w)whole), left);
        } else if (size == 4) {
            store_u8_w(to + k, i32_to_u8_w(whole));
        } else {
            store_u16_w(to + 2 * k, narrow_u16_w((u32_w)whole));
        }
        sums += whole;
    }
    memset(to + depth * width, 0, (size_t)(4 * groups - depth * width));
    int32_t sum = 0;
    for (int i = 0; i < LANES_w; i++) sum += sums[i];
    return sum;
}

/* The rows of a slice as groups. */
GO_NOINLINE void go_byte_slice(void *product, size_t slice) {
    go_byte_product *const p = product;
    const int64_t rows = p->batches * p->rows, slices = go_byte_slices(p);
    for (int64_t i = rows * (int64_t)slice / slices; i < rows * ((int64_t)slice + 1) / slices; i++) {
        char *const to = p->rows_of_a + i * p->step;
        if (p->a_type == GO_FLOATS) {
            const float *const from = (const float *)p->a + i * p->depth;
            p->row_sums[i] = go_byte_row_of_floats(from, p->depth, p->own_scale, p->own_zero, p->size, to);
        } else {
            p->row_sums[i] = go_byte_row((const char *)p->a + i * p->depth, p->depth, p->a_type, p->size, to);
        }
    }
}

/* Converts `count` exact sums of columns from `first` on to the type of the result, in place. */
GO_INLINE void go_byte_results(const go_byte_product *p, int type, const f32_w *scales, int64_t first, int64_t count,
                               int32_t *values) {
    const go_quantizer q = go_quantizer_of(type == GO_FLOATS ? 0 : go_byte_at(p->zero, 0, type), type);
    for (int64_t j = 0; j < count; j += LANES_w) {
        f32_w x = i32_to_f32_w(load_i32_w(values + j)) * scales[j / LANES_w];
        if (type == GO_FLOATS) {
            const int left = count - j < LANES_w ? (int)(count - j) : LANES_w;
            if (p->bias) x += load_part_f32_w(p->bias + first + j, left);
            store_f32_w(values + j, x);
            continue;
        }
        go_quantize(&q, x, (char *)values + j);
    }
}

/* Computes a part; `finish` stores numbers of the type of the result. */
GO_INLINE void go_byte_part(go_byte_product *p, int64_t index, int type, go_low_finish finish, void *run) {
    const int64_t down = go_ceil_div(p->rows, p->block);
    const int64_t batch = index / (down * p->across), first_row = index / p->across % down * p->block;
    const int64_t first = index % p->across * p->width;
    const int64_t rows = go_least(p->block, p->rows - first_row), columns = go_least(p->width, p->columns - first);
    const go_byte_layout layout = go_byte_layout_of(p->depth, p->columns, p->size);
    const char *const packed = (const char *)p->packed + (p->shares_b ? 0 : (size_t)batch * layout.bytes);
    const int64_t c_step = go_round_up(columns, GO_BYTE_COLUMNS) + 16;
    int32_t *const c = malloc((size_t)(rows * c_step) * 4);
    if (c == NULL) {
        __atomic_store_n(&p->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    const int64_t row = batch * p->rows + first_row;
    for (int64_t j = 0; j < columns; j += GO_BYTE_COLUMNS)
        go_byte_panel(p->size, rows, p->rows_of_a + row * p->step, p->step,
                      packed + (first + j) / GO_BYTE_COLUMNS * layout.groups * GO_BYTE_STEP, layout.groups, c + j, c_step);
    /* sum (a - za) (b - zb) = sum a b - za sum b - zb sum a + depth za zb, of a and b as they were multiplied */
    const int dynamic = p->a_type == GO_FLOATS;
    const int32_t za = (dynamic ? p->own_zero : go_byte_at(p->a_zero, 0, p->a_type)) + go_row_shift(p->a_type, p->size);
    const int32_t shift = go_panel_shift(p->b_type, p->size);
    const int32_t *const b_sums = (const int32_t *)(packed + layout.sums) + first;
    i32_w zeros[256 / LANES_w], offsets[256 / LANES_w];
    f32_w scales[256 / LANES_w];
    for (int64_t j = 0; j < columns; j += LANES_w) {
        const int left = columns - j < LANES_w ? (int)(columns - j) : LANES_w;
        i32_w zero = splat_i32_w(p->b_zeros_vary ? 0 : go_byte_at(p->b_zeros, 0, p->b_type));
        if (p->b_zeros_vary) zero = go_bytes(p->b_zeros, first + j, left, p->b_type);
        zero += shift;
        zeros[j / LANES_w] = zero;
        offsets[j / LANES_w] = (int32_t)p->depth * za * zero - za * load_i32_w(b_sums + j);
        if (type == GO_SUMS) continue;
        f32_w scale = splat_f32_w(p->b_scales_vary ? 0 : p->b_scales[0]);
        if (p->b_scales_vary) scale = load_part_f32_w(p->b_scales + first + j, left);
        scale = (dynamic ? p->own_scale : p->a_scale[0]) * scale;
        scales[j / LANES_w] = type == GO_FLOATS ? scale : scale / p->scale[0];
    }
    for (int64_t i = 0; i < rows; i++) {
        int32_t *const values = c + i * c_step;
        for (int64_t j = 0; j < columns; j += LANES_w) {
            const i32_w sums = load_i32_w(values + j) + offsets[j / LANES_w];
            store_i32_w(values + j, sums - p->row_sums[row + i] * zeros[j / LANES_w]);
        }
        if (type != GO_SUMS) go_byte_results(p, type, scales, first, columns, values);
        finish(run, (row + i) * p->columns + first, columns, values);
    }
    free(c);
}
