/* The GPUs of this machine, and device code that is loaded for them. */
#ifndef GRAPHOPT_DEVICES_H
#define GRAPHOPT_DEVICES_H

#include "driver.h"

/* The driver; NULL if the kernels can't run on the GPUs of this machine, which one line on stderr explains once. */
const go_driver *go_open_driver(void);

/* The functions of the library for GPU `ordinal`. Those of `kernel` are loaded, also to the current context if it is of
   this GPU. NULL, with a message, if that fails. */
CUkernel const *go_load_kernel(int ordinal, int kernel, char *message, size_t length);

/* The driver's text for `error`. */
const char *go_driver_error(CUresult error);

#endif
