/* The tensors and failures of a run. */
#include <stdio.h>

#include "operators.h"

/* The address of the elements of empty tensors. */
static _Alignas(64) char nothing[64];

int go_fine(go_call *call, OrtStatus *status) {
  if (status == NULL) return 1;
  if (call->status == NULL)
    call->status = status;
  else
    GO(call->api, ReleaseStatus)(status);
  return 0;
}

OrtStatus *go_out_of_memory(const OrtApi *api) {
  return GO(api, CreateStatus)(ORT_FAIL, "graphopt's kernels: out of memory");
}

OrtStatus *go_run(go_call *call) {
  if (call->instance->kernel->run(call) != 0 && call->status == NULL) go_fail(call, "the kernel failed");
  return call->status;
}

void go_fail(go_call *call, const char *message) {
  if (call->status == NULL) call->status = GO(call->api, CreateStatus)(ORT_FAIL, message);
}

static void fail_at(go_call *call, const char *what, int index, const char *problem, long long number) {
  char text[200];
  snprintf(text, sizeof text, "%s %d %s %lld", what, index, problem, number);
  go_fail(call, text);
}

const void *go_input(go_call *call, int index, int rank, int64_t *dims) {
  const OrtApi *api = call->api;
  const OrtValue *value = NULL;
  OrtTensorTypeAndShapeInfo *info = NULL;
  size_t found = 0;
  void *data = NULL;
  if (!go_fine(call, GO(api, KernelContext_GetInput)(call->run, (size_t)index, &value))) return NULL;
  if (value == NULL) {
    fail_at(call, "input", index, "is not given; its rank should be", rank);
    return NULL;
  }
  if (!go_fine(call, GO(api, GetTensorTypeAndShape)(value, &info))) return NULL;
  int good = go_fine(call, GO(api, GetDimensionsCount)(info, &found));
  if (good && found != (size_t)rank) {
    fail_at(call, "input", index, "has another rank than it was made for:", (long long)found);
    good = 0;
  }
  if (good && rank > 0) good = go_fine(call, GO(api, GetDimensions)(info, dims, found));
  GO(api, ReleaseTensorTypeAndShapeInfo)(info);
  if (!good || !go_fine(call, GO(api, GetTensorMutableData)((OrtValue *)value, &data))) return NULL;
  return data == NULL ? nothing : data;
}

void *go_output(go_call *call, int index, int rank, const int64_t *dims) {
  OrtValue *value = NULL;
  void *data = NULL;
  if (!go_fine(call, GO(call->api, KernelContext_GetOutput)(call->run, (size_t)index, dims, (size_t)rank, &value)))
    return NULL;
  if (value == NULL) {
    fail_at(call, "output", index, "has no place; its rank is", rank);
    return NULL;
  }
  if (!go_fine(call, GO(call->api, GetTensorMutableData)(value, &data))) return NULL;
  return data == NULL ? nothing : data;
}

void *go_elements_of(const OrtApi *api, OrtValue *value, int rank, int64_t *dims, OrtStatus **status) {
  OrtTensorTypeAndShapeInfo *info = NULL;
  size_t found = 0;
  void *data = NULL;
  *status = GO(api, GetTensorTypeAndShape)(value, &info);
  if (*status != NULL) return NULL;
  *status = GO(api, GetDimensionsCount)(info, &found);
  if (*status == NULL && found != (size_t)rank) *status = GO(api, CreateStatus)(ORT_FAIL, "a constant has another rank");
  if (*status == NULL && rank > 0) *status = GO(api, GetDimensions)(info, dims, found);
  GO(api, ReleaseTensorTypeAndShapeInfo)(info);
  if (*status == NULL) *status = GO(api, GetTensorMutableData)(value, &data);
  return *status != NULL ? NULL : data == NULL ? nothing : data;
}
