/* The interface between the host parts of kernels for CUDA and the runtime that launches them. */
#ifndef GRAPHOPT_DEVICE_H
#define GRAPHOPT_DEVICE_H

#include "runtime.h"

/* Scratch memory of the run's device, from onnxruntime's allocator for the run's stream; NULL if that fails, as the run
   then does. It is released after the last launch. */
void *go_scratch(go_call *call, size_t bytes);

/* Launches `blocks` blocks, at least one, of `threads` threads on onnxruntime's stream. `function` is an index in
   go_functions, and `arguments` has the addresses of the arguments. 0 if all went well. */
int go_launch(go_call *call, int function, int64_t blocks, int threads, void **arguments);

/* A device function of a kernel, which is given by its index. */
typedef struct go_function {
  int kernel;
  const char *name;
} go_function;

/* An architecture of the library. */
typedef struct go_architecture {
  int number; /* 10 * major + minor of the compute capability */
  int is_ptx; /* the driver compiles it, for this and all later architectures */
} go_architecture;

/* "library.h" defines GO_CUDA_MAJOR, the version of CUDA that the driver has to support, and the sizes of these arrays:
   GO_DEVICE_COUNT (kernels), GO_FUNCTION_COUNT and GO_ARCHITECTURE_COUNT; and GO_MOST_SCRATCH, the number of scratch
   buffers of a kernel. */
extern const go_kernel go_device_kernels[];
extern const go_function go_functions[];
extern const go_architecture go_architectures[];
extern const unsigned char *const go_images[]; /* the code of all functions of a kernel: [architecture][kernel] */

#endif
