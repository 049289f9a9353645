/* Fails the run with a message, and returns 1. onnxruntime adds the name of the kernel. */
GO_NOINLINE __attribute__((format(printf, 2, 3))) int go_failure(go_call *call, const char *format, ...) {
    char message[256];
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    go_fail(call, message);
    return 1;
}

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
