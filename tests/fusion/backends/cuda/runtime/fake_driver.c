/* A CUDA driver without a GPU: it checks calls, records launches, and runs them by a function of the test. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

enum { MOST = 4096, NAME = 256, MISSING = 500 /* CUDA_ERROR_NOT_FOUND */ };
struct CUlib_st {
  const unsigned char *image;
  int loaded;
};
struct CUkern_st {
  CUlibrary library;
  char name[NAME];
  int instantiated;
};

/* Settings of the test. */
static int version = 13000, count = 1, capability[MOST] = {[0 ... MOST - 1] = 90}, init_error = 0, load_error = 0, launch_error = 0;
static int current = -1; /* the GPU of the current context */
static void *stream = NULL;

/* Runs a launch: 0 if it is right. */
typedef int (*runner)(const char *name, int64_t blocks, int threads, void **arguments);
static runner run = NULL;

static struct CUlib_st libraries[MOST];
static struct CUkern_st kernels[MOST];
static int library_count = 0, kernel_count = 0, launches = 0, unloaded = 0, preloaded = 0;
static char fault[512]; /* the first wrong call */

static CUresult wrong(const char *text) {
  if (fault[0] == '\0') snprintf(fault, sizeof fault, "%s", text);
  return 1;
}

void fake_driver(int version_, int count_, int capability_, int init_error_) {
  version = version_, count = count_, init_error = init_error_;
  for (int at = 0; at < MOST; at++) capability[at] = capability_;
}
void fake_capability(int ordinal, int capability_) { capability[ordinal] = capability_; }
void fake_errors(int load, int launch) { load_error = load, launch_error = launch; }
void fake_run(int current_, void *stream_, runner run_) { current = current_, stream = stream_, run = run_; }
const char *fake_fault(void) { return fault; }
int fake_loaded(void) { return library_count; }
int fake_unloaded(void) { return unloaded; }
int fake_preloaded(void) { return preloaded; }
int fake_launches(void) { return launches; }
const void *fake_image(int library) { return libraries[library].image; }

CUresult cuInit(unsigned flags) { return flags != 0 ? wrong("cuInit has flags") : init_error; }
CUresult cuDriverGetVersion(int *found) { return *found = version, 0; }
CUresult cuGetErrorString(CUresult error, const char **text) {
  return *text = error == 2 ? "out of memory" : error == 209 ? "no kernel image is available" : "a fault", 0;
}
CUresult cuDeviceGetCount(int *found) { return *found = count, 0; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  if (ordinal < 0 || ordinal >= count) return wrong("cuDeviceGet: no such GPU");
  return *device = 100 + ordinal, 0; /* not the ordinal, so that no caller mixes them up */
}
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  const int found = capability[device - 100];
  if (attribute == CU_MAJOR) return *value = found / 10, 0;
  return attribute == CU_MINOR ? (*value = found % 10, 0) : wrong("cuDeviceGetAttribute: another attribute");
}
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = current < 0 ? NULL : (CUcontext)&current, 0; }
CUresult cuCtxGetDevice(CUdevice *device) { return current < 0 ? 201 : (*device = 100 + current, 0); }

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, int *options, void **values, unsigned option_count,
                           int *library_options, void **library_values, unsigned library_option_count) {
  (void)options, (void)values, (void)library_options, (void)library_values;
  if (load_error != 0 && load_error != MISSING) return load_error;
  if (option_count != 0 || library_option_count != 0) return wrong("cuLibraryLoadData has options");
  if ((uintptr_t)image % 64 != 0) wrong("an image is not aligned");
  for (int at = 0; at < library_count; at++)
    if (libraries[at].loaded && libraries[at].image == image) wrong("an image is loaded twice");
  libraries[library_count] = (struct CUlib_st){image, 1};
  return *library = &libraries[library_count++], 0;
}
CUresult cuLibraryUnload(CUlibrary library) {
  if (!library->loaded) return wrong("a library is unloaded twice");
  return library->loaded = 0, unloaded++, 0;
}
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  if (!library->loaded) return wrong("cuLibraryGetKernel of an unloaded library");
  if (load_error == MISSING) return MISSING;
  if (kernel_count == MOST) return wrong("too many kernels");
  struct CUkern_st *found = &kernels[kernel_count++];
  found->library = library;
  snprintf(found->name, sizeof found->name, "%s", name);
  return *kernel = found, 0;
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  if (current < 0) return 201;
  return *function = (CUfunction)kernel, 0;
}
CUresult cuFuncLoad(CUfunction function) {
  ((CUkernel)function)->instantiated = 1;
  return preloaded++, 0;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream on, void **arguments, void **extra) {
  const struct CUkern_st *kernel = (CUkernel)function;
  if (launch_error != 0) return launch_error;
  if (kernel < kernels || kernel >= kernels + kernel_count) return wrong("cuLaunchKernel of no kernel");
  if (!kernel->library->loaded) return wrong("cuLaunchKernel of an unloaded kernel");
  if (grid_x < 1 || grid_x > 2147483647u || grid_y != 1 || grid_z != 1) return wrong("the grid of a launch");
  if (block_x < 1 || block_x > 1024 || block_y != 1 || block_z != 1) return wrong("the block of a launch");
  if (shared != 0 || extra != NULL) return wrong("a launch has dynamic shared memory or further arguments");
  if ((void *)on != stream) return wrong("a launch on another stream");
  launches++;
  return run == NULL ? 0 : run(kernel->name, grid_x, (int)block_x, arguments) ? wrong("the launch failed") : 0;
}
