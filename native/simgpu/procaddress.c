/* Entry points by name: cuGetProcAddress in both forms, and the entry points that are known but not simulated. */
#include "driver.h"

#include <string.h>

#define E(name, version, symbol) CUDA_API CUresult symbol();
#define T(name, version, symbol, per_thread)                                                                           \
    CUDA_API CUresult symbol();                                                                                        \
    CUDA_API CUresult per_thread();
/* Callers pass arguments of various types, which the ABI lets a function without parameters ignore. */
#define U(name, version)                                                                                               \
    CUDA_API CUresult name(void)                                                                                       \
    {                                                                                                                  \
        return driver_unsupported(#name);                                                                              \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include "names.h"
#pragma GCC diagnostic pop
#undef E
#undef T
#undef U

typedef CUresult (*entry_point)(void);

typedef struct {
    const char *name;
    int version;
    entry_point function, per_thread;
} entry;

#define E(name, version, symbol) {#name, version, (entry_point)symbol, (entry_point)symbol},
#define T(name, version, symbol, per_thread) {#name, version, (entry_point)symbol, (entry_point)per_thread},
#define U(name, version) {#name, version, name, name},
static const entry entries[] = {
#include "names.h"
};
#undef E
#undef T
#undef U

#define PER_THREAD_DEFAULT_STREAM 2U
enum { STATUS_FOUND, STATUS_UNKNOWN, STATUS_TOO_OLD };

/* The newest form that is not newer than the requested version. */
static CUresult find(const char *name, void **function, int version, uint64_t flags, int *status)
{
    const entry *best = NULL;
    bool known = false;
    if (name == NULL || function == NULL || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t index = 0; index < sizeof entries / sizeof entries[0]; index++) {
        if (strcmp(entries[index].name, name) != 0)
            continue;
        known = true;
        if (entries[index].version <= version && (best == NULL || best->version < entries[index].version))
            best = &entries[index];
    }
    *status = best != NULL ? STATUS_FOUND : known ? STATUS_TOO_OLD : STATUS_UNKNOWN;
    *function = NULL;
    if (best == NULL)
        return CUDA_ERROR_NOT_FOUND;
    entry_point chosen = flags & PER_THREAD_DEFAULT_STREAM ? best->per_thread : best->function;
    memcpy(function, &chosen, sizeof chosen);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    int status;
    return find(name, function, version, flags, &status);
}

CUDA_API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    int unread;
    return find(name, function, version, flags, status != NULL ? status : &unread);
}
