/* The wrappers of everything that submits work, generated from the table. */
#include "gate.h"

#define WRAPPER(symbol, api, since, per_thread, group, stream_of, parameters, arguments) \
    CUresult symbol parameters                                                           \
    {                                                                                    \
        CUstream work_stream = (stream_of);                                              \
        CUstream seen = work_stream || !(per_thread) ? work_stream : CU_STREAM_PER_THREAD; \
        struct baton_pass pass = baton_gate_enter(seen);                                 \
        if (BATON_UNLIKELY(pass.refused != CUDA_SUCCESS))                                \
            return pass.refused;                                                         \
        CUresult result = REAL(symbol) arguments;                                        \
        baton_gate_leave(&pass, result, seen);                                           \
        return result;                                                                   \
    }

BATON_GATED_ROWS(WRAPPER)

/* The one launch that works on several GPUs: the gate of each stream's own context cannot be told from here, so
 * the gate of the current context stands for all, as for every other call. */
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
