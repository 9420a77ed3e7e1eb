/* Makes NVML's memory query report the limit too. */
#ifndef BATON_NVML_H
#define BATON_NVML_H

#include "libbaton.h"

/* Our function for an NVML symbol that `handle` (NULL: the global scope) resolves to `found`. */
void *baton_nvml_wrap(void *handle, const char *symbol, void *found);
bool baton_nvml_is_wrapper(const char *symbol, const void *function);

#endif
