/* The dialect of the grid interpreter: plain C. */
typedef int8_t i8;
typedef uint8_t u8;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef float f32;

#define GO_FUNCTION static inline __attribute__((unused))
#define GO_KERNEL(threads) static void
#define GO_GLOBAL
#define GO_SHARED static
#define GO_RESTRICT restrict
#define GO_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define GO_UNROLL
#define GO_THREAD go_thread
#define GO_BLOCK(index) ((index)go_block)
#define GO_BLOCKS(index) ((index)go_blocks)
#define GO_BARRIER() go_barrier()
#define GO_ADDRESS(pointer) ((u64)(uintptr_t)(pointer))

#define GO_EXCHANGE(threads) static u64 go_exchange[threads]
#define GO_SWAP(type, y, x, distance) \
    ((type *)go_exchange)[GO_THREAD] = x; \
    GO_BARRIER(); \
    const type y = ((type *)go_exchange)[GO_THREAD ^ (distance)]; \
    GO_BARRIER()
#define GO_FIRST(type, x, width) \
    ((type *)go_exchange)[GO_THREAD] = x; \
    GO_BARRIER(); \
    x = ((type *)go_exchange)[GO_THREAD / (width) * (width)]; \
    GO_BARRIER()

GO_FUNCTION f32 go_as_f32(u32 bits) {
    f32 x;
    memcpy(&x, &bits, 4);
    return x;
}
GO_FUNCTION u32 go_as_u32(f32 x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}

#define GO_HALVES_BY_BITS
