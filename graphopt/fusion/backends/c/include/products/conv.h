/* A chunk of a convolution: a block of positions of some images, for a part of the filters of a group. */

GO_INLINE void go_conv_chunk(go_conv *c, size_t chunk, void (*finish)(void *, int64_t, int64_t, const void *),
                             void *data) {
    int64_t start[3], block[3];
    const int64_t first = (int64_t)chunk % c->parts * c->part, count = go_least(c->part, c->filters - first);
    const int64_t at = go_conv_locate(c, (int64_t)chunk / c->parts, start, block), points = block[0] * block[1] * block[2];
    const int64_t group = at % c->groups, image = at / c->groups * c->images;
    const int64_t images = go_least(c->images, c->batch - image);
    const int64_t channels = c->channels * c->in[0] * c->in[1] * c->in[2], size = c->channels * c->plane;
    const int64_t copy = c->copied ? images * size + 8 * LANES_w : 0, lanes = GO_CONV_VECTORS * LANES_w;
    const int64_t padded = c->by_position ? 0 : images * points + 12;
    char *memory = malloc((size_t)(copy + padded * lanes * 2) * sizeof(float) + (size_t)padded * sizeof(int64_t) + 64);
    if (!memory) {
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    int64_t *places = (int64_t *)memory;
    float *sums = (float *)(places + padded), *turned = sums + padded * lanes, *buffer = turned + padded * lanes;
    const float *x = c->x + (image * c->groups + group) * channels;
    if (c->copied) {
        for (int64_t n = 0; n < images; n++) go_conv_copy(c, x + n * c->groups * channels, start, buffer + n * size);
        x = buffer;
    } else {
        for (int axis = 0; axis < 3; axis++) x += start[axis] * c->stride[axis] * c->pitch[axis];
    }
    if (c->by_position) {
        go_conv_positions(c, x, image, group, start, block, first, count, finish, data);
    } else {
        const int64_t apart = c->copied ? size : c->groups * channels;
        int64_t p = 0;
        for (int64_t n = 0; n < images; n++)
            for (int64_t i = 0; i < points; i++) {
                const int64_t rest = i % (block[1] * block[2]);
                places[p++] = n * apart + i / (block[1] * block[2]) * c->stride[0] * c->pitch[0]
                            + rest / block[2] * c->stride[1] * c->pitch[1] + rest % block[2] * c->stride[2];
            }
        for (; p < padded; p++) places[p] = places[p - 1];
        go_conv_filters(c, x, image, images, group, start, block, first, count, places, sums, turned, finish, data);
    }
    free(memory);
}
