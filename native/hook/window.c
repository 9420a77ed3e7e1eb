/* A sliding window over submitted work, measured in time.
 *
 * Every few calls the hook records an event after the submitted work. When the calls not yet known to be finished
 * exceed the window, the submitting thread waits for the oldest event only, so the GPU always has the rest queued. The
 * time from recording an event to its completion is the time taken by the calls that were outstanding then; the window
 * is the number of calls that fits into the target time at that rate. A stall, such as paging in a working set, shrinks
 * it to a few calls, and a few fast calls widen it again. Nothing is synchronised, and no result of a program's call is
 * changed.
 *
 * The wait is bounded, so that work which waits for the program's next action does not hang. While any stream captures,
 * nothing is recorded or queried, because a query from any thread can break a capture.
 */
#include "window.h"

#include "capture.h"
#include "driver.h"
#include "settings.h"

#include <sched.h>
#include <time.h>

enum { FIRST_WIDTH = 16, LEAST_WIDTH = 2, GREATEST_WIDTH = 1024, YIELDS = 20 };

static const uint64_t longest_wait_us = 1000000;

void baton_window_init(struct baton_window *window)
{
    pthread_mutex_init(&window->mutex, NULL);
    window->width = FIRST_WIDTH;
    window->outstanding = window->oldest = window->count = window->spare_count = 0;
}

void baton_window_clear(struct baton_window *window, bool destroy)
{
    pthread_mutex_lock(&window->mutex);
    while (window->count)
        window->spare[window->spare_count++] = window->markers[(window->oldest + --window->count) % BATON_MARKERS].event;
    for (; window->spare_count; window->spare_count--)
        if (destroy)
            REAL(cuEventDestroy_v2)(window->spare[window->spare_count - 1]);
    window->outstanding = window->oldest = 0;
    pthread_mutex_unlock(&window->mutex);
}

unsigned baton_window_batch(struct baton_window *window)
{
    pthread_mutex_lock(&window->mutex);
    unsigned batch = window->width < 4 ? 1 : window->width / 4;
    pthread_mutex_unlock(&window->mutex);
    return batch;
}

void baton_window_record(struct baton_window *window, CUstream stream, unsigned calls)
{
    if (!baton_settings()->window_us || !baton_capture_try_exclude())
        return;
    pthread_mutex_lock(&window->mutex);
    CUevent event = NULL;
    if (window->count < BATON_MARKERS) {
        if (window->spare_count)
            event = window->spare[--window->spare_count];
        else if (REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            event = NULL;
    }
    if (event) {
        if (REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS) {
            struct baton_marker *marker = &window->markers[(window->oldest + window->count++) % BATON_MARKERS];
            window->outstanding += calls;
            *marker = (struct baton_marker){event, baton_now_us(), calls, window->outstanding};
        } else {
            window->spare[window->spare_count++] = event;
        }
    }
    pthread_mutex_unlock(&window->mutex);
    baton_capture_allow();
}

/* The age of a marker when it is found finished is an upper bound of what its backlog took, and exact if the thread was
 * waiting. So the age may always widen the window, but narrows it only if the thread waited for the marker. */
static void adapt(struct baton_window *window, const struct baton_marker *marker, bool waited)
{
    uint64_t age_us = baton_now_us() - marker->recorded_us;
    uint64_t fits = marker->backlog * baton_settings()->window_us / (age_us + 1);
    uint64_t width = window->width;
    if (fits > width)
        width = fits < 2 * width ? fits : 2 * width;
    else if (waited)
        width = fits;
    if (width < LEAST_WIDTH)
        width = LEAST_WIDTH;
    window->width = width > GREATEST_WIDTH ? GREATEST_WIDTH : (unsigned)width;
}

static bool has_too_much(const struct baton_window *window)
{
    return window->count && (window->outstanding >= window->width || window->count == BATON_MARKERS);
}

/* Drops finished markers and returns whether the window is still full. While there is room, the newest marker is not
 * queried, since it was just recorded. */
static bool is_full(struct baton_window *window, bool waited)
{
    pthread_mutex_lock(&window->mutex);
    while (window->count > 1 || has_too_much(window)) {
        struct baton_marker *marker = &window->markers[window->oldest];
        if (REAL(cuEventQuery)(marker->event) == CUDA_ERROR_NOT_READY)
            break;
        adapt(window, marker, waited);
        window->spare[window->spare_count++] = marker->event;
        window->outstanding -= marker->calls;
        window->oldest = (window->oldest + 1) % BATON_MARKERS;
        window->count--;
        waited = false;
    }
    bool full = has_too_much(window);
    pthread_mutex_unlock(&window->mutex);
    return full;
}

uint64_t baton_window_throttle(struct baton_window *window)
{
    uint64_t started_us = 0, waited_us = 0;
    struct timespec pause = {0, 50000};
    if (!baton_settings()->window_us)
        return 0;
    for (unsigned turn = 0; baton_capture_try_exclude(); turn++) {
        bool full = is_full(window, turn > 0);
        baton_capture_allow();
        if (started_us)
            waited_us = baton_now_us() - started_us;
        else if (full)
            started_us = baton_now_us();
        if (!full || waited_us > longest_wait_us)
            break;
        if (turn < YIELDS) {
            sched_yield();
            continue;
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 1000000)
            pause.tv_nsec *= 2;
    }
    return waited_us;
}
