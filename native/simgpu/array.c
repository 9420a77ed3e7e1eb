/* Arrays: memory in rows of elements, and the copies along a row of a one-dimensional array. */
#include "driver.h"

#include <stdlib.h>

bool array_valid(const struct array *array)
{
    return array != NULL && array->magic == MAGIC_ARRAY;
}

bool array_holds(const struct array *array, size_t x, size_t y, size_t z, const CUDA_MEMCPY3D *asked)
{
    size_t width = array->descriptor.Width * array->element;
    return x <= width && asked->WidthInBytes <= width - x && y <= array->rows && asked->Height <= array->rows - y &&
           z <= array->slices && asked->Depth <= array->slices - z;
}

static size_t channel_bytes(int format)
{
    switch (format) {
    case 0x01:
    case 0x08:
        return 1;
    case 0x02:
    case 0x09:
    case 0x10:
        return 2;
    default:
        return 4;
    }
}

CUDA_API CUresult cuArray3DCreate_v2(CUarray *result, const CUDA_ARRAY3D_DESCRIPTOR *asked)
{
    ENTER(context);
    if (result == NULL || asked == NULL || asked->Width == 0 || asked->NumChannels == 0 || asked->NumChannels > 4)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    struct array *array = calloc(1, sizeof *array);
    if (array == NULL)
        LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    array->descriptor = *asked;
    array->element = asked->NumChannels * channel_bytes(asked->Format);
    array->pitch = (asked->Width * array->element + 511) / 512 * 512;
    array->rows = asked->Height ? asked->Height : 1;
    array->slices = asked->Depth ? asked->Depth : 1;
    block fresh = {.kind = BLOCK_ARRAY};
    CUresult taken = memory_take(context, array->pitch * array->rows * array->slices, &fresh);
    if (taken != CUDA_SUCCESS) {
        free(array);
        LEAVE(taken);
    }
    array->base = fresh.base;
    array->magic = MAGIC_ARRAY;
    *result = array;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuArrayCreate_v2(CUarray *result, const CUDA_ARRAY_DESCRIPTOR *asked)
{
    if (asked == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR deep = {asked->Width, asked->Height, 0, asked->Format, asked->NumChannels, 0};
    return cuArray3DCreate_v2(result, &deep);
}

CUDA_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array)
{
    if (descriptor == NULL || !array_valid(array))
        return CUDA_ERROR_INVALID_HANDLE;
    *descriptor = array->descriptor;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array)
{
    if (descriptor == NULL || !array_valid(array))
        return CUDA_ERROR_INVALID_HANDLE;
    *descriptor = (CUDA_ARRAY_DESCRIPTOR){array->descriptor.Width, array->descriptor.Height, array->descriptor.Format,
                                          array->descriptor.NumChannels};
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuArrayDestroy(CUarray array)
{
    ENTER(context);
    if (!array_valid(array))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    CUresult result = context_wait(context);
    block *found = block_find(array->base);
    if (found != NULL)
        memory_free_block(found);
    array->magic = 0;
    free(array);
    LEAVE(result);
}

/* Offsets and lengths are in bytes along the only row. */
static CUresult row_run(CUDA_MEMCPY3D asked, CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                        CUstream stream, copy_order order)
{
    CUarray ends[] = {asked.dstMemoryType == CU_MEMORYTYPE_ARRAY ? to : NULL,
                      asked.srcMemoryType == CU_MEMORYTYPE_ARRAY ? from : NULL};
    for (size_t end = 0; end < 2; end++)
        if (ends[end] != NULL && (!array_valid(ends[end]) || ends[end]->rows * ends[end]->slices != 1))
            return CUDA_ERROR_INVALID_VALUE;
    asked.dstArray = to;
    asked.dstXInBytes = to_offset;
    asked.srcArray = from;
    asked.srcXInBytes = from_offset;
    return copy_run(&asked, stream, order);
}

enum { H = CU_MEMORYTYPE_HOST, D = CU_MEMORYTYPE_DEVICE, A = CU_MEMORYTYPE_ARRAY };

CUDA_API CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t n)
{
    return row_run(copy_linear(A, 0, D, from, n), to, offset, NULL, 0, NULL, COPY_AND_WAIT);
}

CUDA_API CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t n)
{
    return row_run(copy_linear(D, to, A, 0, n), NULL, 0, from, offset, NULL, COPY_AND_WAIT);
}

CUDA_API CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t n)
{
    return row_run(copy_linear(A, 0, H, (uintptr_t)from, n), to, offset, NULL, 0, NULL, COPY_AND_WAIT);
}

CUDA_API CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t n)
{
    return row_run(copy_linear(H, (uintptr_t)to, A, 0, n), NULL, 0, from, offset, NULL, COPY_AND_WAIT);
}

CUDA_API CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t n)
{
    return row_run(copy_linear(A, 0, A, 0, n), to, to_offset, from, from_offset, NULL, COPY_AND_WAIT);
}

CUDA_API CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t n, CUstream stream)
{
    return row_run(copy_linear(A, 0, H, (uintptr_t)from, n), to, offset, NULL, 0, stream, COPY_READ_NOW);
}

CUDA_API CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t n, CUstream stream)
{
    return row_run(copy_linear(H, (uintptr_t)to, A, 0, n), NULL, 0, from, offset, stream, COPY_READ_NOW);
}

PER_THREAD(_ptds, cuMemcpyDtoA_v2, (CUarray to, size_t o, CUdeviceptr from, size_t n), (to, o, from, n))
PER_THREAD(_ptds, cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t o, size_t n), (to, from, o, n))
PER_THREAD(_ptds, cuMemcpyHtoA_v2, (CUarray to, size_t o, const void *from, size_t n), (to, o, from, n))
PER_THREAD(_ptds, cuMemcpyAtoH_v2, (void *to, CUarray from, size_t o, size_t n), (to, from, o, n))
PER_THREAD(_ptds, cuMemcpyAtoA_v2, (CUarray to, size_t o, CUarray from, size_t p, size_t n), (to, o, from, p, n))
PER_THREAD(_ptsz, cuMemcpyHtoAAsync_v2, (CUarray to, size_t o, const void *from, size_t n, CUstream s), (to, o, from, n, s))
PER_THREAD(_ptsz, cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t o, size_t n, CUstream s), (to, from, o, n, s))
