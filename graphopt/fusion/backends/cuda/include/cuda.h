/* The dialect CUDA C++, compiled by NVRTC without headers. */
typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;

#define GO_FUNCTION __attribute__((unused)) static __device__ __forceinline__
#define GO_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define GO_GLOBAL
#define GO_SHARED __shared__
#define GO_RESTRICT __restrict__
#define GO_ALIGNED(bytes) __align__(bytes)
#define GO_UNROLL _Pragma("unroll")
#define GO_THREAD ((i32)threadIdx.x)
#define GO_BLOCK(index) ((index)blockIdx.x)
#define GO_BLOCKS(index) ((index)gridDim.x)
#define GO_BARRIER() __syncthreads()
#define GO_ADDRESS(pointer) ((u64)(pointer))

/* Exchange within a warp. All threads of the block execute it. */
#define GO_EXCHANGE(threads)
#define GO_SWAP(type, y, x, distance) const type y = (type)__shfl_xor_sync(0xffffffffu, x, distance)
#define GO_FIRST(type, x, width) x = (type)__shfl_sync(0xffffffffu, x, 0, width)

GO_FUNCTION f32 go_as_f32(u32 bits) { return __uint_as_float(bits); }
GO_FUNCTION u32 go_as_u32(f32 x) { return __float_as_uint(x); }

GO_FUNCTION f32 go_from_f16(u16 bits) {
    f32 x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

GO_FUNCTION u16 go_to_f16(f32 x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
