/* Convolutions of bytes in 2 dimensions, exact modulo 2^32, without a matrix of patches. The input is padded with its
   zero point and stored as groups of elements (byte_tiles.h), in one plane for each remainder of a position modulo the
   stride. For each tap, the output positions of a vector then read adjacent groups. Rows of sums have the pitch of rows
   of planes, so that some positions beyond the end of a row are computed and discarded.

   A group consists of elements of adjacent channels. If filters read a single channel, it consists of adjacent taps of a
   row.

   In groups of four bytes, the bytes of weights are signed, and the bytes of the input are unsigned. */
enum {
    GO_CONV_BLOCK = 4 * GO_BYTE_ROWS,    /* filters of a work item */
    GO_CONV_BAND = 512,                  /* positions of a work item, if rows are short */
    GO_CONV_PITCH = LANES_w / 4,         /* minimum pitch of rows with gaps between them */
    GO_CONV_WIDE = 2 * GO_BYTE_COLUMNS,  /* maximum number of positions of a tile */
    GO_CONV_PLANES = 1 << 14,            /* groups of planes of a work item that prepares its own */
    GO_CONV_FEW = 4                      /* maximum filters of a convolution whose work items do so */
};

/* The number of adjacent taps in a group of `size` elements, of groups in a row of a filter, and of sets of channels. */
GO_INLINE int64_t go_byte_along(int64_t channels, int size) { return channels == 1 ? size : 1; }
GO_INLINE int64_t go_byte_words(int64_t channels, int64_t taps, int size) {
    return go_ceil_div(taps, go_byte_along(channels, size));
}
GO_INLINE int64_t go_byte_sets(int64_t channels, int size) { return go_ceil_div(channels, size); }

/* Packed weights of each convolution: the filters of each tile, group by group; then a filter of ones, the sums of the
   filters, and their sums of squares. `groups` is the number of groups of a filter. */
typedef struct {
    int64_t groups, ones, sums, squares, whole; /* offsets, and the size of a convolution, in 32-bit elements */
} go_byte_filters;

GO_INLINE go_byte_filters go_byte_filters_of(int64_t filters, int64_t channels, int64_t height, int64_t width) {
    const int size = go_group_size();
    const int64_t groups = go_byte_sets(channels, size) * height * go_byte_words(channels, width, size);
    const int64_t sums = (filters + 1) * groups;
    return (go_byte_filters){groups, filters * groups, sums, sums + filters, sums + 2 * filters};
}

typedef struct {
    int x_type, w_type, type;
    const void *x, *packed;
    const void *x_zero, *w_zeros, *zero; /* elements of these types, `zero` of the result; NULL for 0 */
    const float *x_scale, *w_scales, *scale;
    int w_zeros_vary, w_scales_vary;     /* whether there is one for each filter */
    const int32_t *bias;                 /* of each filter, or NULL */
    int64_t batch, convs;                /* images, and convolutions per image: the attribute group */
    int64_t channels, filters;           /* of each convolution */
    int64_t in[2], out[2], kernel[2], stride[2], dilation[2], pad[2];
    int size;                            /* elements of a group */
    int64_t along;                       /* adjacent taps of a group */
    int64_t sets, groups;                /* numbers of sets of channels, and of groups of a sum */
    go_byte_filters layout;              /* of `packed` */
    int64_t phases[2], length[2], plane; /* of the planes of a set, in groups */
    int32_t *input;                      /* planes of each image, convolution and set, or NULL */
    int64_t together;                    /* convolutions per work item, which prepares their planes if `input` is NULL */
    int64_t *offset;                     /* of each group of a sum, in 32-bit elements */
    int subtracts;                       /* whether sums of inputs are subtracted */
    int64_t rows, bands, blocks;         /* rows of a band, and numbers of bands and of blocks */
    int failed;
} go_byte_conv;

/* Sets the sizes along an axis. */
GO_INLINE void go_byte_conv_axis(go_byte_conv *c, int axis, int64_t in, int64_t kernel, int64_t stride,
                                 int64_t dilation, int64_t before, int64_t after, int same) {
    c->in[axis] = in, c->kernel[axis] = kernel, c->stride[axis] = stride, c->dilation[axis] = dilation;
    c->out[axis] = go_conv_size(in, kernel, stride, dilation, before, after, same);
    c->pad[axis] = go_conv_pad(in, c->out[axis], kernel, stride, dilation, before, same);
}

/* The number of groups in the planes of a set of channels. */
GO_INLINE int64_t go_byte_conv_set(const go_byte_conv *c) { return c->phases[0] * c->phases[1] * c->plane; }

/* Merges rows that are adjacent in memory, for filters of a single tap, so that vectors are full. */
GO_INLINE void go_byte_conv_join(go_byte_conv *c) {
    int is_same = 1;
    for (int i = 0; i < 2; i++)
        is_same &= c->kernel[i] == 1 && c->stride[i] == 1 && c->pad[i] == 0 && c->in[i] == c->out[i];
    for (int64_t rows = is_same ? c->in[0] : 1; rows > 1; rows--)
        if (c->in[0] % rows == 0 && rows * c->in[1] <= GO_CONV_BAND) {
            c->in[0] = c->out[0] = c->in[0] / rows;
            c->in[1] = c->out[1] = c->in[1] * rows;
            return;
        }
}

/* Plans a convolution whose axes are set; returns 0 if an allocation fails. */
GO_NOINLINE int go_byte_conv_plan(go_byte_conv *c) {
    go_byte_conv_join(c);
    c->size = go_group_size();
    c->along = go_byte_along(c->channels, c->size);
    c->sets = go_byte_sets(c->channels, c->size);
    c->layout = go_byte_filters_of(c->filters, c->channels, c->kernel[0], c->kernel[1]);
    const int64_t words = go_byte_words(c->channels, c->kernel[1], c->size), taps = c->kernel[0] * words;
    c->groups = c->sets * taps;
    for (int i = 0; i < 2; i++) {
        const int64_t reach = i == 0 ? (c->kernel[0] - 1) * c->dilation[0] : (words - 1) * c->along * c->dilation[1];
        c->phases[i] = go_least(c->stride[i], reach + 1);
        c->length[i] = c->out[i] + reach / c->stride[i];
    }
    /* A whole vector of results of the first row must not overwrite the sums of the second row. */
    if (c->length[1] > c->out[1] && c->length[1] < GO_CONV_PITCH) c->length[1] = GO_CONV_PITCH;
    c->plane = c->length[0] * c->length[1];
    c->rows = go_least(c->out[0], c->length[1] < GO_CONV_BAND ? GO_CONV_BAND / c->length[1] : 1);
    c->bands = go_ceil_div(c->out[0], c->rows);
    c->blocks = go_ceil_div(c->filters, GO_CONV_BLOCK);
    const int64_t set = go_byte_conv_set(c);
    const int own = c->channels == 1 && c->filters <= GO_CONV_FEW && set <= 4 * GO_CONV_PLANES;
    c->together = own ? go_least(c->convs, go_ceil_div(GO_CONV_PLANES, set)) : 1;
    c->input = own ? NULL : malloc((size_t)(c->batch * c->convs * c->sets * set + GO_CONV_WIDE) * 4);
    c->offset = malloc((size_t)c->groups * sizeof *c->offset);
    if (c->offset == NULL || (!own && c->input == NULL)) return 0;
    for (int64_t k = 0; k < c->groups; k++) {
        const int64_t y = k % taps / words * c->dilation[0], x = k % words * c->along * c->dilation[1];
        const int64_t phase = y % c->stride[0] * c->phases[1] + x % c->stride[1];
        c->offset[k] = k / taps * set + phase * c->plane + y / c->stride[0] * c->length[1] + x / c->stride[1];
    }
    const int64_t zeros = c->w_zeros_vary ? c->convs * c->filters : 1;
    c->subtracts = 0;
    for (int64_t i = 0; i < zeros; i++)
        c->subtracts |= go_byte_at(c->w_zeros, i, c->w_type) + go_panel_shift(c->w_type, c->size) != 0;
    return 1;
}

/* The numbers of sets of planes that are prepared before all work items, and of work items. */
GO_INLINE int64_t go_byte_conv_inputs(const go_byte_conv *c) { return c->input ? c->batch * c->convs * c->sets : 0; }
GO_INLINE int64_t go_byte_conv_parts(const go_byte_conv *c) {
    const int64_t parts = c->batch * go_ceil_div(c->convs, c->together);
    return c->input ? parts * c->bands * c->blocks : parts;
}

GO_INLINE int32_t go_byte_conv_zero(const go_byte_conv *c) {
    return go_byte_at(c->x_zero, 0, c->x_type) + go_row_shift(c->x_type, c->size);
}
