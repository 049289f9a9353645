/* The size of the output along an axis; `same` is 1 for SAME_UPPER and 2 for SAME_LOWER, 0 for explicit pads. */
GO_INLINE int64_t go_conv_size(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t before,
                               int64_t after, int same) {
    const int64_t extent = (kernel - 1) * dilation + 1, padded = in + before + after;
    if (same) return go_ceil_div(in, stride);
    return padded < extent ? 0 : (padded - extent) / stride + 1;
}

/* The padding before the input along an axis with `out` results. */
GO_INLINE int64_t go_conv_pad(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation,
                              int64_t before, int same) {
    const int64_t total = (out - 1) * stride + (kernel - 1) * dilation + 1 - in;
    if (!same) return before;
    return total > 0 ? (total + (same == 2)) / 2 : 0;
}
