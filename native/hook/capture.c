/* Follows stream captures through their begin and end calls.
 *
 * Synchronising a context breaks a capture in it, and so can an event query from any thread. The hook's own calls of
 * that kind and captures therefore exclude each other. Captures are counted per stream. An end call may fail and still
 * end the capture, so the hook asks the driver after each one.
 */
#include "capture.h"

#include "driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static unsigned excluders;
static atomic_uint captures;

struct captured {
    CUstream stream;
    struct captured *next;
};
static struct captured *streams;

/* A condition variable that uses the monotonic clock cannot be initialised statically. */
__attribute__((constructor)) static void init_changed(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool baton_capture_exclude(uint64_t patience_us)
{
    uint64_t end_us = baton_now_us() + patience_us;
    struct timespec until = {(time_t)(end_us / 1000000), (long)(end_us % 1000000) * 1000};
    pthread_mutex_lock(&mutex);
    while (captures && pthread_cond_timedwait(&changed, &mutex, &until) != ETIMEDOUT)
        ;
    bool excluded = captures == 0;
    excluders += excluded;
    pthread_mutex_unlock(&mutex);
    return excluded;
}

bool baton_capture_try_exclude(void)
{
    pthread_mutex_lock(&mutex);
    bool excluded = captures == 0;
    excluders += excluded;
    pthread_mutex_unlock(&mutex);
    return excluded;
}

void baton_capture_allow(void)
{
    pthread_mutex_lock(&mutex);
    if (--excluders == 0)
        pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static bool ask_driver(CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool baton_stream_is_capturing(CUstream stream)
{
    return atomic_load_explicit(&captures, memory_order_acquire) && stream != NONE && ask_driver(stream);
}

static void capture_begins(CUstream stream)
{
    struct captured *entry = malloc(sizeof *entry);
    int cancellable = baton_cancel_defer();
    pthread_mutex_lock(&mutex);
    while (excluders)
        pthread_cond_wait(&changed, &mutex);
    if (entry) {
        *entry = (struct captured){stream, streams};
        streams = entry;
        captures++;
    }
    pthread_mutex_unlock(&mutex);
    baton_cancel_allow(cancellable);
}

static void capture_over(CUstream stream)
{
    pthread_mutex_lock(&mutex);
    for (struct captured **link = &streams; *link; link = &(*link)->next) {
        struct captured *entry = *link;
        if (entry->stream != stream)
            continue;
        *link = entry->next;
        free(entry);
        if (--captures == 0)
            pthread_cond_broadcast(&changed);
        break;
    }
    pthread_mutex_unlock(&mutex);
}

static CUstream flavoured(CUstream stream, bool per_thread)
{
    return per_thread && !stream ? CU_STREAM_PER_THREAD : stream;
}

#define BEGIN(symbol, per_thread, parameters, arguments)      \
    CUresult symbol parameters                                \
    {                                                         \
        CUstream captured = flavoured(stream, per_thread);    \
        capture_begins(captured);                             \
        CUresult result = REAL(symbol) arguments;             \
        if (result != CUDA_SUCCESS)                           \
            capture_over(captured);                           \
        return result;                                        \
    }

#define END(symbol, per_thread)                               \
    CUresult symbol(CUstream stream, CUgraph *graph)          \
    {                                                         \
        CUstream captured = flavoured(stream, per_thread);    \
        CUresult result = REAL(symbol)(stream, graph);        \
        if (result == CUDA_SUCCESS || !ask_driver(captured))  \
            capture_over(captured);                           \
        return result;                                        \
    }

BEGIN(cuStreamBeginCapture, false, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, true, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, false, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, true, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph, false,
      (CUstream stream, CUgraph graph, const void *dependencies, const void *edges, size_t count, int mode),
      (stream, graph, dependencies, edges, count, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz, true,
      (CUstream stream, CUgraph graph, const void *dependencies, const void *edges, size_t count, int mode),
      (stream, graph, dependencies, edges, count, mode))
END(cuStreamEndCapture, false)
END(cuStreamEndCapture_ptsz, true)

CUresult cuStreamDestroy_v2(CUstream stream)
{
    CUresult result = REAL(cuStreamDestroy_v2)(stream);
    if (result == CUDA_SUCCESS && atomic_load(&captures))
        capture_over(stream);
    return result;
}

void baton_captures_reset_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    init_changed();
    excluders = 0;
    captures = 0;
    streams = NULL;
}
