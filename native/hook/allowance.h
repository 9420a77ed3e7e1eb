/* Memory under a limit: what this process has, and what those have who share the limit with it. */
#ifndef BATON_ALLOWANCE_H
#define BATON_ALLOWANCE_H

#include "libbaton.h"

#include <pthread.h>
#include <stdatomic.h>

#define BATON_ALLOWANCE_SLOTS 512

struct baton_gpu;

struct baton_allowance {
    pthread_mutex_t mutex;
    _Atomic int64_t *counters; /* of all who share the limit, in memory that they share; NULL: a limit for us alone */
    unsigned place;            /* of our counter */
};

/* Counts in the page behind `fd`, at `place`, from now on. */
void baton_allowance_join(struct baton_gpu *gpu, int fd, uint64_t place);

/* Claims memory unless it would exceed the limit. */
bool baton_allowance_take(struct baton_gpu *gpu, uint64_t bytes, uint64_t limit);
void baton_allowance_return(struct baton_gpu *gpu, int64_t bytes);

/* What is used of the limit. */
int64_t baton_allowance_used(struct baton_gpu *gpu);

#endif
