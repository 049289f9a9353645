/* Operators of onnxruntime: the interface between the parts of the runtime. */
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
  /* A failure releases everything that it created. */
  OrtStatus *(*create)(go_instance *instance, const OrtKernelInfo *info);
  void (*destroy)(go_instance *instance);
  OrtStatus *(*compute)(const go_instance *instance, OrtKernelContext *run);
};

/* The providers of the library, which "library.h" lists: GO_PROVIDERS(each) is each(go_cpu) and so on. */
extern const go_provider go_cpu;

/* One run of one kernel: the first member of each provider's state of a run. */
struct go_call {
  const OrtApi *api;
  OrtKernelContext *run;
  const go_instance *instance;
  OrtStatus *status; /* the first failure */
};

/* Whether `status` is success. The first failure becomes the status of the run, others are released. */
int go_fine(go_call *call, OrtStatus *status);

/* Runs the kernel of a call; returns NULL for success. */
OrtStatus *go_run(go_call *call);

/* The failure of an operator that can't allocate memory. */
OrtStatus *go_out_of_memory(const OrtApi *api);

/* The elements of `value`; NULL, with a failure in `status`, if its rank is not `rank`. */
void *go_elements_of(const OrtApi *api, OrtValue *value, int rank, int64_t *dims, OrtStatus **status);

#endif
