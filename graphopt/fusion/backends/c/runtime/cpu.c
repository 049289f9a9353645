/* The provider for CPUs: kernels of several levels of x86-64, constants in the layouts of kernels, and threads.

   The build writes "library.h", which lists the units of the library:
     GO_UNITS(each) each(level, unit) for every unit of every level
     GO_CPU_COUNT   the number of kernels of a level */
#include <stdlib.h>

#include "levels.h"
#include "library.h"
#include "operators.h"
#include "packed.h"

/* ---- The kernels of the library: each level has the same kernels in the same order. ---- */

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

/* The kernel at `place` in the order of the level's units; NULL after the last. A negative level selects any level. */
static const go_kernel *kernel_at(int level, int place) {
  if (level < 0) level = units[0].level;
  for (int at = 0; at < UNITS; at++) {
    if (units[at].level != level) continue;
    if (place < *units[at].count) return &units[at].kernels[place];
    place -= *units[at].count;
  }
  return NULL;
}

/* ---- The level in use. ---- */

static int wanted_level = -1; /* -1: unset */

static int has_level(int level) {
  for (int at = 0; at < UNITS; at++)
    if (units[at].level == level) return 1;
  return 0;
}

/* Selects the kernels of `level` for new sessions; -1 resets it. It takes precedence over the environment variable
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

/* ---- Packed constants. ---- */

/* The state of an instance. */
typedef struct {
  go_shared_constant *packed[GO_MOST_CONSTANTS]; /* NULL if the input is not constant */
} constants_t;

/* One run. */
typedef struct {
  go_call call; /* the first member, for casts from go_call * to cpu_call * */
  void *packed[GO_MOST_CONSTANTS]; /* packed for this run only */
} cpu_call;

static void destroy(go_instance *instance) {
  constants_t *constants = instance->state;
  for (int index = 0; index < GO_MOST_CONSTANTS; index++) go_release(constants->packed[index]);
  free(constants);
}

static OrtStatus *create(go_instance *instance, const OrtKernelInfo *info) {
  const OrtApi *api = instance->api;
  const go_kernel *kernel = instance->kernel;
  OrtStatus *status = NULL;
  constants_t *constants = instance->state = calloc(1, sizeof *constants);
  if (constants == NULL) return go_out_of_memory(api);
  for (int index = 0; index < kernel->constant_count && status == NULL; index++) {
    const go_constant *constant = &kernel->constants[index];
    const OrtValue *value = NULL;
    int is_constant = 0;
    int64_t dims[GO_MOST_DIMS];
    status = GO(api, KernelInfoGetConstantInput_tensor)(info, (size_t)constant->input, &is_constant, &value);
    if (status != NULL || !is_constant || value == NULL) continue;
    const void *from = go_elements_of(api, (OrtValue *)value, constant->rank, dims, &status);
    if (from == NULL) continue;
    constants->packed[index] = go_pack(constant, from, dims, (size_t)kernel->input_types[constant->input]);
    if (constants->packed[index] == NULL)
      status = GO(api, CreateStatus)(ORT_FAIL, "graphopt's kernels: out of memory for packed weights");
  }
  if (status != NULL) destroy(instance);
  return status;
}

const void *go_packed_constant(go_call *call, int index) {
  const constants_t *constants = call->instance->state;
  const go_shared_constant *packed = constants->packed[index];
  return packed == NULL ? NULL : packed->elements;
}

const void *go_packed_operand(go_call *call, int index) {
  const go_constant *constant = &call->instance->kernel->constants[index];
  void **packed = &((cpu_call *)call)->packed[index];
  int64_t dims[GO_MOST_DIMS];
  const void *shared = go_packed_constant(call, index);
  if (shared != NULL) return shared;
  if (*packed != NULL) return *packed;
  const void *from = go_input(call, constant->input, constant->rank, dims);
  if (from == NULL) return NULL;
  void *to = go_aligned(constant->size(dims));
  if (to == NULL) {
    go_fail(call, "graphopt's kernels: out of memory");
    return NULL;
  }
  constant->pack(from, dims, to);
  return *packed = to;
}

/* ---- Runs. ---- */

void go_parallel(go_call *call, void (*body)(void *data, size_t index), void *data, size_t count) {
  if (count == 1)
    body(data, 0);
  else if (count > 1) /* 0 batches: each thread fetches the next index after each call */
    go_fine(call, GO(call->api, KernelContext_ParallelFor)(call->run, body, count, 0, data));
}

static OrtStatus *compute(const go_instance *instance, OrtKernelContext *run) {
  cpu_call call = {{instance->api, run, instance, NULL}, {NULL}};
  OrtStatus *status = go_run(&call.call);
  for (int index = 0; index < instance->kernel->constant_count; index++) free(call.packed[index]);
  return status;
}

const go_provider go_cpu = {
    .name = "CPUExecutionProvider",
    .oldest_api = GO_OLDEST_API,
    .count = GO_CPU_COUNT,
    .variant = graphopt_cpu_level,
    .kernel_at = kernel_at,
    .create = create,
    .destroy = destroy,
    .compute = compute,
};
