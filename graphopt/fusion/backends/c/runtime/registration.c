/* Kernels as custom operators of onnxruntime: RegisterCustomOps registers them, for one execution provider or several.

   The build writes "library.h":
     GO_PROVIDERS(each) each(go_cpu) and so on, for every provider of the library
     GO_PLACES(each)    each(0) each(1) ...: a number for every kernel of every provider, in their order */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "operators.h"

#define GO_DOMAIN "graphopt.native"

#define GO_PROVIDER_DECLARE(provider) extern const go_provider provider;
GO_PROVIDERS(GO_PROVIDER_DECLARE)
#define GO_PROVIDER_ENTRY(provider) &provider,
static const go_provider *const providers[] = {GO_PROVIDERS(GO_PROVIDER_ENTRY)};
enum { PROVIDERS = sizeof providers / sizeof *providers };

#define GO_PLACE_COUNT(place) +1
enum { PLACES = 0 GO_PLACES(GO_PLACE_COUNT) };

/* The name of the kernel at `place` of the first provider, counted from 0; NULL after the last. */
GO_EXPORT const char *graphopt_kernel(int place) {
  const go_kernel *kernel = place < 0 ? NULL : providers[0]->kernel_at(-1, place);
  return kernel == NULL ? NULL : kernel->name;
}

/* ---- The interface of an operator. ---- */

typedef struct {
  OrtCustomOp asked; /* the first member, for casts from OrtCustomOp * to operator_t * */
  const OrtApi *api;
  const go_provider *provider;
  const go_kernel *kernel;
} operator_t;

static const operator_t *whole(const OrtCustomOp *asked) { return (const operator_t *)asked; }

static const char *get_name(const OrtCustomOp *op) { return whole(op)->kernel->name; }
static const char *get_provider(const OrtCustomOp *op) { return whole(op)->provider->name; }
static size_t count_inputs(const OrtCustomOp *op) { return (size_t)whole(op)->kernel->inputs; }
static size_t count_outputs(const OrtCustomOp *op) { return (size_t)whole(op)->kernel->outputs; }
static int input_type(const OrtCustomOp *op, size_t index) { return whole(op)->kernel->input_types[index]; }
static int output_type(const OrtCustomOp *op, size_t index) { return whole(op)->kernel->output_types[index]; }
static int zero_of(const OrtCustomOp *op, size_t index) { return (void)op, (void)index, 0; }
static int one(const OrtCustomOp *op) { return (void)op, 1; }

static void destroy(void *kernel) {
  go_instance *instance = kernel;
  instance->provider->destroy(instance);
  free(instance);
}

static OrtStatus *create(const OrtCustomOp *asked, const OrtApi *api, const OrtKernelInfo *info, void **kernel) {
  const operator_t *op = whole(asked);
  go_instance *instance = calloc(1, sizeof *instance);
  if (instance == NULL) return go_out_of_memory(api);
  *instance = (go_instance){api, op->kernel, op->provider, NULL};
  OrtStatus *status = op->provider->create(instance, info);
  if (status == NULL)
    *kernel = instance;
  else
    free(instance);
  return status;
}

static OrtStatus *compute(void *kernel, OrtKernelContext *run) {
  const go_instance *instance = kernel;
  return instance->provider->compute(instance, run);
}

/* The provider of the kernel at `place`; NULL after the last. `place` becomes the index among the provider's kernels. */
static const go_provider *provider_at(int *place) {
  for (int at = 0; at < PROVIDERS; at++) {
    if (*place < providers[at]->count) return providers[at];
    *place -= providers[at]->count;
  }
  return NULL;
}

/* onnxruntime queries the pairs without an operator argument; therefore, each place has a separate function. */
static size_t pairs_of(int place, int **inputs, int **outputs) {
  const go_provider *provider = provider_at(&place);
  const go_kernel *kernel = provider == NULL ? NULL : provider->kernel_at(-1, place);
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

/* The operators of one variant of each provider for one onnxruntime. Sessions share them. They exist as long as the
   library, because onnxruntime does not report the end of the last session. */
typedef struct registered {
  struct registered *next;
  const OrtApi *api;
  int variants[PROVIDERS];
  OrtCustomOpDomain *domain;
  operator_t operators[PLACES];
} registered;

static registered *all = NULL;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static OrtStatus *fill(registered *entry, uint32_t version) {
  const OrtApi *api = entry->api;
  OrtStatus *status = GO(api, CreateCustomOpDomain)(GO_DOMAIN, &entry->domain);
  int place = 0;
  for (int at = 0; at < PROVIDERS; at++) {
    for (int own = 0; own < providers[at]->count; own++, place++) {
      if (entry->variants[at] < 0 || status != NULL) continue;
      operator_t *op = &entry->operators[place];
      op->asked = asked;
      op->asked.version = version;
      op->asked.GetMayInplace = pairs[place];
      op->api = api;
      op->provider = providers[at];
      op->kernel = providers[at]->kernel_at(entry->variants[at], own);
      status = GO(api, CustomOpDomain_Add)(entry->domain, &op->asked);
    }
  }
  return status;
}

/* Finds the entry for this onnxruntime and these variants, or creates it. */
static OrtStatus *find(const OrtApi *api, uint32_t version, const int *variants, registered **found) {
  OrtStatus *status = NULL;
  pthread_mutex_lock(&all_lock);
  registered *entry = all;
  while (entry != NULL && (entry->api != api || memcmp(entry->variants, variants, sizeof entry->variants) != 0))
    entry = entry->next;
  if (entry == NULL) {
    entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
      status = go_out_of_memory(api);
    } else {
      entry->api = api;
      memcpy(entry->variants, variants, sizeof entry->variants);
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

/* Runs when the library is unloaded, after the end of all sessions. */
__attribute__((destructor)) static void release_all(void) {
  while (all != NULL) {
    registered *entry = all;
    Dl_info info;
    go_slot release = NULL;
    all = entry->next;
    /* If onnxruntime was unloaded before, the memory of its table is no longer mapped. */
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
  /* onnxruntime 1.N has API version N. It prints an error for a newer version, so that its own version is requested. */
  if (major < 1 || (major == 1 && minor < GO_OLDEST_API)) {
    char text[160];
    const OrtApi *api = base->GetApi(1);
    snprintf(text, sizeof text, "graphopt's kernels need onnxruntime 1.%d or newer; this is %.40s", GO_OLDEST_API, name);
    return api == NULL ? NULL : GO(api, CreateStatus)(ORT_FAIL, text);
  }
  const uint32_t version = major == 1 && minor < GO_NEWEST_API ? (uint32_t)minor : GO_NEWEST_API;
  const OrtApi *api = base->GetApi(version);
  if (api == NULL) return NULL; /* an error can't be reported without the API; the function bodies run instead */
  int variants[PROVIDERS], usable = 0;
  for (int at = 0; at < PROVIDERS; at++) {
    variants[at] = version < providers[at]->oldest_api ? -1 : providers[at]->variant();
    usable += variants[at] >= 0;
  }
  if (usable == 0) return NULL; /* the function bodies run */
  registered *entry = NULL;
  OrtStatus *status = find(api, version, variants, &entry);
  return status != NULL ? status : GO(api, AddCustomOpDomain)(options, entry->domain);
}
