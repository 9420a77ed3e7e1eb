/* The thread that takes a GPU's turn back: stops new work, waits for what is in flight and on the GPU. */
#ifndef BATON_DRAIN_H
#define BATON_DRAIN_H

#include "gpu.h"

/* Hands the job to the GPU's drain thread. Its end shows in `job_done` and wakes the client thread. */
void baton_drain_start(struct baton_gpu *gpu, enum baton_job job, uint64_t activity);

/* Starts a detached thread with all signals blocked, so that the program's handlers run on its own threads. */
bool baton_thread_start(void *(*body)(void *), void *argument);

#endif
