/* The part of onnxruntime that libraries of kernels use: it registers operators, and runs them on tensors in memory of
   exactly their size, which stands for that of a device. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

enum { MOST = 128, RANK = 8, ALIGNED = 64 };
struct OrtStatus {
  char text[512];
};
struct OrtCustomOpDomain {
  const OrtCustomOp *operators[MOST];
  int count;
};
struct OrtSessionOptions {
  OrtCustomOpDomain *domain;
};
struct OrtTensorTypeAndShapeInfo {
  int64_t dims[RANK];
  size_t rank;
};
struct OrtValue {
  OrtTensorTypeAndShapeInfo shape;
  void *data, *owned;
};
struct OrtMemoryInfo {
  int id;
};
struct OrtAllocator {
  OrtMemoryInfo memory;
};
struct OrtKernelInfo {
  int device;
};
struct OrtKernelContext {
  OrtValue in[MOST], out[MOST];
  int width[MOST], shared[MOST], inputs, outputs;
};

static OrtSessionOptions options;
static OrtKernelContext context;
static int statuses, allocators, buffers, domains, stream, scratch_fails;
static size_t scratch_bytes;
static char message[512];
static void *library;

/* ---- The functions of the table. ---- */

static OrtStatus *CreateStatus(int code, const char *text) {
  OrtStatus *status = malloc(sizeof *status);
  (void)code;
  snprintf(status->text, sizeof status->text, "%s", text);
  return statuses++, status;
}
static void ReleaseStatus(OrtStatus *status) {
  statuses--;
  free(status);
}
static OrtStatus *CreateCustomOpDomain(const char *name, OrtCustomOpDomain **domain) {
  if (strcmp(name, "graphopt.native") != 0) return CreateStatus(1, "another domain");
  return *domain = calloc(1, sizeof **domain), domains++, NULL;
}
static OrtStatus *CustomOpDomain_Add(OrtCustomOpDomain *domain, const OrtCustomOp *op) {
  return domain->operators[domain->count++] = op, NULL;
}
static OrtStatus *AddCustomOpDomain(OrtSessionOptions *into, OrtCustomOpDomain *domain) {
  return into->domain = domain, NULL;
}
static void ReleaseCustomOpDomain(OrtCustomOpDomain *domain) {
  domains--;
  free(domain);
}
static OrtStatus *GetTensorMutableData(OrtValue *value, void **data) { return *data = value->data, NULL; }
static OrtStatus *GetTensorTypeAndShape(const OrtValue *value, OrtTensorTypeAndShapeInfo **info) {
  *info = malloc(sizeof **info);
  return **info = value->shape, NULL;
}
static void ReleaseTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo *info) { free(info); }
static OrtStatus *GetDimensionsCount(const OrtTensorTypeAndShapeInfo *info, size_t *rank) {
  return *rank = info->rank, NULL;
}
static OrtStatus *GetDimensions(const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t rank) {
  return memcpy(dims, info->dims, rank * sizeof *dims), NULL;
}
static OrtStatus *KernelContext_GetInput(const OrtKernelContext *run, size_t index, const OrtValue **value) {
  return *value = &run->in[index], NULL;
}
static void *allocate(size_t bytes) {
  void *memory = NULL; /* a multiple of the alignment and then the size, so that sanitizers notice the end */
  return posix_memalign(&memory, ALIGNED, bytes > 0 ? bytes : 1) == 0 ? memory : NULL;
}
static OrtStatus *KernelContext_GetOutput(OrtKernelContext *run, size_t index, const int64_t *dims, size_t rank,
                                          OrtValue **value) {
  OrtValue *found = &run->out[index];
  size_t bytes = (size_t)run->width[index];
  found->shape.rank = rank;
  for (size_t axis = 0; axis < rank; axis++) bytes *= (size_t)(found->shape.dims[axis] = dims[axis]);
  if (run->shared[index] >= 0)
    found->data = run->in[run->shared[index]].data;
  else
    found->data = found->owned = allocate(bytes);
  if (run->outputs <= (int)index) run->outputs = (int)index + 1;
  return *value = found, NULL;
}
static OrtStatus *KernelInfoGetConstantInput_tensor(const OrtKernelInfo *info, size_t index, int *is_constant,
                                                    const OrtValue **value) {
  return (void)info, (void)index, *is_constant = 0, *value = NULL, NULL;
}
static OrtStatus *KernelContext_ParallelFor(const OrtKernelContext *run, void (*body)(void *, size_t), size_t count,
                                            size_t batches, void *data) {
  (void)run, (void)batches;
  while (count-- > 0) body(data, count);
  return NULL;
}
static OrtStatus *MemoryInfoGetId(const OrtMemoryInfo *info, int *id) { return *id = info->id, NULL; }
static OrtStatus *AllocatorFree(OrtAllocator *allocator, void *memory) {
  (void)allocator;
  free(memory);
  return buffers--, NULL;
}
static OrtStatus *AllocatorGetInfo(const OrtAllocator *allocator, const OrtMemoryInfo **info) {
  return *info = &allocator->memory, NULL;
}
static void ReleaseAllocator(OrtAllocator *allocator) {
  allocators--;
  free(allocator);
}
static OrtStatus *KernelContext_GetGPUComputeStream(const OrtKernelContext *run, void **found) {
  return (void)run, *found = &stream, NULL;
}
static OrtStatus *KernelContext_GetScratchBuffer(const OrtKernelContext *run, const OrtMemoryInfo *info, size_t bytes,
                                                 void **memory) {
  (void)run, (void)info;
  if (scratch_fails) return CreateStatus(1, "the arena is full");
  *memory = allocate(bytes);
  memset(*memory, 0x5a, bytes);
  return scratch_bytes += bytes, buffers++, NULL;
}
static OrtStatus *KernelInfoGetAllocator(const OrtKernelInfo *info, int type, OrtAllocator **allocator) {
  if (type != 0) return CreateStatus(1, "memory of another type");
  *allocator = malloc(sizeof **allocator);
  (*allocator)->memory.id = info->device;
  return allocators++, NULL;
}

static OrtApi api;
static const char *version;
static const OrtApi *GetApi(uint32_t number) {
  (void)number;
#define FILL(slot, name, result, arguments) api.slots[slot] = (go_slot)name;
  GO_API(FILL)
  return &api;
}
static const char *GetVersionString(void) { return version; }

/* ---- The functions of the test. ---- */

static const char *text_of(OrtStatus *status) {
  if (status == NULL) return NULL;
  snprintf(message, sizeof message, "%s", status->text);
  ReleaseStatus(status);
  return message;
}

/* Registers the operators of a library; the failure, or NULL. */
const char *ort_open(const char *path, const char *of_version) {
  static const OrtApiBase base = {GetApi, GetVersionString};
  OrtStatus *(*function)(OrtSessionOptions *, const OrtApiBase *);
  version = of_version;
  options.domain = NULL;
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return dlerror();
  *(void **)&function = dlsym(library, "RegisterCustomOps");
  return text_of(function(&options, &base));
}
void ort_close(void) { dlclose(library); }
int ort_count(void) { return options.domain == NULL ? 0 : options.domain->count; }
const char *ort_name(int index) { return options.domain->operators[index]->GetName(options.domain->operators[index]); }
const char *ort_provider(int index) {
  return options.domain->operators[index]->GetExecutionProviderType(options.domain->operators[index]);
}
/* The pairs of an operator that may share memory: input, output ...; their number. */
int ort_pairs(int index, int *pairs) {
  int *inputs, *outputs;
  const OrtCustomOp *op = options.domain->operators[index];
  const size_t count = op->GetMayInplace(&inputs, &outputs);
  for (size_t at = 0; at < count; at++) pairs[2 * at] = inputs[at], pairs[2 * at + 1] = outputs[at];
  op->ReleaseMayInplace(inputs, outputs);
  return (int)count;
}
/* A kernel of an operator on a device; NULL after a failure, whose text is ort_message(). */
void *ort_create(int index, int device) {
  const OrtCustomOp *op = options.domain->operators[index];
  const OrtKernelInfo info = {device};
  void *kernel = NULL;
  return text_of(op->CreateKernelV2(op, &api, &info, &kernel)) == NULL ? kernel : NULL;
}
void ort_destroy(int index, void *kernel) { options.domain->operators[index]->KernelDestroy(kernel); }
const char *ort_message(void) { return message; }
void ort_scratch_fails(int fails) { scratch_fails = fails; }

void ort_reset(void) {
  for (int at = 0; at < MOST; at++) free(context.out[at].owned);
  for (int at = 0; at < MOST; at++) free(context.in[at].owned);
  memset(&context, 0, sizeof context);
  for (int at = 0; at < MOST; at++) context.shared[at] = -1;
  scratch_bytes = 0;
}
void ort_input(int index, int rank, const int64_t *dims, const void *data, int64_t bytes) {
  OrtValue *value = &context.in[index];
  value->shape.rank = (size_t)rank;
  memcpy(value->shape.dims, dims, (size_t)rank * sizeof *dims);
  value->data = value->owned = allocate((size_t)bytes);
  if (bytes > 0) memcpy(value->data, data, (size_t)bytes);
  context.inputs = index + 1;
}
void ort_output(int index, int width, int shared) {
  context.width[index] = width;
  context.shared[index] = shared;
}
const char *ort_run(int index, void *kernel) {
  return text_of(options.domain->operators[index]->KernelComputeV2(kernel, &context));
}
int ort_rank(int index) { return (int)context.out[index].shape.rank; }
const int64_t *ort_dims(int index) { return context.out[index].shape.dims; }
const void *ort_data(int index) { return context.out[index].data; }
const void *ort_input_data(int index) { return context.in[index].data; }
const void *ort_stream(void) { return &stream; }
int64_t ort_scratch(void) { return (int64_t)scratch_bytes; }
/* Objects that were not released. */
int ort_alive(void) { return statuses + allocators + buffers; }
int ort_domains(void) { return domains; }
