/* A program that runs a model with onnxruntime's C interface and a library of kernels.

   host ONNXRUNTIME.so MODEL LIBRARY LEVEL NAME:TYPE:DIMxDIM...:FILE ... -- NAME:FILE ...
   LIBRARY may be "-", for none; LEVEL is onnxruntime's, 0 or 99; TYPE is the number of an element type in ONNX;
   a file holds the raw elements of an input, or is written with those of an output. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtMemoryInfo OrtMemoryInfo;

#define HOST_API(each)                                                                                              \
  each(2, GetErrorMessage, const char *, (const OrtStatus *))                                                       \
  each(3, CreateEnv, OrtStatus *, (int severity, const char *name, OrtEnv **))                                      \
  each(7, CreateSession, OrtStatus *, (const OrtEnv *, const char *path, const OrtSessionOptions *, OrtSession **)) \
  each(9, Run, OrtStatus *,                                                                                         \
       (OrtSession *, const void *options, const char *const *, const OrtValue *const *, size_t,                    \
        const char *const *, size_t, OrtValue **))                                                                  \
  each(10, CreateSessionOptions, OrtStatus *, (OrtSessionOptions * *))                                              \
  each(17, DisableMemPattern, OrtStatus *, (OrtSessionOptions *))                                                   \
  each(19, DisableCpuMemArena, OrtStatus *, (OrtSessionOptions *))                                                  \
  each(23, SetSessionGraphOptimizationLevel, OrtStatus *, (OrtSessionOptions *, int))                               \
  each(49, CreateTensorWithDataAsOrtValue, OrtStatus *,                                                             \
       (const OrtMemoryInfo *, void *, size_t bytes, const int64_t *, size_t rank, int type, OrtValue **))          \
  each(60, GetTensorElementType, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int *))                           \
  each(64, GetTensorShapeElementCount, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, size_t *))                  \
  each(69, CreateCpuMemoryInfo, OrtStatus *, (int allocator, int memory, OrtMemoryInfo **))                         \
  each(92, ReleaseEnv, void, (OrtEnv *))                                                                            \
  each(94, ReleaseMemoryInfo, void, (OrtMemoryInfo *))                                                              \
  each(95, ReleaseSession, void, (OrtSession *))                                                                    \
  each(96, ReleaseValue, void, (OrtValue *))                                                                        \
  each(100, ReleaseSessionOptions, void, (OrtSessionOptions *))                                                     \
  each(228, RegisterCustomOpsLibrary_V2, OrtStatus *, (OrtSessionOptions *, const char *path))
HOST_API(GO_DECLARE)

enum { MOST = 32 };
static const OrtApi *api;

static void check(OrtStatus *status) {
  if (status == NULL) return;
  fprintf(stderr, "%s\n", GO(api, GetErrorMessage)(status));
  exit(1);
}

static size_t bytes_of(int type) {
  switch (type) {
    case 2: case 3: case 9: return 1;
    case 10: case 16: return 2;
    case 1: case 6: return 4;
    default: return 8;
  }
}

int main(int count, char **words) {
  if (count < 5) return 2;
  void *handle = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) return fprintf(stderr, "%s\n", dlerror()), 2;
  const OrtApiBase *(*get)(void);
  *(void **)&get = dlsym(handle, "OrtGetApiBase");
  api = get()->GetApi(14);

  OrtEnv *env;
  OrtSessionOptions *options;
  OrtSession *session;
  OrtMemoryInfo *memory;
  check(GO(api, CreateEnv)(4, "host", &env));
  check(GO(api, CreateSessionOptions)(&options));
  check(GO(api, SetSessionGraphOptimizationLevel)(options, atoi(words[4])));
  /* each tensor is memory of its own, so that sanitizers see who writes beyond one */
  check(GO(api, DisableMemPattern)(options));
  check(GO(api, DisableCpuMemArena)(options));
  if (strcmp(words[3], "-") != 0) check(GO(api, RegisterCustomOpsLibrary_V2)(options, words[3]));
  check(GO(api, CreateSession)(env, words[2], options, &session));
  GO(api, ReleaseSessionOptions)(options);
  check(GO(api, CreateCpuMemoryInfo)(1, 0, &memory));

  const char *names[MOST], *wanted[MOST], *files[MOST];
  OrtValue *inputs[MOST], *outputs[MOST] = {NULL};
  void *held[MOST];
  size_t given = 0, asked = 0;
  int at = 5;
  for (; at < count && strcmp(words[at], "--") != 0; at++, given++) {
    names[given] = strtok(words[at], ":");
    const int type = atoi(strtok(NULL, ":"));
    char *dims = strtok(NULL, ":"), *path = strtok(NULL, ":");
    int64_t shape[8];
    size_t rank = 0, elements = 1;
    for (char *end; *dims >= '0' && *dims <= '9'; dims = *end == 'x' ? end + 1 : end) {
      shape[rank] = strtoll(dims, &end, 10);
      elements *= (size_t)shape[rank++];
    }
    const size_t bytes = elements * bytes_of(type);
    held[given] = malloc(bytes + 1);
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(held[given], 1, bytes, file) != bytes) return fprintf(stderr, "%s?\n", path), 2;
    fclose(file);
    check(GO(api, CreateTensorWithDataAsOrtValue)(memory, held[given], bytes, shape, rank, type, &inputs[given]));
  }
  for (at++; at < count; at++, asked++) {
    wanted[asked] = strtok(words[at], ":");
    files[asked] = strtok(NULL, ":");
  }
  check(GO(api, Run)(session, NULL, names, (const OrtValue *const *)inputs, given, wanted, asked, outputs));
  for (size_t index = 0; index < asked; index++) {
    OrtTensorTypeAndShapeInfo *info;
    size_t elements;
    int type;
    void *data;
    check(GO(api, GetTensorTypeAndShape)(outputs[index], &info));
    check(GO(api, GetTensorShapeElementCount)(info, &elements));
    check(GO(api, GetTensorElementType)(info, &type));
    check(GO(api, GetTensorMutableData)(outputs[index], &data));
    FILE *file = fopen(files[index], "wb");
    if (elements > 0) fwrite(data, bytes_of(type), elements, file);
    fclose(file);
    GO(api, ReleaseTensorTypeAndShapeInfo)(info);
    GO(api, ReleaseValue)(outputs[index]);
  }
  for (size_t index = 0; index < given; index++) {
    GO(api, ReleaseValue)(inputs[index]);
    free(held[index]);
  }
  GO(api, ReleaseMemoryInfo)(memory);
  GO(api, ReleaseSession)(session);
  GO(api, ReleaseEnv)(env);
  return 0;
}
