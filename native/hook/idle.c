/* Idle time begins when the GPU has run out of work, not at the program's last call: a program that launches many
 * kernels and then waits for them makes no calls in the meantime. The hook sees a program that waits in the driver, and
 * when that wait returns, the work has just ended. For a program that learns of the end in another way, the drain
 * thread synchronises before it releases the turn.
 *
 * How long to wait is the ski rental problem: waiting as long as it costs to come back is at most twice as bad as
 * knowing the length of the pause in advance. But programs repeat themselves. The hook computes which patience would
 * have cost least over the last pauses: a program that always pauses for long releases its turn almost at once, and a
 * program with short pauses keeps it. The patience never exceeds the cost, so a change in behaviour costs little more
 * than not learning at all.
 */
#include "idle.h"

#include "gate.h"
#include "gpu.h"

enum { GAPS_TO_LEARN_FROM = 4, PARTS = 8 };

/* Pauses are detected by polling, eight times per patience but not more often than this. A patience shorter than an
 * eighth of the cost would end in pauses too short to be detected and learned from. */
static const uint64_t least_interval_us = 10000, least_patience_us = 5000;

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* What the remembered pauses would have cost: idle time on a GPU that others want, plus the cost of coming back. */
static uint64_t regret_us(const struct baton_idle *idle, unsigned count, uint64_t patience_us)
{
    uint64_t sum_us = 0;
    for (unsigned i = 0; i < count; i++)
        sum_us += idle->gaps_us[i] > patience_us ? patience_us + idle->cost_us : idle->gaps_us[i];
    return sum_us;
}

static void choose_patience(struct baton_idle *idle)
{
    unsigned count = (unsigned)least(idle->gaps_seen, BATON_GAPS);
    uint64_t floor_us = idle->cost_us / PARTS;
    if (floor_us < least_patience_us)
        floor_us = least(least_patience_us, idle->cost_us);
    idle->patience_us = idle->cost_us;
    if (count < GAPS_TO_LEARN_FROM)
        return;
    uint64_t best_us = regret_us(idle, count, idle->cost_us);
    for (unsigned i = 0; i <= count; i++) {
        /* The best patience is just above one of the pauses, or the minimum; add a quarter as margin for later
         * pauses. */
        uint64_t patience_us = i == count ? floor_us : idle->gaps_us[i] + idle->gaps_us[i] / 4;
        if (patience_us < floor_us || patience_us > idle->cost_us)
            continue;
        uint64_t sum_us = regret_us(idle, count, patience_us);
        if (sum_us < best_us) {
            best_us = sum_us;
            idle->patience_us = patience_us;
        }
    }
}

void baton_idle_set_cost(struct baton_idle *idle, uint64_t cost_us)
{
    idle->cost_us = cost_us;
    choose_patience(idle);
}

void baton_idle_over(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_idle *idle = &gpu->link.idle;
    if (!idle->in_gap)
        return;
    idle->in_gap = false;
    idle->gaps_us[idle->gaps_seen++ % BATON_GAPS] = now_us - idle->since_us;
    choose_patience(idle);
}

static void plan_look(struct baton_idle *idle, uint64_t now_us)
{
    uint64_t interval_us = idle->patience_us / PARTS;
    if (interval_us < least_interval_us)
        interval_us = least(least_interval_us, idle->patience_us / 2);
    idle->look_us = least(now_us + interval_us, idle->since_us + idle->patience_us);
    if (idle->look_us <= now_us)
        idle->look_us = now_us + 1;
}

void baton_idle_begin(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_idle *idle = &gpu->link.idle;
    idle->activity = baton_gate_activity(gpu);
    idle->since_us = now_us;
    idle->in_gap = false;
    plan_look(idle, now_us);
}

void baton_idle_worked(struct baton_gpu *gpu, uint64_t now_us)
{
    gpu->link.idle.since_us = now_us;
    gpu->link.idle.in_gap = false;
    plan_look(&gpu->link.idle, now_us);
}

bool baton_idle_look(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_idle *idle = &gpu->link.idle;
    uint64_t activity = baton_gate_activity(gpu);
    uint64_t waited_until_us = atomic_load_explicit(&gpu->waited_until_us, memory_order_relaxed);
    if (activity != idle->activity || atomic_load(&gpu->waiters) || atomic_load(&gpu->waiting_for_work)) {
        baton_idle_over(gpu, now_us);
        idle->activity = activity;
        idle->since_us = now_us;
    } else {
        if (waited_until_us > idle->since_us && waited_until_us <= now_us)
            idle->since_us = waited_until_us;
        idle->in_gap = true;
    }
    plan_look(idle, now_us);
    return now_us >= idle->since_us + idle->patience_us;
}
