#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "driver.h"

struct node {
    uint32_t magic;
    int type; /* as the ABI numbers them */
    struct graph *graph;
    work work;
    struct node **before; /* its dependencies */
    size_t before_count;
    struct node *origin; /* in a clone: the node it was made from */
    bool disabled, removed;
    uint64_t id;
};

struct graph {
    uint32_t magic;
    struct node **nodes;
    size_t count, room;
    uint64_t id;
};

struct exec {
    uint32_t magic;
    struct graph *graph; /* its own copy */
    unsigned long long flags;
};

struct capture {
    int status, mode;
    pthread_t thread;
    struct context *context;
    struct graph *graph;
    struct stream *origin;
    uint64_t id;
    bool into_existing;
    struct capture *next;
};

bool graph_valid(const struct graph *graph);
bool node_valid(const struct node *node);
struct graph *graph_make(void);
struct node *graph_add(struct graph *graph, int type, const work *item, struct node *const *before, size_t count);
struct graph *graph_copy(const struct graph *graph);
void graph_end(struct graph *graph);
bool node_depends(struct node *node, struct node *on);
bool node_link(struct node *node, struct node *on);

#endif
