/* The number of `items` in a chunk of work, at least 1. An item causes `weight` bytes of memory traffic, a product of
   sizes that may wrap around. If there are many items, a chunk has a fixed share of them, because the overhead of a
   chunk, such as the allocation of buffers and the fence of its streaming stores, equals the time of a few rows. */
__attribute__((unused)) static int64_t go_step(int64_t items, int64_t weight) {
    if (weight < 1) weight = 1;
    if (items <= (2 * GO_CHUNK - 1) / weight) return items < 1 ? 1 : items;
    const int64_t step = GO_CHUNK / weight + 1, share = items / GO_CHUNKS + 1;
    return step < share ? share : step;
}
