/* libbaton.so, the preload library inside the workload. */
#include "libbaton.h"

const char *baton_hook_version(void) { return BATON_HOOK_VERSION; }
