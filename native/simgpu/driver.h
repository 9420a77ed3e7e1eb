/* The simulated driver inside one process: shared by the modules of libcuda.so.1.
 *
 * One lock (driver.lock) guards the private state of the process: contexts, streams, events, tables. It is never held
 * while data is moved or a host function runs. A card's shared lock is only ever taken inside it, never the reverse.
 *
 * A stream is a queue of *work*. Work that occupies the card is submitted ahead of time into a lane of the shared
 * machine, where any process that accesses the card advances it in modelled time; its effects on memory are applied
 * here, when it is retired. Waiting threads retire the work of their own context; an executor thread, started with the
 * first asynchronous work, retires the rest.
 */
#ifndef SIMGPU_DRIVER_H
#define SIMGPU_DRIVER_H

#include "cuda_abi.h"
#include "machine.h"

#include <pthread.h>

#define ARGUMENT_BYTES 64

/* A known kernel: parameters, cost and effect. */
typedef struct kernel_model {
    const char *name;
    uint8_t sizes[8]; /* of the parameters, ended by 0 */
    void (*effect)(const unsigned char *arguments);
    /* Time at full speed; negative: computed from the grid. */
    double (*work_ns)(const unsigned char *arguments);
    uint8_t pointers[4]; /* parameter number + 1 of each pointer to memory that it touches */
} kernel_model;

struct module {
    uint32_t magic;
    struct context *context; /* null for a library */
    struct function *functions;
    struct global *globals;
    struct module *next;
};

struct global {
    char *name;
    CUdeviceptr address;
    struct global *next;
};

struct function {
    uint32_t magic;
    char *name;
    struct module *module;
    const kernel_model *model;
    int max_dynamic_shared, carveout;
    struct function *next;
};

typedef struct {
    struct function *function;
    unsigned int grid[3], block[3], shared_bytes;
    bool cooperative;
    unsigned char arguments[ARGUMENT_BYTES];
    void *argument_pointers[8]; /* for cuGraphKernelNodeGetParams */
} kernel_work;

typedef struct {
    char *to;
    const char *from;
    char *staged; /* pageable source, already copied */
    size_t to_pitch, from_pitch, to_slice, from_slice;
    size_t width, height, depth;
    bool to_device, from_device, between_cards;
    CUDA_MEMCPY3D asked; /* as passed by the program, for graph nodes */
} copy_work;

typedef struct {
    char *to;
    size_t pitch, width, height; /* width in elements */
    unsigned int value, element;
} memset_work;

/* The completion of one recording of an event. Waits refer to it, so recording the event again does not affect them. */
typedef struct ticket {
    _Atomic uint32_t references;
    bool done;
    uint64_t at_ns; /* modelled */
    uint32_t card;
} ticket;

enum {
    WORK_KERNEL,
    WORK_COPY,
    WORK_MEMSET,
    WORK_HOST,
    WORK_EMPTY,
    WORK_RECORD,
    WORK_WAIT,
    WORK_FREE,
    WORK_PREFETCH,
    WORK_VALUE,
    WORK_GRAPH,
    WORK_ALLOC,
};

typedef struct work {
    int kind;
    union {
        kernel_work kernel;
        copy_work copy;
        memset_work memset;
        struct {
            CUhostFn function;
            CUstreamCallback callback; /* the older form, which also receives stream and status */
            void *data;
        } host;
        struct event *event; /* record, wait in a graph */
        CUdeviceptr address; /* free, alloc */
        struct {
            CUdeviceptr address;
            size_t bytes;
            bool to_card;
        } prefetch;
        struct {
            CUdeviceptr address;
            uint64_t value;
            unsigned int bytes;
        } value;
        struct graph *graph;
    };
} work;

/* Work in a stream. */
typedef struct op {
    struct op *next;
    work work;
    ticket *ticket; /* of a record or a wait */
    uint64_t sequence;
    uint64_t lane_number; /* position in the lane, once submitted; UINT64_MAX: does not use the lane */
    uint64_t ended_ns;
    bool finished; /* on the card; its effects are still to come */
} op;

struct stream {
    uint32_t magic;
    struct context *context;
    struct stream *next;     /* in the context */
    struct stream *next_due; /* in the list of streams that wait for a host function */
    unsigned int flags;
    int priority;
    uint64_t id;
    bool legacy, destroyed, retiring;
    pthread_t thread; /* of a per-thread default stream */
    bool per_thread;
    op *first, *last, *unsubmitted;
    uint32_t length; /* of the queue */
    uint32_t lane; /* SIMGPU_NONE: none */
    uint64_t last_end_ns, not_before_ns;
    struct capture *capture;
    struct node **tails; /* dependencies of the next captured work */
    size_t tail_count;
};

struct event {
    uint32_t magic;
    struct context *context;
    unsigned int flags;
    ticket *ticket; /* of the last record, or null */
    struct capture *capture; /* recorded in a capturing stream */
    uint64_t capture_id;
    struct node **captured; /* and the stream's last nodes at that point */
    size_t captured_count;
    struct event *next;
};

struct context {
    uint32_t magic;
    uint64_t id;
    uint32_t card;
    unsigned int flags;
    bool primary, destroyed;
    unsigned int retained;
    uint64_t card_fatal, tenant_fatal; /* sequences at birth */
    CUresult error;                    /* sticky */
    struct stream *streams;            /* the legacy stream is always among them */
    struct stream *legacy;
    struct module *modules;
    uint32_t waiting_threads;
    uint64_t peers; /* bit per card */
    size_t limits[16];
    int cache_config, shared_config;
    struct context *next;
};

enum { BLOCK_DEVICE, BLOCK_MANAGED, BLOCK_HOST, BLOCK_REGISTERED, BLOCK_MAPPED, BLOCK_ARRAY };

/* Memory by address. */
typedef struct block {
    uint64_t base, size;
    int kind;
    uint32_t card;
    struct context *context;
    struct pool *pool;
    unsigned int flags;
    uint64_t id;
    uint64_t charged; /* bytes taken from the card */
    uint32_t size_class; /* of a small piece, or SIMGPU_NONE: its own mapping */
    simgpu_range range;  /* of managed memory */
    uint64_t extent_bytes;
    struct physical *physical; /* of a mapped range */
    bool freed;                /* given up in stream order */
} block;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* work was retired, or a waiter has left */
    pthread_cond_t wake;    /* for the executor */
    _Atomic int state;      /* 0 untouched, 1 initialised, 2 in a forked child */
    simgpu_handle machine;
    uint32_t card_count;
    uint32_t cards[SIMGPU_MAX_CARDS]; /* device ordinal -> card of the machine */
    struct context *primary[SIMGPU_MAX_CARDS];
    struct context *contexts;
    struct pool *default_pool[SIMGPU_MAX_CARDS];
    struct pool *device_pool[SIMGPU_MAX_CARDS]; /* the current one of each device */
    uint64_t sequence, next_id;
    bool executor_running;
    uint64_t executor_until_ns;
    bool touch_nothing; /* unknown kernels do not touch managed memory */
} driver_state;

extern driver_state driver;
extern __thread int default_stream_per_thread;

#define MAGIC_CONTEXT 0x63747831
#define MAGIC_STREAM 0x73747231
#define MAGIC_EVENT 0x65767431
#define MAGIC_MODULE 0x6d6f6431
#define MAGIC_FUNCTION 0x66756e31
#define MAGIC_GRAPH 0x67726131
#define MAGIC_NODE 0x6e6f6431
#define MAGIC_EXEC 0x65786531
#define MAGIC_POOL 0x706f6f31
#define MAGIC_ARRAY 0x61727231

static inline void driver_lock(void)
{
    pthread_mutex_lock(&driver.lock);
}

static inline void driver_unlock(void)
{
    pthread_mutex_unlock(&driver.lock);
}

/* driver.c */
CUresult driver_ready(void); /* initialised and not forked */
simgpu_card *driver_card(uint32_t card);
CUresult driver_unsupported(const char *name);

/* context.c */
CUresult context_current(struct context **context); /* of this thread, alive */
CUresult context_health(struct context *context);
CUresult device_check(CUdevice device);
uint32_t device_of_card(uint32_t card);

/* queue.c: streams as queues of work; the driver's lock is held */
CUresult stream_resolve(CUstream handle, struct context *context, struct stream **stream);
struct stream *stream_make(struct context *context, unsigned int flags, int priority);
CUresult stream_push(struct stream *stream, const work *item, ticket **record);
bool stream_pump(struct stream *stream);
void stream_called(struct stream *stream); /* its current host function has returned */
CUresult stream_wait(struct stream *stream);
CUresult ticket_wait(struct context *context, ticket *mark);
CUresult context_wait(struct context *context);
void context_abandon(struct context *context);
bool stream_idle(struct stream *stream);
void ticket_drop(ticket *mark);
CUresult stream_launch(struct stream *stream, const work *item); /* captures or enqueues the work */
bool thread_start(void *(*body)(void *));

/* hostcalls.c; the driver's lock is held */
bool host_calls_start(void);
void host_call(struct stream *stream); /* calls the stream's current host function; `stream_called` follows */

/* work.c: cost and effect of a piece of work */
void work_describe(struct context *context, const work *item, simgpu_op *cost);
void work_carry_out(struct stream *stream, work *item);
void work_release(work *item);
CUresult copy_prepare(const CUDA_MEMCPY3D *asked, copy_work *copy);

/* copy.c: when the source is read. An asynchronous copy from pageable memory has read it when the call returns. */
typedef enum { COPY_AND_WAIT, COPY_READ_NOW, COPY_IN_ORDER } copy_order;
CUresult copy_run(const CUDA_MEMCPY3D *asked, CUstream stream, copy_order order);
CUDA_MEMCPY3D copy_linear(int to_type, uint64_t to, int from_type, uint64_t from, size_t bytes);

/* array.c */
struct array {
    uint32_t magic;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    uint64_t base;
    size_t element, pitch, rows, slices; /* sizes are bytes */
};
bool array_valid(const struct array *array);
bool array_holds(const struct array *array, size_t x, size_t y, size_t z, const CUDA_MEMCPY3D *asked);

/* memory.c; the driver's lock is held */
block *block_find(uint64_t address);
block *block_add(const block *fresh);
void block_remove(uint64_t base);
CUresult memory_take(struct context *context, size_t bytes, block *fresh);
void memory_free_block(block *found);
void memory_forget_context(struct context *context);
uint32_t memory_ranges(uint64_t address, uint64_t bytes, uint32_t card, simgpu_range *range);
void *pages_take(size_t bytes);
void pages_give(void *pages, size_t bytes);

/* pool.c */
void pool_freed(struct pool *pool, uint64_t bytes);

/* kernels.c, module.c */
const kernel_model *kernel_find(const char *name);
bool function_valid(const struct function *function);
void module_forget_context(struct context *context);

/* launch.c, copy.c, stream.c: checks and builds descriptions; shared with graph nodes */
CUresult kernel_prepare(struct context *context, const CUDA_KERNEL_NODE_PARAMS *asked, kernel_work *kernel);
CUresult memset_prepare(const CUDA_MEMSET_NODE_PARAMS *asked, memset_work *item);
CUresult event_record_in(struct event *event, struct stream *stream);
CUresult event_wait_in(struct event *event, struct stream *stream);

/* graph.c, capture.c; the driver's lock is held */
CUresult capture_add(struct stream *stream, const work *item);
CUresult capture_forbid(struct context *context); /* a call that is illegal while this thread captures */
CUresult capture_forbid_stream(struct stream *stream);
CUresult capture_wait(struct stream *stream, struct event *event);
CUresult capture_record(struct stream *stream, struct event *event);
CUresult graph_push(struct stream *stream, struct graph *graph);

/* Begins every entry point that needs a context; holds the lock until LEAVE. */
#define ENTER(context)                                                                                                 \
    struct context *context;                                                                                           \
    do {                                                                                                               \
        CUresult entered_ = driver_ready();                                                                            \
        if (entered_ != CUDA_SUCCESS)                                                                                  \
            return entered_;                                                                                           \
        driver_lock();                                                                                                 \
        entered_ = context_current(&context);                                                                          \
        if (entered_ != CUDA_SUCCESS) {                                                                                \
            driver_unlock();                                                                                           \
            return entered_;                                                                                           \
        }                                                                                                              \
    } while (0)
#define LEAVE(result)                                                                                                  \
    do {                                                                                                               \
        CUresult left_ = (result);                                                                                     \
        driver_unlock();                                                                                               \
        return left_;                                                                                                  \
    } while (0)

/* The variant of an entry point with a per-thread default stream. */
#define PER_THREAD(suffix, name, parameters, arguments)                                                                \
    CUDA_API CUresult name##suffix parameters                                                                          \
    {                                                                                                                  \
        default_stream_per_thread++;                                                                                   \
        CUresult result = name arguments;                                                                              \
        default_stream_per_thread--;                                                                                   \
        return result;                                                                                                 \
    }

#endif
