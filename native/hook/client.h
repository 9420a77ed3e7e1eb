/* The client of the lock daemon: one thread for all connections of the process. */
#ifndef BATON_CLIENT_H
#define BATON_CLIENT_H

#include "gpu.h"

/* Makes sure that the client thread runs and looks at newly added GPUs. */
void baton_client_start(void);

/* Makes the client thread look at the GPUs again. Callable from any thread. */
void baton_client_wake(void);

/* Returns when the daemon has told the GPU's limits, or cannot be asked. */
void baton_client_await_limits(struct baton_gpu *gpu);

void baton_client_reset_in_child(void);

#endif
