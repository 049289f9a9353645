/* The part of onnxruntime's C API that samples/host/host.c uses, because Python's wheel contains the library and no
   header. The functions are in a table, OrtApi, to which a version only appends: a slot never moves. The slots are those
   of API version 14, and were compared by offsetof with the header of version 29. */
#ifndef ONNXRUNTIME_C_API_H
#define ONNXRUNTIME_C_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct OrtStatus OrtStatus; /* NULL for success */
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtValue OrtValue;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;

typedef enum OrtLoggingLevel { ORT_LOGGING_LEVEL_FATAL = 4 } OrtLoggingLevel;
typedef enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2 = 25
} ONNXTensorElementDataType;

typedef void (*unused_slot)(void);

typedef struct OrtApi {
  unused_slot slots_0[2];
  const char *(*GetErrorMessage)(const OrtStatus *status);                                       /* 2 */
  OrtStatus *(*CreateEnv)(OrtLoggingLevel severity, const char *name, OrtEnv **env);             /* 3 */
  unused_slot slots_4[3];
  OrtStatus *(*CreateSession)(const OrtEnv *env, const char *path, const OrtSessionOptions *options,
                              OrtSession **session);                                             /* 7 */
  unused_slot slots_8[1];
  OrtStatus *(*Run)(OrtSession *session, const OrtRunOptions *options, const char *const *input_names,
                    const OrtValue *const *inputs, size_t input_count, const char *const *output_names,
                    size_t output_count, OrtValue **outputs);                                    /* 9 */
  OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **options);                               /* 10 */
  unused_slot slots_11[8];
  OrtStatus *(*DisableCpuMemArena)(OrtSessionOptions *options);                                  /* 19 */
  unused_slot slots_20[4];
  OrtStatus *(*SetIntraOpNumThreads)(OrtSessionOptions *options, int threads);                   /* 24 */
  unused_slot slots_25[5];
  OrtStatus *(*SessionGetInputCount)(const OrtSession *session, size_t *count);                  /* 30 */
  unused_slot slots_31[1];
  OrtStatus *(*SessionGetOverridableInitializerCount)(const OrtSession *session, size_t *count); /* 32 */
  unused_slot slots_33[3];
  OrtStatus *(*SessionGetInputName)(const OrtSession *session, size_t index, OrtAllocator *allocator,
                                    char **name);                                                /* 36 */
  unused_slot slots_37[1];
  OrtStatus *(*SessionGetOverridableInitializerName)(const OrtSession *session, size_t index,
                                                     OrtAllocator *allocator, char **name);      /* 38 */
  unused_slot slots_39[9];
  OrtStatus *(*CreateTensorAsOrtValue)(OrtAllocator *allocator, const int64_t *dims, size_t rank,
                                       ONNXTensorElementDataType type, OrtValue **value);        /* 48 */
  unused_slot slots_49[1];
  OrtStatus *(*IsTensor)(const OrtValue *value, int *is_tensor);                                 /* 50 */
  OrtStatus *(*GetTensorMutableData)(OrtValue *value, void **data);                              /* 51 */
  OrtStatus *(*FillStringTensor)(OrtValue *value, const char *const *strings, size_t count);     /* 52 */
  OrtStatus *(*GetStringTensorDataLength)(const OrtValue *value, size_t *bytes);                 /* 53 */
  OrtStatus *(*GetStringTensorContent)(const OrtValue *value, void *text, size_t bytes, size_t *offsets,
                                       size_t count);                                            /* 54 */
  unused_slot slots_55[5];
  OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *info,
                                     ONNXTensorElementDataType *type);                           /* 60 */
  OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *info, size_t *rank);         /* 61 */
  OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t rank); /* 62 */
  unused_slot slots_63[2];
  OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *value, OrtTensorTypeAndShapeInfo **info);  /* 65 */
  unused_slot slots_66[10];
  OrtStatus *(*AllocatorFree)(OrtAllocator *allocator, void *memory);                            /* 76 */
  unused_slot slots_77[1];
  OrtStatus *(*GetAllocatorWithDefaultOptions)(OrtAllocator **allocator);                        /* 78 */
  unused_slot slots_79[13];
  void (*ReleaseEnv)(OrtEnv *env);                                                               /* 92 */
  void (*ReleaseStatus)(OrtStatus *status);                                                      /* 93 */
  unused_slot slots_94[1];
  void (*ReleaseSession)(OrtSession *session);                                                   /* 95 */
  void (*ReleaseValue)(OrtValue *value);                                                         /* 96 */
  unused_slot slots_97[2];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *info);                        /* 99 */
  void (*ReleaseSessionOptions)(OrtSessionOptions *options);                                     /* 100 */
  unused_slot slots_101[29];
  OrtStatus *(*AddSessionConfigEntry)(OrtSessionOptions *options, const char *key, const char *value); /* 130 */
  unused_slot slots_131[97];
  OrtStatus *(*RegisterCustomOpsLibrary_V2)(OrtSessionOptions *options, const char *path);       /* 228 */
} OrtApi;

_Static_assert(offsetof(OrtApi, GetAllocatorWithDefaultOptions) == 78 * sizeof(unused_slot), "slots");
_Static_assert(offsetof(OrtApi, RegisterCustomOpsLibrary_V2) == 228 * sizeof(unused_slot), "slots");

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t version); /* NULL if the library is older */
  const char *(*GetVersionString)(void);
} OrtApiBase;

const OrtApiBase *OrtGetApiBase(void);

#endif
