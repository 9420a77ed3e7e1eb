/* The list of contexts in use, and the calls that destroy one. */
#include "context.h"

#include "capture.h"
#include "driver.h"
#include "ledger.h"

#include <stdlib.h>
#include <string.h>

_Atomic unsigned baton_context_generation = 1;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static struct baton_context *contexts;
static CUcontext primary[BATON_MAX_GPUS];

static struct baton_context *find(CUcontext handle)
{
    for (struct baton_context *context = contexts; context; context = context->next)
        if (context->handle == handle)
            return context;
    return NULL;
}

static struct baton_context *insert(CUcontext handle, struct baton_gpu *gpu)
{
    pthread_mutex_lock(&mutex);
    struct baton_context *context = find(handle);
    if (!context) {
        context = find(NULL);
        if (!context) {
            context = calloc(1, sizeof *context);
            if (context) {
                baton_window_init(&context->window);
                context->next = contexts;
                contexts = context;
            }
        }
        if (context) {
            context->gpu = gpu;
            context->busy = false;
            context->handle = handle;
        }
    }
    pthread_mutex_unlock(&mutex);
    return context;
}

struct baton_context *baton_context_of(CUcontext handle)
{
    CUdevice device;
    pthread_mutex_lock(&mutex);
    struct baton_context *context = find(handle);
    pthread_mutex_unlock(&mutex);
    if (context)
        return context;
    if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return NULL;
    struct baton_gpu *gpu = baton_gpu_of_device(device);
    return gpu ? insert(handle, gpu) : NULL;
}

struct baton_gpu *baton_current_gpu(CUcontext *handle)
{
    if (REAL(cuCtxGetCurrent)(handle) != CUDA_SUCCESS || !*handle)
        return NULL;
    struct baton_context *context = baton_context_of(*handle);
    return context ? context->gpu : NULL;
}

static void synchronize(CUcontext handle)
{
    CUcontext popped;
    if (REAL(cuCtxPushCurrent_v2)(handle) != CUDA_SUCCESS)
        return;
    CUresult result = REAL(cuCtxSynchronize)();
    if (result != CUDA_SUCCESS)
        baton_debug("synchronising a context failed with CUDA error %d", result);
    REAL(cuCtxPopCurrent_v2)(&popped);
}

void baton_contexts_synchronize(struct baton_gpu *gpu)
{
    pthread_mutex_lock(&mutex);
    for (struct baton_context *context = contexts; context; context = context->next) {
        if (!context->handle || context->gpu != gpu)
            continue;
        context->busy = true;
        pthread_mutex_unlock(&mutex);
        synchronize(context->handle);
        pthread_mutex_lock(&mutex);
        context->busy = false;
        pthread_cond_broadcast(&idle);
    }
    pthread_mutex_unlock(&mutex);
}

/* After this the drain thread no longer touches the context. Returns the GPU that the context was on, if known. */
static struct baton_gpu *forget(CUcontext handle)
{
    struct baton_gpu *gpu = NULL;
    int cancellable = baton_cancel_defer();
    pthread_mutex_lock(&mutex);
    struct baton_context *context = handle ? find(handle) : NULL;
    while (context && context->busy && context->handle == handle)
        pthread_cond_wait(&idle, &mutex);
    if (context && context->handle == handle) {
        /* A thread that has just left the context may still read the window, so the entry is reused, never freed. */
        baton_window_clear(&context->window, false);
        context->handle = NULL;
        gpu = context->gpu;
        atomic_fetch_add_explicit(&baton_context_generation, 1, memory_order_acq_rel);
    }
    pthread_mutex_unlock(&mutex);
    baton_cancel_allow(cancellable);
    return gpu;
}

#define DESTROY(symbol)                                 \
    CUresult symbol(CUcontext context)                  \
    {                                                   \
        forget(context);                                \
        CUresult result = REAL(symbol)(context);        \
        if (result == CUDA_SUCCESS)                     \
            baton_ledger_forget_context(context);       \
        return result;                                  \
    }

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result == CUDA_SUCCESS && context && device >= 0 && device < BATON_MAX_GPUS) {
        pthread_mutex_lock(&mutex);
        primary[device] = *context;
        pthread_mutex_unlock(&mutex);
    }
    return result;
}

static CUcontext primary_of(CUdevice device)
{
    if (device < 0 || device >= BATON_MAX_GPUS)
        return NULL;
    pthread_mutex_lock(&mutex);
    CUcontext handle = primary[device];
    pthread_mutex_unlock(&mutex);
    return handle;
}

/* Destroys the events of a context that may stay alive, which would leak them. Does nothing while a stream captures. */
static void destroy_markers(CUcontext handle)
{
    CUcontext popped;
    pthread_mutex_lock(&mutex);
    struct baton_context *context = handle ? find(handle) : NULL;
    pthread_mutex_unlock(&mutex);
    if (!context || !baton_capture_try_exclude())
        return;
    if (REAL(cuCtxPushCurrent_v2)(handle) == CUDA_SUCCESS) {
        baton_window_clear(&context->window, true);
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    baton_capture_allow();
}

/* A release destroys the context only if it was the last reference; a reset always does. */
static CUresult end_primary(CUresult (*end)(CUdevice), CUdevice device, bool always)
{
    unsigned flags;
    int active = 0;
    CUcontext handle = primary_of(device);
    destroy_markers(handle);
    struct baton_gpu *gpu = forget(handle);
    CUresult result = end(device);
    bool ended = result == CUDA_SUCCESS &&
                 (always || REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || !active);
    if (ended && handle)
        baton_ledger_forget_context(handle);
    else if (gpu)
        insert(handle, gpu);
    return result;
}

#define END_PRIMARY(symbol, always) \
    CUresult symbol(CUdevice device) { return end_primary(REAL(symbol), device, always); }

END_PRIMARY(cuDevicePrimaryCtxRelease, false)
END_PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
END_PRIMARY(cuDevicePrimaryCtxReset, true)
END_PRIMARY(cuDevicePrimaryCtxReset_v2, true)

void baton_contexts_reset_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&idle, NULL);
    contexts = NULL;
    memset(primary, 0, sizeof primary);
    atomic_fetch_add(&baton_context_generation, 1);
}
