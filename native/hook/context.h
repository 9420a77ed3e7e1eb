/* CUDA contexts: which GPU each one is on, and their lifetime while the drain thread may be waiting for their work. */
#ifndef BATON_CONTEXT_H
#define BATON_CONTEXT_H

#include "gpu.h"
#include "window.h"

struct baton_context {
    CUcontext handle; /* NULL: free for reuse */
    struct baton_gpu *gpu;
    bool busy; /* the drain thread is synchronising it, so it must not be destroyed */
    struct baton_window window;
    struct baton_context *next;
};

extern _Atomic unsigned baton_context_generation;

/* Changes whenever a context goes away, because the driver may reuse its handle for a context on another GPU. */
static inline unsigned baton_context_generation_now(void)
{
    return atomic_load_explicit(&baton_context_generation, memory_order_acquire);
}

/* The entry for `handle`, the calling thread's current context. NULL if the driver does not know it. */
struct baton_context *baton_context_of(CUcontext handle);

/* The GPU of the calling thread's current context; NULL if there is none. */
struct baton_gpu *baton_current_gpu(CUcontext *handle);

/* Waits until all work on the GPU has finished, in every context of the process. The caller excludes stream
 * captures. */
void baton_contexts_synchronize(struct baton_gpu *gpu);

void baton_contexts_reset_in_child(void);

#endif
