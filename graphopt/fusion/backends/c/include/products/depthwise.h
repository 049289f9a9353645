/* A chunk: a block of positions of an image for some filters. */
GO_INLINE void go_depthwise_chunk(go_depthwise *d, size_t chunk, void (*finish)(void *, int64_t, int64_t, const void *),
                                  void *data) {
    go_conv *c = &d->c;
    int64_t start[3], block[3];
    const int64_t at = go_conv_locate(c, (int64_t)chunk, start, block), points = block[0] * block[1] * block[2];
    const int64_t image = at / c->parts, part = at % c->parts;
    const int64_t floats = c->by_position ? c->plane + points + 4 * LANES_w + c->taps : (c->plane + 2 * points) * LANES_w;
    char *const memory = malloc((size_t)floats * sizeof(float) + GO_LINE);
    if (!memory) {
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *const x = go_next_line(memory);
    if (c->by_position) {
        const int64_t first = part * c->part, count = go_least(c->part, d->filters - first);
        go_depthwise_rows(d, start, block, image, first, count, x, finish, data);
    } else {
        go_depthwise_filters(d, start, block, image, part * LANES_w, x, finish, data);
    }
    free(memory);
}
