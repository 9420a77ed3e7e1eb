/* Queries about addresses, and advice on the location of managed memory. */
#include "driver.h"

#include <string.h>

static CUresult attribute_of(void *data, int attribute, uint64_t address)
{
    block *found = block_find(address);
    if (found == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool host = found->kind == BLOCK_HOST || found->kind == BLOCK_REGISTERED;
    bool managed = found->kind == BLOCK_MANAGED;
    switch (attribute) {
    case 1:
        *(CUcontext *)data = found->context;
        return CUDA_SUCCESS;
    case 2:
        *(unsigned int *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case 3:
        *(CUdeviceptr *)data = address;
        return CUDA_SUCCESS;
    case 4:
        if (!host && !managed)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)address;
        return CUDA_SUCCESS;
    case 6:
        *(unsigned int *)data = 1;
        return CUDA_SUCCESS;
    case 7:
    case 20:
        *(unsigned long long *)data = found->id;
        return CUDA_SUCCESS;
    case 8:
        *(unsigned int *)data = managed;
        return CUDA_SUCCESS;
    case 9:
        *(int *)data = (int)device_of_card(found->card);
        return CUDA_SUCCESS;
    case 10:
    case 15:
    case 21:
        *(unsigned int *)data = 0;
        return CUDA_SUCCESS;
    case 11:
    case 19:
        *(CUdeviceptr *)data = found->base;
        return CUDA_SUCCESS;
    case 12:
    case 18:
        *(size_t *)data = found->size;
        return CUDA_SUCCESS;
    case 13:
        *(unsigned int *)data = 1;
        return CUDA_SUCCESS;
    case 14:
        *(unsigned long long *)data = 0;
        return CUDA_SUCCESS;
    case 16:
        *(unsigned int *)data = 3;
        return CUDA_SUCCESS;
    case 17:
        *(CUmemoryPool *)data = found->pool;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUDA_API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS || data == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    LEAVE(attribute_of(data, attribute, address));
}

/* For an address that is not CUDA's, the plural form sets nothing and succeeds. */
CUDA_API CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr address)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS || attributes == NULL || data == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    for (unsigned int index = 0; index < count; index++) {
        bool number = attributes[index] == 2 || attributes[index] == 8 || attributes[index] == 13;
        if (attribute_of(data[index], attributes[index], address) == CUDA_SUCCESS)
            continue;
        if (attributes[index] == 9)
            *(int *)data[index] = -2;
        else
            memset(data[index], 0, number ? 4 : 8);
    }
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    LEAVE(value != NULL && attribute == 6 && block_find(address) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, bool to_card, CUstream handle)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    block *found = block_find(address);
    if (result != CUDA_SUCCESS)
        LEAVE(result);
    if (found == NULL || found->kind != BLOCK_MANAGED || bytes == 0 || address + bytes > found->base + found->size)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    work item = {.kind = WORK_PREFETCH, .prefetch = {address, bytes, to_card}};
    LEAVE(stream_launch(stream, &item));
}

CUDA_API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream)
{
    return prefetch(address, bytes, device >= 0, stream);
}

CUDA_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                                        CUstream stream)
{
    return prefetch(address, bytes, location.type == 1, stream);
}

static CUresult advise(CUdeviceptr address, size_t bytes, int advice)
{
    ENTER(context);
    block *found = block_find(address);
    if (found == NULL || found->kind != BLOCK_MANAGED || bytes == 0 || advice < 1 || advice > 6)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, int advice, CUdevice device)
{
    return advise(address, bytes, advice);
}

CUDA_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, int advice, CUmemLocation location)
{
    return advise(address, bytes, advice);
}

PER_THREAD(_ptsz, cuMemPrefetchAsync, (CUdeviceptr a, size_t n, CUdevice d, CUstream s), (a, n, d, s))
PER_THREAD(_ptsz, cuMemPrefetchAsync_v2, (CUdeviceptr a, size_t n, CUmemLocation l, unsigned int f, CUstream s),
           (a, n, l, f, s))
