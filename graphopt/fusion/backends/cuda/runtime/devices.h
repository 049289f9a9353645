/* The GPUs of this machine, and the device code that is loaded for them. */
#ifndef GRAPHOPT_DEVICES_H
#define GRAPHOPT_DEVICES_H

#include "driver.h"

/* The driver; NULL if the kernels can't run on the GPUs of this machine. The first call prints the reason to stderr. */
const go_driver *go_open_driver(void);

/* Loads the functions of `kernel` for GPU `ordinal`, also into the current context if it belongs to this GPU. Returns the
   functions of the library for the GPU, or NULL with a message. */
CUkernel const *go_load_kernel(int ordinal, int kernel, char *message, size_t length);

/* The driver's text for `error`. */
const char *go_driver_error(CUresult error);

#endif
