/* The part of onnxruntime's C interface that the runtime of kernels uses, declared here because onnxruntime's
   packages bring no header.

   The functions are in a table, OrtApi, to which versions only append: a slot never moves.
   The numbers below are those of onnxruntime 1.17 (API version 17, the order of `ort_api_1_to_17` in
   onnxruntime_c_api.cc, whose assertions fix slots 101, 118, 124 ... 266), and were compared with the headers of
   versions 14 to 29. Kernels for CUDA also use two slots of version 18, whose last one is 279. */
#ifndef GRAPHOPT_ABI_H
#define GRAPHOPT_ABI_H

#include <stddef.h>
#include <stdint.h>

#define GO_OLDEST_API 17 /* the first version with KernelContext_ParallelFor */
#define GO_NEWEST_API 18 /* it adds GetMayInplace and KernelContext_GetScratchBuffer; no newer function is used */

typedef void (*go_slot)(void);
typedef struct OrtApi {
  go_slot slots[280]; /* of version 18; version 17 has 276 */
} OrtApi;
typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t version); /* NULL if the host is older */
  const char *(*GetVersionString)(void);
} OrtApiBase;

typedef struct OrtStatus OrtStatus; /* NULL for success */
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtValue OrtValue;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtCustomOp OrtCustomOp;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtMemoryInfo OrtMemoryInfo;

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 }; /* of OrtErrorCode */

/* slot, name, result, arguments */
#define GO_API(each)                                                                                                 \
  each(0, CreateStatus, OrtStatus *, (int code, const char *message))                                                \
  each(26, CreateCustomOpDomain, OrtStatus *, (const char *name, OrtCustomOpDomain **domain))                        \
  each(27, CustomOpDomain_Add, OrtStatus *, (OrtCustomOpDomain * domain, const OrtCustomOp *op))                     \
  each(28, AddCustomOpDomain, OrtStatus *, (OrtSessionOptions * options, OrtCustomOpDomain *domain))                 \
  each(51, GetTensorMutableData, OrtStatus *, (OrtValue * value, void **data))                                       \
  each(61, GetDimensionsCount, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, size_t *rank))                   \
  each(62, GetDimensions, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t rank))          \
  each(65, GetTensorTypeAndShape, OrtStatus *, (const OrtValue *value, OrtTensorTypeAndShapeInfo **info))            \
  each(72, MemoryInfoGetId, OrtStatus *, (const OrtMemoryInfo *info, int *id))                                       \
  each(76, AllocatorFree, OrtStatus *, (OrtAllocator * allocator, void *memory))                                     \
  each(77, AllocatorGetInfo, OrtStatus *, (const OrtAllocator *allocator, const OrtMemoryInfo **info))               \
  each(90, KernelContext_GetInput, OrtStatus *, (const OrtKernelContext *run, size_t index, const OrtValue **value)) \
  each(91, KernelContext_GetOutput, OrtStatus *,                                                                     \
       (OrtKernelContext * run, size_t index, const int64_t *dims, size_t rank, OrtValue **value))                   \
  each(93, ReleaseStatus, void, (OrtStatus * status))                                                                \
  each(99, ReleaseTensorTypeAndShapeInfo, void, (OrtTensorTypeAndShapeInfo * info))                                  \
  each(101, ReleaseCustomOpDomain, void, (OrtCustomOpDomain * domain))                                               \
  each(132, ReleaseAllocator, void, (OrtAllocator * allocator))                                                      \
  each(193, KernelContext_GetGPUComputeStream, OrtStatus *, (const OrtKernelContext *run, void **stream))            \
  each(249, KernelInfoGetConstantInput_tensor, OrtStatus *,                                                          \
       (const OrtKernelInfo *info, size_t index, int *is_constant, const OrtValue **value))                          \
  each(274, KernelContext_ParallelFor, OrtStatus *,                                                                  \
       (const OrtKernelContext *run, void (*body)(void *, size_t), size_t count, size_t batches, void *data))        \
  each(277, KernelContext_GetScratchBuffer, OrtStatus *,                                                             \
       (const OrtKernelContext *run, const OrtMemoryInfo *info, size_t bytes, void **memory))                        \
  each(278, KernelInfoGetAllocator, OrtStatus *, (const OrtKernelInfo *info, int type, OrtAllocator **allocator))

#define GO_DECLARE(slot, name, result, arguments) \
  enum { go_slot_##name = slot };                 \
  typedef result(*go_type_##name) arguments;
GO_API(GO_DECLARE)

/* The function `name` of a table. */
#define GO(api, name) ((go_type_##name)(api)->slots[go_slot_##name])

/* An operator. onnxruntime reads as many members as `version` has. */
struct OrtCustomOp {
  uint32_t version;
  void *(*CreateKernel)(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *);
  const char *(*GetName)(const OrtCustomOp *);
  const char *(*GetExecutionProviderType)(const OrtCustomOp *); /* NULL: the CPU's */
  int (*GetInputType)(const OrtCustomOp *, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp *);
  int (*GetOutputType)(const OrtCustomOp *, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp *);
  void (*KernelCompute)(void *kernel, OrtKernelContext *);
  void (*KernelDestroy)(void *kernel);
  /* from version 8 on: 0 for required, 1 for optional, 2 for variadic */
  int (*GetInputCharacteristic)(const OrtCustomOp *, size_t index);
  int (*GetOutputCharacteristic)(const OrtCustomOp *, size_t index);
  /* 13: 0 for the memory of the execution provider */
  int (*GetInputMemoryType)(const OrtCustomOp *, size_t index);
  /* 14 */
  int (*GetVariadicInputMinArity)(const OrtCustomOp *);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp *);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp *);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp *);
  /* 16: these two come before CreateKernel and KernelCompute, and can fail */
  OrtStatus *(*CreateKernelV2)(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *, void **kernel);
  OrtStatus *(*KernelComputeV2)(void *kernel, OrtKernelContext *);
  /* 17 */
  OrtStatus *(*InferOutputShapeFn)(const OrtCustomOp *, void *);
  int (*GetStartVersion)(const OrtCustomOp *);
  int (*GetEndVersion)(const OrtCustomOp *);
  /* 18: pairs of an input and an output that may share memory; arrays that the second function takes back */
  size_t (*GetMayInplace)(int **inputs, int **outputs);
  void (*ReleaseMayInplace)(int *inputs, int *outputs);
  size_t (*GetAliasMap)(int **inputs, int **outputs);
  void (*ReleaseAliasMap)(int *inputs, int *outputs);
};

#endif
