/* Copies and memsets in all their forms: each becomes one description, which is checked against the memory it names. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static bool on_card(const block *found)
{
    return found != NULL && (found->kind == BLOCK_DEVICE || found->kind == BLOCK_MANAGED || found->kind == BLOCK_MAPPED ||
                             found->kind == BLOCK_ARRAY);
}

/* The location of one end of a copy. */
typedef struct {
    uint64_t base;
    size_t pitch, slice;
    bool device;
} place;

static CUresult find_place(int type, const void *host, CUdeviceptr device, CUarray array, size_t pitch, size_t height,
                           const CUDA_MEMCPY3D *asked, place *found)
{
    switch (type) {
    case CU_MEMORYTYPE_HOST:
        found->base = (uintptr_t)host;
        break;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        found->base = device;
        break;
    case CU_MEMORYTYPE_ARRAY:
        if (!array_valid(array))
            return CUDA_ERROR_INVALID_HANDLE;
        found->base = array->base;
        pitch = array->pitch;
        height = array->rows;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (found->base == 0)
        return CUDA_ERROR_INVALID_VALUE;
    found->pitch = pitch ? pitch : asked->WidthInBytes;
    found->slice = found->pitch * (height ? height : asked->Height);
    found->device = type != CU_MEMORYTYPE_HOST && on_card(block_find(found->base));
    if (type == CU_MEMORYTYPE_DEVICE && !found->device) {
        const block *pinned = block_find(found->base);
        if (pinned == NULL || (pinned->kind != BLOCK_HOST && pinned->kind != BLOCK_REGISTERED))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return found->pitch < asked->WidthInBytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Whether all `reach` bytes from `start` are in known memory, or the memory is the program's own. */
static bool inside(uint64_t start, uint64_t reach)
{
    const block *found = block_find(start);
    uint64_t end = start + reach;
    while (found != NULL && end > found->base + found->size) {
        const block *next = block_find(found->base + found->size); /* adjacent mappings */
        if (next == NULL || next->kind != BLOCK_MAPPED)
            return found->kind == BLOCK_REGISTERED;
        found = next;
    }
    return true;
}

CUresult copy_prepare(const CUDA_MEMCPY3D *asked, copy_work *copy)
{
    place to = {0}, from = {0};
    memset(copy, 0, sizeof *copy);
    CUresult result = find_place(asked->dstMemoryType, asked->dstHost, asked->dstDevice, asked->dstArray,
                                 asked->dstPitch, asked->dstHeight, asked, &to);
    if (result == CUDA_SUCCESS)
        result = find_place(asked->srcMemoryType, asked->srcHost, asked->srcDevice, asked->srcArray, asked->srcPitch,
                            asked->srcHeight, asked, &from);
    if (result != CUDA_SUCCESS)
        return result;
    if ((asked->dstMemoryType == CU_MEMORYTYPE_ARRAY &&
         !array_holds(asked->dstArray, asked->dstXInBytes, asked->dstY, asked->dstZ, asked)) ||
        (asked->srcMemoryType == CU_MEMORYTYPE_ARRAY &&
         !array_holds(asked->srcArray, asked->srcXInBytes, asked->srcY, asked->srcZ, asked)))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t to_start = to.base + asked->dstZ * to.slice + asked->dstY * to.pitch + asked->dstXInBytes;
    uint64_t from_start = from.base + asked->srcZ * from.slice + asked->srcY * from.pitch + asked->srcXInBytes;
    size_t rows = asked->Height - 1, slices = asked->Depth - 1;
    if (asked->WidthInBytes > (1ULL << 47) || !inside(to_start, slices * to.slice + rows * to.pitch + asked->WidthInBytes) ||
        !inside(from_start, slices * from.slice + rows * from.pitch + asked->WidthInBytes))
        return CUDA_ERROR_INVALID_VALUE;
    copy->to = (char *)(uintptr_t)to_start;
    copy->from = (const char *)(uintptr_t)from_start;
    copy->to_pitch = to.pitch;
    copy->to_slice = to.slice;
    copy->from_pitch = from.pitch;
    copy->from_slice = from.slice;
    copy->width = asked->WidthInBytes;
    copy->height = asked->Height;
    copy->depth = asked->Depth;
    copy->to_device = to.device;
    copy->from_device = from.device;
    copy->between_cards = to.device && from.device && block_find(to_start)->card != block_find(from_start)->card;
    copy->asked = *asked;
    return CUDA_SUCCESS;
}

static bool copy_from_pageable(const copy_work *copy)
{
    return !copy->from_device && block_find((uintptr_t)copy->from) == NULL;
}

/* A program may reuse pageable memory as soon as the call returns, so its contents are copied now. */
static CUresult stage(copy_work *copy)
{
    size_t bytes = copy->width * copy->height * copy->depth;
    copy->staged = malloc(bytes);
    if (copy->staged == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            memcpy(copy->staged + (z * copy->height + y) * copy->width,
                   copy->from + z * copy->from_slice + y * copy->from_pitch, copy->width);
    return CUDA_SUCCESS;
}

CUresult copy_run(const CUDA_MEMCPY3D *asked, CUstream handle, copy_order order)
{
    ENTER(context);
    struct stream *stream;
    bool wait = order == COPY_AND_WAIT;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS && wait)
        result = capture_forbid(context);
    if (result != CUDA_SUCCESS || asked->WidthInBytes == 0 || asked->Height == 0 || asked->Depth == 0)
        LEAVE(result);
    work item = {.kind = WORK_COPY};
    result = copy_prepare(asked, &item.copy);
    if (result == CUDA_SUCCESS && order == COPY_READ_NOW && stream->capture == NULL && copy_from_pageable(&item.copy))
        result = stage(&item.copy);
    if (result != CUDA_SUCCESS)
        LEAVE(result);
    result = stream_launch(stream, &item);
    if (result != CUDA_SUCCESS) {
        work_release(&item);
        LEAVE(result);
    }
    LEAVE(wait ? stream_wait(stream) : CUDA_SUCCESS);
}

CUDA_MEMCPY3D copy_linear(int to_type, uint64_t to, int from_type, uint64_t from, size_t bytes)
{
    CUDA_MEMCPY3D asked = {.srcMemoryType = from_type, .dstMemoryType = to_type};
    asked.srcHost = (const void *)(uintptr_t)from;
    asked.srcDevice = from;
    asked.dstHost = (void *)(uintptr_t)to;
    asked.dstDevice = to;
    asked.WidthInBytes = bytes;
    asked.Height = asked.Depth = 1;
    return asked;
}

static CUDA_MEMCPY3D widened(const CUDA_MEMCPY2D *flat)
{
    CUDA_MEMCPY3D asked = {.srcXInBytes = flat->srcXInBytes, .srcY = flat->srcY, .srcMemoryType = flat->srcMemoryType};
    asked.srcHost = flat->srcHost;
    asked.srcDevice = flat->srcDevice;
    asked.srcArray = flat->srcArray;
    asked.srcPitch = flat->srcPitch;
    asked.dstXInBytes = flat->dstXInBytes;
    asked.dstY = flat->dstY;
    asked.dstMemoryType = flat->dstMemoryType;
    asked.dstHost = flat->dstHost;
    asked.dstDevice = flat->dstDevice;
    asked.dstArray = flat->dstArray;
    asked.dstPitch = flat->dstPitch;
    asked.WidthInBytes = flat->WidthInBytes;
    asked.Height = flat->Height;
    asked.Depth = 1;
    return asked;
}

enum { H = CU_MEMORYTYPE_HOST, D = CU_MEMORYTYPE_DEVICE, U = CU_MEMORYTYPE_UNIFIED };

/* One linear copy in its synchronous and asynchronous form, each also for the per-thread default stream. */
#define LINEAR(name, parameters, names, to_type, to, from_type, from, bytes)                                           \
    CUDA_API CUresult name parameters                                                                                  \
    {                                                                                                                  \
        CUDA_MEMCPY3D asked = copy_linear(to_type, (uint64_t)(to), from_type, (uint64_t)(from), bytes);                \
        return copy_run(&asked, NULL, COPY_AND_WAIT);                                                                  \
    }                                                                                                                  \
    PER_THREAD(_ptds, name, parameters, names)
#define LINEAR_ASYNC(name, parameters, names, to_type, to, from_type, from, bytes)                                     \
    CUDA_API CUresult name parameters                                                                                  \
    {                                                                                                                  \
        CUDA_MEMCPY3D asked = copy_linear(to_type, (uint64_t)(to), from_type, (uint64_t)(from), bytes);                \
        return copy_run(&asked, s, COPY_READ_NOW);                                                                     \
    }                                                                                                                  \
    PER_THREAD(_ptsz, name, parameters, names)

LINEAR(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n), U, to, U, from, n)
LINEAR(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t n), (to, from, n), D, to, H, (uintptr_t)from, n)
LINEAR(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t n), (to, from, n), H, (uintptr_t)to, D, from, n)
LINEAR(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t n), (to, from, n), D, to, D, from, n)
LINEAR(cuMemcpyPeer, (CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t n), (to, a, from, b, n), D, to,
       D, from, n)
LINEAR_ASYNC(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s), U, to, U, from,
             n)
LINEAR_ASYNC(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t n, CUstream s), (to, from, n, s), D, to, H,
             (uintptr_t)from, n)
LINEAR_ASYNC(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s), H,
             (uintptr_t)to, D, from, n)
LINEAR_ASYNC(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), (to, from, n, s), D, to, D,
             from, n)
LINEAR_ASYNC(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t n, CUstream s),
             (to, a, from, b, n, s), D, to, D, from, n)

CUDA_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *flat)
{
    CUDA_MEMCPY3D asked;
    if (flat == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    asked = widened(flat);
    return copy_run(&asked, NULL, COPY_AND_WAIT);
}

CUDA_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *flat)
{
    return cuMemcpy2D_v2(flat);
}

CUDA_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *flat, CUstream stream)
{
    CUDA_MEMCPY3D asked;
    if (flat == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    asked = widened(flat);
    return copy_run(&asked, stream, COPY_READ_NOW);
}

CUDA_API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *asked)
{
    return asked == NULL ? CUDA_ERROR_INVALID_VALUE : copy_run(asked, NULL, COPY_AND_WAIT);
}

CUDA_API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *asked, CUstream stream)
{
    return asked == NULL ? CUDA_ERROR_INVALID_VALUE : copy_run(asked, stream, COPY_READ_NOW);
}

CUDA_API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D *asked)
{
    return cuMemcpy3D_v2(asked);
}

CUDA_API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *asked, CUstream stream)
{
    return cuMemcpy3DAsync_v2(asked, stream);
}

PER_THREAD(_ptds, cuMemcpy2D_v2, (const CUDA_MEMCPY2D *c), (c))
PER_THREAD(_ptds, cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *c), (c))
PER_THREAD(_ptsz, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *c, CUstream s), (c, s))
PER_THREAD(_ptds, cuMemcpy3D_v2, (const CUDA_MEMCPY3D *c), (c))
PER_THREAD(_ptsz, cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *c, CUstream s), (c, s))
PER_THREAD(_ptds, cuMemcpy3DPeer, (const CUDA_MEMCPY3D *c), (c))
PER_THREAD(_ptsz, cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D *c, CUstream s), (c, s))

CUresult memset_prepare(const CUDA_MEMSET_NODE_PARAMS *asked, memset_work *item)
{
    size_t bytes = asked->width * asked->elementSize;
    if (asked->elementSize != 1 && asked->elementSize != 2 && asked->elementSize != 4)
        return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = asked->height > 1 ? asked->pitch : bytes;
    const block *found = block_find(asked->dst);
    if (found == NULL || pitch < bytes || asked->dst % asked->elementSize != 0 ||
        !inside(asked->dst, pitch * (asked->height - 1) + bytes))
        return CUDA_ERROR_INVALID_VALUE;
    *item = (memset_work){(char *)(uintptr_t)asked->dst, pitch, asked->width, asked->height, asked->value,
                          asked->elementSize};
    return CUDA_SUCCESS;
}

static CUresult memset_run(CUdeviceptr to, size_t pitch, unsigned int value, unsigned int element, size_t width,
                           size_t height, CUstream handle, bool wait)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS && wait)
        result = capture_forbid(context);
    if (result != CUDA_SUCCESS || width == 0 || height == 0)
        LEAVE(result);
    work item = {.kind = WORK_MEMSET};
    CUDA_MEMSET_NODE_PARAMS asked = {to, pitch, value, element, width, height};
    result = memset_prepare(&asked, &item.memset);
    if (result == CUDA_SUCCESS)
        result = stream_launch(stream, &item);
    LEAVE(result == CUDA_SUCCESS && wait ? stream_wait(stream) : result);
}

/* One element size in four forms, each also for the per-thread default stream. */
#define MEMSET(suffix, type, element)                                                                                  \
    CUDA_API CUresult cuMemsetD##suffix##_v2(CUdeviceptr to, type value, size_t n)                                     \
    {                                                                                                                  \
        return memset_run(to, 0, value, element, n, 1, NULL, true);                                                    \
    }                                                                                                                  \
    CUDA_API CUresult cuMemsetD##suffix##Async(CUdeviceptr to, type value, size_t n, CUstream s)                       \
    {                                                                                                                  \
        return memset_run(to, 0, value, element, n, 1, s, false);                                                      \
    }                                                                                                                  \
    CUDA_API CUresult cuMemsetD2D##suffix##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height)  \
    {                                                                                                                  \
        return memset_run(to, pitch, value, element, width, height, NULL, true);                                       \
    }                                                                                                                  \
    CUDA_API CUresult cuMemsetD2D##suffix##Async(CUdeviceptr to, size_t pitch, type value, size_t width,               \
                                                 size_t height, CUstream s)                                            \
    {                                                                                                                  \
        return memset_run(to, pitch, value, element, width, height, s, false);                                         \
    }                                                                                                                  \
    PER_THREAD(_ptds, cuMemsetD##suffix##_v2, (CUdeviceptr to, type value, size_t n), (to, value, n))                  \
    PER_THREAD(_ptsz, cuMemsetD##suffix##Async, (CUdeviceptr to, type value, size_t n, CUstream s), (to, value, n, s)) \
    PER_THREAD(_ptds, cuMemsetD2D##suffix##_v2, (CUdeviceptr to, size_t p, type value, size_t w, size_t h),            \
               (to, p, value, w, h))                                                                                   \
    PER_THREAD(_ptsz, cuMemsetD2D##suffix##Async,                                                                      \
               (CUdeviceptr to, size_t p, type value, size_t w, size_t h, CUstream s), (to, p, value, w, h, s))

MEMSET(8, unsigned char, 1)
MEMSET(16, unsigned short, 2)
MEMSET(32, unsigned int, 4)
