/* Memory as reported to the program: its limit, and how much of the limit is left.
 *
 * With substituted memory, the driver's own free count depends on whose memory happens to be on the card, and says
 * nothing about how much this program may still allocate. The hook returns the room of one process minus its use.
 */
#include "client.h"
#include "context.h"
#include "driver.h"
#include "ledger.h"

static uint64_t left(uint64_t most, int64_t used) { return used > 0 ? ((uint64_t)used < most ? most - (uint64_t)used : 0) : most; }

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUcontext context = NULL;
    CUresult result = REAL(cuMemGetInfo_v2)(free_bytes, total);
    if (result != CUDA_SUCCESS || !free_bytes || !total)
        return result;
    struct baton_gpu *gpu = baton_current_gpu(&context);
    if (!gpu)
        return result;
    baton_client_await_limits(gpu);
    uint64_t limit = baton_limit_bytes(gpu);
    if (baton_substitutes(gpu))
        *free_bytes = left(baton_substituted_room_bytes(gpu), atomic_load(&gpu->allocated_bytes));
    if (limit) {
        uint64_t rest = left(limit, baton_allowance_used(gpu));
        *free_bytes = rest < *free_bytes ? rest : *free_bytes;
        *total = limit < *total ? limit : *total;
    }
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result != CUDA_SUCCESS || !bytes)
        return result;
    struct baton_gpu *gpu = baton_gpu_of_device(device);
    if (gpu)
        baton_client_await_limits(gpu);
    uint64_t limit = baton_limit_bytes(gpu);
    if (limit && limit < *bytes)
        *bytes = limit;
    return result;
}
