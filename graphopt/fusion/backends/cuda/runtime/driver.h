/* The part of the CUDA driver's interface that kernels use, declared here so that a build needs no CUDA headers.
   libcuda.so.1 is opened at run time, so that libraries of kernels also load on machines without a driver. */
#ifndef GRAPHOPT_DRIVER_H
#define GRAPHOPT_DRIVER_H

#include <stddef.h>

typedef int CUresult; /* 0 for success */
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUfunc_st *CUfunction;
typedef struct CUlib_st *CUlibrary; /* code that is independent of contexts */
typedef struct CUkern_st *CUkernel;

enum { CU_MAJOR = 75, CU_MINOR = 76 }; /* CUdevice_attribute: the compute capability */

/* name, arguments; all functions return a CUresult. Those for libraries require CUDA 12.0. */
#define GO_DRIVER(each)                                                                                                \
  each(cuInit, (unsigned flags))                                                                                       \
  each(cuDriverGetVersion, (int *version)) /* 1000 * major + 10 * minor */                                             \
  each(cuGetErrorString, (CUresult error, const char **text))                                                          \
  each(cuDeviceGetCount, (int *count))                                                                                 \
  each(cuDeviceGet, (CUdevice * device, int ordinal))                                                                  \
  each(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device))                                             \
  each(cuCtxGetCurrent, (CUcontext * context))                                                                         \
  each(cuCtxGetDevice, (CUdevice * device))                                                                            \
  each(cuLibraryLoadData, (CUlibrary * library, const void *image, int *options, void **values, unsigned option_count, \
                           int *library_options, void **library_values, unsigned library_option_count))                \
  each(cuLibraryUnload, (CUlibrary library))                                                                           \
  each(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char *name))                                   \
  each(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))                                                  \
  each(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,      \
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,        \
                        void **extra))

#define GO_DRIVER_MEMBER(name, arguments) CUresult(*name) arguments;
typedef struct {
  GO_DRIVER(GO_DRIVER_MEMBER)
  CUresult (*cuFuncLoad)(CUfunction function); /* NULL before CUDA 12.4 */
} go_driver;

#endif
