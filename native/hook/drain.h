/* The thread that releases a GPU's turn: blocks new submissions, then waits for calls in flight and for the GPU. */
#ifndef BATON_DRAIN_H
#define BATON_DRAIN_H

#include "gpu.h"

/* Gives the job to the GPU's drain thread. On completion it sets `job_done` and wakes the client thread. */
void baton_drain_start(struct baton_gpu *gpu, enum baton_job job, uint64_t activity);

/* Starts a detached thread with all signals blocked, so the program's signal handlers run on the program's own
 * threads. */
bool baton_thread_start(void *(*body)(void *), void *argument);

#endif
