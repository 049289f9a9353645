/* What CUDA C++ has beyond C++, for the coroutines of coroutines.h. */
#define __device__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads)

struct go_dims {
    unsigned x;
};
#define threadIdx (go_dims{(unsigned)go_thread})
#define blockIdx (go_dims{(unsigned)go_block})
#define gridDim (go_dims{(unsigned)go_blocks})
#define __syncthreads() go_barrier()

/* All threads of a block exchange values, those of each warp among themselves. */
template <typename T> static T go_take(T x, int from) {
    static unsigned long long values[GO_MOST];
    memcpy(&values[go_thread], &x, sizeof x);
    go_barrier();
    memcpy(&x, &values[from], sizeof x);
    go_barrier();
    return x;
}
template <typename T> static T __shfl_xor_sync(unsigned mask, T x, int distance) {
    if (mask != 0xffffffffu) abort();
    return go_take(x, go_thread ^ distance);
}
template <typename T> static T __shfl_sync(unsigned mask, T x, int from, int width) {
    if (mask != 0xffffffffu) abort();
    return go_take(x, go_thread / width * width + from);
}

static inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* Passes an address as a pointer of any type. */
struct go_address {
    void *value;
    template <typename T> operator T *() const { return (T *)value; }
};
