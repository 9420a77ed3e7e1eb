/* Streams as queues of work: submitting ahead into the shared lanes, retiring, waiting. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define LONGEST_SLEEP_NS 50000000ULL /* a fault, a dead neighbour or a stopped machine is noticed within this */
#define SHORTEST_SLEEP_NS 60000ULL   /* below this a sleep costs more than it saves: yield instead */

void ticket_drop(ticket *mark)
{
    if (mark != NULL && atomic_fetch_sub(&mark->references, 1) == 1)
        free(mark);
}

struct stream *stream_make(struct context *context, unsigned int flags, int priority)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return NULL;
    stream->magic = MAGIC_STREAM;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    stream->id = ++driver.next_id;
    stream->lane = SIMGPU_NONE;
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

static struct stream *thread_stream(struct context *context)
{
    pthread_t self = pthread_self();
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        if (stream->per_thread && !stream->destroyed && pthread_equal(stream->thread, self))
            return stream;
    struct stream *stream = stream_make(context, 0, 0);
    if (stream != NULL) {
        stream->per_thread = true;
        stream->thread = self;
    }
    return stream;
}

CUresult stream_resolve(CUstream handle, struct context *context, struct stream **stream)
{
    if (handle == CU_STREAM_PER_THREAD || (handle == NULL && default_stream_per_thread > 0))
        *stream = thread_stream(context);
    else if (handle == NULL || handle == CU_STREAM_LEGACY)
        *stream = context->legacy;
    else
        *stream = handle->magic == MAGIC_STREAM && !handle->destroyed ? handle : NULL;
    if (*stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    return context_health((*stream)->context);
}

bool stream_idle(struct stream *stream)
{
    return stream->first == NULL;
}

uint64_t context_now_ns(struct context *context)
{
    return simgpu_modelled_ns(&driver.machine, driver_card(context->card), simgpu_real_ns());
}

/* The legacy stream and the blocking streams of a context wait for each other's earlier work. */
static bool barrier_open(const struct stream *stream, const op *item)
{
    if (stream->legacy) {
        for (struct stream *other = stream->context->streams; other != NULL; other = other->next)
            if (other != stream && !(other->flags & CU_STREAM_NON_BLOCKING) && other->first != NULL &&
                other->first->sequence < item->sequence)
                return false;
        return true;
    }
    if (stream->flags & CU_STREAM_NON_BLOCKING)
        return true;
    const op *legacy = stream->context->legacy->first;
    return legacy == NULL || legacy->sequence > item->sequence;
}

static void submit(struct stream *stream)
{
    simgpu_card *card = NULL;
    for (; stream->unsubmitted != NULL; stream->unsubmitted = stream->unsubmitted->next) {
        op *item = stream->unsubmitted;
        if (!barrier_open(stream, item))
            break;
        if (item->work.kind == WORK_WAIT) {
            if (!item->ticket->done)
                break;
            if (item->ticket->card == stream->context->card && item->ticket->at_ns > stream->not_before_ns)
                stream->not_before_ns = item->ticket->at_ns;
            item->submitted = true;
            item->lane_number = UINT64_MAX;
            continue;
        }
        if (item->work.kind == WORK_HOST) {
            item->submitted = stream->first == item; /* runs when everything before it is retired */
            item->lane_number = UINT64_MAX;
            break;
        }
        if (card == NULL)
            card = simgpu_card_lock(&driver.machine, stream->context->card);
        if (stream->lane == SIMGPU_NONE)
            stream->lane = simgpu_lane_take(&driver.machine, card);
        simgpu_op cost = {0};
        work_describe(stream->context, &item->work, &cost);
        cost.earliest_ns = stream->not_before_ns;
        if (stream->lane == SIMGPU_NONE || !simgpu_lane_submit(card, stream->lane, &cost))
            break;
        item->submitted = true;
        item->lane_number = card->lanes[stream->lane].tail - 1;
    }
    if (card != NULL)
        simgpu_card_unlock(&driver.machine, card);
}

static void drop_first(struct stream *stream)
{
    op *item = stream->first;
    stream->first = item->next;
    if (stream->first == NULL)
        stream->last = NULL;
    if (stream->unsubmitted == item)
        stream->unsubmitted = item->next;
    work_release(&item->work);
    ticket_drop(item->ticket);
    free(item);
}

static void give_lane(struct stream *stream)
{
    if (stream->lane == SIMGPU_NONE)
        return;
    simgpu_card *card = simgpu_card_lock(&driver.machine, stream->context->card);
    simgpu_lane_give(card, stream->lane);
    simgpu_card_unlock(&driver.machine, card);
    stream->lane = SIMGPU_NONE;
}

/* How far the card has come with the stream's lane; the times of ends are kept before the ring reuses them. */
static uint64_t lane_done(struct stream *stream, uint64_t *ends, uint64_t *first_end)
{
    if (stream->lane == SIMGPU_NONE)
        return 0;
    simgpu_card *card = simgpu_card_lock(&driver.machine, stream->context->card);
    simgpu_lane *lane = &card->lanes[stream->lane];
    *first_end = lane->head;
    for (uint64_t number = lane->head; number < lane->run; number++)
        ends[number - lane->head] = lane->ops[number % SIMGPU_RING].ended_ns;
    lane->head = lane->run;
    uint64_t done = lane->run;
    simgpu_card_unlock(&driver.machine, card);
    return done;
}

static bool finished(const op *item, uint64_t done)
{
    return item->submitted && (item->lane_number == UINT64_MAX || item->lane_number < done);
}

/* Carries out what the card has finished. Effects happen with the driver unlocked; the stream is marked so that
 * nobody else takes the same work, and the work stays in the queue so that the stream does not look idle. */
void stream_pump(struct stream *stream)
{
    if (stream->retiring || stream->first == NULL)
        return;
    for (;;) {
        uint64_t ends[SIMGPU_RING], first_end = 0;
        submit(stream);
        uint64_t done = lane_done(stream, ends, &first_end);
        if (stream->first == NULL || !finished(stream->first, done))
            break;
        op *until = stream->first, *item;
        while (until != NULL && finished(until, done) && (until == stream->first || until->work.kind != WORK_HOST))
            until = until->next;
        stream->retiring = true;
        driver_unlock();
        for (item = stream->first; item != until; item = item->next)
            work_carry_out(stream, &item->work);
        driver_lock();
        stream->retiring = false;
        while (stream->first != until) {
            item = stream->first;
            if (item->lane_number == UINT64_MAX) {
                if (item->work.kind == WORK_HOST)
                    stream->not_before_ns = 0;
            } else {
                stream->last_end_ns = ends[item->lane_number - first_end];
            }
            if (item->work.kind == WORK_RECORD) {
                item->ticket->at_ns = stream->last_end_ns;
                item->ticket->done = true;
            }
            drop_first(stream);
        }
        pthread_cond_broadcast(&driver.changed);
    }
    if (stream->first == NULL)
        give_lane(stream);
}

/* A dead context's work ends at once, without its effects; whoever waits for it learns of the error. */
void context_abandon(struct context *context)
{
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        while (stream->retiring) {
            pthread_cond_wait(&driver.changed, &driver.lock);
        }
        while (stream->first != NULL) {
            if (stream->first->ticket != NULL)
                stream->first->ticket->done = true;
            drop_first(stream);
        }
        give_lane(stream);
    }
    pthread_cond_broadcast(&driver.changed);
}

static void context_pump(struct context *context)
{
    if (context_health(context) != CUDA_SUCCESS) {
        context_abandon(context);
        return;
    }
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        stream_pump(stream);
}

/* When to look at the context's streams again; UINT64_MAX when it has no work. */
static uint64_t context_next_look(struct context *context)
{
    uint64_t earliest = UINT64_MAX, now = simgpu_real_ns();
    bool blocked = false;
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        blocked |= stream->unsubmitted != NULL;
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        if (stream->first == NULL)
            continue;
        uint64_t look = now + LONGEST_SLEEP_NS;
        if (stream->retiring)
            look = UINT64_MAX; /* whoever retires goes on by itself */
        else if (stream->lane != SIMGPU_NONE) {
            /* Work that only waits for its turn in the ring can be fetched in batches; work that others wait for not. */
            uint32_t batch = !blocked ? SIMGPU_RING : stream->unsubmitted != NULL && stream->unsubmitted->work.kind == WORK_KERNEL ? SIMGPU_RING / 2 : 1;
            simgpu_card *card = simgpu_card_lock(&driver.machine, context->card);
            uint64_t expected = simgpu_lane_expected_ns(card, stream->lane, batch);
            uint64_t real = simgpu_real_of(&driver.machine, card, expected);
            simgpu_card_unlock(&driver.machine, card);
            look = real < look ? real : look;
        }
        earliest = look < earliest ? look : earliest;
    }
    return earliest;
}

static struct timespec moment(uint64_t real_ns)
{
    return (struct timespec){.tv_sec = (time_t)(real_ns / 1000000000ULL), .tv_nsec = (long)(real_ns % 1000000000ULL)};
}

static void sleep_until(pthread_cond_t *condition, uint64_t real_ns)
{
    uint64_t now = simgpu_real_ns();
    if (real_ns <= now + SHORTEST_SLEEP_NS) {
        driver_unlock();
        sched_yield();
        driver_lock();
        return;
    }
    struct timespec until = moment(real_ns < now + LONGEST_SLEEP_NS ? real_ns : now + LONGEST_SLEEP_NS);
    pthread_cond_timedwait(condition, &driver.lock, &until);
}

static void *executor(void *unused)
{
    prctl(PR_SET_NAME, "simgpu");
    prctl(PR_SET_TIMERSLACK, 1000);
    driver_lock();
    for (;;) {
        uint64_t earliest = UINT64_MAX;
        for (struct context *context = driver.contexts; context != NULL; context = context->next) {
            if (context->destroyed || context->waiting_threads > 0)
                continue;
            context_pump(context);
            uint64_t look = context_next_look(context);
            earliest = look < earliest ? look : earliest;
        }
        driver.executor_until_ns = earliest;
        if (earliest == UINT64_MAX) {
            pthread_cond_wait(&driver.wake, &driver.lock);
        } else {
            simgpu_reap_sometimes(&driver.machine);
            sleep_until(&driver.wake, earliest);
        }
        driver.executor_until_ns = 0;
    }
    return unused;
}

static bool executor_start(void)
{
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t every, before;
    if (driver.executor_running)
        return true;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before); /* the program's signals belong to the program's threads */
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    driver.executor_running = pthread_create(&thread, &detached, executor, NULL) == 0;
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return driver.executor_running;
}

CUresult stream_push(struct stream *stream, const work *item, ticket **record)
{
    op *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fresh->work = *item;
    if (item->kind == WORK_RECORD) {
        fresh->ticket = calloc(1, sizeof *fresh->ticket);
        if (fresh->ticket == NULL) {
            free(fresh);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        fresh->ticket->references = 2;
        fresh->ticket->card = stream->context->card;
        *record = fresh->ticket;
    } else if (item->kind == WORK_WAIT) {
        fresh->ticket = *record;
        atomic_fetch_add(&fresh->ticket->references, 1);
    }
    bool was_idle = stream->first == NULL;
    fresh->sequence = ++driver.sequence;
    if (stream->last != NULL)
        stream->last->next = fresh;
    else
        stream->first = fresh;
    stream->last = fresh;
    if (stream->unsubmitted == NULL)
        stream->unsubmitted = fresh;
    submit(stream);
    if (was_idle && driver.executor_until_ns > 0)
        pthread_cond_signal(&driver.wake);
    return executor_start() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static bool streams_passed(struct context *context, const struct stream *only, uint64_t sequence)
{
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        if ((only == NULL || stream == only) && stream->first != NULL && stream->first->sequence <= sequence)
            return false;
    return true;
}

static CUresult wait_for(struct context *context, const struct stream *only, const ticket *mark)
{
    uint64_t sequence = driver.sequence;
    context->waiting_threads++;
    for (;;) {
        context_pump(context);
        if (mark != NULL ? mark->done : streams_passed(context, only, sequence))
            break;
        simgpu_reap_sometimes(&driver.machine);
        uint64_t look = context_next_look(context);
        sleep_until(&driver.changed, look == UINT64_MAX ? simgpu_real_ns() + LONGEST_SLEEP_NS : look);
    }
    if (--context->waiting_threads == 0 && driver.executor_until_ns > 0)
        for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
            if (stream->first != NULL) {
                pthread_cond_signal(&driver.wake); /* it has left this context's work to the waiting thread */
                break;
            }
    return context_health(context);
}

CUresult stream_wait(struct stream *stream)
{
    return wait_for(stream->context, stream, NULL);
}

CUresult context_wait(struct context *context)
{
    return wait_for(context, NULL, NULL);
}

CUresult ticket_wait(struct context *context, ticket *mark)
{
    atomic_fetch_add(&mark->references, 1);
    CUresult result = wait_for(context, NULL, mark);
    ticket_drop(mark);
    return result;
}

CUresult stream_launch(struct stream *stream, const work *item)
{
    if (stream->capture != NULL)
        return capture_add(stream, item);
    return stream_push(stream, item, NULL);
}
