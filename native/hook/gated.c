/* The wrappers of every call that submits work or waits for it, generated from the table.
 *
 * Waits, and copies that return when done, show how fast the GPU serves this process. The daemon compares that with the
 * speed when the process ran alone, to distinguish programs that merely share from programs that evict each other's
 * memory.
 */
#include "gate.h"

static void add_wait(struct baton_gpu *gpu, uint64_t started_us)
{
    atomic_fetch_add_explicit(&gpu->sync_us, baton_now_us() - started_us, memory_order_relaxed);
}

#define WRAPPER(symbol, api, since, per_thread, group, stream_of, parameters, arguments)   \
    CUresult symbol parameters                                                             \
    {                                                                                      \
        CUstream work_stream = (stream_of);                                                \
        CUstream seen = work_stream || !(per_thread) ? work_stream : CU_STREAM_PER_THREAD; \
        struct baton_pass pass = baton_gate_enter(seen);                                   \
        if (BATON_UNLIKELY(pass.refused != CUDA_SUCCESS))                                  \
            return pass.refused;                                                           \
        uint64_t started_us = seen == NONE ? baton_now_us() : 0;                           \
        CUresult result = REAL(symbol) arguments;                                          \
        if (seen == NONE && pass.view)                                                     \
            add_wait(pass.view->context->gpu, started_us);                                 \
        baton_gate_leave(&pass, result, seen);                                             \
        return result;                                                                     \
    }

BATON_GATED_ROWS(WRAPPER)

static uint64_t wait_begins(struct baton_gpu *gpu)
{
    atomic_fetch_add(&gpu->waiting_for_work, 1);
    return baton_now_us();
}

static void wait_ends(struct baton_gpu *gpu, uint64_t started_us)
{
    uint64_t now_us = baton_now_us();
    atomic_fetch_add_explicit(&gpu->sync_us, now_us - started_us, memory_order_relaxed);
    if (now_us - started_us > BATON_WORKED_US)
        atomic_store_explicit(&gpu->waited_until_us, now_us, memory_order_relaxed);
    atomic_fetch_sub(&gpu->waiting_for_work, 1);
}

#define WAIT_WRAPPER(symbol, api, since, per_thread, group, stream_of, parameters, arguments) \
    CUresult symbol parameters                                                                \
    {                                                                                         \
        struct baton_gpu *gpu = baton_gate_known_gpu();                                       \
        uint64_t started_us = gpu ? wait_begins(gpu) : 0;                                     \
        CUresult result = REAL(symbol) arguments;                                             \
        if (gpu)                                                                              \
            wait_ends(gpu, started_us);                                                       \
        return result;                                                                        \
    }

BATON_WAIT_ROWS(WAIT_WRAPPER)

/* The only launch that uses several GPUs. The gate of each stream's own context is not known here, so the gate of the
 * current context is used for all of them, as for every other call. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    CUstream stream = list && count ? list[0].hStream : NONE;
    struct baton_pass pass = baton_gate_enter(stream);
    if (pass.refused != CUDA_SUCCESS)
        return pass.refused;
    CUresult result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    baton_gate_leave(&pass, result, NONE);
    return result;
}
