/* A stand-in for the runtime: inputs and outputs are buffers of exactly their size between two marks, and the chunks
   of a run are computed last one first. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { PORTS = 32, RANK = 8, MARK = 64 };
struct go_call {
    int64_t rank_in[PORTS], dims_in[PORTS][RANK], bytes_in[PORTS];
    int64_t rank_out[PORTS], dims_out[PORTS][RANK], width_out[PORTS], bytes_out[PORTS];
    int64_t shared[PORTS]; /* of an output: the input whose memory it takes, or -1 */
    int64_t chunks;
    int keeps; /* outputs stay for the next run, which is timed */
    int constant; /* whether inputs are constant, so that they are packed once */
    const go_kernel *kernel;
    void *packed[GO_MOST_CONSTANTS];
    char *in[PORTS], *out[PORTS];
    char message[256];
};

__attribute__((unused)) static char *buffer(int64_t bytes) {
    void *p;
    if (posix_memalign(&p, MARK, (size_t)bytes + 2 * MARK)) abort();
    memset(p, 0x5a, (size_t)bytes + 2 * MARK);
    return (char *)p + MARK;
}

go_call *stub_new(void) {
    go_call *call = calloc(1, sizeof *call);
    for (int i = 0; i < PORTS; i++) call->shared[i] = -1;
    return call;
}

void stub_input(go_call *call, int index, int rank, const int64_t *dims, const void *data, int64_t bytes) {
    call->rank_in[index] = rank;
    memcpy(call->dims_in[index], dims, (size_t)rank * 8);
    call->bytes_in[index] = bytes;
#ifdef STUB_EXACT
    call->in[index] = malloc((size_t)bytes + 1);
#else
    call->in[index] = buffer(bytes);
#endif
    memcpy(call->in[index], data, (size_t)bytes);
}

void stub_output(go_call *call, int index, int width, int shared) {
    call->width_out[index] = width;
    call->shared[index] = shared;
}

void stub_keep(go_call *call) { call->keeps = 1; }
void stub_constant(go_call *call) { call->constant = 1; }

const void *go_input(go_call *call, int index, int rank, int64_t *dims) {
    if (call->rank_in[index] != rank) return go_fail(call, "rank"), NULL;
    memcpy(dims, call->dims_in[index], (size_t)rank * 8);
    return call->in[index];
}

void *go_output(go_call *call, int index, int rank, const int64_t *dims) {
    int64_t bytes = call->width_out[index];
    call->rank_out[index] = rank;
    for (int i = 0; i < rank; i++) bytes *= call->dims_out[index][i] = dims[i];
    call->bytes_out[index] = bytes;
    if (call->keeps && call->out[index]) return call->out[index];
    if (call->shared[index] >= 0) return call->out[index] = call->in[call->shared[index]];
#ifdef STUB_EXACT
    return call->out[index] = malloc((size_t)bytes + !bytes);
#else
    return call->out[index] = buffer(bytes);
#endif
}

const void *go_packed_operand(go_call *call, int index) {
    const go_constant *constant = &call->kernel->constants[index];
    if (call->packed[index]) return call->packed[index];
    const size_t bytes = constant->size(call->dims_in[constant->input]);
    if (posix_memalign(&call->packed[index], GO_ALIGNMENT, bytes + !bytes)) abort();
    constant->pack(call->in[constant->input], call->dims_in[constant->input], call->packed[index]);
    return call->packed[index];
}

const void *go_packed_constant(go_call *call, int index) {
    return call->constant ? go_packed_operand(call, index) : NULL;
}

void go_fail(go_call *call, const char *message) {
    if (!*call->message) snprintf(call->message, sizeof call->message, "%s", message);
}

void go_parallel(go_call *call, void (*body)(void *, size_t), void *data, size_t count) {
    call->chunks += (int64_t)count;
    while (count--) body(data, count);
}

const char *stub_message(go_call *call) { return call->message; }
int64_t stub_chunks(go_call *call) { return call->chunks; }
int stub_rank(go_call *call, int index) { return (int)call->rank_out[index]; }
const int64_t *stub_dims(go_call *call, int index) { return call->dims_out[index]; }
const void *stub_data(go_call *call, int index) { return call->out[index]; }

/* Whether nothing was written beside a buffer. */
static int whole(const char *p, int64_t bytes) {
    for (int i = 0; i < MARK; i++)
        if (p[-1 - i] != 0x5a || p[bytes + i] != 0x5a) return 0;
    return 1;
}

int stub_free(go_call *call) {
    int fine = 1;
    for (int i = 0; i < PORTS; i++) {
#ifdef STUB_EXACT
        free(call->in[i]);
        if (call->shared[i] < 0) free(call->out[i]);
        (void)whole;
#else
        if (call->out[i] && call->shared[i] < 0) {
            fine &= whole(call->out[i], call->bytes_out[i]);
            free(call->out[i] - MARK);
        }
        if (call->in[i]) {
            fine &= whole(call->in[i], call->bytes_in[i]);
            free(call->in[i] - MARK);
        }
#endif
    }
    for (int i = 0; i < GO_MOST_CONSTANTS; i++) free(call->packed[i]);
    free(call);
    return fine;
}

extern const go_kernel GO_NAME(go_kernels)[];
int stub_run(go_call *call, int kernel) {
    call->kernel = &GO_NAME(go_kernels)[kernel];
    return call->kernel->run(call);
}
