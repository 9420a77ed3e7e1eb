/* Stream capture: work goes into a graph instead of the stream, and calls that would have to wait are refused. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static struct capture *captures; /* in progress */
static __thread int thread_mode = CU_CAPTURE_MODE_GLOBAL;

static bool active(const struct capture *capture)
{
    return capture != NULL && capture->status == CU_CAPTURE_ACTIVE;
}

static CUresult set_tails(struct stream *stream, struct node *const *nodes, size_t count)
{
    struct node **fresh = malloc((count + 1) * sizeof *fresh);
    if (fresh == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (count > 0)
        memcpy(fresh, nodes, count * sizeof *fresh);
    free(stream->tails);
    stream->tails = fresh;
    stream->tail_count = count;
    return CUDA_SUCCESS;
}

static int node_type(int kind)
{
    switch (kind) {
    case WORK_KERNEL:
        return CU_NODE_KERNEL;
    case WORK_COPY:
        return CU_NODE_MEMCPY;
    case WORK_MEMSET:
        return CU_NODE_MEMSET;
    case WORK_HOST:
        return CU_NODE_HOST;
    case WORK_GRAPH:
        return CU_NODE_GRAPH;
    case WORK_ALLOC:
        return CU_NODE_MEM_ALLOC;
    case WORK_FREE:
        return CU_NODE_MEM_FREE;
    default:
        return CU_NODE_EMPTY;
    }
}

CUresult capture_add(struct stream *stream, const work *item)
{
    if (!active(stream->capture))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct node *node =
        graph_add(stream->capture->graph, node_type(item->kind), item, stream->tails, stream->tail_count);
    return node == NULL ? CUDA_ERROR_OUT_OF_MEMORY : set_tails(stream, &node, 1);
}

/* Calls that wait, allocate or free: refused while they could affect a capture, which they invalidate. */
CUresult capture_forbid(struct context *context)
{
    CUresult result = CUDA_SUCCESS;
    if (thread_mode == CU_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        bool own = pthread_equal(capture->thread, pthread_self());
        bool reaches = own ? capture->mode != CU_CAPTURE_MODE_RELAXED
                           : capture->mode == CU_CAPTURE_MODE_GLOBAL && thread_mode == CU_CAPTURE_MODE_GLOBAL;
        if (!reaches)
            continue;
        capture->status = CU_CAPTURE_INVALIDATED;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

/* Waiting for a stream or querying it. The legacy stream stands for all blocking streams. */
CUresult capture_forbid_stream(struct stream *stream)
{
    if (stream->capture != NULL) {
        stream->capture->status = CU_CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (!stream->legacy)
        return CUDA_SUCCESS;
    for (struct stream *other = stream->context->streams; other != NULL; other = other->next)
        if (other->capture != NULL && !(other->flags & CU_STREAM_NON_BLOCKING)) {
            other->capture->status = CU_CAPTURE_INVALIDATED;
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return CUDA_SUCCESS;
}

CUresult capture_record(struct stream *stream, struct event *event)
{
    if (!active(stream->capture))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct node **nodes = malloc((stream->tail_count + 1) * sizeof *nodes);
    if (nodes == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (stream->tail_count > 0)
        memcpy(nodes, stream->tails, stream->tail_count * sizeof *nodes);
    free(event->captured);
    event->captured = nodes;
    event->captured_count = stream->tail_count;
    event->capture = stream->capture;
    event->capture_id = stream->capture->id;
    return CUDA_SUCCESS;
}

static bool in_progress(const struct event *event)
{
    for (const struct capture *one = captures; one != NULL; one = one->next)
        if (one == event->capture && one->id == event->capture_id)
            return true;
    return false;
}

/* Waiting for a captured event adds the stream to the capture, or joins two branches of it. */
CUresult capture_wait(struct stream *stream, struct event *event)
{
    if (event->capture == NULL || !in_progress(event)) { /* an event from outside the capture */
        if (stream->capture != NULL)
            stream->capture->status = CU_CAPTURE_INVALIDATED;
        return stream->capture != NULL ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : event_wait_in(event, stream);
    }
    if (!active(event->capture))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (stream->capture != NULL && stream->capture != event->capture)
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (stream->capture == NULL) {
        stream->capture = event->capture;
        return set_tails(stream, event->captured, event->captured_count);
    }
    struct node **both = malloc((stream->tail_count + event->captured_count + 1) * sizeof *both);
    if (both == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t count = 0;
    for (size_t index = 0; index < stream->tail_count; index++)
        both[count++] = stream->tails[index];
    for (size_t index = 0; index < event->captured_count; index++) {
        bool known = false;
        for (size_t other = 0; other < count && !known; other++)
            known = both[other] == event->captured[index];
        if (!known)
            both[count++] = event->captured[index];
    }
    free(stream->tails);
    stream->tails = both;
    stream->tail_count = count;
    return CUDA_SUCCESS;
}

static CUresult begin(struct stream *stream, int mode, struct graph *graph, struct node *const *before, size_t count)
{
    if (stream->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL || mode < 0 || mode > CU_CAPTURE_MODE_RELAXED)
        return stream->capture != NULL ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE;
    struct capture *capture = calloc(1, sizeof *capture);
    if (capture == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->into_existing = graph != NULL;
    capture->graph = graph != NULL ? graph : graph_make();
    if (capture->graph == NULL || set_tails(stream, before, count) != CUDA_SUCCESS) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->status = CU_CAPTURE_ACTIVE;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->context = stream->context;
    capture->origin = stream;
    capture->id = ++driver.next_id;
    capture->next = captures;
    captures = capture;
    stream->capture = capture;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    LEAVE(result == CUDA_SUCCESS ? begin(stream, mode, NULL, NULL, 0) : result);
}

CUDA_API CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph, const CUgraphNode *before,
                                              const CUgraphEdgeData *edges, size_t count, int mode)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result == CUDA_SUCCESS && !graph_valid(graph))
        result = CUDA_ERROR_INVALID_VALUE;
    LEAVE(result == CUDA_SUCCESS ? begin(stream, mode, graph, before, count) : result);
}

/* Every other stream of the capture must have been joined to the stream where the capture began. */
static bool joined(const struct capture *capture)
{
    for (struct stream *other = capture->context->streams; other != NULL; other = other->next) {
        if (other->capture != capture || other == capture->origin)
            continue;
        for (size_t tail = 0; tail < other->tail_count; tail++) {
            bool found = false;
            for (size_t end = 0; end < capture->origin->tail_count && !found; end++)
                found = node_depends(capture->origin->tails[end], other->tails[tail]);
            if (!found)
                return false;
        }
    }
    return true;
}

static void finish(struct capture *capture)
{
    for (struct stream *stream = capture->context->streams; stream != NULL; stream = stream->next) {
        if (stream->capture != capture)
            continue;
        stream->capture = NULL;
        free(stream->tails);
        stream->tails = NULL;
        stream->tail_count = 0;
    }
    struct capture **link = &captures;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture); /* events that still refer to it no longer find it in the list */
}

CUDA_API CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS || graph == NULL)
        LEAVE(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    struct capture *capture = stream->capture;
    *graph = NULL;
    if (capture == NULL)
        LEAVE(CUDA_ERROR_ILLEGAL_STATE);
    if (capture->origin != stream)
        LEAVE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        LEAVE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    if (!active(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!joined(capture))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS)
        *graph = capture->graph;
    else if (!capture->into_existing)
        graph_end(capture->graph);
    finish(capture);
    LEAVE(result);
}

CUDA_API CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS || status == NULL)
        LEAVE(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    *status = stream->capture != NULL ? stream->capture->status : CU_CAPTURE_NONE;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                            const CUgraphNode **before, size_t *count)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS || status == NULL)
        LEAVE(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    const struct capture *capture = stream->capture;
    *status = capture != NULL ? capture->status : CU_CAPTURE_NONE;
    if (id != NULL)
        *id = capture != NULL ? capture->id : 0;
    if (graph != NULL)
        *graph = active(capture) ? capture->graph : NULL;
    if (before != NULL)
        *before = active(capture) ? stream->tails : NULL;
    if (count != NULL)
        *count = active(capture) ? stream->tail_count : 0;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                            const CUgraphNode **before, const CUgraphEdgeData **edges, size_t *count)
{
    if (edges != NULL)
        *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, before, count);
}

CUDA_API CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *nodes,
                                                       const CUgraphEdgeData *edges, size_t count, unsigned int flags)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS)
        LEAVE(result);
    if (!active(stream->capture))
        LEAVE(CUDA_ERROR_ILLEGAL_STATE);
    size_t kept = flags == 1 ? 0 : stream->tail_count; /* 1 replaces, 0 adds */
    struct node **both = malloc((kept + count + 1) * sizeof *both);
    if (both == NULL)
        LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    if (kept > 0)
        memcpy(both, stream->tails, kept * sizeof *both);
    if (count > 0)
        memcpy(both + kept, nodes, count * sizeof *both);
    free(stream->tails);
    stream->tails = both;
    stream->tail_count = kept + count;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    if (mode == NULL || *mode < 0 || *mode > CU_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

PER_THREAD(_ptsz, cuStreamBeginCapture_v2, (CUstream s, int m), (s, m))
PER_THREAD(_ptsz, cuStreamEndCapture, (CUstream s, CUgraph *g), (s, g))
PER_THREAD(_ptsz, cuStreamIsCapturing, (CUstream s, int *c), (s, c))
PER_THREAD(_ptsz, cuStreamGetCaptureInfo_v2,
           (CUstream s, int *c, uint64_t *i, CUgraph *g, const CUgraphNode **b, size_t *n), (s, c, i, g, b, n))
PER_THREAD(_ptsz, cuStreamGetCaptureInfo_v3,
           (CUstream s, int *c, uint64_t *i, CUgraph *g, const CUgraphNode **b, const CUgraphEdgeData **e, size_t *n),
           (s, c, i, g, b, e, n))
