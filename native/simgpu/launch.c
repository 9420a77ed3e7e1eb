/* Launches in all their forms, host functions, and the occupancy calculations. */
#include "driver.h"

#include <string.h>

#define END_OF_EXTRA ((void *)0)
#define EXTRA_BUFFER ((void *)1)
#define THREADS_PER_BLOCK 1024

/* Reads the arguments of a known kernel from either form in which a launch may pass them. */
static CUresult gather_arguments(kernel_work *kernel, void **parameters, void **extra)
{
    const kernel_model *model = kernel->function->model;
    const unsigned char *packed = NULL;
    for (void **entry = extra; entry != NULL && *entry != END_OF_EXTRA; entry += 2)
        if (*entry == EXTRA_BUFFER)
            packed = entry[1];
    if (model == NULL)
        return CUDA_SUCCESS;
    size_t offset = 0;
    for (size_t index = 0; index < sizeof model->sizes && model->sizes[index]; index++) {
        size_t size = model->sizes[index];
        offset = (offset + size - 1) / size * size;
        if (parameters != NULL && parameters[index] != NULL)
            memcpy(kernel->arguments + offset, parameters[index], size);
        else if (packed != NULL)
            memcpy(kernel->arguments + offset, packed + offset, size);
        else
            return CUDA_ERROR_INVALID_VALUE;
        offset += size;
    }
    return CUDA_SUCCESS;
}

static bool arguments_reach_memory(const kernel_work *kernel)
{
    const kernel_model *model = kernel->function->model;
    if (model == NULL || model->effect == NULL)
        return true;
    int32_t count;
    memcpy(&count, kernel->arguments + (model->sizes[0] == 4 ? 0 : 24), sizeof count);
    size_t offset = 0;
    for (size_t index = 0; count > 0 && model->sizes[index]; index++) {
        size_t size = model->sizes[index];
        offset = (offset + size - 1) / size * size;
        if (size == 8) {
            uint64_t address;
            memcpy(&address, kernel->arguments + offset, sizeof address);
            const block *found = block_find(address);
            if (found == NULL || address + (uint64_t)count * 4 > found->base + found->size)
                return false;
        }
        offset += size;
    }
    return true;
}

CUresult kernel_prepare(struct context *context, const CUDA_KERNEL_NODE_PARAMS *asked, kernel_work *kernel)
{
    memset(kernel, 0, sizeof *kernel);
    kernel->function = asked->func != NULL ? asked->func : asked->kern;
    if (!function_valid(kernel->function))
        return CUDA_ERROR_INVALID_HANDLE;
    unsigned int dimensions[] = {asked->gridDimX,  asked->gridDimY,  asked->gridDimZ,
                                 asked->blockDimX, asked->blockDimY, asked->blockDimZ};
    for (int index = 0; index < 6; index++)
        if (dimensions[index] == 0)
            return CUDA_ERROR_INVALID_VALUE;
    uint64_t threads = (uint64_t)asked->blockDimX * asked->blockDimY * asked->blockDimZ;
    if (threads > THREADS_PER_BLOCK || asked->gridDimY > 65535 || asked->gridDimZ > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(kernel->grid, dimensions, sizeof kernel->grid);
    memcpy(kernel->block, dimensions + 3, sizeof kernel->block);
    kernel->shared_bytes = asked->sharedMemBytes;
    CUresult result = gather_arguments(kernel, asked->kernelParams, asked->extra);
    /* A kernel that exceeds its memory kills the context; on a real card slightly later. */
    if (result == CUDA_SUCCESS && !arguments_reach_memory(kernel)) {
        simgpu_card *card = simgpu_card_lock(&driver.machine, context->card);
        simgpu_fault_xid(card, 31, driver.machine.slot);
        simgpu_card_unlock(&driver.machine, card);
        context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return result;
}

static CUresult launch(const CUDA_KERNEL_NODE_PARAMS *asked, CUstream handle, bool cooperative)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS)
        LEAVE(result);
    work item = {.kind = WORK_KERNEL};
    result = kernel_prepare(stream->context, asked, &item.kernel);
    if (result != CUDA_SUCCESS)
        LEAVE(result);
    const simgpu_profile *profile = &driver_card(context->card)->profile;
    double threads = 1;
    for (int axis = 0; axis < 3; axis++)
        threads *= (double)item.kernel.grid[axis] * item.kernel.block[axis];
    if (cooperative && threads > (double)profile->sm_count * profile->threads_per_sm)
        LEAVE(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    item.kernel.cooperative = cooperative;
    LEAVE(stream_launch(stream, &item));
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                 unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                 unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
{
    CUDA_KERNEL_NODE_PARAMS asked = {function, grid_x, grid_y, grid_z, block_x, block_y,
                                     block_z,  shared_bytes, parameters, extra, NULL, NULL};
    return launch(&asked, stream, false);
}

CUDA_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                            unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                            unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                            void **parameters)
{
    CUDA_KERNEL_NODE_PARAMS asked = {function, grid_x, grid_y, grid_z, block_x, block_y,
                                     block_z,  shared_bytes, parameters, NULL, NULL, NULL};
    return launch(&asked, stream, true);
}

CUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool cooperative = false;
    for (unsigned int index = 0; index < config->numAttrs; index++)
        if (config->attrs[index].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            cooperative = config->attrs[index].value.cooperative != 0;
    CUDA_KERNEL_NODE_PARAMS asked = {function,          config->gridDimX,  config->gridDimY,       config->gridDimZ,
                                     config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes,
                                     parameters,        extra,             NULL,                   NULL};
    return launch(&asked, config->hStream, cooperative);
}

CUDA_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS || function == NULL)
        LEAVE(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    work item = {.kind = WORK_HOST, .host = {.function = function, .data = data}};
    LEAVE(stream_launch(stream, &item));
}

CUDA_API CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *data, unsigned int mode)
{
    return cuLaunchHostFunc(stream, function, data);
}

CUDA_API CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *data, unsigned int flags)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS || callback == NULL || flags != 0)
        LEAVE(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    if (stream->capture != NULL)
        LEAVE(capture_forbid_stream(stream));
    work item = {.kind = WORK_HOST, .host = {.callback = callback, .data = data}};
    LEAVE(stream_push(stream, &item, NULL));
}

CUDA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_size,
                                                                       size_t shared_bytes, unsigned int flags)
{
    ENTER(context);
    const simgpu_profile *profile = &driver_card(context->card)->profile;
    if (blocks == NULL || !function_valid(function) || block_size <= 0)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    int by_threads = block_size > THREADS_PER_BLOCK ? 0 : (int)profile->threads_per_sm / block_size;
    int by_shared = shared_bytes ? (int)(profile->shared_kib_per_sm * 1024ULL / shared_bytes) : 32;
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    *blocks = *blocks > 32 ? 32 : *blocks;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size,
                                                              size_t shared_bytes)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

CUDA_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid_size, int *block_size, CUfunction function,
                                                            CUoccupancyB2DSize shared_of, size_t shared_bytes,
                                                            int limit, unsigned int flags)
{
    ENTER(context);
    const simgpu_profile *profile = &driver_card(context->card)->profile;
    if (grid_size == NULL || block_size == NULL || !function_valid(function))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *block_size = limit > 0 && limit < THREADS_PER_BLOCK ? limit : THREADS_PER_BLOCK;
    *grid_size = (int)(profile->sm_count * (profile->threads_per_sm / (unsigned int)*block_size));
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuOccupancyMaxPotentialBlockSize(int *grid_size, int *block_size, CUfunction function,
                                                   CUoccupancyB2DSize shared_of, size_t shared_bytes, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid_size, block_size, function, shared_of, shared_bytes, limit, 0);
}

CUDA_API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int block_size)
{
    ENTER(context);
    if (bytes == NULL || !function_valid(function) || blocks <= 0)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *bytes = driver_card(context->card)->profile.shared_kib_per_sm * 1024ULL / (size_t)blocks;
    LEAVE(CUDA_SUCCESS);
}

PER_THREAD(_ptsz, cuLaunchKernel,
           (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
            unsigned int bz, unsigned int shared, CUstream s, void **p, void **e),
           (f, gx, gy, gz, bx, by, bz, shared, s, p, e))
PER_THREAD(_ptsz, cuLaunchCooperativeKernel,
           (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
            unsigned int bz, unsigned int shared, CUstream s, void **p),
           (f, gx, gy, gz, bx, by, bz, shared, s, p))
PER_THREAD(_ptsz, cuLaunchKernelEx, (const CUlaunchConfig *c, CUfunction f, void **p, void **e), (c, f, p, e))
PER_THREAD(_ptsz, cuLaunchHostFunc, (CUstream s, CUhostFn f, void *d), (s, f, d))
PER_THREAD(_ptsz, cuStreamAddCallback, (CUstream s, CUstreamCallback c, void *d, unsigned int f), (s, c, d, f))
