/* Changes only the memory figures that a program may take for its own. A program that uses NVML but not CUDA does not
 * connect to the daemon: it sees the limit from the environment, or the daemon's limit once the process uses CUDA.
 */
#include "nvml.h"

#include "gpu.h"
#include "ledger.h"
#include "symbols.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef int nvmlReturn_t;

enum { NVML_SUCCESS = 0, NVML_ERROR_FUNCTION_NOT_FOUND = 13 };

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef nvmlReturn_t memory_function(nvmlDevice_t device, void *memory);
typedef nvmlReturn_t uuid_function(nvmlDevice_t device, char *uuid, unsigned int length);

BATON_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
BATON_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);

static _Atomic(void *) real_memory, real_memory_v2, real_uuid;

static void *resolve(_Atomic(void *) *function, const char *name)
{
    void *found = atomic_load(function);
    if (!found) {
        found = baton_real_dlsym(RTLD_NEXT, name);
        atomic_store(function, found);
    }
    return found;
}

bool baton_nvml_is_wrapper(const char *symbol, const void *function)
{
    return function == (void *)nvmlDeviceGetMemoryInfo || function == (void *)nvmlDeviceGetMemoryInfo_v2;
}

void *baton_nvml_wrap(void *handle, const char *symbol, void *found)
{
    bool second = strcmp(symbol, "nvmlDeviceGetMemoryInfo_v2") == 0;
    if (!second && strcmp(symbol, "nvmlDeviceGetMemoryInfo") != 0)
        return found;
    if (!baton_nvml_is_wrapper(symbol, found))
        atomic_store(second ? &real_memory_v2 : &real_memory, found);
    void *uuid = baton_real_dlsym(handle ? handle : RTLD_DEFAULT, "nvmlDeviceGetUUID");
    if (uuid)
        atomic_store(&real_uuid, uuid);
    return second ? (void *)nvmlDeviceGetMemoryInfo_v2 : (void *)nvmlDeviceGetMemoryInfo;
}

/* The limit on the device, and how much of it is used. */
static bool limited(nvmlDevice_t device, unsigned long long total, unsigned long long *limit, unsigned long long *used)
{
    char text[96] = "";
    uuid_function *uuid = (uuid_function *)resolve(&real_uuid, "nvmlDeviceGetUUID");
    struct baton_gpu *gpu = NULL;
    if (uuid && uuid(device, text, sizeof text) == NVML_SUCCESS) {
        text[sizeof text - 1] = '\0';
        gpu = baton_gpu_of_uuid(text);
    }
    *limit = baton_limit_bytes(gpu);
    int64_t allocated = gpu ? baton_allowance_used(gpu) : 0;
    *used = allocated > 0 ? (unsigned long long)allocated : 0;
    if (*used > *limit)
        *used = *limit;
    return *limit != 0 && *limit < total;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    memory_function *real = (memory_function *)resolve(&real_memory, "nvmlDeviceGetMemoryInfo");
    nvmlReturn_t result = real ? real(device, memory) : NVML_ERROR_FUNCTION_NOT_FOUND;
    unsigned long long limit, used;
    if (result == NVML_SUCCESS && memory && limited(device, memory->total, &limit, &used))
        *memory = (nvmlMemory_t){limit, limit - used, used};
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    memory_function *real = (memory_function *)resolve(&real_memory_v2, "nvmlDeviceGetMemoryInfo_v2");
    nvmlReturn_t result = real ? real(device, memory) : NVML_ERROR_FUNCTION_NOT_FOUND;
    unsigned long long limit, used;
    if (result == NVML_SUCCESS && memory && limited(device, memory->total, &limit, &used))
        *memory = (nvmlMemory_v2_t){memory->version, limit, 0, limit - used, used};
    return result;
}
