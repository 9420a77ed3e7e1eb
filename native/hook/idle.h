/* When to release a turn that is not used. For the client thread only. */
#ifndef BATON_IDLE_H
#define BATON_IDLE_H

#include "libbaton.h"

#define BATON_GAPS 16

/* A synchronisation that takes longer than this found the GPU busy; on an idle GPU it takes about ten microseconds. */
#define BATON_WORKED_US 1000

struct baton_gpu;

struct baton_idle {
    uint64_t cost_us;     /* cost of coming back, as reported by the daemon */
    uint64_t patience_us; /* idle time after which the turn is released */
    uint64_t activity;    /* number of gated calls at the last check */
    uint64_t since_us;    /* no work is known to have run since then */
    uint64_t look_us;     /* time of the next check */
    bool in_gap;
    unsigned gaps_seen;
    uint64_t gaps_us[BATON_GAPS]; /* the program's last pauses, as a ring buffer */
};

/* Sets the daemon's cost of releasing a turn and requesting it again. */
void baton_idle_set_cost(struct baton_idle *idle, uint64_t cost_us);

/* A turn begins. */
void baton_idle_begin(struct baton_gpu *gpu, uint64_t now_us);

/* Whether the GPU has been idle for long enough. */
bool baton_idle_look(struct baton_gpu *gpu, uint64_t now_us);

/* The GPU was found busy until now. */
void baton_idle_worked(struct baton_gpu *gpu, uint64_t now_us);

/* The program wants the GPU: ends the current pause, if any. */
void baton_idle_over(struct baton_gpu *gpu, uint64_t now_us);

#endif
