/* The driver's life in a process: initialisation, fork, and calls that need no context. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { UNTOUCHED, INITIALISED, FORKED };

driver_state driver = {.lock = PTHREAD_MUTEX_INITIALIZER};
__thread int default_stream_per_thread;

/* A forked child has neither the executor nor its own slot: like the real driver, it refuses every call. This takes no
 * lock, since another thread of the parent may have held it at the fork. */
static void after_fork_in_child(void)
{
    if (atomic_load(&driver.state) == UNTOUCHED)
        return;
    atomic_store(&driver.state, FORKED);
    simgpu_forget_after_fork(&driver.machine);
}

static void prepare_conditions(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&driver.changed, &monotonic);
    pthread_cond_init(&driver.wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

CUresult driver_ready(void)
{
    return atomic_load_explicit(&driver.state, memory_order_acquire) == INITIALISED ? CUDA_SUCCESS
                                                                                    : CUDA_ERROR_NOT_INITIALIZED;
}

simgpu_card *driver_card(uint32_t card)
{
    return &driver.machine.shared->cards[card];
}

static CUresult initialise(void)
{
    static bool prepared;
    char error[512];
    const char *touch = getenv("BATON_SIMGPU_TOUCH");
    int result = simgpu_attach(&driver.machine, NULL, error, sizeof error);
    if (result != SIMGPU_OK) {
        simgpu_debug("%s", error);
        return result == SIMGPU_ABSENT ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_NOT_INITIALIZED;
    }
    uint32_t cards[SIMGPU_MAX_CARDS], count = simgpu_visible_cards(&driver.machine, cards);
    const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
    if (chosen != NULL) {
        driver.card_count = simgpu_select_cards(&driver.machine, chosen, cards, count, driver.cards);
    } else {
        memcpy(driver.cards, cards, sizeof cards);
        driver.card_count = count;
    }
    if (driver.card_count == 0) {
        simgpu_detach(&driver.machine);
        return CUDA_ERROR_NO_DEVICE;
    }
    if (!prepared)
        prepare_conditions();
    prepared = true;
    driver.touch_nothing = touch != NULL && strcmp(touch, "none") == 0;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuInit(unsigned int flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&driver.state) == FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    driver_lock();
    CUresult result = CUDA_SUCCESS;
    if (atomic_load(&driver.state) == UNTOUCHED) {
        result = initialise();
        if (result == CUDA_SUCCESS)
            atomic_store_explicit(&driver.state, INITIALISED, memory_order_release);
    }
    driver_unlock();
    return result;
}

CUDA_API CUresult cuDriverGetVersion(int *version)
{
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = driver_ready() == CUDA_SUCCESS ? (int)driver.machine.shared->driver_version : 13000;
    return CUDA_SUCCESS;
}

CUresult driver_unsupported(const char *name)
{
    if (driver_ready() == CUDA_SUCCESS)
        simgpu_record_unsupported(&driver.machine, name);
    simgpu_debug("%s is not simulated", name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API CUresult cuProfilerStart(void)
{
    return driver_ready();
}

CUDA_API CUresult cuProfilerStop(void)
{
    return driver_ready();
}
