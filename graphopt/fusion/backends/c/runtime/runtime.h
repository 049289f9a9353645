/* The interface between generated kernels and the runtime that registers them with onnxruntime. */
#ifndef GRAPHOPT_RUNTIME_H
#define GRAPHOPT_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

/* The instruction set of a unit: 2, 3 and 4 for x86-64-v2, -v3 and -v4, and 0 for the default of the
   compiler. A unit is compiled once for each. The kernels of a library may be distributed over several
   units; GO_UNIT counts them. A unit's external names end in both. */
#ifndef GO_LEVEL
#define GO_LEVEL 0
#endif
#ifndef GO_UNIT
#define GO_UNIT 0
#endif
#define GO_PASTE_(name, level, unit) name##_v##level##_u##unit
#define GO_PASTE(name, level, unit) GO_PASTE_(name, level, unit)
#define GO_NAME(name) GO_PASTE(name, GO_LEVEL, GO_UNIT)

/* One run of one kernel. Its functions are called by the thread that runs the kernel only. */
typedef struct go_call go_call;

/* The elements of input `index`, whose dims are written to `dims`. If its rank is not `rank`, the run fails and
   NULL comes back. Elements of an empty tensor are some pointer that isn't NULL. */
const void *go_input(go_call *call, int index, int rank, int64_t *dims);

/* Makes output `index` with these dims and returns its elements; NULL if that fails, as the run then does. */
void *go_output(go_call *call, int index, int rank, const int64_t *dims);

/* Lets the run fail with `message`, which is copied. The first message wins. */
void go_fail(go_call *call, const char *message);

/* Calls body(data, 0), ... body(data, count - 1) on onnxruntime's threads, in any order and at once, and returns
   when all are done. A count of 1 is called directly. */
void go_parallel(go_call *call, void (*body)(void *data, size_t index), void *data, size_t count);

/* An input that a kernel reads in another layout. If it is constant, it is packed once, when a session is created, and
   sessions with equal contents share the memory. */
typedef struct go_constant {
  int input, rank;
  size_t (*size)(const int64_t *dims);                                /* bytes of the packed elements */
  void (*pack)(const void *from, const int64_t *dims, void *packed); /* `packed` is aligned to GO_ALIGNMENT */
} go_constant;
#define GO_ALIGNMENT 64
#define GO_MOST_CONSTANTS 8

/* The packed elements of the operand that is the kernel's constant `index`. An input that is not constant is packed by
   this call, once per run; if that fails, the result is NULL, and the run fails as well. */
const void *go_packed_operand(go_call *call, int index);

/* As `go_packed_operand` if the input is constant, otherwise NULL: nothing is packed. */
const void *go_packed_constant(go_call *call, int index);

/* One kernel. */
typedef struct go_kernel {
  const char *name;                     /* of the operator that it computes, in the domain graphopt.native */
  int inputs, outputs;                  /* how many */
  const int *input_types, *output_types; /* of elements, by their numbers in ONNX */
  int in_place_pairs;                   /* pairs in in_place */
  const int *in_place;                  /* input, output, input, output ...: pairs that may share memory */
  int (*run)(go_call *call);            /* 0 if all went well; anything else fails, with go_fail's message */
  int constant_count;                   /* at most GO_MOST_CONSTANTS */
  const go_constant *constants;
} go_kernel;

/* Each unit defines, with its kernels and their number:
     const go_kernel GO_NAME(go_kernels)[];
     const int GO_NAME(go_kernel_count); */

#endif
