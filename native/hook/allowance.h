/* Memory under a limit: what this process uses, and what the processes that share the limit use. */
#ifndef BATON_ALLOWANCE_H
#define BATON_ALLOWANCE_H

#include "libbaton.h"

#include <pthread.h>
#include <stdatomic.h>

#define BATON_ALLOWANCE_SLOTS 512

struct baton_gpu;

struct baton_allowance {
    pthread_mutex_t mutex;
    _Atomic int64_t *counters; /* of all processes that share the limit, in shared memory; NULL: not shared */
    unsigned place;            /* index of this process's counter */
};

/* From now on, counts in the page behind `fd`, at index `place`. */
void baton_allowance_join(struct baton_gpu *gpu, int fd, uint64_t place);

/* Claims memory; returns false if that would exceed the limit. */
bool baton_allowance_take(struct baton_gpu *gpu, uint64_t bytes, uint64_t limit);
void baton_allowance_return(struct baton_gpu *gpu, int64_t bytes);

/* Bytes in use under the limit. */
int64_t baton_allowance_used(struct baton_gpu *gpu);

#endif
