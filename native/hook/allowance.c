/* One counter per process, in a page that the daemon shares between all processes of a run or pod
 * (src/baton/lock/daemon/allowances.py).
 *
 * A process that wants memory adds to its own counter and then checks the sum, so of two processes that together exceed
 * the limit at least one sees both requests. Both may see them and back off; they retry after delays of different
 * lengths, and the request fails only after the last retry. The daemon clears the counter of a process that has ended.
 * There is no lock between processes, so a process killed at any instruction leaves nothing locked.
 *
 * A new daemon creates a new page. Each process that reconnects adds its current use to the new page; the old page
 * keeps its values for processes that still read it.
 */
#include "allowance.h"

#include "gpu.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 6 };

static const size_t page_bytes = BATON_ALLOWANCE_SLOTS * sizeof(int64_t);

void baton_allowance_join(struct baton_gpu *gpu, int fd, uint64_t place)
{
    struct baton_allowance *allowance = &gpu->allowance;
    /* fstat would require a newer glibc; seeking to the end also gives the size. */
    if (place >= BATON_ALLOWANCE_SLOTS || lseek(fd, 0, SEEK_END) < (off_t)page_bytes)
        return;
    void *page = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return;
    pthread_mutex_lock(&allowance->mutex);
    _Atomic int64_t *before = allowance->counters;
    allowance->counters = page;
    allowance->place = (unsigned)place;
    atomic_fetch_add(&allowance->counters[place], atomic_load(&gpu->allocated_bytes));
    pthread_mutex_unlock(&allowance->mutex);
    if (before)
        munmap((void *)before, page_bytes);
    baton_debug("%s: this process shares its memory limit with others (place %u)", gpu->uuid_text, (unsigned)place);
}

/* The mutex is held. */
static int64_t used(struct baton_gpu *gpu)
{
    _Atomic int64_t *counters = gpu->allowance.counters;
    int64_t sum = 0;
    if (!counters)
        return atomic_load(&gpu->allocated_bytes);
    for (unsigned i = 0; i < BATON_ALLOWANCE_SLOTS; i++) {
        int64_t part = atomic_load(&counters[i]);
        if (part > 0 && __builtin_add_overflow(sum, part, &sum))
            return INT64_MAX;
    }
    return sum;
}

/* The mutex is held. */
static void add(struct baton_gpu *gpu, int64_t bytes)
{
    atomic_fetch_add(&gpu->allocated_bytes, bytes);
    if (gpu->allowance.counters)
        atomic_fetch_add(&gpu->allowance.counters[gpu->allowance.place], bytes);
}

bool baton_allowance_take(struct baton_gpu *gpu, uint64_t bytes, uint64_t limit)
{
    bool within = false, alone = false;
    if (bytes > limit || bytes > INT64_MAX)
        return false;
    for (unsigned try = 0; try < TRIES && !within && !alone; try++) {
        pthread_mutex_lock(&gpu->allowance.mutex);
        alone = !gpu->allowance.counters;
        if (atomic_load(&gpu->allocated_bytes) <= INT64_MAX - (int64_t)bytes) {
            add(gpu, (int64_t)bytes);
            within = (uint64_t)used(gpu) <= limit;
            if (!within)
                add(gpu, -(int64_t)bytes);
        }
        unsigned place = gpu->allowance.place;
        pthread_mutex_unlock(&gpu->allowance.mutex);
        if (!within && !alone)
            nanosleep(&(struct timespec){0, (1 + place % 16) * 20000L << try}, NULL);
    }
    return within;
}

void baton_allowance_return(struct baton_gpu *gpu, int64_t bytes)
{
    pthread_mutex_lock(&gpu->allowance.mutex);
    add(gpu, -bytes);
    pthread_mutex_unlock(&gpu->allowance.mutex);
}

int64_t baton_allowance_used(struct baton_gpu *gpu)
{
    pthread_mutex_lock(&gpu->allowance.mutex);
    int64_t sum = used(gpu);
    pthread_mutex_unlock(&gpu->allowance.mutex);
    return sum;
}
