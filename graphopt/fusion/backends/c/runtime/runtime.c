/* Kernels as custom operators of onnxruntime: RegisterCustomOps registers them, and kernels call the other functions.

   The build writes "library.h", which lists the units of the library:
     GO_UNITS(each)  each(level, unit) for every unit of every level
     GO_PLACES(each) each(0) each(1) ...: a number for every kernel of a level */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi.h"
#include "levels.h"
#include "library.h"
#include "packed.h"
#include "runtime.h"

#define GO_EXPORT __attribute__((visibility("default")))
#define GO_DOMAIN "graphopt.native"

/* ---- The kernels of the library: in each level the same ones, in the same order. ---- */

#define GO_UNIT_DECLARE(level, unit)                    \
  extern const go_kernel go_kernels_v##level##_u##unit[]; \
  extern const int go_kernel_count_v##level##_u##unit;
GO_UNITS(GO_UNIT_DECLARE)

typedef struct {
  int level;
  const go_kernel *kernels;
  const int *count;
} go_unit;

#define GO_UNIT_ENTRY(level, unit) {level, go_kernels_v##level##_u##unit, &go_kernel_count_v##level##_u##unit},
static const go_unit units[] = {GO_UNITS(GO_UNIT_ENTRY)};
enum { UNITS = sizeof units / sizeof *units };

#define GO_PLACE_COUNT(place) +1
enum { PLACES = 0 GO_PLACES(GO_PLACE_COUNT) };

/* The kernel at `place` in the order of the level's units; NULL after the last. */
static const go_kernel *kernel_at(int level, int place) {
  for (int at = 0; at < UNITS; at++) {
    if (units[at].level != level) continue;
    if (place < *units[at].count) return &units[at].kernels[place];
    place -= *units[at].count;
  }
  return NULL;
}

/* ---- The level in use. ---- */

static int wanted_level = -1; /* -1: nothing was set */

static int has_level(int level) {
  for (int at = 0; at < UNITS; at++)
    if (units[at].level == level) return 1;
  return 0;
}

/* Selects the kernels of `level` for new sessions; -1 ends that. It takes precedence over the environment variable
   GRAPHOPT_CPU_LEVEL. A level that the CPU or the library lacks is ignored. */
GO_EXPORT void graphopt_set_cpu_level(int level) { __atomic_store_n(&wanted_level, level, __ATOMIC_RELAXED); }

/* The level of new sessions: the highest of the library that the CPU supports, or a lower one that was selected;
   -1 if the library has none for this CPU. */
GO_EXPORT int graphopt_cpu_level(void) {
  const int most = go_cpu_level();
  const char *text = getenv("GRAPHOPT_CPU_LEVEL");
  int wanted = __atomic_load_n(&wanted_level, __ATOMIC_RELAXED);
  if (wanted < 0 && text != NULL && text[0] >= '0' && text[0] <= '9' && text[1] == '\0') wanted = text[0] - '0';
  if (wanted >= 0 && wanted <= most && has_level(wanted)) return wanted;
  for (int level = most; level >= 0; level--)
    if (has_level(level)) return level;
  return -1;
}

/* The name of the kernel at `place`, counted from 0; NULL after the last. */
GO_EXPORT const char *graphopt_kernel(int place) {
  const go_kernel *kernel = place < 0 ? NULL : kernel_at(units[0].level, place);
  return kernel == NULL ? NULL : kernel->name;
}

/* ---- Kernels that run. ---- */

typedef struct {
  OrtCustomOp asked; /* first, so that onnxruntime's pointer to it is one to the whole */
  const OrtApi *api;
  const go_kernel *kernel;
} operator_t;

/* A kernel of one node in one session. */
typedef struct {
  const operator_t *op;
  go_shared_constant *packed[GO_MOST_CONSTANTS]; /* NULL if the input is not constant */
} instance_t;

struct go_call {
  const OrtApi *api;
  OrtKernelContext *run;
  const go_kernel *kernel;
  OrtStatus *status; /* the first failure */
  const instance_t *instance;
  void *packed[GO_MOST_CONSTANTS]; /* packed for this run only */
};

/* The address of the elements of empty tensors. */
static _Alignas(64) char nothing[64];

/* Whether `status` is fine; if not, it is kept as the run's, or given up if that has one. */
static int fine(go_call *call, OrtStatus *status) {
  if (status == NULL) return 1;
  if (call->status == NULL)
    call->status = status;
  else
    GO(call->api, ReleaseStatus)(status);
  return 0;
}

void go_fail(go_call *call, const char *message) {
  if (call->status == NULL) call->status = GO(call->api, CreateStatus)(ORT_FAIL, message);
}

static void fail_at(go_call *call, const char *what, int index, const char *problem, long long number) {
  char text[200];
  snprintf(text, sizeof text, "%s %d of kernel %.100s %s %lld", what, index, call->kernel->name, problem, number);
  go_fail(call, text);
}

const void *go_input(go_call *call, int index, int rank, int64_t *dims) {
  const OrtApi *api = call->api;
  const OrtValue *value = NULL;
  OrtTensorTypeAndShapeInfo *info = NULL;
  size_t found = 0;
  void *data = NULL;
  if (!fine(call, GO(api, KernelContext_GetInput)(call->run, (size_t)index, &value))) return NULL;
  if (value == NULL) {
    fail_at(call, "input", index, "is not given; its rank should be", rank);
    return NULL;
  }
  if (!fine(call, GO(api, GetTensorTypeAndShape)(value, &info))) return NULL;
  int good = fine(call, GO(api, GetDimensionsCount)(info, &found));
  if (good && found != (size_t)rank) {
    fail_at(call, "input", index, "has another rank than it was made for:", (long long)found);
    good = 0;
  }
  if (good && rank > 0) good = fine(call, GO(api, GetDimensions)(info, dims, found));
  GO(api, ReleaseTensorTypeAndShapeInfo)(info);
  if (!good || !fine(call, GO(api, GetTensorMutableData)((OrtValue *)value, &data))) return NULL;
  return data == NULL ? nothing : data;
}

void *go_output(go_call *call, int index, int rank, const int64_t *dims) {
  OrtValue *value = NULL;
  void *data = NULL;
  if (!fine(call, GO(call->api, KernelContext_GetOutput)(call->run, (size_t)index, dims, (size_t)rank, &value)))
    return NULL;
  if (value == NULL) {
    fail_at(call, "output", index, "has no place; its rank is", rank);
    return NULL;
  }
  if (!fine(call, GO(call->api, GetTensorMutableData)(value, &data))) return NULL;
  return data == NULL ? nothing : data;
}

void go_parallel(go_call *call, void (*body)(void *data, size_t index), void *data, size_t count) {
  if (count == 1)
    body(data, 0);
  else if (count > 1) /* 0 batches: each thread takes the next index when it is done with one */
    fine(call, GO(call->api, KernelContext_ParallelFor)(call->run, body, count, 0, data));
}

/* The elements of `value`, which has `rank` dims; NULL, with a failure, if its rank is another one. */
static void *elements_of(const OrtApi *api, OrtValue *value, int rank, int64_t *dims, OrtStatus **status) {
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

const void *go_packed_operand(go_call *call, int index) {
  const go_constant *constant = &call->kernel->constants[index];
  int64_t dims[GO_MOST_DIMS];
  if (call->instance->packed[index] != NULL) return call->instance->packed[index]->elements;
  if (call->packed[index] != NULL) return call->packed[index];
  const void *from = go_input(call, constant->input, constant->rank, dims);
  if (from == NULL) return NULL;
  void *to = go_aligned(constant->size(dims));
  if (to == NULL) {
    go_fail(call, "graphopt's kernels: out of memory");
    return NULL;
  }
  constant->pack(from, dims, to);
  return call->packed[index] = to;
}

const void *go_packed_constant(go_call *call, int index) {
  const go_shared_constant *packed = call->instance->packed[index];
  return packed == NULL ? NULL : packed->elements;
}

/* ---- The interface of an operator. ---- */

static const operator_t *whole(const OrtCustomOp *asked) { return (const operator_t *)asked; }

static const char *get_name(const OrtCustomOp *op) { return whole(op)->kernel->name; }
static const char *get_provider(const OrtCustomOp *op) { return (void)op, "CPUExecutionProvider"; }
static size_t count_inputs(const OrtCustomOp *op) { return (size_t)whole(op)->kernel->inputs; }
static size_t count_outputs(const OrtCustomOp *op) { return (size_t)whole(op)->kernel->outputs; }
static int input_type(const OrtCustomOp *op, size_t index) { return whole(op)->kernel->input_types[index]; }
static int output_type(const OrtCustomOp *op, size_t index) { return whole(op)->kernel->output_types[index]; }
static int zero_of(const OrtCustomOp *op, size_t index) { return (void)op, (void)index, 0; }
static int one(const OrtCustomOp *op) { return (void)op, 1; }

static void destroy(void *kernel) {
  instance_t *instance = kernel;
  for (int index = 0; index < GO_MOST_CONSTANTS; index++) go_release(instance->packed[index]);
  free(instance);
}

static OrtStatus *create(const OrtCustomOp *asked, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
  const operator_t *op = whole(asked);
  OrtStatus *status = NULL;
  instance_t *instance = calloc(1, sizeof *instance);
  if (instance == NULL) return GO(api, CreateStatus)(ORT_FAIL, "graphopt's kernels: out of memory");
  instance->op = op;
  for (int index = 0; index < op->kernel->constant_count && status == NULL; index++) {
    const go_constant *constant = &op->kernel->constants[index];
    const OrtValue *value = NULL;
    int is_constant = 0;
    int64_t dims[GO_MOST_DIMS];
    status = GO(api, KernelInfoGetConstantInput_tensor)(info, (size_t)constant->input, &is_constant, &value);
    if (status != NULL || !is_constant || value == NULL) continue;
    const void *from = elements_of(api, (OrtValue *)value, constant->rank, dims, &status);
    if (from == NULL) continue;
    instance->packed[index] = go_pack(constant, from, dims, (size_t)op->kernel->input_types[constant->input]);
    if (instance->packed[index] == NULL)
      status = GO(api, CreateStatus)(ORT_FAIL, "graphopt's kernels: out of memory for packed weights");
  }
  if (status == NULL)
    *kernel = instance;
  else
    destroy(instance);
  return status;
}

static OrtStatus *compute(void *kernel, OrtKernelContext *run) {
  const instance_t *instance = kernel;
  const operator_t *op = instance->op;
  go_call call = {op->api, run, op->kernel, NULL, instance, {NULL}};
  if (op->kernel->run(&call) != 0 && call.status == NULL) go_fail(&call, "the kernel failed");
  for (int index = 0; index < op->kernel->constant_count; index++) free(call.packed[index]);
  return call.status;
}

/* onnxruntime passes no operator when it queries the pairs, so that each place has a separate function. */
static size_t pairs_of(int place, int **inputs, int **outputs) {
  const go_kernel *kernel = kernel_at(units[0].level, place);
  const size_t count = kernel == NULL ? 0 : (size_t)kernel->in_place_pairs;
  *inputs = *outputs = NULL;
  if (count == 0) return 0;
  *inputs = malloc(2 * count * sizeof(int));
  if (*inputs == NULL) return 0;
  *outputs = *inputs + count;
  for (size_t at = 0; at < count; at++) {
    (*inputs)[at] = kernel->in_place[2 * at];
    (*outputs)[at] = kernel->in_place[2 * at + 1];
  }
  return count;
}
static void release_pairs(int *inputs, int *outputs) {
  (void)outputs; /* the second half of the same memory */
  free(inputs);
}
static size_t no_pairs(int **inputs, int **outputs) { return *inputs = *outputs = NULL, 0; }

#define GO_PAIRS(place) \
  static size_t pairs_##place(int **inputs, int **outputs) { return pairs_of(place, inputs, outputs); }
GO_PLACES(GO_PAIRS)
#define GO_PAIRS_ENTRY(place) pairs_##place,
static size_t (*const pairs[])(int **, int **) = {GO_PLACES(GO_PAIRS_ENTRY)};

static const OrtCustomOp asked = {
    .GetName = get_name,
    .GetExecutionProviderType = get_provider,
    .GetInputType = input_type,
    .GetInputTypeCount = count_inputs,
    .GetOutputType = output_type,
    .GetOutputTypeCount = count_outputs,
    .KernelDestroy = destroy,
    .GetInputCharacteristic = zero_of,
    .GetOutputCharacteristic = zero_of,
    .GetInputMemoryType = zero_of,
    .GetVariadicInputMinArity = one,
    .GetVariadicInputHomogeneity = one,
    .GetVariadicOutputMinArity = one,
    .GetVariadicOutputHomogeneity = one,
    .CreateKernelV2 = create,
    .KernelComputeV2 = compute,
    .GetStartVersion = one,
    .GetEndVersion = one,
    .ReleaseMayInplace = release_pairs,
    .GetAliasMap = no_pairs,
    .ReleaseAliasMap = release_pairs,
};

/* ---- Registration. ---- */

/* The operators of one level for one onnxruntime. Sessions share it. It exists as long as the library, because
   the end of the last session is not reported. */
typedef struct registered {
  struct registered *next;
  const OrtApi *api;
  int level;
  OrtCustomOpDomain *domain;
  operator_t operators[PLACES];
} registered;

static registered *all = NULL;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static OrtStatus *fill(registered *entry, uint32_t version) {
  const OrtApi *api = entry->api;
  OrtStatus *status = GO(api, CreateCustomOpDomain)(GO_DOMAIN, &entry->domain);
  for (int place = 0; place < PLACES && status == NULL; place++) {
    operator_t *op = &entry->operators[place];
    op->asked = asked;
    op->asked.version = version;
    op->asked.GetMayInplace = pairs[place];
    op->api = api;
    op->kernel = kernel_at(entry->level, place);
    status = GO(api, CustomOpDomain_Add)(entry->domain, &op->asked);
  }
  return status;
}

/* The entry for this onnxruntime and level, made if there is none. */
static OrtStatus *find(const OrtApi *api, uint32_t version, int level, registered **found) {
  OrtStatus *status = NULL;
  pthread_mutex_lock(&all_lock);
  registered *entry = all;
  while (entry != NULL && (entry->api != api || entry->level != level)) entry = entry->next;
  if (entry == NULL) {
    entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
      status = GO(api, CreateStatus)(ORT_FAIL, "graphopt's kernels: out of memory");
    } else {
      entry->api = api;
      entry->level = level;
      status = fill(entry, version);
      if (status == NULL) {
        entry->next = all;
        all = entry;
      } else {
        if (entry->domain != NULL) GO(api, ReleaseCustomOpDomain)(entry->domain);
        free(entry);
      }
    }
  }
  pthread_mutex_unlock(&all_lock);
  *found = entry;
  return status;
}

/* Runs when the library is unloaded, which sessions have to outlive. */
__attribute__((destructor)) static void release_all(void) {
  while (all != NULL) {
    registered *entry = all;
    Dl_info info;
    go_slot release = NULL;
    all = entry->next;
    /* A program that unloaded onnxruntime before has freed the memory of its table, too. */
    if (dladdr((const void *)entry->api, &info) != 0) release = entry->api->slots[go_slot_ReleaseCustomOpDomain];
    if (release != NULL) ((go_type_ReleaseCustomOpDomain)release)(entry->domain);
    free(entry);
  }
}

/* onnxruntime's entry point for libraries of custom operators. */
GO_EXPORT OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
  const char *name = base->GetVersionString();
  int major = 0, minor = 0;
  if (sscanf(name, "%d.%d", &major, &minor) != 2) major = minor = 0;
  /* API version N is that of 1.N. An older host prints an error for it, so that its own version is requested. */
  if (major < 1 || (major == 1 && minor < GO_OLDEST_API)) {
    char text[160];
    const OrtApi *api = base->GetApi(1);
    snprintf(text, sizeof text, "graphopt's kernels need onnxruntime 1.%d or newer; this is %.40s", GO_OLDEST_API, name);
    return api == NULL ? NULL : GO(api, CreateStatus)(ORT_FAIL, text);
  }
  const uint32_t version = major == 1 && minor < GO_NEWEST_API ? (uint32_t)minor : GO_NEWEST_API;
  const OrtApi *api = base->GetApi(version);
  if (api == NULL) return NULL; /* it can't be told anything; the bodies of the functions run instead */
  const int level = graphopt_cpu_level();
  if (level < 0) return NULL; /* the same */
  registered *entry = NULL;
  OrtStatus *status = find(api, version, level, &entry);
  return status != NULL ? status : GO(api, AddCustomOpDomain)(options, entry->domain);
}
