/* Bounds how much work a context has outstanding, so that a turn can be given back quickly. */
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
    unsigned backlog; /* calls outstanding when it was recorded, its own included */
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

/* Forgets all markers. `destroy`: their context is current and lives on; otherwise they have gone with it. */
void baton_window_clear(struct baton_window *window, bool destroy);

/* Calls that a thread may make until its next marker. */
unsigned baton_window_batch(struct baton_window *window);

/* Puts a marker behind the work just submitted to `stream`; it stands for `calls` calls. */
void baton_window_record(struct baton_window *window, CUstream stream, unsigned calls);

/* Waits while more than the window is outstanding; returns for how many microseconds. */
uint64_t baton_window_throttle(struct baton_window *window);

#endif
