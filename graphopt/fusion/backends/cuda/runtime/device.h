/* The interface between the host parts of kernels for CUDA and the runtime that launches them. */
#ifndef GRAPHOPT_DEVICE_H
#define GRAPHOPT_DEVICE_H

#include "runtime.h"

/* Allocates scratch memory on the run's device, by onnxruntime's allocator for the run's stream. It is released after
   the last launch. A failure returns NULL and fails the run. */
void *go_scratch(go_call *call, size_t bytes);

/* Launches `blocks` blocks, at least one, of `threads` threads on onnxruntime's stream. `function` is an index in
   go_functions, and `arguments` has the addresses of the arguments. Returns 0 for success. */
int go_launch(go_call *call, int function, int64_t blocks, int threads, void **arguments);

/* A device function; `kernel` is the index of its kernel. */
typedef struct go_function {
  int kernel;
  const char *name;
} go_function;

/* An architecture that the library has images for. */
typedef struct go_architecture {
  int number; /* 10 * major + minor of the compute capability */
  int is_ptx; /* the driver compiles it, for this and all later architectures */
} go_architecture;

/* "library.h" defines GO_CUDA_MAJOR, the major version of CUDA that the driver has to support; the sizes of these arrays,
   GO_DEVICE_COUNT (kernels), GO_FUNCTION_COUNT and GO_ARCHITECTURE_COUNT; and GO_MOST_SCRATCH, the maximum number of
   scratch buffers of a kernel. */
extern const go_kernel go_device_kernels[];
extern const go_function go_functions[];
extern const go_architecture go_architectures[];
extern const unsigned char *const go_images[]; /* the code of all functions of a kernel: [architecture][kernel] */

#endif
