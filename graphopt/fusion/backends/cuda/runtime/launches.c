/* The provider for CUDA. Kernels run on onnxruntime's stream, with scratch memory from its allocator.

   A run does not allocate memory from the driver or synchronize, so that it can be captured in a CUDA graph. */
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "devices.h"
#include "library.h"
#include "operators.h"

/* The state of an instance. */
typedef struct {
  const go_driver *driver;
  CUkernel const *functions;
  OrtAllocator *allocator; /* of the device's memory */
  const OrtMemoryInfo *memory;
} device_state;

/* One run. */
typedef struct {
  go_call call; /* the first member, for casts from go_call * to device_call * */
  const device_state *state;
  CUstream stream;
  int buffers;
  void *scratch[GO_MOST_SCRATCH];
} device_call;

static int is_used = 1;

/* Sets whether new sessions use CUDA kernels, if this machine can run them; with 0, the driver is not opened. */
GO_EXPORT void graphopt_use_cuda(int use) { __atomic_store_n(&is_used, use, __ATOMIC_RELAXED); }

static int variant(void) {
  return __atomic_load_n(&is_used, __ATOMIC_RELAXED) && go_open_driver() != NULL ? 0 : -1;
}

static const go_kernel *kernel_at(int variant, int place) {
  (void)variant;
  return place < GO_DEVICE_COUNT ? &go_device_kernels[place] : NULL;
}

/* ---- Instances. ---- */

static OrtStatus *create(go_instance *instance, const OrtKernelInfo *info) {
  const OrtApi *api = instance->api;
  const int place = (int)(instance->kernel - go_device_kernels);
  char message[200];
  int ordinal = -1;
  device_state *state = calloc(1, sizeof *state);
  if (state == NULL) return go_out_of_memory(api);
  OrtStatus *status = GO(api, KernelInfoGetAllocator)(info, 0, &state->allocator);
  if (status == NULL) status = GO(api, AllocatorGetInfo)(state->allocator, &state->memory);
  if (status == NULL) status = GO(api, MemoryInfoGetId)(state->memory, &ordinal);
  if (status == NULL) {
    state->driver = go_open_driver();
    state->functions = go_load_kernel(ordinal, place, message, sizeof message);
    if (state->functions == NULL) status = GO(api, CreateStatus)(ORT_FAIL, message);
  }
  instance->state = state;
  if (status != NULL) {
    if (state->allocator != NULL) GO(api, ReleaseAllocator)(state->allocator);
    free(state);
  }
  return status;
}

static void destroy(go_instance *instance) {
  device_state *state = instance->state;
  GO(instance->api, ReleaseAllocator)(state->allocator);
  free(state);
}

/* ---- Runs. ---- */

void *go_scratch(go_call *call, size_t bytes) {
  device_call *run = (device_call *)call;
  void *memory = NULL;
  const OrtMemoryInfo *info = run->state->memory;
  if (!go_fine(call, GO(call->api, KernelContext_GetScratchBuffer)(call->run, info, bytes, &memory))) return NULL;
  if (memory == NULL) {
    go_fail(call, "graphopt's kernels: out of memory on CUDA");
    return NULL;
  }
  return run->scratch[run->buffers++] = memory;
}

int go_launch(go_call *call, int function, int64_t blocks, int threads, void **arguments) {
  const device_call *run = (device_call *)call;
  CUfunction kernel = (CUfunction)run->state->functions[function];
  const CUresult error = run->state->driver->cuLaunchKernel(kernel, (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0,
                                                            run->stream, arguments, NULL);
  if (error == 0) return 0;
  char text[200];
  const char *name = call->instance->kernel->name;
  snprintf(text, sizeof text, "kernel %.100s can't be launched on CUDA: %s", name, go_driver_error(error));
  go_fail(call, text);
  return 1;
}

static OrtStatus *compute(const go_instance *instance, OrtKernelContext *context) {
  device_call run;
  void *stream = NULL;
  run.call = (go_call){instance->api, context, instance, NULL};
  run.state = instance->state;
  run.buffers = 0;
  if (go_fine(&run.call, GO(instance->api, KernelContext_GetGPUComputeStream)(context, &stream))) {
    run.stream = stream;
    go_run(&run.call);
  }
  /* The allocator reuses this memory only for later work on the same stream. */
  while (run.buffers > 0)
    go_fine(&run.call, GO(instance->api, AllocatorFree)(run.state->allocator, run.scratch[--run.buffers]));
  return run.call.status;
}

const go_provider go_cuda = {
    .name = "CUDAExecutionProvider",
    .oldest_api = 18, /* KernelContext_GetScratchBuffer */
    .count = GO_DEVICE_COUNT,
    .variant = variant,
    .kernel_at = kernel_at,
    .create = create,
    .destroy = destroy,
    .compute = compute,
};
