/* The nodes of a graph: adding, describing, changing and relating them. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static bool all_in(struct graph *graph, struct node *const *nodes, size_t count)
{
    for (size_t index = 0; index < count; index++)
        if (!node_valid(nodes[index]) || nodes[index]->graph != graph)
            return false;
    return true;
}

static CUresult add(CUgraphNode *result, CUgraph graph, struct node *const *before, size_t count, int type,
                    const work *item)
{
    if (result == NULL || !graph_valid(graph) || (count > 0 && before == NULL) || !all_in(graph, before, count))
        return CUDA_ERROR_INVALID_VALUE;
    *result = graph_add(graph, type, item, before, count);
    return *result != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *result, CUgraph graph, const CUgraphNode *before, size_t count,
                                          const CUDA_KERNEL_NODE_PARAMS *asked)
{
    ENTER(context);
    work item = {.kind = WORK_KERNEL};
    CUresult made = asked == NULL ? CUDA_ERROR_INVALID_VALUE : kernel_prepare(context, asked, &item.kernel);
    LEAVE(made == CUDA_SUCCESS ? add(result, graph, before, count, CU_NODE_KERNEL, &item) : made);
}

CUDA_API CUresult cuGraphAddMemcpyNode(CUgraphNode *result, CUgraph graph, const CUgraphNode *before, size_t count,
                                       const CUDA_MEMCPY3D *asked, CUcontext unused)
{
    ENTER(context);
    work item = {.kind = WORK_COPY};
    CUresult made = asked == NULL ? CUDA_ERROR_INVALID_VALUE : copy_prepare(asked, &item.copy);
    LEAVE(made == CUDA_SUCCESS ? add(result, graph, before, count, CU_NODE_MEMCPY, &item) : made);
}

CUDA_API CUresult cuGraphAddMemsetNode(CUgraphNode *result, CUgraph graph, const CUgraphNode *before, size_t count,
                                       const CUDA_MEMSET_NODE_PARAMS *asked, CUcontext unused)
{
    ENTER(context);
    work item = {.kind = WORK_MEMSET};
    CUresult made = asked == NULL ? CUDA_ERROR_INVALID_VALUE : memset_prepare(asked, &item.memset);
    LEAVE(made == CUDA_SUCCESS ? add(result, graph, before, count, CU_NODE_MEMSET, &item) : made);
}

CUDA_API CUresult cuGraphAddHostNode(CUgraphNode *result, CUgraph graph, const CUgraphNode *before, size_t count,
                                     const CUDA_HOST_NODE_PARAMS *asked)
{
    ENTER(context);
    if (asked == NULL || asked->fn == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    work item = {.kind = WORK_HOST, .host = {.function = asked->fn, .data = asked->userData}};
    LEAVE(add(result, graph, before, count, CU_NODE_HOST, &item));
}

CUDA_API CUresult cuGraphAddEmptyNode(CUgraphNode *result, CUgraph graph, const CUgraphNode *before, size_t count)
{
    ENTER(context);
    work item = {.kind = WORK_EMPTY};
    LEAVE(add(result, graph, before, count, CU_NODE_EMPTY, &item));
}

CUDA_API CUresult cuGraphAddChildGraphNode(CUgraphNode *result, CUgraph graph, const CUgraphNode *before, size_t count,
                                           CUgraph child)
{
    ENTER(context);
    work item = {.kind = WORK_GRAPH};
    if (!graph_valid(child) || child == graph)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    item.graph = graph_copy(child);
    LEAVE(item.graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : add(result, graph, before, count, CU_NODE_GRAPH, &item));
}

CUDA_API CUresult cuGraphAddEventRecordNode(CUgraphNode *result, CUgraph graph, const CUgraphNode *before, size_t count,
                                            CUevent event)
{
    ENTER(context);
    work item = {.kind = WORK_RECORD, .event = event};
    LEAVE(add(result, graph, before, count, CU_NODE_EVENT_RECORD, &item));
}

CUDA_API CUresult cuGraphAddEventWaitNode(CUgraphNode *result, CUgraph graph, const CUgraphNode *before, size_t count,
                                          CUevent event)
{
    ENTER(context);
    work item = {.kind = WORK_WAIT, .event = event};
    LEAVE(add(result, graph, before, count, CU_NODE_WAIT_EVENT, &item));
}

CUDA_API CUresult cuGraphAddNode_v2(CUgraphNode *result, CUgraph graph, const CUgraphNode *before,
                                    const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *asked)
{
    if (asked == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (asked->type) {
    case CU_NODE_KERNEL:
        return cuGraphAddKernelNode_v2(result, graph, before, count, &asked->kernel);
    case CU_NODE_MEMCPY:
        return cuGraphAddMemcpyNode(result, graph, before, count, &asked->memcpy.copyParams, NULL);
    case CU_NODE_MEMSET:
        return cuGraphAddMemsetNode(result, graph, before, count, &asked->memset, NULL);
    case CU_NODE_HOST:
        return cuGraphAddHostNode(result, graph, before, count, &asked->host);
    case CU_NODE_GRAPH:
        return cuGraphAddChildGraphNode(result, graph, before, count, asked->graph);
    case CU_NODE_EMPTY:
        return cuGraphAddEmptyNode(result, graph, before, count);
    case CU_NODE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(result, graph, before, count, asked->event);
    case CU_NODE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(result, graph, before, count, asked->event);
    default:
        return driver_unsupported("cuGraphAddNode");
    }
}

CUDA_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *result)
{
    ENTER(context);
    if (!node_valid(node) || node->work.kind != WORK_KERNEL || result == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    kernel_work *kernel = &node->work.kernel;
    memset(result, 0, sizeof *result);
    result->func = kernel->function;
    result->gridDimX = kernel->grid[0];
    result->gridDimY = kernel->grid[1];
    result->gridDimZ = kernel->grid[2];
    result->blockDimX = kernel->block[0];
    result->blockDimY = kernel->block[1];
    result->blockDimZ = kernel->block[2];
    result->sharedMemBytes = kernel->shared_bytes;
    if (kernel->function->model != NULL) {
        size_t offset = 0;
        for (size_t index = 0; index < 8 && kernel->function->model->sizes[index]; index++) {
            size_t size = kernel->function->model->sizes[index];
            offset = (offset + size - 1) / size * size;
            kernel->argument_pointers[index] = kernel->arguments + offset;
            offset += size;
        }
        result->kernelParams = kernel->argument_pointers;
    }
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *asked)
{
    ENTER(context);
    if (!node_valid(node) || node->work.kind != WORK_KERNEL || asked == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(kernel_prepare(context, asked, &node->work.kernel));
}

CUDA_API CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *result)
{
    ENTER(context);
    if (!node_valid(node) || node->work.kind != WORK_COPY || result == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *result = node->work.copy.asked;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *asked)
{
    ENTER(context);
    if (!node_valid(node) || node->work.kind != WORK_COPY || asked == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(copy_prepare(asked, &node->work.copy));
}

CUDA_API CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *result)
{
    ENTER(context);
    if (!node_valid(node) || node->work.kind != WORK_MEMSET || result == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    const memset_work *item = &node->work.memset;
    *result = (CUDA_MEMSET_NODE_PARAMS){(uintptr_t)item->to, item->pitch, item->value,
                                        item->element,       item->width, item->height};
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *asked)
{
    ENTER(context);
    if (!node_valid(node) || node->work.kind != WORK_MEMSET || asked == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(memset_prepare(asked, &node->work.memset));
}

CUDA_API CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *result)
{
    ENTER(context);
    if (!node_valid(node) || node->work.kind != WORK_HOST || result == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *result = (CUDA_HOST_NODE_PARAMS){node->work.host.function, node->work.host.data};
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *asked)
{
    ENTER(context);
    if (!node_valid(node) || node->work.kind != WORK_HOST || asked == NULL || asked->fn == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    node->work.host.function = asked->fn;
    node->work.host.data = asked->userData;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *result)
{
    ENTER(context);
    if (!node_valid(node) || node->work.kind != WORK_GRAPH || result == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *result = node->work.graph;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
    ENTER(context);
    if (!node_valid(node) || type == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *type = node->type;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphNodeFindInClone(CUgraphNode *result, CUgraphNode node, CUgraph clone)
{
    ENTER(context);
    if (result == NULL || !graph_valid(clone))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    for (size_t index = 0; index < clone->count; index++)
        if (clone->nodes[index]->origin == node && !clone->nodes[index]->removed) {
            *result = clone->nodes[index];
            LEAVE(CUDA_SUCCESS);
        }
    LEAVE(CUDA_ERROR_INVALID_VALUE);
}

/* Fills a list sized by the program, or returns its length; all list queries of graphs work this way. */
typedef struct {
    CUgraphNode *first, *second;
    size_t room, count;
} listing;

static void list(listing *out, struct node *first, struct node *second)
{
    if (out->count < out->room) {
        if (out->first != NULL)
            out->first[out->count] = first;
        if (out->second != NULL)
            out->second[out->count] = second;
    }
    out->count++;
}

static CUresult listed(const listing *out, size_t *count)
{
    if (out->first != NULL)
        for (size_t index = out->count; index < out->room; index++)
            out->first[index] = NULL;
    *count = out->first != NULL && out->room < out->count ? out->room : out->count;
    return CUDA_SUCCESS;
}

static CUresult list_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots)
{
    ENTER(context);
    if (!graph_valid(graph) || count == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    listing out = {nodes, NULL, nodes != NULL ? *count : 0, 0};
    for (size_t index = 0; index < graph->count; index++)
        if (!graph->nodes[index]->removed && (!roots || graph->nodes[index]->before_count == 0))
            list(&out, graph->nodes[index], NULL);
    LEAVE(listed(&out, count));
}

CUDA_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return list_nodes(graph, nodes, count, false);
}

CUDA_API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return list_nodes(graph, nodes, count, true);
}

CUDA_API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges,
                                     size_t *count)
{
    ENTER(context);
    if (!graph_valid(graph) || count == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    listing out = {from, to, from != NULL ? *count : 0, 0};
    for (size_t index = 0; index < graph->count; index++)
        for (size_t edge = 0; edge < graph->nodes[index]->before_count; edge++)
            list(&out, graph->nodes[index]->before[edge], graph->nodes[index]);
    if (edges != NULL)
        memset(edges, 0, sizeof *edges * (out.room < out.count ? out.room : out.count));
    LEAVE(listed(&out, count));
}

CUDA_API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *before, CUgraphEdgeData *edges,
                                                size_t *count)
{
    ENTER(context);
    if (!node_valid(node) || count == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    listing out = {before, NULL, before != NULL ? *count : 0, 0};
    for (size_t edge = 0; edge < node->before_count; edge++)
        list(&out, node->before[edge], NULL);
    if (edges != NULL)
        memset(edges, 0, sizeof *edges * (out.room < out.count ? out.room : out.count));
    LEAVE(listed(&out, count));
}

CUDA_API CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *after, CUgraphEdgeData *edges,
                                                  size_t *count)
{
    ENTER(context);
    if (!node_valid(node) || count == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    listing out = {after, NULL, after != NULL ? *count : 0, 0};
    for (size_t index = 0; index < node->graph->count; index++)
        for (size_t edge = 0; edge < node->graph->nodes[index]->before_count; edge++)
            if (node->graph->nodes[index]->before[edge] == node)
                list(&out, node->graph->nodes[index], NULL);
    if (edges != NULL)
        memset(edges, 0, sizeof *edges * (out.room < out.count ? out.room : out.count));
    LEAVE(listed(&out, count));
}

static void unlink_node(struct node *node, const struct node *on)
{
    size_t kept = 0;
    for (size_t edge = 0; edge < node->before_count; edge++)
        if (node->before[edge] != on)
            node->before[kept++] = node->before[edge];
    node->before_count = kept;
}

CUDA_API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                            const CUgraphEdgeData *edges, size_t count)
{
    ENTER(context);
    if (!graph_valid(graph) || !all_in(graph, from, count) || !all_in(graph, to, count))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    for (size_t index = 0; index < count; index++) {
        if (node_depends(from[index], to[index])) /* would create a cycle */
            LEAVE(CUDA_ERROR_INVALID_VALUE);
        node_link(to[index], from[index]);
    }
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                               const CUgraphEdgeData *edges, size_t count)
{
    ENTER(context);
    if (!graph_valid(graph) || !all_in(graph, from, count) || !all_in(graph, to, count))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    for (size_t index = 0; index < count; index++)
        unlink_node(to[index], from[index]);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuGraphDestroyNode(CUgraphNode node)
{
    ENTER(context);
    if (!node_valid(node))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    for (size_t index = 0; index < node->graph->count; index++)
        unlink_node(node->graph->nodes[index], node);
    node->before_count = 0;
    node->removed = true;
    LEAVE(CUDA_SUCCESS);
}
