/* The dialect of the grid interpreter: plain C. The threads of a block are coroutines of one thread, which change
   only at barriers, so that static variables are the shared memory of the block. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef int8_t i8;
typedef uint8_t u8;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef float f32;

static i32 go_thread;
static i64 go_block, go_blocks;
static void go_barrier(void);

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

#define go_sqrt sqrtf
#define go_exp expf
#define go_log logf
#define go_tanh tanhf
#define go_erf erff
#define go_sin sinf
#define go_cos cosf
#define go_floor floorf
#define go_ceil ceilf
#define go_trunc truncf
#define go_round_even rintf
#define go_pow powf
#define go_fmod fmodf
#define go_abs_f32 fabsf

#define GO_HALVES_BY_BITS

/* Coroutines */

enum { GO_MOST = 1024, GO_STACK = 1 << 16 };
static ucontext_t go_main, go_contexts[GO_MOST];
static char *go_stacks;
static bool go_done[GO_MOST];
static void (*go_function)(void **);
static void **go_arguments;

static void go_barrier(void) {
    const i32 own = go_thread;
    swapcontext(&go_contexts[own], &go_main);
    go_thread = own;
}

static void go_start(void) {
    const i32 own = go_thread;
    go_function(go_arguments);
    go_done[own] = true;
}

/* Run a grid; 1 if some threads of a block are at a barrier that others don't reach.
   backward: whether threads run in descending order, which shows missing barriers. */
int go_run(void (*function)(void **), void **arguments, i64 blocks, i32 threads, int backward) {
    if (!go_stacks) go_stacks = malloc((size_t)GO_MOST * GO_STACK);
    go_function = function;
    go_arguments = arguments;
    go_blocks = blocks;
    for (go_block = 0; go_block < blocks; go_block++) {
        for (i32 k = 0; k < threads; k++) {
            go_done[k] = false;
            getcontext(&go_contexts[k]);
            go_contexts[k].uc_stack.ss_sp = go_stacks + (size_t)k * GO_STACK;
            go_contexts[k].uc_stack.ss_size = GO_STACK;
            go_contexts[k].uc_link = &go_main;
            makecontext(&go_contexts[k], go_start, 0);
        }
        for (i32 done = 0; done < threads;) {
            done = 0;
            for (i32 k = 0; k < threads; k++) {
                go_thread = backward ? threads - 1 - k : k;
                const i32 own = go_thread;
                swapcontext(&go_main, &go_contexts[own]);
                done += go_done[own];
            }
            if (done != 0 && done != threads) return 1;
        }
    }
    return 0;
}
