/* Limits how much work a context has outstanding, so that a turn can be released quickly. */
#ifndef BATON_WINDOW_H
#define BATON_WINDOW_H

#include "cuda_abi.h"
#include "libbaton.h"

#include <pthread.h>

#define BATON_MARKERS 16

struct baton_marker {
    CUevent event;
    uint64_t recorded_us;
    unsigned calls;
    unsigned backlog; /* calls outstanding when it was recorded, including its own */
};

struct baton_window {
    pthread_mutex_t mutex;
    unsigned width; /* calls that may be outstanding */
    unsigned outstanding;
    unsigned oldest, count;
    struct baton_marker markers[BATON_MARKERS];
    unsigned spare_count;
    CUevent spare[BATON_MARKERS];
};

void baton_window_init(struct baton_window *window);

/* Drops all markers. `destroy`: their context is current and stays alive; otherwise they were destroyed with it. */
void baton_window_clear(struct baton_window *window, bool destroy);

/* How many calls a thread may make before its next marker. */
unsigned baton_window_batch(struct baton_window *window);

/* Records a marker after the work just submitted to `stream`; it covers `calls` calls. */
void baton_window_record(struct baton_window *window, CUstream stream, unsigned calls);

/* Waits while the outstanding work exceeds the window; returns how many microseconds it waited. */
uint64_t baton_window_throttle(struct baton_window *window);

#endif
