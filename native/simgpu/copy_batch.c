/* Many copies in one call. They run one after the other in stream order, which is one of the allowed orders. */
#include "driver.h"

static CUresult refuse(CUresult result, size_t index, size_t *failed)
{
    if (failed != NULL)
        *failed = index;
    return result;
}

/* The legacy stream is refused, as by the real driver. */
static bool stream_allowed(CUstream stream)
{
    return stream != CU_STREAM_LEGACY && (stream != NULL || default_stream_per_thread > 0);
}

static bool order_of(int asked, copy_order *order)
{
    *order = asked == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ? COPY_IN_ORDER : COPY_READ_NOW;
    return asked >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && asked <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

CUDA_API CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                     CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                                     size_t *failed, CUstream stream)
{
    if (to == NULL || from == NULL || bytes == NULL || count == 0 || attributes == NULL || starts == NULL ||
        attribute_count == 0 || attribute_count > count || starts[0] != 0 || !stream_allowed(stream))
        return refuse(CUDA_ERROR_INVALID_VALUE, SIZE_MAX, failed);
    for (size_t index = 0, kind = 0; index < count; index++) {
        copy_order order;
        while (kind + 1 < attribute_count && starts[kind + 1] <= index)
            kind++;
        if (!order_of(attributes[kind].srcAccessOrder, &order))
            return refuse(CUDA_ERROR_INVALID_VALUE, index, failed);
        CUDA_MEMCPY3D asked =
            copy_linear(CU_MEMORYTYPE_UNIFIED, to[index], CU_MEMORYTYPE_UNIFIED, from[index], bytes[index]);
        CUresult result = copy_run(&asked, stream, order);
        if (result != CUDA_SUCCESS)
            return refuse(result, index, failed);
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                        CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                                        CUstream stream)
{
    return cuMemcpyBatchAsync(to, from, bytes, count, attributes, starts, attribute_count, NULL, stream);
}

static size_t element_of(const CUmemcpy3DOperand *end)
{
    return end->type == CU_MEMCPY_OPERAND_TYPE_ARRAY && array_valid(end->array.array) ? end->array.array->element : 1;
}

/* Lengths are in elements of the array involved, or in bytes if there is none. */
static bool describe(const CUDA_MEMCPY3D_BATCH_OP *asked_for, CUDA_MEMCPY3D *asked)
{
    size_t element = element_of(&asked_for->src) > 1 ? element_of(&asked_for->src) : element_of(&asked_for->dst);
    *asked = (CUDA_MEMCPY3D){.WidthInBytes = asked_for->extent.width * element, .Height = asked_for->extent.height, .Depth = asked_for->extent.depth};
    if (asked_for->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        asked->srcMemoryType = CU_MEMORYTYPE_ARRAY;
        asked->srcArray = asked_for->src.array.array;
        asked->srcXInBytes = asked_for->src.array.offset.x * element;
        asked->srcY = asked_for->src.array.offset.y;
        asked->srcZ = asked_for->src.array.offset.z;
    } else {
        asked->srcMemoryType = CU_MEMORYTYPE_UNIFIED;
        asked->srcDevice = asked_for->src.pointer.ptr;
        asked->srcPitch = asked_for->src.pointer.rowLength * element;
        asked->srcHeight = asked_for->src.pointer.layerHeight;
    }
    if (asked_for->dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        asked->dstMemoryType = CU_MEMORYTYPE_ARRAY;
        asked->dstArray = asked_for->dst.array.array;
        asked->dstXInBytes = asked_for->dst.array.offset.x * element;
        asked->dstY = asked_for->dst.array.offset.y;
        asked->dstZ = asked_for->dst.array.offset.z;
    } else {
        asked->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        asked->dstDevice = asked_for->dst.pointer.ptr;
        asked->dstPitch = asked_for->dst.pointer.rowLength * element;
        asked->dstHeight = asked_for->dst.pointer.layerHeight;
    }
    return (asked_for->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY || asked_for->src.type == CU_MEMCPY_OPERAND_TYPE_POINTER) &&
           (asked_for->dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY || asked_for->dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER);
}

CUDA_API CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed,
                                       unsigned long long flags, CUstream stream)
{
    if (ops == NULL || count == 0 || flags != 0 || !stream_allowed(stream))
        return refuse(CUDA_ERROR_INVALID_VALUE, SIZE_MAX, failed);
    for (size_t index = 0; index < count; index++) {
        CUDA_MEMCPY3D asked;
        copy_order order;
        if (!order_of(ops[index].srcAccessOrder, &order) || !describe(&ops[index], &asked))
            return refuse(CUDA_ERROR_INVALID_VALUE, index, failed);
        CUresult result = copy_run(&asked, stream, order);
        if (result != CUDA_SUCCESS)
            return refuse(result, index, failed);
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags,
                                          CUstream stream)
{
    return cuMemcpy3DBatchAsync(count, ops, NULL, flags, stream);
}

PER_THREAD(_ptsz, cuMemcpyBatchAsync,
           (CUdeviceptr * t, CUdeviceptr *f, size_t *b, size_t n, CUmemcpyAttributes *a, size_t *i, size_t m, size_t *e,
            CUstream s),
           (t, f, b, n, a, i, m, e, s))
PER_THREAD(_ptsz, cuMemcpyBatchAsync_v2,
           (CUdeviceptr * t, CUdeviceptr *f, size_t *b, size_t n, CUmemcpyAttributes *a, size_t *i, size_t m, CUstream s),
           (t, f, b, n, a, i, m, s))
PER_THREAD(_ptsz, cuMemcpy3DBatchAsync,
           (size_t n, CUDA_MEMCPY3D_BATCH_OP *o, size_t *e, unsigned long long f, CUstream s), (n, o, e, f, s))
PER_THREAD(_ptsz, cuMemcpy3DBatchAsync_v2, (size_t n, CUDA_MEMCPY3D_BATCH_OP *o, unsigned long long f, CUstream s),
           (n, o, f, s))
