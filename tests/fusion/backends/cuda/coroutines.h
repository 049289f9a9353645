/* A grid of blocks on one processor: the threads of a block are coroutines, which change only at barriers, so that
   static variables are the shared memory of the block. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

static int go_thread;
static long long go_block, go_blocks;

enum { GO_MOST = 1024, GO_STACK = 1 << 16 };
static ucontext_t go_main, go_contexts[GO_MOST];
static char *go_stacks;
static bool go_done[GO_MOST];
static void (*go_function)(void **);
static void **go_arguments;

static void go_barrier(void) {
    const int own = go_thread;
    swapcontext(&go_contexts[own], &go_main);
    go_thread = own;
}

static void go_start(void) {
    const int own = go_thread;
    go_function(go_arguments);
    go_done[own] = true;
}

/* Run a grid; 1 if some threads of a block are at a barrier that others don't reach.
   backward: whether threads run in descending order, which shows missing barriers. */
#ifdef __cplusplus
extern "C"
#endif
int go_run(void (*function)(void **), void **arguments, long long blocks, int threads, int backward) {
    if (!go_stacks) go_stacks = (char *)malloc((size_t)GO_MOST * GO_STACK);
    go_function = function;
    go_arguments = arguments;
    go_blocks = blocks;
    for (go_block = 0; go_block < blocks; go_block++) {
        for (int k = 0; k < threads; k++) {
            go_done[k] = false;
            getcontext(&go_contexts[k]);
            go_contexts[k].uc_stack.ss_sp = go_stacks + (size_t)k * GO_STACK;
            go_contexts[k].uc_stack.ss_size = GO_STACK;
            go_contexts[k].uc_link = &go_main;
            makecontext(&go_contexts[k], go_start, 0);
        }
        for (int done = 0; done < threads;) {
            done = 0;
            for (int k = 0; k < threads; k++) {
                go_thread = backward ? threads - 1 - k : k;
                const int own = go_thread;
                swapcontext(&go_main, &go_contexts[own]);
                done += go_done[own];
            }
            if (done != 0 && done != threads) return 1;
        }
    }
    return 0;
}
