/* One drain thread per GPU, separate from the client thread: waiting for a GPU can take long, and the connection must
 * be served in the meantime. A daemon that restarts during the wait has to learn that we still hold the turn. */
#include "drain.h"

#include "capture.h"
#include "client.h"
#include "context.h"
#include "gate.h"
#include "settings.h"

#include <signal.h>
#include <sys/prctl.h>

bool baton_thread_start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 20); /* driver calls need stack; untouched pages cost nothing */
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed == 0;
}

/* Never waits for a capture or for running work: threads that submit work later would have to wait too. */
static bool release_if_idle(struct baton_gpu *gpu, uint64_t activity)
{
    if (baton_gate_occupied(gpu) || !baton_capture_try_exclude())
        return false;
    uint64_t before_us = baton_now_us();
    baton_contexts_synchronize(gpu);
    bool worked = baton_now_us() - before_us > BATON_WORKED_US;
    bool released = !worked && baton_gate_activity(gpu) == activity;
    if (released) {
        baton_gate_close(gpu);
        released = baton_gate_activity(gpu) == activity;
        if (!released)
            baton_gate_open(gpu);
    }
    baton_capture_allow();
    return released;
}

/* A capturing thread may have to pass the gate before it can end its capture, so the gate normally closes only after
 * the capture. But other programs wait for the GPU, and a capture is host work that may take any time or never end.
 * After BATON_CAPTURE_WAIT the gate closes regardless, and the capturing thread continues in its next turn. While a
 * stream captures, the driver cannot be asked whether submitted work has finished, so the hook allows it a fixed time
 * instead. Work that takes longer overlaps with the next holder's, which costs time but breaks nothing. */
static void stop_and_wait(struct baton_gpu *gpu)
{
    const struct baton_settings *settings = baton_settings();
    bool excluded = baton_capture_exclude(settings->capture_wait_us);
    baton_gate_close(gpu);
    if (!excluded) {
        baton_debug("%s: a stream capture exceeds BATON_CAPTURE_WAIT; the turn ends without waiting for it",
                    gpu->uuid_text);
        excluded = baton_capture_exclude(2 * settings->window_us);
    }
    if (excluded) {
        baton_contexts_synchronize(gpu);
        baton_capture_allow();
    }
}

static void *drain_main(void *argument)
{
    struct baton_gpu *gpu = argument;
    prctl(PR_SET_NAME, "baton-drain");
    pthread_mutex_lock(&gpu->mutex);
    for (;;) {
        while (gpu->job == BATON_JOB_NONE || gpu->job_done)
            pthread_cond_wait(&gpu->job_set, &gpu->mutex);
        enum baton_job job = gpu->job;
        uint64_t activity = gpu->job_activity;
        pthread_mutex_unlock(&gpu->mutex);
        bool released = true;
        if (job == BATON_JOB_IDLE)
            released = release_if_idle(gpu, activity);
        else
            stop_and_wait(gpu);
        pthread_mutex_lock(&gpu->mutex);
        gpu->job_done = true;
        gpu->job_released = released;
        baton_client_wake();
    }
    return NULL;
}

void baton_drain_start(struct baton_gpu *gpu, enum baton_job job, uint64_t activity)
{
    pthread_mutex_lock(&gpu->mutex);
    gpu->job = job;
    gpu->job_done = false;
    gpu->job_activity = activity;
    bool start = !gpu->drain_started;
    gpu->drain_started = true;
    pthread_cond_signal(&gpu->job_set);
    pthread_mutex_unlock(&gpu->mutex);
    if (start && !baton_thread_start(drain_main, gpu)) {
        baton_log("cannot create a drain thread for %s; its turn is held until the program ends", gpu->uuid_text);
        pthread_mutex_lock(&gpu->mutex);
        gpu->drain_started = false;
        gpu->job_done = true;
        gpu->job_released = false;
        pthread_mutex_unlock(&gpu->mutex);
    }
}
