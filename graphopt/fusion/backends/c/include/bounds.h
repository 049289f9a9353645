/* Whether offset + sum of stride * i is the index of one of `elements` elements, for all i from start to stop - 1 of
   each loop {stride, start, stop}; true if a loop is empty. In 128 bits, because a model may contain any numbers. */
GO_NOINLINE int go_inside(const int64_t (*loops)[3], int count, int64_t offset, int64_t elements) {
    __int128 low = offset, high = offset;
    for (int k = 0; k < count; k++) {
        if (loops[k][1] >= loops[k][2]) return 1;
        const __int128 first = (__int128)loops[k][0] * loops[k][1];
        const __int128 last = (__int128)loops[k][0] * (loops[k][2] - 1);
        low += first < last ? first : last;
        high += first < last ? last : first;
    }
    return low >= 0 && high < elements;
}

/* The number of `items` in a chunk of work, 1 or more; an item causes `weight` bytes of memory traffic, a product of
   sizes that may wrap around. If there are many items, a chunk has a fixed share of them: the start of a chunk, such as
   the allocation of buffers, and the order of its streaming stores cost as much as a few rows. */
__attribute__((unused)) static int64_t go_step(int64_t items, int64_t weight) {
    if (weight < 1) weight = 1;
    if (items <= (2 * GO_CHUNK - 1) / weight) return items < 1 ? 1 : items;
    const int64_t step = GO_CHUNK / weight + 1, share = items / GO_CHUNKS + 1;
    return step < share ? share : step;
}
