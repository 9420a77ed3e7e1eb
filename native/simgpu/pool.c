/* Stream-ordered memory and its pools. Memory is available when the call returns; it is released when the stream
 * reaches the free. A pool keeps no reserve, so memory that a program has freed is available to others. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct pool {
    uint32_t magic;
    uint32_t card;
    CUmemPoolProps properties;
    uint64_t used, used_high, threshold;
    int reuse[3];
    bool destroyed;
};

static bool valid(const struct pool *pool)
{
    return pool != NULL && pool->magic == MAGIC_POOL && !pool->destroyed;
}

static struct pool *pool_make(uint32_t card)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pool->magic = MAGIC_POOL;
    pool->card = card;
    pool->properties.allocType = 1;
    pool->properties.location = (CUmemLocation){1, (int)device_of_card(card)};
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    return pool;
}

static struct pool *pool_default(uint32_t card)
{
    if (driver.default_pool[card] == NULL)
        driver.default_pool[card] = pool_make(card);
    return driver.default_pool[card];
}

void pool_freed(struct pool *pool, uint64_t bytes)
{
    pool->used -= bytes < pool->used ? bytes : pool->used;
}

static struct pool *current_pool(uint32_t card)
{
    return driver.device_pool[card] != NULL ? driver.device_pool[card] : pool_default(card);
}

static CUresult allocate(CUdeviceptr *result, size_t bytes, struct pool *pool, CUstream handle)
{
    ENTER(context);
    struct stream *stream;
    CUresult resolved = stream_resolve(handle, context, &stream);
    if (resolved != CUDA_SUCCESS || result == NULL || bytes == 0)
        LEAVE(resolved != CUDA_SUCCESS ? resolved : CUDA_ERROR_INVALID_VALUE);
    if (pool == NULL)
        pool = current_pool(stream->context->card);
    if (!valid(pool) || pool->card != stream->context->card)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    block fresh = {.kind = BLOCK_DEVICE, .pool = pool};
    uint64_t limit = pool->properties.maxSize;
    CUresult taken = limit && pool->used + bytes > limit ? CUDA_ERROR_OUT_OF_MEMORY
                                                         : memory_take(stream->context, bytes, &fresh);
    if (taken == CUDA_ERROR_OUT_OF_MEMORY && stream->capture == NULL) { /* frees may be pending */
        context_wait(stream->context);
        if (!limit || pool->used + bytes <= limit)
            taken = memory_take(stream->context, bytes, &fresh);
    }
    if (taken != CUDA_SUCCESS)
        LEAVE(taken);
    pool->used += fresh.charged;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    *result = fresh.base;
    work item = {.kind = WORK_ALLOC, .address = fresh.base};
    LEAVE(stream->capture != NULL ? capture_add(stream, &item) : CUDA_SUCCESS);
}

CUDA_API CUresult cuMemAllocAsync(CUdeviceptr *result, size_t bytes, CUstream stream)
{
    return allocate(result, bytes, NULL, stream);
}

CUDA_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *result, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return pool == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(result, bytes, pool, stream);
}

CUDA_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    block *found = block_find(address);
    if (result != CUDA_SUCCESS)
        LEAVE(result);
    if (found == NULL || found->base != address || found->freed ||
        (found->kind != BLOCK_DEVICE && found->kind != BLOCK_MANAGED))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (stream->capture == NULL)
        found->freed = true;
    work item = {.kind = WORK_FREE, .address = address};
    LEAVE(stream_launch(stream, &item));
}

CUDA_API CUresult cuMemPoolCreate(CUmemoryPool *result, const CUmemPoolProps *asked)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS || result == NULL || asked == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    if (asked->location.type != 1 || device_check(asked->location.id) != CUDA_SUCCESS)
        return driver_unsupported("cuMemPoolCreate off the card");
    if (asked->handleTypes != 0)
        return driver_unsupported("cuMemPoolCreate with shareable handles");
    driver_lock();
    *result = pool_make(driver.cards[asked->location.id]);
    if (*result == NULL)
        LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    (*result)->properties = *asked;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    if (!valid(pool) || driver.default_pool[pool->card] == pool)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (driver.device_pool[pool->card] == pool)
        driver.device_pool[pool->card] = NULL;
    pool->destroyed = true; /* its memory still refers to it */
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *result, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || result == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    *result = pool_default(driver.cards[device]);
    LEAVE(*result != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUDA_API CUresult cuDeviceGetMemPool(CUmemoryPool *result, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || result == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    *result = current_pool(driver.cards[device]);
    LEAVE(*result != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUDA_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS)
        return checked;
    driver_lock();
    if (!valid(pool) || pool->card != driver.cards[device])
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    driver.device_pool[pool->card] = pool;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    return valid(pool) ? driver_ready() : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    if (!valid(pool) || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    uint64_t amounts[] = {pool->threshold, pool->used, pool->used_high, pool->used, pool->used_high};
    if (attribute >= 1 && attribute <= 3)
        *(int *)value = pool->reuse[attribute - 1];
    else if (attribute >= 4 && attribute <= 8)
        *(uint64_t *)value = amounts[attribute - 4];
    else
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    if (!valid(pool) || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (attribute >= 1 && attribute <= 3)
        pool->reuse[attribute - 1] = *(int *)value;
    else if (attribute == 4)
        pool->threshold = *(uint64_t *)value;
    else if ((attribute == 6 || attribute == 8) && *(uint64_t *)value == 0)
        pool->used_high = pool->used;
    else
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    return valid(pool) && (map != NULL || count == 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location)
{
    if (!valid(pool) || flags == NULL || location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = 3;
    return CUDA_SUCCESS;
}

PER_THREAD(_ptsz, cuMemAllocAsync, (CUdeviceptr *r, size_t n, CUstream s), (r, n, s))
PER_THREAD(_ptsz, cuMemAllocFromPoolAsync, (CUdeviceptr *r, size_t n, CUmemoryPool p, CUstream s), (r, n, p, s))
PER_THREAD(_ptsz, cuMemFreeAsync, (CUdeviceptr a, CUstream s), (a, s))
