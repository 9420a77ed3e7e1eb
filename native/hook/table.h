/* The table of driver functions that the hook knows; all other code about them is generated from it.
 *
 * Columns of a row: symbol exported by libcuda.so.1, name for cuGetProcAddress, CUDA version that introduced this ABI,
 * default-stream flavour, group, stream of the work, parameters, arguments.
 *
 *   BATON_GATED_ROWS   submit work to the GPU; the wrapper is generated and waits for the lock (gated.c)
 *   BATON_WAIT_ROWS    wait for the GPU; the generated wrapper only measures the time (gated.c)
 *   BATON_OWN_ROWS     hand-written wrapper: memory, captures, contexts, symbol lookup
 *   BATON_USED_ROWS    not wrapped; called by the hook itself
 *
 * The `stream` column is NONE if the work has finished when the call returns (or there is no stream to follow),
 * otherwise the parameter that holds the stream. One line generates both flavours of a function: PTSZ and PTDS are the
 * driver's suffixes for the variants with a per-thread default stream.
 */
#ifndef BATON_TABLE_H
#define BATON_TABLE_H

#include "cuda_abi.h"

#define NONE ((CUstream) - 1)

#define PLAIN(X, symbol, api, since, group, stream, parameters, arguments) \
    X(symbol, api, since, 0, group, stream, parameters, arguments)
#define PTSZ(X, symbol, api, since, group, stream, parameters, arguments) \
    X(symbol, api, since, 0, group, stream, parameters, arguments)        \
    X(symbol##_ptsz, api, since, 1, group, stream, parameters, arguments)
#define PTDS(X, symbol, api, since, group, stream, parameters, arguments) \
    X(symbol, api, since, 0, group, stream, parameters, arguments)        \
    X(symbol##_ptds, api, since, 1, group, stream, parameters, arguments)

/* clang-format off */
#define BATON_GATED_ROWS(X) \
    PTSZ(X, cuLaunchKernel, "cuLaunchKernel", 4000, LAUNCH, stream, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params, void **extra), (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra)) \
    PTSZ(X, cuLaunchKernelEx, "cuLaunchKernelEx", 11060, LAUNCH, (config ? config->hStream : NONE), (const CUlaunchConfig *config, CUfunction f, void **params, void **extra), (config, f, params, extra)) \
    PTSZ(X, cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, LAUNCH, stream, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params), (f, gx, gy, gz, bx, by, bz, shared, stream, params)) \
    PLAIN(X, cuLaunch, "cuLaunch", 2000, LAUNCH, NONE, (CUfunction f), (f)) \
    PLAIN(X, cuLaunchGrid, "cuLaunchGrid", 2000, LAUNCH, NONE, (CUfunction f, int width, int height), (f, width, height)) \
    PLAIN(X, cuLaunchGridAsync, "cuLaunchGridAsync", 2000, LAUNCH, stream, (CUfunction f, int width, int height, CUstream stream), (f, width, height, stream)) \
    PTSZ(X, cuGraphLaunch, "cuGraphLaunch", 10000, GRAPH, stream, (CUgraphExec exec, CUstream stream), (exec, stream)) \
    PTSZ(X, cuGraphUpload, "cuGraphUpload", 11010, GRAPH, stream, (CUgraphExec exec, CUstream stream), (exec, stream)) \
    PTDS(X, cuMemcpy, "cuMemcpy", 4000, COPY, NONE, (CUdeviceptr dst, CUdeviceptr src, size_t count), (dst, src, count)) \
    PTDS(X, cuMemcpyPeer, "cuMemcpyPeer", 4000, COPY, NONE, (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t count), (dst, dst_ctx, src, src_ctx, count)) \
    PTDS(X, cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, COPY, NONE, (CUdeviceptr dst, const void *src, size_t count), (dst, src, count)) \
    PTDS(X, cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, COPY, NONE, (void *dst, CUdeviceptr src, size_t count), (dst, src, count)) \
    PTDS(X, cuMemcpyDtoD_v2, "cuMemcpyDtoD", 3020, COPY, NONE, (CUdeviceptr dst, CUdeviceptr src, size_t count), (dst, src, count)) \
    PTDS(X, cuMemcpyDtoA_v2, "cuMemcpyDtoA", 3020, COPY, NONE, (CUarray dst, size_t offset, CUdeviceptr src, size_t count), (dst, offset, src, count)) \
    PTDS(X, cuMemcpyAtoD_v2, "cuMemcpyAtoD", 3020, COPY, NONE, (CUdeviceptr dst, CUarray src, size_t offset, size_t count), (dst, src, offset, count)) \
    PTDS(X, cuMemcpyHtoA_v2, "cuMemcpyHtoA", 3020, COPY, NONE, (CUarray dst, size_t offset, const void *src, size_t count), (dst, offset, src, count)) \
    PTDS(X, cuMemcpyAtoH_v2, "cuMemcpyAtoH", 3020, COPY, NONE, (void *dst, CUarray src, size_t offset, size_t count), (dst, src, offset, count)) \
    PTDS(X, cuMemcpyAtoA_v2, "cuMemcpyAtoA", 3020, COPY, NONE, (CUarray dst, size_t dst_offset, CUarray src, size_t src_offset, size_t count), (dst, dst_offset, src, src_offset, count)) \
    PTDS(X, cuMemcpy2D_v2, "cuMemcpy2D", 3020, COPY, NONE, (const void *copy), (copy)) \
    PTDS(X, cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", 3020, COPY, NONE, (const void *copy), (copy)) \
    PTDS(X, cuMemcpy3D_v2, "cuMemcpy3D", 3020, COPY, NONE, (const void *copy), (copy)) \
    PTDS(X, cuMemcpy3DPeer, "cuMemcpy3DPeer", 4000, COPY, NONE, (const void *copy), (copy)) \
    PTSZ(X, cuMemcpyAsync, "cuMemcpyAsync", 4000, COPY, stream, (CUdeviceptr dst, CUdeviceptr src, size_t count, CUstream stream), (dst, src, count, stream)) \
    PTSZ(X, cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000, COPY, stream, (CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t count, CUstream stream), (dst, dst_ctx, src, src_ctx, count, stream)) \
    PTSZ(X, cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020, COPY, stream, (CUdeviceptr dst, const void *src, size_t count, CUstream stream), (dst, src, count, stream)) \
    PTSZ(X, cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020, COPY, stream, (void *dst, CUdeviceptr src, size_t count, CUstream stream), (dst, src, count, stream)) \
    PTSZ(X, cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020, COPY, stream, (CUdeviceptr dst, CUdeviceptr src, size_t count, CUstream stream), (dst, src, count, stream)) \
    PTSZ(X, cuMemcpyHtoAAsync_v2, "cuMemcpyHtoAAsync", 3020, COPY, stream, (CUarray dst, size_t offset, const void *src, size_t count, CUstream stream), (dst, offset, src, count, stream)) \
    PTSZ(X, cuMemcpyAtoHAsync_v2, "cuMemcpyAtoHAsync", 3020, COPY, stream, (void *dst, CUarray src, size_t offset, size_t count, CUstream stream), (dst, src, offset, count, stream)) \
    PTSZ(X, cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", 3020, COPY, stream, (const void *copy, CUstream stream), (copy, stream)) \
    PTSZ(X, cuMemcpy3DAsync_v2, "cuMemcpy3DAsync", 3020, COPY, stream, (const void *copy, CUstream stream), (copy, stream)) \
    PTSZ(X, cuMemcpy3DPeerAsync, "cuMemcpy3DPeerAsync", 4000, COPY, stream, (const void *copy, CUstream stream), (copy, stream)) \
    PTSZ(X, cuMemcpyBatchAsync, "cuMemcpyBatchAsync", 12080, COPY, stream, (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices, size_t attr_count, size_t *fail, CUstream stream), (dsts, srcs, sizes, count, attrs, indices, attr_count, fail, stream)) \
    PTSZ(X, cuMemcpyBatchAsync_v2, "cuMemcpyBatchAsync", 13000, COPY, stream, (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, void *attrs, size_t *indices, size_t attr_count, CUstream stream), (dsts, srcs, sizes, count, attrs, indices, attr_count, stream)) \
    PTSZ(X, cuMemcpy3DBatchAsync, "cuMemcpy3DBatchAsync", 12080, COPY, stream, (size_t count, void *ops, size_t *fail, unsigned long long flags, CUstream stream), (count, ops, fail, flags, stream)) \
    PTSZ(X, cuMemcpy3DBatchAsync_v2, "cuMemcpy3DBatchAsync", 13000, COPY, stream, (size_t count, void *ops, unsigned long long flags, CUstream stream), (count, ops, flags, stream)) \
    PTSZ(X, cuMemcpyWithAttributesAsync, "cuMemcpyWithAttributesAsync", 13000, COPY, stream, (CUdeviceptr dst, CUdeviceptr src, size_t count, void *attr, CUstream stream), (dst, src, count, attr, stream)) \
    PTSZ(X, cuMemcpy3DWithAttributesAsync, "cuMemcpy3DWithAttributesAsync", 13000, COPY, stream, (void *op, unsigned long long flags, CUstream stream), (op, flags, stream)) \
    PTSZ(X, cuMemBatchDecompressAsync, "cuMemBatchDecompressAsync", 12060, COPY, stream, (void *params, size_t count, unsigned flags, size_t *error, CUstream stream), (params, count, flags, error, stream)) \
    PTDS(X, cuMemsetD8_v2, "cuMemsetD8", 3020, MEMSET, NONE, (CUdeviceptr dst, unsigned char value, size_t count), (dst, value, count)) \
    PTDS(X, cuMemsetD16_v2, "cuMemsetD16", 3020, MEMSET, NONE, (CUdeviceptr dst, unsigned short value, size_t count), (dst, value, count)) \
    PTDS(X, cuMemsetD32_v2, "cuMemsetD32", 3020, MEMSET, NONE, (CUdeviceptr dst, unsigned value, size_t count), (dst, value, count)) \
    PTDS(X, cuMemsetD2D8_v2, "cuMemsetD2D8", 3020, MEMSET, NONE, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height), (dst, pitch, value, width, height)) \
    PTDS(X, cuMemsetD2D16_v2, "cuMemsetD2D16", 3020, MEMSET, NONE, (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height), (dst, pitch, value, width, height)) \
    PTDS(X, cuMemsetD2D32_v2, "cuMemsetD2D32", 3020, MEMSET, NONE, (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height), (dst, pitch, value, width, height)) \
    PTSZ(X, cuMemsetD8Async, "cuMemsetD8Async", 3020, MEMSET, stream, (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream), (dst, value, count, stream)) \
    PTSZ(X, cuMemsetD16Async, "cuMemsetD16Async", 3020, MEMSET, stream, (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream), (dst, value, count, stream)) \
    PTSZ(X, cuMemsetD32Async, "cuMemsetD32Async", 3020, MEMSET, stream, (CUdeviceptr dst, unsigned value, size_t count, CUstream stream), (dst, value, count, stream)) \
    PTSZ(X, cuMemsetD2D8Async, "cuMemsetD2D8Async", 3020, MEMSET, stream, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream), (dst, pitch, value, width, height, stream)) \
    PTSZ(X, cuMemsetD2D16Async, "cuMemsetD2D16Async", 3020, MEMSET, stream, (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream), (dst, pitch, value, width, height, stream)) \
    PTSZ(X, cuMemsetD2D32Async, "cuMemsetD2D32Async", 3020, MEMSET, stream, (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream), (dst, pitch, value, width, height, stream)) \
    PTSZ(X, cuMemPrefetchAsync, "cuMemPrefetchAsync", 8000, COPY, stream, (CUdeviceptr ptr, size_t count, CUdevice device, CUstream stream), (ptr, count, device, stream)) \
    PTSZ(X, cuMemPrefetchAsync_v2, "cuMemPrefetchAsync", 12020, COPY, stream, (CUdeviceptr ptr, size_t count, CUmemLocation location, unsigned flags, CUstream stream), (ptr, count, location, flags, stream)) \
    PTSZ(X, cuMemPrefetchBatchAsync, "cuMemPrefetchBatchAsync", 13000, COPY, stream, (CUdeviceptr *ptrs, size_t *sizes, size_t count, void *locations, size_t *indices, size_t location_count, unsigned long long flags, CUstream stream), (ptrs, sizes, count, locations, indices, location_count, flags, stream)) \
    PTSZ(X, cuMemDiscardAndPrefetchBatchAsync, "cuMemDiscardAndPrefetchBatchAsync", 13000, COPY, stream, (CUdeviceptr *ptrs, size_t *sizes, size_t count, void *locations, size_t *indices, size_t location_count, unsigned long long flags, CUstream stream), (ptrs, sizes, count, locations, indices, location_count, flags, stream))

#define BATON_OWN_ROWS(X) \
    PLAIN(X, cuGetProcAddress, "cuGetProcAddress", 11030, SYMBOL, NONE, (const char *symbol, void **function, int version, cuuint64_t flags), (symbol, function, version, flags)) \
    PLAIN(X, cuGetProcAddress_v2, "cuGetProcAddress", 12000, SYMBOL, NONE, (const char *symbol, void **function, int version, cuuint64_t flags, int *status), (symbol, function, version, flags, status)) \
    PLAIN(X, cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000, LAUNCH, NONE, (CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags), (list, count, flags)) \
    PLAIN(X, cuMemAlloc_v2, "cuMemAlloc", 3020, ALLOC, NONE, (CUdeviceptr *ptr, size_t size), (ptr, size)) \
    PLAIN(X, cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, ALLOC, NONE, (CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element), (ptr, pitch, width, height, element)) \
    PLAIN(X, cuMemAllocManaged, "cuMemAllocManaged", 6000, ALLOC, NONE, (CUdeviceptr *ptr, size_t size, unsigned flags), (ptr, size, flags)) \
    PTSZ(X, cuMemAllocAsync, "cuMemAllocAsync", 11020, ALLOC, stream, (CUdeviceptr *ptr, size_t size, CUstream stream), (ptr, size, stream)) \
    PTSZ(X, cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, ALLOC, stream, (CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream), (ptr, size, pool, stream)) \
    PLAIN(X, cuMemPoolCreate, "cuMemPoolCreate", 11020, ALLOC, NONE, (CUmemoryPool *pool, const baton_placement *properties), (pool, properties)) \
    PLAIN(X, cuMemPoolDestroy, "cuMemPoolDestroy", 11020, FREE, NONE, (CUmemoryPool pool), (pool)) \
    PLAIN(X, cuMemFree_v2, "cuMemFree", 3020, FREE, NONE, (CUdeviceptr ptr), (ptr)) \
    PTSZ(X, cuMemFreeAsync, "cuMemFreeAsync", 11020, FREE, stream, (CUdeviceptr ptr, CUstream stream), (ptr, stream)) \
    PLAIN(X, cuMemCreate, "cuMemCreate", 10020, ALLOC, NONE, (CUmemGenericAllocationHandle *handle, size_t size, const baton_placement *properties, unsigned long long flags), (handle, size, properties, flags)) \
    PLAIN(X, cuMemRelease, "cuMemRelease", 10020, FREE, NONE, (CUmemGenericAllocationHandle handle), (handle)) \
    PLAIN(X, cuMemMap, "cuMemMap", 10020, ALLOC, NONE, (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags), (ptr, size, offset, handle, flags)) \
    PLAIN(X, cuMemUnmap, "cuMemUnmap", 10020, FREE, NONE, (CUdeviceptr ptr, size_t size), (ptr, size)) \
    PLAIN(X, cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, ALLOC, NONE, (CUmemGenericAllocationHandle *handle, void *address), (handle, address)) \
    PLAIN(X, cuArrayCreate_v2, "cuArrayCreate", 3020, ALLOC, NONE, (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape), (array, shape)) \
    PLAIN(X, cuArray3DCreate_v2, "cuArray3DCreate", 3020, ALLOC, NONE, (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape), (array, shape)) \
    PLAIN(X, cuArrayDestroy, "cuArrayDestroy", 2000, FREE, NONE, (CUarray array), (array)) \
    PLAIN(X, cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, ALLOC, NONE, (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels), (array, shape, levels)) \
    PLAIN(X, cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, FREE, NONE, (CUmipmappedArray array), (array)) \
    PLAIN(X, cuMemGetInfo_v2, "cuMemGetInfo", 3020, INFO, NONE, (size_t *free_bytes, size_t *total), (free_bytes, total)) \
    PLAIN(X, cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, INFO, NONE, (size_t *bytes, CUdevice device), (bytes, device)) \
    PTSZ(X, cuStreamBeginCapture, "cuStreamBeginCapture", 10000, CAPTURE, NONE, (CUstream stream), (stream)) \
    PTSZ(X, cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, CAPTURE, NONE, (CUstream stream, int mode), (stream, mode)) \
    PTSZ(X, cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, CAPTURE, NONE, (CUstream stream, CUgraph graph, const void *dependencies, const void *edges, size_t count, int mode), (stream, graph, dependencies, edges, count, mode)) \
    PTSZ(X, cuStreamEndCapture, "cuStreamEndCapture", 10000, CAPTURE, NONE, (CUstream stream, CUgraph *graph), (stream, graph)) \
    PLAIN(X, cuStreamDestroy_v2, "cuStreamDestroy", 4000, CAPTURE, NONE, (CUstream stream), (stream)) \
    PLAIN(X, cuCtxDestroy, "cuCtxDestroy", 2000, CONTEXT, NONE, (CUcontext context), (context)) \
    PLAIN(X, cuCtxDestroy_v2, "cuCtxDestroy", 4000, CONTEXT, NONE, (CUcontext context), (context)) \
    PLAIN(X, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, CONTEXT, NONE, (CUcontext *context, CUdevice device), (context, device)) \
    PLAIN(X, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, CONTEXT, NONE, (CUdevice device), (device)) \
    PLAIN(X, cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, CONTEXT, NONE, (CUdevice device), (device)) \
    PLAIN(X, cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, CONTEXT, NONE, (CUdevice device), (device)) \
    PLAIN(X, cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, CONTEXT, NONE, (CUdevice device), (device))

#define BATON_WAIT_ROWS(X) \
    PLAIN(X, cuCtxSynchronize, "cuCtxSynchronize", 2000, WAIT, NONE, (void), ()) \
    PLAIN(X, cuCtxSynchronize_v2, "cuCtxSynchronize_v2", 13000, WAIT, NONE, (CUcontext context), (context)) \
    PTSZ(X, cuStreamSynchronize, "cuStreamSynchronize", 2000, WAIT, NONE, (CUstream stream), (stream)) \
    PLAIN(X, cuEventSynchronize, "cuEventSynchronize", 2000, WAIT, NONE, (CUevent event), (event))

#define BATON_USED_ROWS(X) \
    PLAIN(X, cuDeviceGetCount, "", 2000, USED, NONE, (int *count), (count)) \
    PLAIN(X, cuDeviceGet, "", 2000, USED, NONE, (CUdevice *device, int ordinal), (device, ordinal)) \
    PLAIN(X, cuDeviceGetUuid, "", 9020, USED, NONE, (CUuuid *uuid, CUdevice device), (uuid, device)) \
    PLAIN(X, cuDeviceGetUuid_v2, "", 11040, USED, NONE, (CUuuid *uuid, CUdevice device), (uuid, device)) \
    PLAIN(X, cuDeviceGetAttribute, "", 2000, USED, NONE, (int *value, int attribute, CUdevice device), (value, attribute, device)) \
    PLAIN(X, cuDevicePrimaryCtxGetState, "", 7000, USED, NONE, (CUdevice device, unsigned *flags, int *active), (device, flags, active)) \
    PLAIN(X, cuCtxGetCurrent, "", 4000, USED, NONE, (CUcontext *context), (context)) \
    PLAIN(X, cuCtxGetDevice, "", 2000, USED, NONE, (CUdevice *device), (device)) \
    PLAIN(X, cuCtxPushCurrent_v2, "", 4000, USED, NONE, (CUcontext context), (context)) \
    PLAIN(X, cuCtxPopCurrent_v2, "", 4000, USED, NONE, (CUcontext *context), (context)) \
    PLAIN(X, cuStreamIsCapturing, "", 10000, USED, NONE, (CUstream stream, int *status), (stream, status)) \
    PLAIN(X, cuEventCreate, "", 2000, USED, NONE, (CUevent *event, unsigned flags), (event, flags)) \
    PLAIN(X, cuEventRecord, "", 2000, USED, NONE, (CUevent event, CUstream stream), (event, stream)) \
    PLAIN(X, cuEventQuery, "", 2000, USED, NONE, (CUevent event), (event)) \
    PLAIN(X, cuEventDestroy_v2, "", 4000, USED, NONE, (CUevent event), (event))
/* clang-format on */

#define BATON_WRAPPED_ROWS(X) BATON_GATED_ROWS(X) BATON_WAIT_ROWS(X) BATON_OWN_ROWS(X)
#define BATON_ALL_ROWS(X) BATON_WRAPPED_ROWS(X) BATON_USED_ROWS(X)

#endif
