/* Graphs: building, copying, instantiating and launching them. A launch enqueues the nodes one after the other in an
 * order that respects the edges; branches of one graph do not run concurrently. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

bool graph_valid(const struct graph *graph)
{
    return graph != NULL && graph->magic == MAGIC_GRAPH;
}

bool node_valid(const struct node *node)
{
    return node != NULL && node->magic == MAGIC_NODE && !node->removed;
}

static bool exec_valid(const struct exec *exec)
{
    return exec != NULL && exec->magic == MAGIC_EXEC;
}

struct graph *graph_make(void)
{
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph != NULL) {
        graph->magic = MAGIC_GRAPH;
        graph->id = ++driver.next_id;
    }
    return graph;
}

bool node_link(struct node *node, struct node *on)
{
    for (size_t index = 0; index < node->before_count; index++)
        if (node->before[index] == on)
            return true;
    struct node **grown = realloc(node->before, (node->before_count + 1) * sizeof *grown);
    if (grown == NULL)
        return false;
    node->before = grown;
    node->before[node->before_count++] = on;
    return true;
}

struct node *graph_add(struct graph *graph, int type, const work *item, struct node *const *before, size_t count)
{
    if (graph->count == graph->room) {
        size_t room = graph->room ? graph->room * 2 : 16;
        struct node **grown = realloc(graph->nodes, room * sizeof *grown);
        if (grown == NULL)
            return NULL;
        graph->nodes = grown;
        graph->room = room;
    }
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return NULL;
    node->magic = MAGIC_NODE;
    node->type = type;
    node->graph = graph;
    node->work = *item;
    node->id = ++driver.next_id;
    for (size_t index = 0; index < count; index++)
        node_link(node, before[index]);
    graph->nodes[graph->count++] = node;
    return node;
}

struct graph *graph_copy(const struct graph *graph)
{
    struct graph *copy = graph_make();
    if (copy == NULL)
        return NULL;
    for (size_t index = 0; index < graph->count; index++) {
        struct node *from = graph->nodes[index];
        work item = from->work;
        if (item.kind == WORK_GRAPH && (item.graph = graph_copy(from->work.graph)) == NULL)
            break;
        struct node *to = graph_add(copy, from->type, &item, NULL, 0);
        if (to == NULL)
            break;
        to->origin = from;
        to->disabled = from->disabled;
        to->removed = from->removed;
    }
    if (copy->count < graph->count) {
        graph_end(copy);
        return NULL;
    }
    for (size_t index = 0; index < graph->count; index++)
        for (size_t edge = 0; edge < graph->nodes[index]->before_count; edge++)
            for (size_t other = 0; other < graph->count; other++)
                if (graph->nodes[other] == graph->nodes[index]->before[edge])
                    node_link(copy->nodes[index], copy->nodes[other]);
    return copy;
}

void graph_end(struct graph *graph)
{
    graph->magic = 0;
    for (size_t index = 0; index < graph->count; index++) {
        struct node *node = graph->nodes[index];
        node->magic = 0;
        if (node->work.kind == WORK_GRAPH)
            graph_end(node->work.graph);
        free(node->before);
        free(node);
    }
    free(graph->nodes);
    free(graph);
}

bool node_depends(struct node *node, struct node *on)
{
    if (node == on)
        return true;
    for (size_t index = 0; index < node->before_count; index++)
        if (node_depends(node->before[index], on))
            return true;
    return false;
}

static CUresult push_node(struct stream *stream, struct node *node)
{
    switch (node->work.kind) {
    case WORK_GRAPH:
        return graph_push(stream, node->work.graph);
    case WORK_RECORD:
        return event_record_in(node->work.event, stream);
    case WORK_WAIT:
        return event_wait_in(node->work.event, stream);
    case WORK_ALLOC:
    case WORK_FREE: /* a graph's own memory lives as long as the graph */
        return CUDA_SUCCESS;
    default:
        return stream_push(stream, &node->work, NULL);
    }
}

/* Repeatedly enqueues nodes whose predecessors are done: graphs are small, and launches comparatively rare. */
CUresult graph_push(struct stream *stream, struct graph *graph)
{
    bool *done = calloc(graph->count + 1, sizeof *done);
    if (done == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    for (bool progress = true; progress && result == CUDA_SUCCESS;) {
        progress = false;
        for (size_t index = 0; index < graph->count && result == CUDA_SUCCESS; index++) {
            struct node *node = graph->nodes[index];
            bool ready = !done[index];
            for (size_t edge = 0; ready && edge < node->before_count; edge++)
                for (size_t other = 0; ready && other < graph->count; other++)
                    ready = graph->nodes[other] != node->before[edge] || done[other];
            if (!ready)
                continue;
            if (!node->disabled && !node->removed)
                result = push_node(stream, node);
            done[index] = progress = true;
        }
    }
    free(done);
    return result;
}

CUDA_API CUresult cuGraphCreate(CUgraph *result, unsigned int flags)
{
    ENTER(context);
    if (result == NULL || flags != 0)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *result = graph_make();
    LEAVE(*result != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUDA_API CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    if (!graph_valid(graph))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    graph_end(graph);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphClone(CUgraph *result, CUgraph graph)
{
    ENTER(context);
    if (result == NULL || !graph_valid(graph))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *result = graph_copy(graph);
    LEAVE(*result != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUDA_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *result, CUgraph graph, unsigned long long flags)
{
    ENTER(context);
    if (result == NULL || !graph_valid(graph))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    for (size_t index = 0; index < graph->count; index++) /* nodes of a cycle would never become ready */
        for (size_t edge = 0; edge < graph->nodes[index]->before_count; edge++)
            if (node_depends(graph->nodes[index]->before[edge], graph->nodes[index]))
                LEAVE(CUDA_ERROR_INVALID_VALUE);
    struct exec *exec = calloc(1, sizeof *exec);
    if (exec == NULL || (exec->graph = graph_copy(graph)) == NULL) {
        free(exec);
        LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    }
    exec->magic = MAGIC_EXEC;
    exec->flags = flags;
    *result = exec;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphInstantiateWithParams(CUgraphExec *result, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *asked)
{
    if (asked == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult made = cuGraphInstantiateWithFlags(result, graph, asked->flags);
    asked->hErrNode_out = NULL;
    asked->result_out = made == CUDA_SUCCESS ? 0 : 1;
    return made;
}

/* The form before CUDA 12, with a log in place of flags. */
CUDA_API CUresult cuGraphInstantiate_v2(CUgraphExec *result, CUgraph graph, CUgraphNode *failed, char *log, size_t size)
{
    if (failed != NULL)
        *failed = NULL;
    if (log != NULL && size > 0)
        *log = 0;
    return cuGraphInstantiateWithFlags(result, graph, 0);
}

CUDA_API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    if (!exec_valid(exec))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    exec->magic = 0;
    graph_end(exec->graph);
    free(exec);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags)
{
    if (!exec_valid(exec) || flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    if (result != CUDA_SUCCESS || !exec_valid(exec))
        LEAVE(result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE);
    if (stream->capture == NULL)
        LEAVE(graph_push(stream, exec->graph));
    work item = {.kind = WORK_GRAPH, .graph = graph_copy(exec->graph)};
    LEAVE(item.graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : capture_add(stream, &item));
}

CUDA_API CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
    ENTER(context);
    struct stream *stream;
    CUresult result = stream_resolve(handle, context, &stream);
    LEAVE(result == CUDA_SUCCESS && !exec_valid(exec) ? CUDA_ERROR_INVALID_VALUE : result);
}

/* Adopts the parameters of a graph with the same topology. */
CUDA_API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    ENTER(context);
    if (!exec_valid(exec) || !graph_valid(graph) || info == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    memset(info, 0, sizeof *info);
    bool same = exec->graph->count == graph->count;
    for (size_t index = 0; same && index < graph->count; index++) {
        same = exec->graph->nodes[index]->before_count == graph->nodes[index]->before_count;
        if (same && exec->graph->nodes[index]->type != graph->nodes[index]->type) {
            info->result = 3; /* a node's type has changed */
            info->errorNode = graph->nodes[index];
            LEAVE(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
        }
    }
    struct graph *fresh = same ? graph_copy(graph) : NULL;
    if (fresh == NULL) {
        info->result = same ? 1 : 2; /* the topology has changed */
        LEAVE(same ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    }
    for (size_t index = 0; index < graph->count; index++)
        fresh->nodes[index]->origin = exec->graph->nodes[index]->origin;
    graph_end(exec->graph);
    exec->graph = fresh;
    LEAVE(CUDA_SUCCESS);
}

/* The node of an executable graph that corresponds to a node of its source graph. */
static struct node *in_exec(struct exec *exec, struct node *node)
{
    for (size_t index = 0; exec_valid(exec) && index < exec->graph->count; index++)
        if (exec->graph->nodes[index]->origin == node)
            return exec->graph->nodes[index];
    return NULL;
}

CUDA_API CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled)
{
    ENTER(context);
    struct node *found = in_exec(exec, node);
    if (found == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    found->disabled = !enabled;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
    ENTER(context);
    struct node *found = in_exec(exec, node);
    if (found == NULL || enabled == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *enabled = !found->disabled;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_KERNEL_NODE_PARAMS *asked)
{
    ENTER(context);
    struct node *found = in_exec(exec, node);
    if (found == NULL || asked == NULL || found->work.kind != WORK_KERNEL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(kernel_prepare(context, asked, &found->work.kernel));
}

CUDA_API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *asked,
                                                 CUcontext unused)
{
    ENTER(context);
    struct node *found = in_exec(exec, node);
    if (found == NULL || asked == NULL || found->work.kind != WORK_COPY)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(copy_prepare(asked, &found->work.copy));
}

CUDA_API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_MEMSET_NODE_PARAMS *asked, CUcontext unused)
{
    ENTER(context);
    struct node *found = in_exec(exec, node);
    if (found == NULL || asked == NULL || found->work.kind != WORK_MEMSET)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(memset_prepare(asked, &found->work.memset));
}

CUDA_API CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *asked)
{
    ENTER(context);
    struct node *found = in_exec(exec, node);
    if (found == NULL || asked == NULL || asked->fn == NULL || found->work.kind != WORK_HOST)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    found->work.host.function = asked->fn;
    found->work.host.data = asked->userData;
    LEAVE(CUDA_SUCCESS);
}

PER_THREAD(_ptsz, cuGraphLaunch, (CUgraphExec g, CUstream s), (g, s))
PER_THREAD(_ptsz, cuGraphUpload, (CUgraphExec g, CUstream s), (g, s))
