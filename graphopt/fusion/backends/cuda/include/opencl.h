/* The dialect OpenCL C, for tests: it runs on CPUs. */
#pragma OPENCL FP_CONTRACT OFF
typedef char i8;
typedef uchar u8;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef ulong u64;
typedef float f32;

#define GO_FUNCTION static inline
#define GO_KERNEL(threads) kernel __attribute__((reqd_work_group_size(threads, 1, 1))) void
#define GO_GLOBAL global
#define GO_SHARED local
#define GO_RESTRICT restrict
#define GO_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define GO_UNROLL
#define GO_THREAD ((i32)get_local_id(0))
#define GO_BLOCK(index) ((index)get_group_id(0))
#define GO_BLOCKS(index) ((index)get_num_groups(0))
#define GO_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define GO_ADDRESS(pointer) ((u64)(pointer))

/* Exchange within a warp, through local memory. All work-items of the group execute it. */
#define GO_EXCHANGE(threads) local u64 go_exchange[threads]
#define GO_SWAP(type, y, x, distance) \
    ((local type *)go_exchange)[GO_THREAD] = x; \
    GO_BARRIER(); \
    const type y = ((local type *)go_exchange)[GO_THREAD ^ (distance)]; \
    GO_BARRIER()
#define GO_FIRST(type, x, width) \
    ((local type *)go_exchange)[GO_THREAD] = x; \
    GO_BARRIER(); \
    x = ((local type *)go_exchange)[GO_THREAD / (width) * (width)]; \
    GO_BARRIER()

GO_FUNCTION f32 go_as_f32(u32 bits) { return as_float(bits); }
GO_FUNCTION u32 go_as_u32(f32 x) { return as_uint(x); }

/* OpenCL allows larger errors of functions than CUDA. Therefore, they are computed in double precision and rounded. */
#define go_sqrt sqrt
#define go_exp(x) ((f32)exp((double)(x)))
#define go_log(x) ((f32)log((double)(x)))
#define go_tanh(x) ((f32)tanh((double)(x)))
#define go_erf(x) ((f32)erf((double)(x)))
#define go_sin(x) ((f32)sin((double)(x)))
#define go_cos(x) ((f32)cos((double)(x)))
#define go_floor floor
#define go_ceil ceil
#define go_trunc trunc
#define go_round_even rint
#define go_pow(x, y) ((f32)pow((double)(x), (double)(y)))
#define go_fmod fmod
#define go_abs_f32 fabs

#define GO_HALVES_BY_BITS
