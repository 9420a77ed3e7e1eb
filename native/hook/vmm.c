/* Virtual memory management: memory lives as long as a handle to it or a mapping of it exists.
 *
 * A program may release the handle right after mapping it, or unmap and keep the handle; one unmap may cover several
 * mappings. Handles and mappings are few and their calls slow, so one list under one mutex is enough.
 */
#include "client.h"
#include "driver.h"
#include "ledger.h"
#include "vmm.h"

#include <pthread.h>
#include <stdlib.h>

struct memory {
    CUmemGenericAllocationHandle handle;
    struct baton_gpu *gpu;
    int64_t bytes;
    unsigned handles, mappings;
    struct memory *next;
};

struct mapping {
    CUdeviceptr start;
    size_t size;
    struct memory *memory;
    struct mapping *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;
static struct mapping *mappings;

/* The driver may reuse a released handle while the memory behind the old one is still mapped. */
static struct memory *find(CUmemGenericAllocationHandle handle)
{
    for (struct memory *memory = memories; memory; memory = memory->next)
        if (memory->handle == handle && memory->handles)
            return memory;
    return NULL;
}

static void drop_if_unused(struct memory *memory)
{
    if (memory->handles || memory->mappings)
        return;
    for (struct memory **link = &memories; *link; link = &(*link)->next) {
        if (*link == memory) {
            *link = memory->next;
            break;
        }
    }
    baton_discharge(memory->gpu, memory->bytes, false);
    free(memory);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const baton_placement *properties,
                     unsigned long long flags)
{
    struct baton_gpu *gpu = NULL;
    if (handle && properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        gpu = baton_gpu_of_device(properties->location.id);
    if (!gpu)
        return REAL(cuMemCreate)(handle, size, properties, flags);
    baton_client_await_limits(gpu);
    if (size > INT64_MAX || !baton_charge(gpu, size, false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct memory *memory = malloc(sizeof *memory);
    CUresult result = memory ? REAL(cuMemCreate)(handle, size, properties, flags) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        baton_discharge(gpu, (int64_t)size, false);
        free(memory);
        return result;
    }
    pthread_mutex_lock(&mutex);
    *memory = (struct memory){*handle, gpu, (int64_t)size, 1, 0, memories};
    memories = memory;
    pthread_mutex_unlock(&mutex);
    return result;
}

/* The mutex is held during the driver's call: the driver must not reuse a handle before its entry is gone. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&mutex);
    CUresult result = REAL(cuMemRelease)(handle);
    struct memory *memory = result == CUDA_SUCCESS ? find(handle) : NULL;
    if (memory) {
        memory->handles--;
        drop_if_unused(memory);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    pthread_mutex_lock(&mutex);
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS && handle) {
        CUdeviceptr place = (CUdeviceptr)(uintptr_t)address;
        for (struct mapping *mapping = mappings; mapping; mapping = mapping->next) {
            if (place >= mapping->start && place - mapping->start < mapping->size) {
                mapping->memory->handle = *handle;
                mapping->memory->handles++;
                break;
            }
        }
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    struct mapping *mapping = malloc(sizeof *mapping);
    pthread_mutex_lock(&mutex);
    CUresult result = REAL(cuMemMap)(ptr, size, offset, handle, flags);
    struct memory *memory = result == CUDA_SUCCESS ? find(handle) : NULL;
    if (memory && mapping) {
        *mapping = (struct mapping){ptr, size, memory, mappings};
        mappings = mapping;
        memory->mappings++;
        mapping = NULL;
    }
    pthread_mutex_unlock(&mutex);
    free(mapping);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    pthread_mutex_lock(&mutex);
    CUresult result = REAL(cuMemUnmap)(ptr, size);
    for (struct mapping **link = &mappings; result == CUDA_SUCCESS && *link;) {
        struct mapping *mapping = *link;
        if (mapping->start < ptr || mapping->start - ptr >= size) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        mapping->memory->mappings--;
        drop_if_unused(mapping->memory);
        free(mapping);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

void baton_vmm_reset_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    memories = NULL;
    mappings = NULL;
}
