/* The client of the lock daemon: one thread for all connections of the process. */
#ifndef BATON_CLIENT_H
#define BATON_CLIENT_H

#include "gpu.h"

/* Starts the client thread if it is not running, and makes it pick up newly added GPUs. */
void baton_client_start(void);

/* Wakes the client thread to check all GPUs again. May be called from any thread. */
void baton_client_wake(void);

/* Returns when the daemon has sent the GPU's limits, or cannot be reached. */
void baton_client_await_limits(struct baton_gpu *gpu);

void baton_client_reset_in_child(void);

#endif
