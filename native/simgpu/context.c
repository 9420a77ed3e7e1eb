/* Contexts: primary and created, current per thread. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define STACK_DEPTH 64

static __thread struct context *stack[STACK_DEPTH];
static __thread int depth; /* entries in use; the top is current */

static bool valid(const struct context *context)
{
    return context != NULL && context->magic == MAGIC_CONTEXT;
}

CUresult device_check(CUdevice device)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    return device < 0 || (uint32_t)device >= driver.card_count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

uint32_t device_of_card(uint32_t card)
{
    for (uint32_t device = 0; device < driver.card_count; device++)
        if (driver.cards[device] == card)
            return device;
    return 0;
}

/* The result of a fault on the context; after a fault every call returns the same result. */
CUresult context_health(struct context *context)
{
    if (context->error != CUDA_SUCCESS)
        return context->error;
    const simgpu_card *card = driver_card(context->card);
    const simgpu_tenant *tenant = &card->tenants[driver.machine.slot];
    if (__atomic_load_n(&card->lost, __ATOMIC_RELAXED) || atomic_load(&driver.machine.shared->stopped))
        context->error = CUDA_ERROR_DEVICE_UNAVAILABLE;
    else if (__atomic_load_n(&card->fatal_sequence, __ATOMIC_RELAXED) != context->card_fatal)
        context->error = card->fatal_code;
    else if (__atomic_load_n(&tenant->fatal_sequence, __ATOMIC_RELAXED) != context->tenant_fatal)
        context->error = tenant->fatal_code;
    return context->error;
}

CUresult context_current(struct context **context)
{
    struct context *top = depth > 0 ? stack[depth - 1] : NULL;
    if (top == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (top->destroyed)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = top;
    return context_health(top);
}

static CUresult context_make(uint32_t card_index, unsigned int flags, struct context **made)
{
    struct context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    simgpu_card *card = simgpu_card_lock(&driver.machine, card_index);
    simgpu_tenant *tenant = simgpu_tenant_of(&driver.machine, card);
    CUresult result = CUDA_SUCCESS;
    if (card->lost || atomic_load(&driver.machine.shared->stopped))
        result = CUDA_ERROR_DEVICE_UNAVAILABLE;
    else if (simgpu_device_take(&driver.machine, card, card->profile.context_bytes) != SIMGPU_OK)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        tenant->contexts++;
    context->card_fatal = card->fatal_sequence;
    context->tenant_fatal = tenant->fatal_sequence;
    simgpu_card_unlock(&driver.machine, card);
    if (result == CUDA_SUCCESS) {
        context->card = card_index;
        context->flags = flags;
        context->id = ++driver.next_id;
        context->magic = MAGIC_CONTEXT;
        context->legacy = stream_make(context, 0, 0);
        if (context->legacy == NULL)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        free(context);
        return result;
    }
    context->legacy->legacy = true;
    context->limits[0] = 1024;           /* stack */
    context->limits[1] = SIMGPU_MIB;     /* printf */
    context->limits[2] = 8 * SIMGPU_MIB; /* heap */
    context->limits[5] = 64;             /* L2 fetch granularity */
    context->next = driver.contexts;
    driver.contexts = context;
    *made = context;
    return CUDA_SUCCESS;
}

/* The structure stays, marked as ended, for threads that still have it current. */
static void context_end(struct context *context)
{
    if (context_health(context) == CUDA_SUCCESS)
        context_wait(context);
    context_abandon(context);
    context->destroyed = true;
    module_forget_context(context);
    memory_forget_context(context);
    simgpu_card *card = simgpu_card_lock(&driver.machine, context->card);
    simgpu_tenant *tenant = simgpu_tenant_of(&driver.machine, card);
    simgpu_device_give(&driver.machine, card, card->profile.context_bytes);
    tenant->contexts -= tenant->contexts > 0;
    simgpu_card_unlock(&driver.machine, card);
}

CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || result == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct context *context = driver.primary[device];
    if (context == NULL || (context->destroyed && context->retained == 0)) {
        unsigned int flags = context != NULL ? context->flags : 0;
        checked = context_make(driver.cards[device], flags, &context);
        if (checked != CUDA_SUCCESS)
            LEAVE(checked);
        context->primary = true;
        driver.primary[device] = context;
    }
    context->retained++;
    *result = context;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS)
        return checked;
    driver_lock();
    struct context *context = driver.primary[device];
    if (context == NULL || context->retained == 0)
        LEAVE(CUDA_ERROR_INVALID_CONTEXT);
    if (--context->retained == 0 && !context->destroyed)
        context_end(context);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS)
        return checked;
    driver_lock();
    struct context *context = driver.primary[device];
    if (context != NULL && !context->destroyed) {
        context->retained = 0;
        context_end(context);
    }
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS)
        return checked;
    driver_lock();
    if (driver.primary[device] != NULL)
        driver.primary[device]->flags = flags;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS)
        return checked;
    driver_lock();
    struct context *context = driver.primary[device];
    if (flags != NULL)
        *flags = context != NULL ? context->flags : 0;
    if (active != NULL)
        *active = context != NULL && !context->destroyed;
    LEAVE(CUDA_SUCCESS);
}

static CUresult push(struct context *context)
{
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxCreate_v2(CUcontext *result, unsigned int flags, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || result == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    checked = context_make(driver.cards[device], flags, result);
    if (checked == CUDA_SUCCESS)
        checked = push(*result);
    LEAVE(checked);
}

CUDA_API CUresult cuCtxCreate_v3(CUcontext *result, void *affinity, int count, unsigned int flags, CUdevice device)
{
    return cuCtxCreate_v2(result, flags, device);
}

CUDA_API CUresult cuCtxCreate_v4(CUcontext *result, void *parameters, unsigned int flags, CUdevice device)
{
    return cuCtxCreate_v2(result, flags, device);
}

CUDA_API CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (!valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    driver_lock();
    if (context->destroyed || context->primary)
        LEAVE(CUDA_ERROR_INVALID_CONTEXT);
    if (depth > 0 && stack[depth - 1] == context)
        depth--;
    context_end(context);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    return valid(context) && !context->destroyed ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

CUDA_API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (context != NULL && (!valid(context) || context->destroyed))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context == NULL) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    if (depth == 0)
        return push(context);
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS || context == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS || device == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = (CUdevice)device_of_card(stack[depth - 1]->card);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    if (context == NULL)
        return cuCtxGetDevice(device);
    if (!valid(context) || device == NULL)
        return device == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    *device = (CUdevice)device_of_card(context->card);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSynchronize(void)
{
    ENTER(context);
    CUresult result = capture_forbid(context);
    LEAVE(result == CUDA_SUCCESS ? context_wait(context) : result);
}

CUDA_API CUresult cuCtxSynchronize_v2(CUcontext other)
{
    if (other == NULL)
        return cuCtxSynchronize();
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (!valid(other) || other->destroyed)
        return CUDA_ERROR_INVALID_CONTEXT;
    driver_lock();
    CUresult result = capture_forbid(other);
    LEAVE(result == CUDA_SUCCESS ? context_wait(other) : result);
}

CUDA_API CUresult cuCtxGetFlags(unsigned int *flags)
{
    ENTER(context);
    if (flags == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *flags = context->flags;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxSetFlags(unsigned int flags)
{
    ENTER(context);
    context->flags = flags;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxGetId(CUcontext asked, unsigned long long *id)
{
    ENTER(context);
    if (id == NULL || (asked != NULL && !valid(asked)))
        LEAVE(id == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
    *id = asked != NULL ? asked->id : context->id;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxGetApiVersion(CUcontext asked, unsigned int *version)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS || version == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return asked == NULL || valid(asked) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUDA_API CUresult cuCtxSetLimit(int limit, size_t value)
{
    ENTER(context);
    if (limit < 0 || limit >= 16)
        LEAVE(CUDA_ERROR_UNSUPPORTED_LIMIT);
    context->limits[limit] = value;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxGetLimit(size_t *value, int limit)
{
    ENTER(context);
    if (value == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (limit < 0 || limit >= 16)
        LEAVE(CUDA_ERROR_UNSUPPORTED_LIMIT);
    *value = context->limits[limit];
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxGetCacheConfig(int *config)
{
    ENTER(context);
    if (config == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *config = context->cache_config;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxSetCacheConfig(int config)
{
    ENTER(context);
    context->cache_config = config;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxGetSharedMemConfig(int *config)
{
    ENTER(context);
    if (config == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *config = context->shared_config;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxSetSharedMemConfig(int config)
{
    ENTER(context);
    context->shared_config = config;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(context);
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxResetPersistingL2Cache(void)
{
    ENTER(context);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    ENTER(context);
    if (!valid(peer) || peer->card == context->card)
        LEAVE(CUDA_ERROR_INVALID_CONTEXT);
    uint64_t bit = 1ULL << peer->card;
    if (context->peers & bit)
        LEAVE(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    context->peers |= bit;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    ENTER(context);
    if (!valid(peer))
        LEAVE(CUDA_ERROR_INVALID_CONTEXT);
    uint64_t bit = 1ULL << peer->card;
    if (!(context->peers & bit))
        LEAVE(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    context->peers &= ~bit;
    LEAVE(CUDA_SUCCESS);
}
