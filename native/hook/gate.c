/* The gate's slow side: thread slots, waiting, closing. */
#include "gate.h"

#include "capture.h"
#include "client.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* From linux/membarrier.h, which older systems lack. */
enum { MEMBARRIER_PRIVATE_EXPEDITED = 1 << 3, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED = 1 << 4 };

__thread struct baton_slot *baton_thread_slot __attribute__((tls_model("initial-exec")));
bool baton_fence_needed;

static _Atomic(struct baton_slot *) slots;
static pthread_key_t slot_key;
static pthread_once_t slot_once = PTHREAD_ONCE_INIT;
static bool slots_ready;

static void slot_release(void *value)
{
    struct baton_slot *slot = value;
    baton_thread_slot = NULL;
    atomic_store_explicit(&slot->inside, NULL, memory_order_release);
    atomic_store_explicit(&slot->claimed, false, memory_order_release);
}

static void use_membarrier(void)
{
    long result = -1;
#ifdef SYS_membarrier
    result = syscall(SYS_membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0);
#endif
    baton_fence_needed = result != 0;
}

static void slots_init(void)
{
    use_membarrier();
    slots_ready = pthread_key_create(&slot_key, slot_release) == 0;
}

struct baton_slot *baton_slot_claim(void)
{
    pthread_once(&slot_once, slots_init);
    struct baton_slot *slot = atomic_load_explicit(&slots, memory_order_acquire);
    for (; slot; slot = slot->next) {
        bool free_slot = false;
        if (atomic_compare_exchange_strong(&slot->claimed, &free_slot, true))
            break;
    }
    if (slot) {
        memset(slot->views, 0, sizeof slot->views);
    } else {
        void *memory = NULL;
        if (posix_memalign(&memory, 64, sizeof *slot) != 0)
            return NULL;
        slot = memset(memory, 0, sizeof *slot);
        atomic_store(&slot->claimed, true);
        slot->next = atomic_load(&slots);
        while (!atomic_compare_exchange_weak(&slots, &slot->next, slot))
            ;
    }
    baton_thread_slot = slot;
    if (slots_ready)
        pthread_setspecific(slot_key, slot);
    return slot;
}

struct baton_view *baton_view_fill(struct baton_slot *slot, CUcontext handle)
{
    unsigned generation = baton_context_generation_now();
    struct baton_context *context = baton_context_of(handle);
    if (!context)
        return NULL;
    struct baton_view *view = &slot->views[((uintptr_t)handle >> 4) % BATON_VIEWS];
    unsigned batch = baton_window_batch(&context->window);
    *view = (struct baton_view){handle, generation, batch, batch, context};
    return view;
}

struct baton_gpu *baton_gate_known_gpu(void)
{
    struct baton_slot *slot = baton_thread_slot;
    CUcontext handle = NULL;
    if (!slot || REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS || !handle)
        return NULL;
    struct baton_view *view = &slot->views[((uintptr_t)handle >> 4) % BATON_VIEWS];
    bool known = view->handle == handle && view->generation == baton_context_generation_now();
    return known ? view->context->gpu : NULL;
}

void baton_gate_mark(struct baton_pass *pass, CUstream stream)
{
    struct baton_view *view = pass->view;
    struct baton_window *window = &view->context->window;
    baton_window_record(window, stream, view->batch);
    view->batch = view->credit = baton_window_batch(window);
    /* A closer must not wait for this thread while it only waits for the GPU. */
    atomic_store_explicit(&pass->slot->inside, NULL, memory_order_release);
    uint64_t waited_us = baton_window_throttle(window);
    if (waited_us)
        atomic_fetch_add(&view->context->gpu->sync_us, waited_us);
}

void baton_gate_wait(struct baton_pass *pass, struct baton_gpu *gpu, CUstream stream)
{
    struct baton_slot *slot = pass->slot;
    atomic_store_explicit(&slot->inside, NULL, memory_order_release);
    if (baton_stream_is_capturing(stream)) {
        pass->view = NULL; /* recorded rather than run */
        return;
    }
    uint64_t started_us = baton_now_us();
    int cancellable = baton_cancel_defer();
    pthread_mutex_lock(&gpu->mutex);
    gpu->waiters++;
    for (;;) {
        if (gpu->failed) {
            pass->refused = CUDA_ERROR_SYSTEM_NOT_READY;
            pass->view = NULL;
            break;
        }
        if (atomic_load(&gpu->open)) {
            pthread_mutex_unlock(&gpu->mutex);
            baton_store_inside(slot, gpu);
            bool inside = atomic_load(&gpu->open);
            if (!inside)
                atomic_store_explicit(&slot->inside, NULL, memory_order_release);
            pthread_mutex_lock(&gpu->mutex);
            if (inside)
                break;
            continue;
        }
        baton_client_wake();
        pthread_cond_wait(&gpu->changed, &gpu->mutex);
    }
    gpu->waiters--;
    pthread_mutex_unlock(&gpu->mutex);
    baton_cancel_allow(cancellable);
    atomic_fetch_add(&gpu->wait_us, baton_now_us() - started_us);
}

void baton_gate_open(struct baton_gpu *gpu)
{
    pthread_mutex_lock(&gpu->mutex);
    atomic_store_explicit(&gpu->open, 1, memory_order_release);
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->mutex);
}

bool baton_gate_occupied(struct baton_gpu *gpu)
{
    for (struct baton_slot *slot = atomic_load(&slots); slot; slot = slot->next)
        if (atomic_load(&slot->inside) == gpu)
            return true;
    return false;
}

void baton_gate_close(struct baton_gpu *gpu)
{
    struct timespec pause = {0, 20000};
    atomic_store(&gpu->open, 0);
#ifdef SYS_membarrier
    if (!baton_fence_needed)
        syscall(SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0);
#endif
    for (unsigned turn = 0; baton_gate_occupied(gpu); turn++) {
        if (turn < 100)
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
}

uint64_t baton_gate_activity(struct baton_gpu *gpu)
{
    uint64_t sum = 0;
    for (struct baton_slot *slot = atomic_load(&slots); slot; slot = slot->next)
        sum += atomic_load_explicit(&slot->calls[gpu->index], memory_order_relaxed);
    return sum;
}

void baton_gate_reset_in_child(void)
{
    if (!slots_ready)
        return;
    atomic_store(&slots, NULL);
    baton_thread_slot = NULL;
    pthread_setspecific(slot_key, NULL);
    use_membarrier();
}
