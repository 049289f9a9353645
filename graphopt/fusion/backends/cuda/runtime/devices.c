/* The driver, the GPUs, and the device code that they run.

   The code of a kernel is loaded as a CUlibrary, once per architecture. The driver instantiates it in each context. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "devices.h"
#include "library.h"

#ifndef GO_DRIVER_LIBRARY
#define GO_DRIVER_LIBRARY "libcuda.so.1"
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int opened = 0; /* 1: usable, -1: unusable, 0: not opened */
static go_driver driver;
static int device_count = 0;
static int *architecture_of = NULL; /* of each GPU: an index in go_architectures */
static CUlibrary libraries[GO_ARCHITECTURE_COUNT][GO_DEVICE_COUNT];
static CUkernel functions[GO_ARCHITECTURE_COUNT][GO_FUNCTION_COUNT];

const char *go_driver_error(CUresult error) {
  const char *text = NULL;
  return driver.cuGetErrorString(error, &text) == 0 && text != NULL ? text : "unknown error";
}

/* ---- The driver. ---- */

/* Resolves the functions of the driver; returns whether it has all of them. */
static int find_functions(void *library) {
#define GO_FIND(name, arguments) \
  if ((*(void **)&driver.name = dlsym(library, #name)) == NULL) return 0;
  GO_DRIVER(GO_FIND)
  *(void **)&driver.cuFuncLoad = dlsym(library, "cuFuncLoad");
  return 1;
}

/* The best architecture of the library for a GPU: machine code of the same major number and the highest minor number
   that the GPU supports, or else PTX; -1 if there is none. */
static int best_architecture(int number) {
  int best = -1;
  for (int at = 0; at < GO_ARCHITECTURE_COUNT; at++) {
    const go_architecture *each = &go_architectures[at];
    if (each->number > number) continue;
    if (!each->is_ptx && each->number / 10 != number / 10) continue;
    const int better = best < 0 || go_architectures[best].is_ptx > each->is_ptx ||
                       (go_architectures[best].is_ptx == each->is_ptx && go_architectures[best].number < each->number);
    if (better) best = at;
  }
  return best;
}

static int list_architectures(char *reason, size_t length) {
  architecture_of = calloc((size_t)device_count, sizeof *architecture_of);
  if (architecture_of == NULL) return snprintf(reason, length, "out of memory"), 0;
  for (int ordinal = 0; ordinal < device_count; ordinal++) {
    CUdevice device;
    int major = 0, minor = 0;
    CUresult error = driver.cuDeviceGet(&device, ordinal);
    if (error == 0) error = driver.cuDeviceGetAttribute(&major, CU_MAJOR, device);
    if (error == 0) error = driver.cuDeviceGetAttribute(&minor, CU_MINOR, device);
    if (error != 0) {
      snprintf(reason, length, "the NVIDIA driver can't query GPU %d: %s", ordinal, go_driver_error(error));
      return 0;
    }
    architecture_of[ordinal] = best_architecture(10 * major + minor);
    if (architecture_of[ordinal] < 0) { /* any GPU may be that of a session, so all must be usable */
      snprintf(reason, length, "they are not compiled for GPU %d, of architecture sm_%d", ordinal, 10 * major + minor);
      return 0;
    }
  }
  return 1;
}

/* Whether the driver and all GPUs can run the kernels. */
static int find_devices(char *reason, size_t length) {
  void *library = dlopen(GO_DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  int version = 0;
  if (library == NULL) return snprintf(reason, length, "there is no NVIDIA driver (" GO_DRIVER_LIBRARY ")"), 0;
  *(void **)&driver.cuDriverGetVersion = dlsym(library, "cuDriverGetVersion");
  const int answers = driver.cuDriverGetVersion != NULL && driver.cuDriverGetVersion(&version) == 0;
  if (!answers || version < 1000 * GO_CUDA_MAJOR || !find_functions(library)) {
    snprintf(reason, length, "the NVIDIA driver supports CUDA %d.%d, and the kernels need %d.0 or newer", version / 1000,
             version % 1000 / 10, GO_CUDA_MAJOR);
    return 0;
  }
  const CUresult error = driver.cuInit(0);
  if (error != 0) return snprintf(reason, length, "the NVIDIA driver can't be initialized: %s", go_driver_error(error)), 0;
  if (driver.cuDeviceGetCount(&device_count) != 0 || device_count < 1)
    return snprintf(reason, length, "the NVIDIA driver reports no GPU"), 0;
  return list_architectures(reason, length);
}

const go_driver *go_open_driver(void) {
  char reason[160] = "";
  pthread_mutex_lock(&lock);
  if (opened == 0) {
    opened = find_devices(reason, sizeof reason) ? 1 : -1;
    if (opened < 0) fprintf(stderr, "graphopt's CUDA kernels are off, onnxruntime runs their nodes: %s\n", reason);
  }
  const int usable = opened > 0;
  pthread_mutex_unlock(&lock);
  return usable ? &driver : NULL;
}

/* ---- Device code. ---- */

static CUresult load_library(int architecture, int kernel) {
  const unsigned char *image = go_images[architecture * GO_DEVICE_COUNT + kernel];
  CUlibrary library;
  CUresult error = driver.cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0);
  if (error != 0) return error;
  for (int at = 0; at < GO_FUNCTION_COUNT && error == 0; at++)
    if (go_functions[at].kernel == kernel)
      error = driver.cuLibraryGetKernel(&functions[architecture][at], library, go_functions[at].name);
  if (error == 0)
    libraries[architecture][kernel] = library;
  else
    driver.cuLibraryUnload(library);
  return error;
}

/* Loads the functions of a kernel into the current context if it belongs to GPU `ordinal`. Then the first run loads no
   code, and can be captured in a CUDA graph. */
static CUresult load_to_context(int ordinal, int architecture, int kernel) {
  CUcontext context = NULL;
  CUdevice device, current;
  if (driver.cuCtxGetCurrent(&context) != 0 || context == NULL) return 0;
  if (driver.cuDeviceGet(&device, ordinal) != 0 || driver.cuCtxGetDevice(&current) != 0 || current != device) return 0;
  CUresult error = 0;
  for (int at = 0; at < GO_FUNCTION_COUNT && error == 0; at++) {
    CUfunction function;
    if (go_functions[at].kernel != kernel) continue;
    error = driver.cuKernelGetFunction(&function, functions[architecture][at]);
    if (error == 0 && driver.cuFuncLoad != NULL) error = driver.cuFuncLoad(function);
  }
  return error;
}

CUkernel const *go_load_kernel(int ordinal, int kernel, char *message, size_t length) {
  if (ordinal < 0 || ordinal >= device_count)
    return snprintf(message, length, "graphopt's CUDA kernels: there is no GPU %d", ordinal), NULL;
  const int architecture = architecture_of[ordinal];
  CUresult error = 0;
  pthread_mutex_lock(&lock);
  if (libraries[architecture][kernel] == NULL) error = load_library(architecture, kernel);
  if (error == 0) error = load_to_context(ordinal, architecture, kernel);
  pthread_mutex_unlock(&lock);
  if (error == 0) return functions[architecture];
  snprintf(message, length, "graphopt's CUDA kernels can't be loaded to GPU %d: %s", ordinal, go_driver_error(error));
  return NULL;
}

/* Runs when the library is unloaded, after the end of all sessions. At the exit of a process, the driver may already be
   deinitialized. Its error is ignored. */
__attribute__((destructor)) static void unload_all(void) {
  for (int architecture = 0; architecture < GO_ARCHITECTURE_COUNT; architecture++)
    for (int kernel = 0; kernel < GO_DEVICE_COUNT; kernel++)
      if (libraries[architecture][kernel] != NULL) driver.cuLibraryUnload(libraries[architecture][kernel]);
  free(architecture_of);
}
