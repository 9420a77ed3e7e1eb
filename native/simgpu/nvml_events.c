/* Event sets: waiting for Xids and ECC errors without polling.
 *
 * The machine keeps the last Xids of each card with consecutive numbers. A set stores for each registered card the
 * number of the last Xid reported, so every event is reported once to every set, and nothing from before the
 * registration is reported. Waiting uses a futex on a word that every fault increments; the wait is split into slices
 * only to notice that the machine was stopped.
 */
#define _GNU_SOURCE
#include "nvml_session.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 500000000ULL
#define FOR_EVER 0xFFFFFFFFu

enum { SUPPORTED = NVML_EVENT_XID_CRITICAL | NVML_EVENT_DOUBLE_BIT_ECC | NVML_EVENT_SINGLE_BIT_ECC };
enum { DOUBLE_BIT_ECC_XID = 48, UNCONTAINED_ECC_XID = 95 };

struct nvml_event_set {
    pthread_mutex_t lock;
    unsigned long long wanted[SIMGPU_MAX_CARDS];
    uint64_t told[SIMGPU_MAX_CARDS];  /* number of the last Xid that was reported or skipped */
    bool ecc_pending[SIMGPU_MAX_CARDS]; /* the ECC event of the Xid just reported comes next */
};

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    NEED(set);
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    session_leave();
    *set = calloc(1, sizeof **set);
    if (*set == NULL)
        return NVML_ERROR_MEMORY;
    pthread_mutex_init(&(*set)->lock, NULL);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    NEED(set);
    pthread_mutex_destroy(&set->lock);
    free(set);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    NEED(types);
    WITH_CARD(device, card,
              *types = card->profile.ecc ? (unsigned)SUPPORTED : (unsigned)NVML_EVENT_XID_CRITICAL);
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    NEED(set);
    if (types & ~(unsigned long long)SUPPORTED)
        return NVML_ERROR_NOT_SUPPORTED;
    simgpu_card *card;
    nvmlReturn_t result = card_enter(device, &card);
    if (result != NVML_SUCCESS)
        return result;
    pthread_mutex_lock(&set->lock);
    if (set->wanted[device->index] == 0)
        set->told[device->index] = card->xid_count;
    set->wanted[device->index] |= types;
    pthread_mutex_unlock(&set->lock);
    card_leave(card);
    return NVML_SUCCESS;
}

static bool is_ecc(uint32_t number)
{
    return number == DOUBLE_BIT_ECC_XID || number == UNCONTAINED_ECC_XID;
}

static void fill(nvmlEventData_t *data, uint32_t index, unsigned long long type, unsigned long long number)
{
    *data = (nvmlEventData_t){session_device(index), type, number, NVML_INSTANCE_NONE, NVML_INSTANCE_NONE};
}

/* The next event of one card, which is locked; a lost card still reports its last events. */
static bool next_of_card(nvmlEventSet_t set, uint32_t index, const simgpu_card *card, nvmlEventData_t *data)
{
    unsigned long long wanted = set->wanted[index];
    if (set->ecc_pending[index]) {
        set->ecc_pending[index] = false;
        fill(data, index, NVML_EVENT_DOUBLE_BIT_ECC, 0);
        return true;
    }
    if (card->xid_count > SIMGPU_MAX_XIDS && set->told[index] < card->xid_count - SIMGPU_MAX_XIDS)
        set->told[index] = card->xid_count - SIMGPU_MAX_XIDS; /* the oldest are overwritten */
    while (set->told[index] < card->xid_count) {
        const simgpu_xid *xid = &card->xids[set->told[index]++ % SIMGPU_MAX_XIDS];
        bool ecc = is_ecc(xid->number) && wanted & NVML_EVENT_DOUBLE_BIT_ECC;
        if (wanted & NVML_EVENT_XID_CRITICAL) {
            set->ecc_pending[index] = ecc;
            fill(data, index, NVML_EVENT_XID_CRITICAL, xid->number);
            return true;
        }
        if (ecc) {
            fill(data, index, NVML_EVENT_DOUBLE_BIT_ECC, 0);
            return true;
        }
    }
    return false;
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    bool found = false;
    pthread_mutex_lock(&set->lock);
    for (uint32_t index = 0; index < session_card_count() && !found; index++) {
        if (set->wanted[index] == 0)
            continue;
        simgpu_card *card = simgpu_card_lock(session_handle(), session_device(index)->card);
        found = next_of_card(set, index, card, data);
        simgpu_card_unlock(session_handle(), card);
    }
    pthread_mutex_unlock(&set->lock);
    return found;
}

/* Sleeps until the word changes, for at most one slice. The session is left in the meantime; if another thread shuts
 * NVML down, the kernel finds no page at the word and returns at once. */
static void doze(const _Atomic uint32_t *word, uint32_t seen, uint64_t until_ns)
{
    uint64_t now = simgpu_real_ns();
    uint64_t sleep_ns = until_ns <= now ? 0 : until_ns - now;
    if (sleep_ns > SLICE_NS)
        sleep_ns = SLICE_NS;
    struct timespec patience = {(time_t)(sleep_ns / 1000000000ULL), (long)(sleep_ns % 1000000000ULL)};
    if (sleep_ns > 0)
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &patience, NULL, 0);
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    NEED(set && data);
    uint64_t until = timeout_ms == FOR_EVER ? UINT64_MAX : simgpu_real_ns() + timeout_ms * 1000000ULL;
    for (;;) {
        nvmlReturn_t result = session_enter();
        if (result != NVML_SUCCESS)
            return result;
        const _Atomic uint32_t *word = &session_handle()->shared->events;
        uint32_t seen = atomic_load(word);
        if (next_event(set, data)) {
            session_leave();
            return NVML_SUCCESS;
        }
        if (atomic_load(&session_handle()->shared->stopped))
            result = NVML_ERROR_GPU_IS_LOST;
        else if (simgpu_real_ns() >= until)
            result = NVML_ERROR_TIMEOUT;
        session_leave();
        if (result != NVML_SUCCESS)
            return result;
        doze(word, seen, until);
    }
}

NVML_API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
