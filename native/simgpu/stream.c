/* Streams and events as a program sees them. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static bool event_valid(const struct event *event)
{
    return event != NULL && event->magic == MAGIC_EVENT;
}

CUDA_API CUresult cuStreamCreateWithPriority(CUstream *result, unsigned int flags, int priority)
{
    ENTER(context);
    if (result == NULL || flags > CU_STREAM_NON_BLOCKING)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *result = stream_make(context, flags, priority);
    LEAVE(*result != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUDA_API CUresult cuStreamCreate(CUstream *result, unsigned int flags)
{
    return cuStreamCreateWithPriority(result, flags, 0);
}

/* A destroyed stream finishes its work; the structure stays because the executor may be using it. */
CUDA_API CUresult cuStreamDestroy_v2(CUstream handle)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    if (handle->magic != MAGIC_STREAM || handle->destroyed)
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    handle->destroyed = true;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuStreamSynchronize(CUstream handle)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS)
        result = capture_forbid_stream(stream);
    LEAVE(result == CUDA_SUCCESS ? stream_wait(stream) : result);
}

CUDA_API CUresult cuStreamQuery(CUstream handle)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS)
        result = capture_forbid_stream(stream);
    if (result != CUDA_SUCCESS)
        LEAVE(result);
    stream_pump(stream);
    LEAVE(stream_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUDA_API CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS && priority == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *priority = stream->priority;
    LEAVE(result);
}

CUDA_API CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS && flags == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *flags = stream->flags;
    LEAVE(result);
}

CUDA_API CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS && id == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *id = stream->id;
    LEAVE(result);
}

CUDA_API CUresult cuStreamGetCtx(CUstream handle, CUcontext *owner)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS && owner == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *owner = stream->context;
    LEAVE(result);
}

CUDA_API CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *owner, void **green)
{
    if (green != NULL)
        *green = NULL;
    return cuStreamGetCtx(handle, owner);
}

CUDA_API CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS && device == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = (CUdevice)device_of_card(stream->context->card);
    LEAVE(result);
}

CUDA_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS)
        LEAVE(result);
    if (!event_valid(event))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    if (event->capture != NULL || stream->capture != NULL)
        LEAVE(capture_wait(stream, event));
    LEAVE(event_wait_in(event, stream));
}

CUDA_API CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t length, unsigned int flags)
{
    ENTER(context);
    struct stream *stream;
    LEAVE(stream_resolve(handle, context, &stream));
}

/* Cache and scheduling hints: accepted, without effect on the model. */
CUDA_API CUresult cuStreamSetAttribute(CUstream handle, int attribute, const void *value)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    LEAVE(result == CUDA_SUCCESS && value == NULL ? CUDA_ERROR_INVALID_VALUE : result);
}

CUDA_API CUresult cuStreamGetAttribute(CUstream handle, int attribute, void *value)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS && value == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        memset(value, 0, 64);
    LEAVE(result);
}

CUDA_API CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(to, context, &stream);
    LEAVE(result == CUDA_SUCCESS ? stream_resolve(from, context, &stream) : result);
}

static CUresult write_value(CUstream handle, CUdeviceptr address, uint64_t value, unsigned int bytes)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS || block_find(address) == NULL)
        LEAVE(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    work item = {.kind = WORK_VALUE, .value = {address, value, bytes}};
    LEAVE(stream_launch(stream, &item));
}

CUDA_API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
{
    return write_value(stream, address, value, 4);
}

CUDA_API CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags)
{
    return write_value(stream, address, value, 8);
}

CUDA_API CUresult cuEventCreate(CUevent *result, unsigned int flags)
{
    ENTER(context);
    if (result == NULL || flags > 7)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    struct event *event = calloc(1, sizeof *event);
    if (event == NULL)
        LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    event->magic = MAGIC_EVENT;
    event->context = context;
    event->flags = flags;
    *result = event;
    LEAVE(CUDA_SUCCESS);
}

/* A destroyed event's handle is not reused for a while, so that using it again reliably fails. */
static void event_retire(struct event *event)
{
    static struct event *oldest, *newest;
    static unsigned int count;
    event->magic = 0;
    ticket_drop(event->ticket);
    event->ticket = NULL;
    free(event->captured);
    event->captured = NULL;
    event->next = NULL;
    if (newest != NULL)
        newest->next = event;
    else
        oldest = event;
    newest = event;
    if (++count > 1024) {
        struct event *gone = oldest;
        oldest = gone->next;
        count--;
        free(gone);
    }
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    if (!event_valid(event))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    event_retire(event);
    LEAVE(CUDA_SUCCESS);
}

static CUresult record(struct event *event, struct stream *stream)
{
    if (stream->capture != NULL)
        return capture_record(stream, event);
    ticket *mark = NULL;
    work item = {.kind = WORK_RECORD, .event = event};
    CUresult result = stream_push(stream, &item, &mark);
    if (mark != NULL) {
        ticket_drop(event->ticket);
        event->ticket = mark;
        event->context = stream->context;
        event->capture = NULL;
    }
    return result;
}

CUDA_API CUresult cuEventRecord(CUevent event, CUstream handle)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS || !event_valid(event))
        LEAVE(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE);
    LEAVE(record(event, stream));
}

CUDA_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    return cuEventRecord(event, stream);
}

/* The record node of a graph. */
CUresult event_record_in(struct event *event, struct stream *stream)
{
    return event_valid(event) ? record(event, stream) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult event_wait_in(struct event *event, struct stream *stream)
{
    if (!event_valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->ticket == NULL || event->ticket->done)
        return CUDA_SUCCESS;
    work item = {.kind = WORK_WAIT};
    return stream_push(stream, &item, &event->ticket);
}

CUDA_API CUresult cuEventQuery(CUevent event)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    if (!event_valid(event))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    if (event->capture != NULL)
        LEAVE(CUDA_ERROR_CAPTURED_EVENT);
    if (event->ticket == NULL)
        LEAVE(CUDA_SUCCESS);
    CUresult result = context_health(event->context);
    for (struct stream *stream = event->context->streams; stream != NULL && !event->ticket->done; stream = stream->next)
        stream_pump(stream);
    LEAVE(result != CUDA_SUCCESS ? result : event->ticket->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUDA_API CUresult cuEventSynchronize(CUevent event)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    if (!event_valid(event))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    if (event->capture != NULL)
        LEAVE(CUDA_ERROR_CAPTURED_EVENT);
    LEAVE(event->ticket == NULL ? CUDA_SUCCESS : ticket_wait(event->context, event->ticket));
}

CUDA_API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    if (milliseconds == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (!event_valid(start) || !event_valid(end) || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) ||
        start->ticket == NULL || end->ticket == NULL)
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    if (!start->ticket->done || !end->ticket->done)
        LEAVE(CUDA_ERROR_NOT_READY);
    *milliseconds = (float)(((double)end->ticket->at_ns - (double)start->ticket->at_ns) / 1e6);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

PER_THREAD(_ptsz, cuStreamSynchronize, (CUstream s), (s))
PER_THREAD(_ptsz, cuStreamQuery, (CUstream s), (s))
PER_THREAD(_ptsz, cuStreamGetPriority, (CUstream s, int *p), (s, p))
PER_THREAD(_ptsz, cuStreamGetFlags, (CUstream s, unsigned int *f), (s, f))
PER_THREAD(_ptsz, cuStreamGetId, (CUstream s, unsigned long long *i), (s, i))
PER_THREAD(_ptsz, cuStreamGetCtx, (CUstream s, CUcontext *c), (s, c))
PER_THREAD(_ptsz, cuStreamGetCtx_v2, (CUstream s, CUcontext *c, void **g), (s, c, g))
PER_THREAD(_ptsz, cuStreamGetDevice, (CUstream s, CUdevice *d), (s, d))
PER_THREAD(_ptsz, cuStreamWaitEvent, (CUstream s, CUevent e, unsigned int f), (s, e, f))
PER_THREAD(_ptsz, cuStreamAttachMemAsync, (CUstream s, CUdeviceptr a, size_t l, unsigned int f), (s, a, l, f))
PER_THREAD(_ptsz, cuStreamWriteValue32_v2, (CUstream s, CUdeviceptr a, uint32_t v, unsigned int f), (s, a, v, f))
PER_THREAD(_ptsz, cuStreamWriteValue64_v2, (CUstream s, CUdeviceptr a, uint64_t v, unsigned int f), (s, a, v, f))
PER_THREAD(_ptsz, cuEventRecord, (CUevent e, CUstream s), (e, s))
PER_THREAD(_ptsz, cuEventRecordWithFlags, (CUevent e, CUstream s, unsigned int f), (e, s, f))
PER_THREAD(_ptsz, cuStreamSetAttribute, (CUstream s, int a, const void *v), (s, a, v))
PER_THREAD(_ptsz, cuStreamGetAttribute, (CUstream s, int a, void *v), (s, a, v))
PER_THREAD(_ptsz, cuStreamCopyAttributes, (CUstream t, CUstream f), (t, f))
