/* Talks to the lock daemon. One thread serves the connections of all GPUs and blocks only in poll; the drain threads
 * wait for the GPUs. Only this thread changes the state of a connection (struct baton_link) and decides when a gate
 * opens.
 *
 * Losing the daemon never ends the program. A turn that was held stays held while the hook reconnects, and RESUME tells
 * the new daemon about it. nvshare's daemon has no RESUME, so with it the hook gives up the turn and requests a new
 * one. If the daemon is gone for longer than BATON_DAEMON_TIMEOUT, BATON_ON_DAEMON_LOSS decides what happens.
 */
#include "client.h"

#include "drain.h"
#include "fork.h"
#include "gate.h"
#include "link.h"
#include "settings.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

static const uint64_t limits_wait_us = 5000000; /* as long as for any other answer from the daemon */

static atomic_int wake_fd = -1;
static bool started;

static bool job_active(const struct baton_gpu *gpu) { return gpu->job != BATON_JOB_NONE; }

static void start_job(struct baton_gpu *gpu, enum baton_job job)
{
    gpu->link.drop_pending = false;
    baton_drain_start(gpu, job, gpu->link.idle.activity);
}

/* Updates the gate to match the current state. Closing it includes waiting for submitted work, so it is a drain job. */
static void update_gate(struct baton_gpu *gpu)
{
    struct baton_link *link = &gpu->link;
    bool may_run = link->turn == BATON_TURN_HELD || link->scheduling_off || link->unscheduled;
    bool open = atomic_load(&gpu->open);
    if (job_active(gpu))
        return;
    if (may_run && !open && !gpu->failed)
        baton_gate_open(gpu);
    else if (!may_run && open)
        start_job(gpu, BATON_JOB_WITHDRAW);
}

static void take_turn(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    link->turn = BATON_TURN_HELD;
    link->held_since_us = now_us;
    baton_idle_begin(gpu, now_us);
}

static void give_up_turn(struct baton_gpu *gpu)
{
    if (gpu->link.turn == BATON_TURN_HELD && !job_active(gpu))
        start_job(gpu, BATON_JOB_DROP);
    else if (gpu->link.turn == BATON_TURN_HELD)
        gpu->link.drop_pending = true;
}

static void set_failed(struct baton_gpu *gpu, bool failed)
{
    pthread_mutex_lock(&gpu->mutex);
    gpu->failed = failed;
    if (failed)
        atomic_store(&gpu->open, 0);
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->mutex);
}

static void settle_limits(struct baton_gpu *gpu)
{
    pthread_mutex_lock(&gpu->mutex);
    gpu->limits_settled = true;
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->mutex);
}

/* The daemon has accepted us. `resumed`: it also knows what we held and waited for. */
static void become_ready(struct baton_gpu *gpu, bool resumed)
{
    struct baton_link *link = &gpu->link;
    link->phase = BATON_LINK_READY;
    link->backoff_us = 0;
    if (link->loss_reported)
        baton_log("the lock daemon is back; %s is scheduled again", gpu->uuid_text);
    link->refused = link->loss_reported = link->loss_settled = false;
    link->lost_since_us = 0;
    link->unscheduled = false;
    if (gpu->failed)
        set_failed(gpu, false);
    if (link->scheduling_off || !resumed)
        link->turn = BATON_TURN_NONE;
    update_gate(gpu);
    if (baton_settings()->gang)
        baton_client_wake(); /* another GPU of the gang may be waiting for this one */
}

static void on_scheduling(struct baton_gpu *gpu, const struct baton_frame *frame)
{
    struct baton_link *link = &gpu->link;
    bool off = frame->type == BATON_SCHED_OFF;
    if (link->phase == BATON_LINK_REGISTERING) {
        memcpy(link->new_id, frame->data, 16);
        link->new_id[16] = '\0';
        link->scheduling_off = off;
        baton_link_await_hello(gpu);
        return;
    }
    link->scheduling_off = off;
    if (off)
        link->turn = BATON_TURN_NONE; /* the daemon has cleared its queue */
    update_gate(gpu);
}

static void on_limits(struct baton_gpu *gpu, const struct baton_frame *frame)
{
    uint64_t number;
    if (baton_number_get(frame, "memory", &number))
        atomic_store(&gpu->daemon_limit_bytes, number);
    if (baton_number_get(frame, "oversubscribe", &number))
        atomic_store(&gpu->daemon_oversubscribe, number != 0);
    settle_limits(gpu);
}

static void on_allowance(struct baton_gpu *gpu, const struct baton_frame *frame)
{
    uint64_t place;
    if (gpu->link.passed_fd >= 0 && baton_number_get(frame, "slot", &place))
        baton_allowance_join(gpu, gpu->link.passed_fd, place);
}

static void on_notice(struct baton_gpu *gpu, const struct baton_frame *frame)
{
    char reason[400] = "", code[16] = "";
    baton_text_get(frame, "reason", reason, sizeof reason);
    baton_text_get(frame, "code", code, sizeof code);
    for (char *c = reason; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = '?';
    baton_log("%s: %s", gpu->uuid_text, reason[0] ? reason : "the lock daemon sent a notice without a reason");
    if (strcmp(code, "revoked") == 0)
        give_up_turn(gpu);
}

static void on_frame(struct baton_gpu *gpu, const struct baton_frame *frame, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    if (link->phase == BATON_LINK_REGISTERING && frame->type != BATON_SCHED_ON && frame->type != BATON_SCHED_OFF) {
        /* The hook keeps retrying, as with a silent daemon, and gets the same refusal each time: report it once. */
        if (frame->type == BATON_NOTICE && !link->refused)
            on_notice(gpu, frame);
        link->refused = link->refused || frame->type == BATON_NOTICE;
        return;
    }
    switch (frame->type) {
    case BATON_SCHED_ON:
    case BATON_SCHED_OFF:
        on_scheduling(gpu, frame);
        break;
    case BATON_LOCK_OK:
        if (link->scheduling_off)
            break;
        take_turn(gpu, now_us);
        update_gate(gpu);
        break;
    case BATON_DROP_LOCK:
        give_up_turn(gpu);
        break;
    case BATON_HELLO: {
        bool first = link->phase == BATON_LINK_GREETING;
        bool resumed = baton_link_greet(gpu, frame, now_us);
        if (first && link->phase == BATON_LINK_GREETING) /* sending the answer may have failed */
            become_ready(gpu, resumed);
        break;
    }
    case BATON_LIMITS:
        on_limits(gpu, frame);
        break;
    case BATON_ALLOWANCE:
        on_allowance(gpu, frame);
        break;
    case BATON_NOTICE:
        on_notice(gpu, frame);
        break;
    default:
        break;
    }
}

static void finish_job(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    pthread_mutex_lock(&gpu->mutex);
    bool done = gpu->job != BATON_JOB_NONE && gpu->job_done;
    enum baton_job job = gpu->job;
    bool released = gpu->job_released;
    if (done)
        gpu->job = BATON_JOB_NONE;
    pthread_mutex_unlock(&gpu->mutex);
    if (!done)
        return;
    if (baton_settings()->gang)
        baton_client_wake();
    if (released) {
        if (job != BATON_JOB_WITHDRAW && link->turn == BATON_TURN_HELD && link->phase == BATON_LINK_READY)
            baton_link_send_simple(gpu, BATON_LOCK_RELEASED);
        if (job != BATON_JOB_WITHDRAW && link->turn == BATON_TURN_HELD)
            link->turn = BATON_TURN_NONE;
    } else {
        baton_idle_worked(gpu, now_us);
        if (link->drop_pending && link->turn == BATON_TURN_HELD)
            start_job(gpu, BATON_JOB_DROP);
    }
    update_gate(gpu);
}

/* One request covers all GPUs of a gang. It is sent when all are connected and none is being released. */
static bool may_ask(struct baton_gpu *gpu)
{
    unsigned count = baton_gpu_count();
    if (!baton_settings()->gang)
        return true;
    for (unsigned i = 0; i < count; i++) {
        struct baton_gpu *member = baton_gpu_at(i);
        if (member->link.phase != BATON_LINK_READY || job_active(member) || member->link.turn == BATON_TURN_ASKED)
            return false;
    }
    return true;
}

static void ask_for_turn(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    if (link->phase != BATON_LINK_READY || link->turn != BATON_TURN_NONE || link->scheduling_off || job_active(gpu) ||
        !atomic_load(&gpu->waiters) || !may_ask(gpu))
        return;
    baton_idle_over(gpu, now_us);
    baton_link_ask(gpu, now_us);
    link->turn = BATON_TURN_ASKED;
}

/* Early release. A gang holds one turn: it is released only when all of its GPUs are idle. */
static void check_idle(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    if (link->turn != BATON_TURN_HELD || link->phase != BATON_LINK_READY || job_active(gpu) ||
        now_us < link->idle.look_us)
        return;
    bool idle = baton_idle_look(gpu, now_us);
    if (baton_settings()->gang)
        for (unsigned i = 0; i < baton_gpu_count(); i++)
            idle = baton_idle_look(baton_gpu_at(i), now_us) && idle;
    if (idle)
        start_job(gpu, BATON_JOB_IDLE);
}

static void check_loss(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    const struct baton_settings *settings = baton_settings();
    if (!link->lost_since_us || now_us < link->lost_since_us)
        return; /* lost after this iteration read the clock */
    uint64_t lost_us = now_us - link->lost_since_us;
    if (!link->loss_reported && !link->refused && lost_us >= 1000000) {
        link->loss_reported = true;
        baton_log("no lock daemon answers at %s; retrying for %s", settings->socket_path, gpu->uuid_text);
    }
    if (link->loss_settled || lost_us < settings->daemon_timeout_us || settings->on_loss == BATON_LOSS_WAIT)
        return;
    link->loss_settled = link->loss_reported = true;
    if (settings->on_loss == BATON_LOSS_FAIL) {
        baton_log("the lock daemon has been gone for too long; calls on %s fail until it is back", gpu->uuid_text);
        set_failed(gpu, true);
    } else {
        baton_log("the lock daemon has been gone for too long; %s runs unscheduled until it is back", gpu->uuid_text);
        link->unscheduled = true;
        update_gate(gpu);
    }
}

static void serve(struct baton_gpu *gpu, short events, uint64_t now_us)
{
    struct baton_frame frame;
    while (events && baton_link_receive(gpu, &frame)) {
        on_frame(gpu, &frame, now_us);
        baton_link_drop_passed(gpu);
    }
    finish_job(gpu, now_us);
    if (baton_link_advance(gpu, now_us)) {
        become_ready(gpu, false); /* no HELLO: this is nvshare's daemon */
        settle_limits(gpu);
    }
    if (gpu->link.phase == BATON_LINK_DOWN && gpu->link.backoff_us && !gpu->limits_settled)
        settle_limits(gpu);
    ask_for_turn(gpu, now_us);
    check_idle(gpu, now_us);
    check_loss(gpu, now_us);
    baton_link_report(gpu, now_us);
    baton_link_flush(gpu);
}

static uint64_t next_event_us(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    const struct baton_settings *settings = baton_settings();
    uint64_t next_us = baton_link_next_event_us(gpu);
    if (link->turn == BATON_TURN_HELD && link->phase == BATON_LINK_READY && !job_active(gpu) &&
        link->idle.look_us < next_us)
        next_us = link->idle.look_us;
    if (link->lost_since_us && !link->loss_settled && settings->on_loss != BATON_LOSS_WAIT) {
        uint64_t loss_us = link->lost_since_us + settings->daemon_timeout_us;
        next_us = loss_us < next_us ? loss_us : next_us;
    }
    return next_us > now_us ? next_us - now_us : 0;
}

static void *client_main(void *unused)
{
    struct pollfd polled[BATON_MAX_GPUS + 1];
    prctl(PR_SET_NAME, "baton-client");
    for (;;) {
        uint64_t now_us = baton_now_us(), wait_us = 3600000000u, drained;
        unsigned count = baton_gpu_count();
        polled[0] = (struct pollfd){wake_fd, POLLIN, 0};
        for (unsigned i = 0; i < count; i++) {
            struct baton_gpu *gpu = baton_gpu_at(i);
            uint64_t gpu_us = next_event_us(gpu, now_us);
            wait_us = gpu_us < wait_us ? gpu_us : wait_us;
            polled[i + 1] = (struct pollfd){gpu->link.fd, POLLIN | (gpu->link.queued ? POLLOUT : 0), 0};
        }
        int ready = poll(polled, count + 1, (int)((wait_us + 999) / 1000));
        if (ready > 0 && polled[0].revents) {
            ssize_t got = read(wake_fd, &drained, sizeof drained);
            (void)got;
        }
        now_us = baton_now_us();
        for (unsigned i = 0; i < count; i++)
            serve(baton_gpu_at(i), ready > 0 ? polled[i + 1].revents : 0, now_us);
    }
    return NULL;
}

void baton_client_start(void)
{
    if (!started) {
        baton_fork_watch();
        wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        started = wake_fd >= 0 && baton_thread_start(client_main, NULL);
        if (!started) {
            baton_log("cannot create a thread or file descriptor for the lock client; this program runs unscheduled");
            for (unsigned i = 0; i < baton_gpu_count(); i++) {
                settle_limits(baton_gpu_at(i));
                baton_gate_open(baton_gpu_at(i));
            }
        }
    }
    baton_client_wake();
}

void baton_client_wake(void)
{
    uint64_t one = 1;
    int cancellable = baton_cancel_defer();
    ssize_t written = write(wake_fd, &one, sizeof one);
    (void)written; /* a counter that is already full also wakes the thread */
    baton_cancel_allow(cancellable);
}

void baton_client_await_limits(struct baton_gpu *gpu)
{
    struct timespec until;
    if (BATON_LIKELY(atomic_load_explicit(&gpu->limits_settled, memory_order_acquire)))
        return;
    int cancellable = baton_cancel_defer();
    uint64_t end_us = baton_now_us() + limits_wait_us;
    until = (struct timespec){(time_t)(end_us / 1000000), (long)(end_us % 1000000) * 1000};
    pthread_mutex_lock(&gpu->mutex);
    while (!gpu->limits_settled && pthread_cond_timedwait(&gpu->changed, &gpu->mutex, &until) != ETIMEDOUT)
        ;
    gpu->limits_settled = true;
    pthread_mutex_unlock(&gpu->mutex);
    baton_cancel_allow(cancellable);
}

void baton_client_reset_in_child(void)
{
    for (unsigned i = 0; i < baton_gpu_count(); i++) {
        if (baton_gpu_at(i)->link.fd >= 0)
            close(baton_gpu_at(i)->link.fd);
        baton_link_drop_passed(baton_gpu_at(i));
    }
    if (wake_fd >= 0)
        close(wake_fd);
    wake_fd = -1;
    started = false;
}
