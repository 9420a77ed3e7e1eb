/* The gate before every call that submits work to a GPU.
 *
 * A thread marks itself as inside a GPU and then checks whether the gate is open; the closer closes the gate and then
 * waits until no thread is inside. The CPU must not reorder the mark and the check. Only the closer pays for that:
 * membarrier(2) makes every running thread of the process execute a full barrier, so the fast path needs none. Where
 * the kernel lacks membarrier, the mark is an atomic exchange, which is itself a full barrier.
 */
#ifndef BATON_GATE_H
#define BATON_GATE_H

#include "context.h"
#include "driver.h"
#include "gpu.h"

#define BATON_VIEWS 8

/* Per-thread cache from a context handle to the data about that context. */
struct baton_view {
    CUcontext handle;
    unsigned generation;
    unsigned batch; /* calls that the next marker covers */
    unsigned credit; /* calls until that marker is due */
    struct baton_context *context;
};

/* One per thread that has passed a gate; never freed, but reused after the thread ends. */
struct baton_slot {
    _Atomic(struct baton_gpu *) inside;
    atomic_bool claimed;
    struct baton_slot *next;
    struct baton_view views[BATON_VIEWS];
    _Atomic uint64_t calls[BATON_MAX_GPUS];
} __attribute__((aligned(64)));

struct baton_pass {
    struct baton_slot *slot;
    struct baton_view *view; /* NULL: the call was not gated */
    CUresult refused;
};

extern __thread struct baton_slot *baton_thread_slot __attribute__((tls_model("initial-exec")));
extern bool baton_fence_needed;

struct baton_slot *baton_slot_claim(void);
struct baton_view *baton_view_fill(struct baton_slot *slot, CUcontext handle);
void baton_gate_wait(struct baton_pass *pass, struct baton_gpu *gpu, CUstream stream);
void baton_gate_mark(struct baton_pass *pass, CUstream stream);

/* Blocks new work on the GPU and returns when no call is in flight. For the drain thread. */
void baton_gate_close(struct baton_gpu *gpu);
void baton_gate_open(struct baton_gpu *gpu);
bool baton_gate_occupied(struct baton_gpu *gpu);

/* The GPU of the current context if this thread has passed its gate, else NULL. */
struct baton_gpu *baton_gate_known_gpu(void);

/* Number of gated calls made on the GPU so far. */
uint64_t baton_gate_activity(struct baton_gpu *gpu);

void baton_gate_reset_in_child(void);

static inline void baton_store_inside(struct baton_slot *slot, struct baton_gpu *gpu)
{
    if (BATON_UNLIKELY(baton_fence_needed))
        atomic_exchange(&slot->inside, gpu);
    else
        atomic_store_explicit(&slot->inside, gpu, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
}

/* Waits until the GPU of the current context may be used. A call without a context passes: the driver will reject
 * it. */
static inline struct baton_pass baton_gate_enter(CUstream stream)
{
    struct baton_pass pass = {baton_thread_slot, NULL, CUDA_SUCCESS};
    CUcontext handle = NULL;
    if (BATON_UNLIKELY(!pass.slot)) {
        pass.slot = baton_slot_claim();
        if (!pass.slot)
            return pass;
    }
    struct baton_slot *slot = pass.slot;
    if (BATON_UNLIKELY(atomic_load_explicit(&slot->inside, memory_order_relaxed) != NULL))
        return pass; /* the driver called one of its own functions through us */
    if (BATON_UNLIKELY(REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS || !handle))
        return pass;
    struct baton_view *view = &slot->views[((uintptr_t)handle >> 4) % BATON_VIEWS];
    if (BATON_UNLIKELY(view->handle != handle || view->generation != baton_context_generation_now())) {
        view = baton_view_fill(slot, handle);
        if (!view)
            return pass;
    }
    struct baton_gpu *gpu = view->context->gpu;
    pass.view = view;
    baton_store_inside(slot, gpu);
    if (BATON_UNLIKELY(!atomic_load(&gpu->open)))
        baton_gate_wait(&pass, gpu, stream);
    if (BATON_LIKELY(pass.view != NULL)) {
        uint64_t calls = atomic_load_explicit(&slot->calls[gpu->index], memory_order_relaxed);
        atomic_store_explicit(&slot->calls[gpu->index], calls + 1, memory_order_relaxed);
    }
    return pass;
}

/* `stream` is NONE if the work has already completed. */
static inline void baton_gate_leave(struct baton_pass *pass, CUresult result, CUstream stream)
{
    if (BATON_UNLIKELY(!pass->view))
        return;
    if (stream != NONE && result == CUDA_SUCCESS && BATON_UNLIKELY(--pass->view->credit == 0))
        baton_gate_mark(pass, stream);
    else
        atomic_store_explicit(&pass->slot->inside, NULL, memory_order_release);
}

#endif
