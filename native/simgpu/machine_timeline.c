/* The modelled clock of a card: which work runs, how fast, and when it ends.
 *
 * A fluid model. Between two events every piece of work proceeds at a constant rate: kernels share the SMs, first
 * between processes and then within one, and run at full speed while their demands fit together; copies share their
 * direction of the link; migrations in both directions share the paging bandwidth, because one fault handler serves
 * them all. Ends are computed, never waited for: a lane's next piece starts at the computed end of the previous one,
 * however late a process checks.
 */
#include "machine.h"

#include <math.h>
#include <string.h>

#define DONE_BELOW 1e-3 /* of a nanosecond or a byte */
#define COPY_LATENCY_NS 4000.0
#define MEMORY_LATENCY_NS 1500.0

typedef struct {
    double tenants_demand;
    double link_rate, paging_rate, memory_rate; /* bytes per modelled ns for each op */
    bool busy;
    simgpu_activity activity;
} shares;

static simgpu_op *current(simgpu_lane *lane)
{
    return &lane->ops[lane->run % SIMGPU_RING];
}

void simgpu_active_rebuild(simgpu_card *card)
{
    uint32_t count = 0;
    for (uint32_t index = 0; index < SIMGPU_MAX_LANES; index++) {
        const simgpu_lane *lane = &card->lanes[index];
        if (lane->slot != SIMGPU_NONE && lane->run < lane->tail)
            card->active[count++] = index;
    }
    card->active_count = count;
}

/* Drops the lanes that became idle. The lanes are far apart in memory, so only recovery scans all of them. */
static void active_compact(simgpu_card *card)
{
    uint32_t count = 0;
    for (uint32_t position = 0; position < card->active_count; position++) {
        const simgpu_lane *lane = &card->lanes[card->active[position]];
        if (lane->slot != SIMGPU_NONE && lane->run < lane->tail)
            card->active[count++] = card->active[position];
    }
    card->active_count = count;
}

static double link_per_ns(const simgpu_card *card)
{
    return card->profile.link_bytes_per_s * card->link_factor / 1e9;
}

static double paging_per_ns(const simgpu_card *card)
{
    return card->profile.paging_bytes_per_s * card->link_factor / 1e9;
}

static double memory_per_ns(const simgpu_card *card)
{
    return card->profile.memory_bytes_per_s / 1e9;
}

static void enter_running(simgpu_card *card, simgpu_lane *lane, simgpu_op *op)
{
    simgpu_tenant *tenant = &card->tenants[lane->slot];
    op->phase = SIMGPU_PHASE_RUNNING;
    switch (op->kind) {
    case SIMGPU_OP_KERNEL:
        op->remaining = op->work_ns;
        if (card->hang_next || tenant->hang_next) {
            card->hang_next = tenant->hang_next = 0;
            op->phase = SIMGPU_PHASE_HUNG;
        }
        break;
    case SIMGPU_OP_COPY_IN:
    case SIMGPU_OP_COPY_OUT:
        op->remaining = op->bytes + COPY_LATENCY_NS * link_per_ns(card);
        break;
    case SIMGPU_OP_MEMORY:
        op->remaining = op->bytes + MEMORY_LATENCY_NS * memory_per_ns(card);
        break;
    default:
        op->remaining = 0;
    }
}

static void begin(simgpu_card *card, simgpu_lane *lane, simgpu_op *op)
{
    uint64_t in_bytes = 0, out_bytes = 0;
    op->started_ns = card->advanced_ns;
    simgpu_residency_touch(card, lane, op, &in_bytes, &out_bytes);
    if (in_bytes + out_bytes > 0) {
        op->phase = SIMGPU_PHASE_PAGING;
        op->remaining = (double)(in_bytes + out_bytes);
    } else {
        enter_running(card, lane, op);
    }
}

static void finish(simgpu_card *card, simgpu_lane *lane, simgpu_op *op)
{
    simgpu_tenant *tenant = &card->tenants[lane->slot];
    uint64_t bytes = (uint64_t)op->bytes;
    op->phase = SIMGPU_PHASE_DONE;
    op->ended_ns = card->advanced_ns;
    lane->last_end_ns = card->advanced_ns;
    if (op->kind == SIMGPU_OP_KERNEL) {
        card->kernels++;
        tenant->kernels++;
    } else if (op->kind == SIMGPU_OP_COPY_IN) {
        card->copied_in_bytes += bytes;
        tenant->copied_in_bytes += bytes;
    } else if (op->kind == SIMGPU_OP_COPY_OUT) {
        card->copied_out_bytes += bytes;
        tenant->copied_out_bytes += bytes;
    }
    lane->run++;
}

/* Starts what can start now and ends what takes no time; returns whether a lane became idle. */
static bool settle(simgpu_card *card)
{
    bool idle = false;
    for (uint32_t position = 0; position < card->active_count; position++) {
        simgpu_lane *lane = &card->lanes[card->active[position]];
        while (lane->run < lane->tail) {
            simgpu_op *op = current(lane);
            if (op->phase == SIMGPU_PHASE_QUEUED) {
                if (op->earliest_ns > card->advanced_ns)
                    break;
                begin(card, lane, op);
            }
            if (op->phase == SIMGPU_PHASE_HUNG || op->remaining > DONE_BELOW)
                break;
            if (op->phase == SIMGPU_PHASE_PAGING) {
                enter_running(card, lane, op);
                continue;
            }
            finish(card, lane, op);
        }
        idle |= lane->run == lane->tail;
    }
    return idle;
}

static bool computes(const simgpu_op *op)
{
    return op->kind == SIMGPU_OP_KERNEL && (op->phase == SIMGPU_PHASE_RUNNING || op->phase == SIMGPU_PHASE_HUNG);
}

static shares measure(simgpu_card *card)
{
    uint32_t in = 0, out = 0, paging = 0, memory = 0;
    shares now = {0};
    for (uint32_t position = 0; position < card->active_count; position++) {
        simgpu_tenant *tenant = &card->tenants[card->lanes[card->active[position]].slot];
        tenant->demand = 0;
        tenant->running = 0;
    }
    for (uint32_t position = 0; position < card->active_count; position++) {
        simgpu_lane *lane = &card->lanes[card->active[position]];
        const simgpu_op *op = current(lane);
        simgpu_tenant *tenant = &card->tenants[lane->slot];
        if (computes(op)) {
            double before = fmin(1, tenant->demand);
            tenant->running++;
            tenant->demand += op->demand;
            now.tenants_demand += fmin(1, tenant->demand) - before;
            now.busy = true;
        } else if (op->phase == SIMGPU_PHASE_PAGING) {
            paging++;
        } else if (op->phase == SIMGPU_PHASE_RUNNING) {
            in += op->kind == SIMGPU_OP_COPY_IN;
            out += op->kind == SIMGPU_OP_COPY_OUT;
            memory += op->kind == SIMGPU_OP_MEMORY;
        }
    }
    uint32_t most = in > out ? in : out;
    now.link_rate = link_per_ns(card) / fmax(1, most + paging);
    now.paging_rate = paging_per_ns(card) / fmax(1, paging);
    now.memory_rate = memory_per_ns(card) / fmax(1, memory);

    /* Only the sum of migrations is known, so a step's migrations are split by direction in the ratio of all so far. */
    double paged = (double)(card->paged_in_bytes + card->paged_out_bytes);
    double inwards = paged > 0 ? (double)card->paged_in_bytes / paged : 0;
    now.activity = (simgpu_activity){
        .kernels = now.busy,
        .memory_ops = memory,
        .demand = now.tenants_demand,
        .in_bytes_per_ns = in * now.link_rate + paging * now.paging_rate * inwards,
        .out_bytes_per_ns = out * now.link_rate + paging * now.paging_rate * (1 - inwards),
    };
    return now;
}

static double rate_of(const simgpu_card *card, const simgpu_lane *lane, const simgpu_op *op, const shares *now)
{
    if (op->phase == SIMGPU_PHASE_PAGING)
        return now->paging_rate;
    if (op->phase != SIMGPU_PHASE_RUNNING)
        return 0;
    switch (op->kind) {
    case SIMGPU_OP_KERNEL:
        return 1 / (fmax(1, now->tenants_demand) * fmax(1, card->tenants[lane->slot].demand));
    case SIMGPU_OP_MEMORY:
        return now->memory_rate;
    default:
        return now->link_rate;
    }
}

static void account_busy(simgpu_card *card, uint64_t step_ns)
{
    double scale = card->profile.time_scale;
    double at = (double)card->advanced_ns / scale, left = (double)step_ns / scale;
    card->busy_ns += (double)step_ns;
    if (left > SIMGPU_BUSY_BUCKETS * (double)SIMGPU_BUSY_BUCKET_NS) { /* only the last few seconds are kept */
        at += left - SIMGPU_BUSY_BUCKETS * (double)SIMGPU_BUSY_BUCKET_NS;
        left = SIMGPU_BUSY_BUCKETS * (double)SIMGPU_BUSY_BUCKET_NS;
    }
    while (left > 0) {
        uint64_t number = (uint64_t)(at / SIMGPU_BUSY_BUCKET_NS);
        double piece = fmin(left, (double)(number + 1) * SIMGPU_BUSY_BUCKET_NS - at);
        uint32_t bucket = number % SIMGPU_BUSY_BUCKETS;
        if (card->bucket_number[bucket] != number) {
            card->bucket_number[bucket] = number;
            card->bucket_busy_ns[bucket] = 0;
        }
        card->bucket_busy_ns[bucket] += piece;
        at += fmax(piece, 1);
        left -= fmax(piece, 1);
    }
}

double simgpu_card_busy_fraction(const simgpu_card *card, uint64_t real_since_epoch_ns, uint64_t window_ns)
{
    uint64_t buckets = window_ns / SIMGPU_BUSY_BUCKET_NS, last = real_since_epoch_ns / SIMGPU_BUSY_BUCKET_NS;
    double busy = 0, length = (double)(real_since_epoch_ns % SIMGPU_BUSY_BUCKET_NS);
    for (uint64_t back = 0; back <= buckets && back < SIMGPU_BUSY_BUCKETS && back <= last; back++) {
        uint32_t bucket = (last - back) % SIMGPU_BUSY_BUCKETS;
        if (card->bucket_number[bucket] == last - back)
            busy += card->bucket_busy_ns[bucket];
        length += back == 0 ? 0 : (double)SIMGPU_BUSY_BUCKET_NS;
    }
    return length <= 0 ? 0 : fmin(1, busy / length);
}

/* The modelled time of the next end or start, at most `limit`. */
static uint64_t next_step(simgpu_card *card, const shares *now, uint64_t limit)
{
    double shortest = (double)limit;
    for (uint32_t position = 0; position < card->active_count; position++) {
        simgpu_lane *lane = &card->lanes[card->active[position]];
        const simgpu_op *op = current(lane);
        double rate = rate_of(card, lane, op, now);
        if (op->phase == SIMGPU_PHASE_QUEUED)
            shortest = fmin(shortest, (double)(op->earliest_ns - card->advanced_ns));
        else if (rate > 0)
            shortest = fmin(shortest, op->remaining / rate);
    }
    uint64_t step = (uint64_t)ceil(shortest);
    return step < 1 ? 1 : step > limit ? limit : step;
}

static void proceed(simgpu_card *card, const shares *now, uint64_t step)
{
    for (uint32_t position = 0; position < card->active_count; position++) {
        simgpu_lane *lane = &card->lanes[card->active[position]];
        simgpu_op *op = current(lane);
        simgpu_tenant *tenant = &card->tenants[lane->slot];
        double rate = rate_of(card, lane, op, now);
        if (rate > 0)
            op->remaining = fmax(0, op->remaining - rate * (double)step);
        if (tenant->running) {
            tenant->busy_ns += (double)step;
            tenant->running = 0; /* once for all lanes of the process */
            double part = now->tenants_demand > 0 ? fmin(1, tenant->demand) / now->tenants_demand : 0;
            simgpu_telemetry_tenant(card, tenant, part, step);
        }
    }
    if (now->busy)
        account_busy(card, step);
    simgpu_telemetry_step(card, &now->activity, step);
    card->advanced_ns += step;
}

void simgpu_card_advance(simgpu_handle *handle, simgpu_card *card, uint64_t modelled_ns)
{
    while (card->active_count > 0 && !card->lost) {
        if (settle(card)) {
            active_compact(card);
            continue;
        }
        if (card->advanced_ns >= modelled_ns)
            return;
        shares now = measure(card);
        proceed(card, &now, next_step(card, &now, modelled_ns - card->advanced_ns));
    }
    if (card->advanced_ns < modelled_ns) {
        static const simgpu_activity idle;
        simgpu_telemetry_step(card, &idle, modelled_ns - card->advanced_ns);
        card->advanced_ns = modelled_ns;
    }
}

uint32_t simgpu_lane_take(simgpu_handle *handle, simgpu_card *card)
{
    simgpu_tenant_of(handle, card);
    for (uint32_t index = 0; index < SIMGPU_MAX_LANES; index++) {
        simgpu_lane *lane = &card->lanes[index];
        if (lane->slot != SIMGPU_NONE)
            continue;
        lane->head = lane->run = lane->tail = 0;
        lane->last_end_ns = 0;
        lane->generation = handle->generation;
        lane->slot = handle->slot;
        return index;
    }
    return SIMGPU_NONE;
}

void simgpu_lane_give(simgpu_card *card, uint32_t lane)
{
    card->lanes[lane].slot = SIMGPU_NONE;
    active_compact(card);
}

bool simgpu_lane_submit(simgpu_card *card, uint32_t index, const simgpu_op *op)
{
    simgpu_lane *lane = &card->lanes[index];
    if (lane->tail - lane->head >= SIMGPU_RING)
        return false;
    simgpu_op *entry = &lane->ops[lane->tail % SIMGPU_RING];
    *entry = *op;
    entry->phase = SIMGPU_PHASE_QUEUED;
    lane->tail++;
    if (lane->run + 1 == lane->tail)
        card->active[card->active_count++] = index;
    return true;
}

/* The earliest modelled time at which `ops_to_finish` pieces of the lane can be done: sharing only makes it later. */
uint64_t simgpu_lane_expected_ns(simgpu_card *card, uint32_t index, uint32_t ops_to_finish)
{
    simgpu_lane *lane = &card->lanes[index];
    double wait = 0;
    for (uint64_t at = lane->run; at < lane->tail && at < lane->run + ops_to_finish; at++) {
        const simgpu_op *op = &lane->ops[at % SIMGPU_RING];
        double link = link_per_ns(card), work = op->work_ns;
        if (op->kind == SIMGPU_OP_COPY_IN || op->kind == SIMGPU_OP_COPY_OUT)
            work = op->bytes / link + COPY_LATENCY_NS;
        else if (op->kind == SIMGPU_OP_MEMORY)
            work = op->bytes / memory_per_ns(card) + MEMORY_LATENCY_NS;
        if (op->phase == SIMGPU_PHASE_PAGING)
            work += op->remaining / paging_per_ns(card);
        else if (op->phase == SIMGPU_PHASE_RUNNING)
            work = op->kind == SIMGPU_OP_KERNEL   ? op->remaining
                   : op->kind == SIMGPU_OP_MEMORY ? op->remaining / memory_per_ns(card)
                                                  : op->remaining / link;
        else if (op->phase == SIMGPU_PHASE_HUNG)
            work = 1e15; /* only a fault, a heal or a kill ends it */
        if (op->phase == SIMGPU_PHASE_QUEUED && op->earliest_ns > card->advanced_ns + (uint64_t)wait)
            wait = (double)(op->earliest_ns - card->advanced_ns);
        wait += work;
    }
    return card->advanced_ns + (uint64_t)wait;
}
