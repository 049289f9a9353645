/* An operator for the CPU that calls the functions of onnxruntime that kernels for CUDA use, and returns the results. */
#include <string.h>

#include "abi.h"

/* Only the test allocates memory without a stream. */
#define PROBE_API(each) each(75, AllocatorAlloc, OrtStatus *, (OrtAllocator *, size_t bytes, void **memory))
PROBE_API(GO_DECLARE)

static const OrtApi *api;
static OrtAllocator *allocator;
static const OrtMemoryInfo *memory;
static int id = -1;

static const char *get_name(const OrtCustomOp *op) { return (void)op, "probe"; }
static const char *get_provider(const OrtCustomOp *op) { return (void)op, "CPUExecutionProvider"; }
static size_t one_port(const OrtCustomOp *op) { return (void)op, 1; }
static int int64_type(const OrtCustomOp *op, size_t index) { return (void)op, (void)index, 7; }
static int zero(const OrtCustomOp *op, size_t index) { return (void)op, (void)index, 0; }
static int one(const OrtCustomOp *op) { return (void)op, 1; }
static void destroy(void *kernel) { (void)kernel, GO(api, ReleaseAllocator)(allocator); }
static size_t no_pairs(int **inputs, int **outputs) { return *inputs = *outputs = NULL, 0; }
static void release_pairs(int *inputs, int *outputs) { (void)inputs, (void)outputs; }

static OrtStatus *create(const OrtCustomOp *op, const OrtApi *of, const OrtKernelInfo *info, void **kernel) {
  (void)op, api = of, *kernel = &id;
  OrtStatus *status = GO(api, KernelInfoGetAllocator)(info, 0, &allocator);
  if (status == NULL) status = GO(api, AllocatorGetInfo)(allocator, &memory);
  return status != NULL ? status : GO(api, MemoryInfoGetId)(memory, &id);
}

static OrtStatus *compute(void *kernel, OrtKernelContext *run) {
  const int64_t dims[] = {4};
  OrtValue *value;
  void *data, *stream = &id, *scratch = &id, *block = NULL;
  (void)kernel;
  OrtStatus *status = GO(api, KernelContext_GetOutput)(run, 0, dims, 1, &value);
  if (status == NULL) status = GO(api, GetTensorMutableData)(value, &data);
  if (status == NULL) status = GO(api, KernelContext_GetGPUComputeStream)(run, &stream);
  if (status == NULL) status = GO(api, KernelContext_GetScratchBuffer)(run, memory, 0, &scratch);
  if (status == NULL) status = GO(api, AllocatorAlloc)(allocator, 100, &block);
  if (status != NULL) return status;
  memset(block, 1, 100);
  int64_t *results = data;
  results[0] = id, results[1] = stream == NULL, results[2] = scratch == NULL, results[3] = block != NULL;
  return GO(api, AllocatorFree)(allocator, block);
}

__attribute__((visibility("default"))) OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
  static OrtCustomOp op = {
      .version = GO_NEWEST_API,
      .GetName = get_name,
      .GetExecutionProviderType = get_provider,
      .GetInputType = int64_type,
      .GetInputTypeCount = one_port,
      .GetOutputType = int64_type,
      .GetOutputTypeCount = one_port,
      .KernelDestroy = destroy,
      .GetInputCharacteristic = zero,
      .GetOutputCharacteristic = zero,
      .GetInputMemoryType = zero,
      .GetVariadicInputMinArity = one,
      .GetVariadicInputHomogeneity = one,
      .GetVariadicOutputMinArity = one,
      .GetVariadicOutputHomogeneity = one,
      .CreateKernelV2 = create,
      .KernelComputeV2 = compute,
      .GetStartVersion = one,
      .GetEndVersion = one,
      .GetMayInplace = no_pairs,
      .ReleaseMayInplace = release_pairs,
      .GetAliasMap = no_pairs,
      .ReleaseAliasMap = release_pairs,
  };
  OrtCustomOpDomain *domain;
  api = base->GetApi(GO_NEWEST_API);
  OrtStatus *status = GO(api, CreateCustomOpDomain)("probe", &domain);
  if (status == NULL) status = GO(api, CustomOpDomain_Add)(domain, &op);
  return status != NULL ? status : GO(api, AddCustomOpDomain)(options, domain);
}
