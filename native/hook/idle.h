/* When a turn that is not used is given back. For the client thread alone. */
#ifndef BATON_IDLE_H
#define BATON_IDLE_H

#include "libbaton.h"

#define BATON_GAPS 16

/* A synchronisation that takes longer found the GPU at work; an idle one answers in some ten microseconds. */
#define BATON_WORKED_US 1000

struct baton_gpu;

struct baton_idle {
    uint64_t cost_us;     /* what the daemon says that coming back costs */
    uint64_t patience_us; /* idleness after which the turn is given back */
    uint64_t activity;    /* gated calls as of the last look */
    uint64_t since_us;    /* nothing is known to have been at work since then */
    uint64_t look_us;     /* when to look next */
    bool in_gap;
    unsigned gaps_seen;
    uint64_t gaps_us[BATON_GAPS]; /* the last pauses of the program, a ring */
};

/* The daemon said what a turn that is given back and asked for again costs. */
void baton_idle_set_cost(struct baton_idle *idle, uint64_t cost_us);

/* A turn begins. */
void baton_idle_begin(struct baton_gpu *gpu, uint64_t now_us);

/* Whether the GPU has been left alone for long enough. */
bool baton_idle_look(struct baton_gpu *gpu, uint64_t now_us);

/* The GPU was found at work until now. */
void baton_idle_worked(struct baton_gpu *gpu, uint64_t now_us);

/* The program wants the GPU: a pause, if it made one, is over. */
void baton_idle_over(struct baton_gpu *gpu, uint64_t now_us);

#endif
