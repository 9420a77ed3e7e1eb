/* Streams as queues of work: submitting ahead of time into the shared lanes, retiring, waiting. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define LONGEST_SLEEP_NS 50000000ULL /* a fault, a dead process or a stopped machine is noticed within this time */
#define LONGEST_QUEUE 1024           /* a launch into a longer queue waits, as with the real driver */
#define BATCH 64                     /* pieces of work retired at a time */
#define SHORTEST_SLEEP_NS 60000ULL   /* a shorter sleep costs more than it saves: yield instead */

void ticket_drop(ticket *mark)
{
    if (mark != NULL && atomic_fetch_sub(&mark->references, 1) == 1)
        free(mark);
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

/* A stream's structure is never freed while the context lives, because another thread may be iterating over it; once a
 * destroyed stream has no work left, its structure is reused. */
struct stream *stream_make(struct context *context, unsigned int flags, int priority)
{
    struct stream *stream = context->streams;
    while (stream != NULL && !(stream->destroyed && stream->first == NULL && !stream->retiring && stream->capture == NULL))
        stream = stream->next;
    if (stream == NULL) {
        stream = calloc(1, sizeof *stream);
        if (stream == NULL)
            return NULL;
        stream->next = context->streams;
        context->streams = stream;
    } else {
        struct stream *next = stream->next;
        give_lane(stream);
        memset(stream, 0, sizeof *stream);
        stream->next = next;
    }
    stream->magic = MAGIC_STREAM;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    stream->id = ++driver.next_id;
    stream->lane = SIMGPU_NONE;
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
            item->finished = true;
            item->lane_number = UINT64_MAX;
            continue;
        }
        if (item->work.kind == WORK_HOST) {
            item->finished = stream->first == item; /* runs when all earlier work has been retired */
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
        item->lane_number = card->lanes[stream->lane].tail - 1;
    }
    if (card != NULL)
        simgpu_card_unlock(&driver.machine, card);
}

static void drop_first(struct stream *stream)
{
    op *item = stream->first;
    stream->length--;
    stream->first = item->next;
    if (stream->first == NULL)
        stream->last = NULL;
    if (stream->unsubmitted == item)
        stream->unsubmitted = item->next;
    work_release(&item->work);
    ticket_drop(item->ticket);
    free(item);
}

/* Reads what the card has finished. Times are stored with the work, because the ring will be reused. */
static void collect(struct stream *stream)
{
    if (stream->lane == SIMGPU_NONE)
        return;
    simgpu_card *card = simgpu_card_lock(&driver.machine, stream->context->card);
    simgpu_lane *lane = &card->lanes[stream->lane];
    for (op *item = stream->first; item != stream->unsubmitted; item = item->next)
        if (item->lane_number >= lane->head && item->lane_number < lane->run) {
            item->ended_ns = lane->ops[item->lane_number % SIMGPU_RING].ended_ns;
            item->finished = true;
        }
    lane->head = lane->run;
    simgpu_card_unlock(&driver.machine, card);
}

static void retire_first(struct stream *stream)
{
    op *item = stream->first;
    if (item->lane_number != UINT64_MAX)
        stream->last_end_ns = item->ended_ns;
    else if (item->work.kind == WORK_HOST)
        stream->not_before_ns = 0; /* what follows starts when the function has returned: now */
    if (item->work.kind == WORK_RECORD) {
        item->ticket->at_ns = stream->last_end_ns;
        item->ticket->done = true;
    }
    drop_first(stream);
}

/* Applies the effects of what the card has finished, with the driver unlocked. The stream is marked so that no other
 * thread takes the same work, and the work stays in the queue so that the stream does not appear idle. */
bool stream_pump(struct stream *stream)
{
    bool progress = false;
    if (stream->retiring || stream->first == NULL)
        return false;
    for (;;) {
        op *batch[BATCH];
        size_t count = 0;
        submit(stream);
        collect(stream);
        for (op *item = stream->first; item != NULL && count < BATCH && item->finished; item = item->next) {
            if (item->work.kind == WORK_HOST)
                break;
            batch[count++] = item;
        }
        if (count == 0)
            break;
        stream->retiring = true;
        driver_unlock();
        for (size_t index = 0; index < count; index++)
            work_carry_out(stream, &batch[index]->work);
        driver_lock();
        stream->retiring = false;
        for (size_t index = 0; index < count; index++)
            retire_first(stream);
        progress = true;
        pthread_cond_broadcast(&driver.changed);
    }
    if (stream->first == NULL) {
        give_lane(stream);
    } else if (stream->first->work.kind == WORK_HOST && stream->first->finished) {
        stream->retiring = true;
        host_call(stream);
    }
    return progress;
}

void stream_called(struct stream *stream)
{
    stream->retiring = false;
    retire_first(stream);
    stream_pump(stream);
    pthread_cond_broadcast(&driver.changed);
    pthread_cond_signal(&driver.wake);
}

/* A dead context's work ends at once, without its effects; waiting threads get the error. */
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

/* Repeats until nothing changes: work that one stream has finished may unblock another. */
static bool context_pump(struct context *context)
{
    bool progress = false;
    for (bool again = true; again; progress |= again) {
        again = false;
        if (context_health(context) != CUDA_SUCCESS) {
            context_abandon(context);
            return progress;
        }
        for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
            again |= stream_pump(stream);
    }
    return progress;
}

/* How much of a stream's submitted work to let pass before checking again. Work that only waits for its turn in the
 * ring can be collected in batches; work that a thread is waiting for cannot. */
static uint32_t batch_of(const struct stream *stream, const simgpu_lane *lane, const ticket *mark, bool blocked)
{
    for (const op *item = stream->first; mark != NULL && item != NULL; item = item->next)
        if (item == stream->unsubmitted)
            break;
        else if (item->ticket == mark && item->work.kind == WORK_RECORD)
            return item->lane_number >= lane->run ? (uint32_t)(item->lane_number + 1 - lane->run) : 1;
    if (!blocked)
        return SIMGPU_RING;
    bool ring_full = stream->unsubmitted != NULL && lane->tail - lane->head == SIMGPU_RING;
    return ring_full ? SIMGPU_RING / 2 : 1;
}

/* When to check the context's streams again; UINT64_MAX if it has no work. */
static uint64_t context_next_look(struct context *context, const ticket *mark)
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
            look = UINT64_MAX; /* the retiring thread continues by itself */
        else if (stream->lane != SIMGPU_NONE) {
            simgpu_card *card = simgpu_card_lock(&driver.machine, context->card);
            uint32_t batch = batch_of(stream, &card->lanes[stream->lane], mark, blocked);
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
            if (context_pump(context))
                earliest = 0; /* another context may be waiting for it */
            uint64_t look = context_next_look(context, NULL);
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

bool thread_start(void *(*body)(void *))
{
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before); /* the program's signals are handled on the program's threads */
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &detached, body, NULL) == 0;
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static bool executor_start(void)
{
    if (!driver.executor_running)
        driver.executor_running = thread_start(executor);
    return driver.executor_running;
}

static CUresult wait_for_room(struct stream *stream);

CUresult stream_push(struct stream *stream, const work *item, ticket **record)
{
    if (stream->length >= LONGEST_QUEUE) {
        CUresult result = wait_for_room(stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    op *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!executor_start() || (item->kind == WORK_HOST && !host_calls_start())) {
        free(fresh);
        return CUDA_ERROR_UNKNOWN;
    }
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
    stream->length++;
    if (stream->unsubmitted == NULL) { /* otherwise earlier work is already held back */
        stream->unsubmitted = fresh;
        submit(stream);
    }
    if (was_idle && driver.executor_until_ns > 0)
        pthread_cond_signal(&driver.wake);
    return CUDA_SUCCESS;
}

static bool streams_passed(struct context *context, const struct stream *only, uint64_t sequence)
{
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
        if ((only == NULL || stream == only) && stream->first != NULL && stream->first->sequence <= sequence)
            return false;
    return true;
}

/* What a thread waits for: a ticket, room in a stream, a stream, or (if none is given) the whole context. */
typedef struct {
    const ticket *mark;
    const struct stream *room, *stream;
} goal;

static bool reached(struct context *context, const goal *wanted, uint64_t sequence)
{
    if (wanted->mark != NULL)
        return wanted->mark->done;
    if (wanted->room != NULL)
        return wanted->room->length < LONGEST_QUEUE;
    return streams_passed(context, wanted->stream, sequence);
}

static CUresult wait_for(struct context *context, goal wanted)
{
    uint64_t sequence = driver.sequence;
    context->waiting_threads++;
    for (;;) {
        context_pump(context);
        if (reached(context, &wanted, sequence))
            break;
        simgpu_reap_sometimes(&driver.machine);
        uint64_t look = context_next_look(context, wanted.mark);
        sleep_until(&driver.changed, look == UINT64_MAX ? simgpu_real_ns() + LONGEST_SLEEP_NS : look);
    }
    if (--context->waiting_threads == 0 && driver.executor_until_ns > 0)
        for (struct stream *stream = context->streams; stream != NULL; stream = stream->next)
            if (stream->first != NULL) {
                pthread_cond_signal(&driver.wake); /* the executor left this context's work to the waiting thread */
                break;
            }
    return context_health(context);
}

CUresult stream_wait(struct stream *stream)
{
    return wait_for(stream->context, (goal){.stream = stream});
}

CUresult context_wait(struct context *context)
{
    return wait_for(context, (goal){0});
}

CUresult ticket_wait(struct context *context, ticket *mark)
{
    atomic_fetch_add(&mark->references, 1);
    CUresult result = wait_for(context, (goal){.mark = mark});
    ticket_drop(mark);
    return result;
}

static CUresult wait_for_room(struct stream *stream)
{
    return wait_for(stream->context, (goal){.room = stream});
}

CUresult stream_launch(struct stream *stream, const work *item)
{
    if (stream->capture != NULL)
        return capture_add(stream, item);
    return stream_push(stream, item, NULL);
}
