/* Operators of onnxruntime, as the parts of the runtime share them. */
#ifndef GRAPHOPT_OPERATORS_H
#define GRAPHOPT_OPERATORS_H

#include "abi.h"
#include "runtime.h"

#define GO_EXPORT __attribute__((visibility("default")))

typedef struct go_provider go_provider;

/* A kernel of one node in one session. */
typedef struct go_instance {
  const OrtApi *api;
  const go_kernel *kernel;
  const go_provider *provider;
  void *state; /* of the provider */
} go_instance;

/* Kernels for one execution provider of onnxruntime. */
struct go_provider {
  const char *name;    /* of the execution provider */
  uint32_t oldest_api; /* the API version that the kernels need */
  int count;           /* of kernels */
  /* The variant of the kernels for new sessions, such as a level of x86-64; negative if none runs on this machine. */
  int (*variant)(void);
  const go_kernel *(*kernel_at)(int variant, int place);
  /* A failure leaves nothing behind. */
  OrtStatus *(*create)(go_instance *instance, const OrtKernelInfo *info);
  void (*destroy)(go_instance *instance);
  OrtStatus *(*compute)(const go_instance *instance, OrtKernelContext *run);
};

/* The providers of the library, which "library.h" lists: GO_PROVIDERS(each) is each(go_cpu) and so on. */
extern const go_provider go_cpu;

/* One run of one kernel: the start of the run's state of each provider. */
struct go_call {
  const OrtApi *api;
  OrtKernelContext *run;
  const go_instance *instance;
  OrtStatus *status; /* the first failure */
};

/* Whether `status` is fine; if not, it is kept as the run's, or released if that has one. */
int go_fine(go_call *call, OrtStatus *status);

/* Runs the kernel of a call; its status is not NULL after a failure. */
OrtStatus *go_run(go_call *call);

/* The failure of an operator that can't allocate memory. */
OrtStatus *go_out_of_memory(const OrtApi *api);

/* The elements of `value`, which has `rank` dims; NULL, with a failure, if its rank is another one. */
void *go_elements_of(const OrtApi *api, OrtValue *value, int rank, int64_t *dims, OrtStatus **status);

#endif
