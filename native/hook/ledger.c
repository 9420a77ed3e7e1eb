/* The memory accounting: one counter per GPU, and a striped hash table from pointers and handles to their claims. */
#include "ledger.h"

#include "client.h"
#include "settings.h"

#include <stdlib.h>

enum { STRIPES = 64, BUCKETS = 64 };

struct entry {
    struct baton_claim claim;
    struct entry *next;
};

struct stripe {
    pthread_mutex_t mutex;
    struct entry *buckets[BUCKETS];
};

static struct stripe stripes[STRIPES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init(void)
{
    for (unsigned i = 0; i < STRIPES; i++)
        pthread_mutex_init(&stripes[i].mutex, NULL);
}

uint64_t baton_limit_bytes(struct baton_gpu *gpu)
{
    uint64_t own = baton_settings()->memory_limit_bytes;
    uint64_t daemon = gpu ? atomic_load_explicit(&gpu->daemon_limit_bytes, memory_order_relaxed) : 0;
    if (!own || !daemon)
        return own ? own : daemon;
    return own < daemon ? own : daemon;
}

bool baton_substitutes(struct baton_gpu *gpu)
{
    return gpu->managed_works && baton_settings()->oversubscribe &&
           atomic_load_explicit(&gpu->daemon_oversubscribe, memory_order_relaxed) != 0;
}

/* The reserve is for the contexts of all processes. On a small card it is a tenth of the memory. */
uint64_t baton_substituted_room_bytes(struct baton_gpu *gpu)
{
    uint64_t reserve = baton_settings()->reserve_bytes;
    if (reserve > gpu->total_bytes / 10)
        reserve = gpu->total_bytes / 10;
    return gpu->total_bytes - reserve;
}

static bool add_within(_Atomic int64_t *sum, uint64_t bytes, uint64_t most)
{
    int64_t before = atomic_load(sum);
    do {
        if (bytes > most || (before > 0 && (uint64_t)before > most - bytes))
            return false;
    } while (!atomic_compare_exchange_weak(sum, &before, before + (int64_t)bytes));
    return true;
}

bool baton_charge(struct baton_gpu *gpu, uint64_t bytes, bool substituted)
{
    uint64_t limit = baton_limit_bytes(gpu);
    uint64_t room = baton_settings()->single_oversubscribe ? INT64_MAX : baton_substituted_room_bytes(gpu);
    if (!baton_allowance_take(gpu, bytes, limit ? limit : INT64_MAX))
        return false;
    if (substituted && !add_within(&gpu->substituted_bytes, bytes, room)) {
        baton_allowance_return(gpu, (int64_t)bytes);
        return false;
    }
    return true;
}

void baton_discharge(struct baton_gpu *gpu, int64_t bytes, bool substituted)
{
    baton_allowance_return(gpu, bytes);
    if (substituted)
        atomic_fetch_sub(&gpu->substituted_bytes, bytes);
    if (!atomic_load_explicit(&gpu->open, memory_order_relaxed))
        baton_client_wake(); /* with a smaller working set, others may fit beside us */
}

static struct stripe *stripe_of(enum baton_kind kind, uint64_t key, struct entry ***bucket)
{
    uint64_t mixed = (key ^ ((uint64_t)kind << 56)) * 0x9e3779b97f4a7c15ull;
    struct stripe *stripe = &stripes[mixed >> 58];
    pthread_once(&once, init);
    *bucket = &stripe->buckets[(mixed >> 52) % BUCKETS];
    return stripe;
}

void baton_ledger_add(const struct baton_claim *claim)
{
    struct entry **bucket, *entry = malloc(sizeof *entry);
    if (!entry) {
        baton_discharge(claim->gpu, claim->bytes, claim->substituted);
        return; /* rather not counted than counted until the process ends */
    }
    struct stripe *stripe = stripe_of(claim->kind, claim->key, &bucket);
    pthread_mutex_lock(&stripe->mutex);
    *entry = (struct entry){*claim, *bucket};
    *bucket = entry;
    pthread_mutex_unlock(&stripe->mutex);
}

static bool find(enum baton_kind kind, uint64_t key, struct baton_claim *claim, bool take)
{
    struct entry **link, *entry;
    struct stripe *stripe = stripe_of(kind, key, &link);
    pthread_mutex_lock(&stripe->mutex);
    for (; (entry = *link); link = &entry->next)
        if (entry->claim.kind == kind && entry->claim.key == key)
            break;
    if (entry) {
        *claim = entry->claim;
        if (take) {
            *link = entry->next;
            free(entry);
        }
    }
    pthread_mutex_unlock(&stripe->mutex);
    return entry != NULL;
}

bool baton_ledger_take(enum baton_kind kind, uint64_t key, struct baton_claim *claim)
{
    return find(kind, key, claim, true);
}

bool baton_ledger_look(enum baton_kind kind, uint64_t key, struct baton_claim *claim)
{
    return find(kind, key, claim, false);
}

void baton_ledger_forget_context(CUcontext context)
{
    pthread_once(&once, init);
    for (unsigned s = 0; s < STRIPES; s++) {
        pthread_mutex_lock(&stripes[s].mutex);
        for (unsigned b = 0; b < BUCKETS; b++) {
            for (struct entry **link = &stripes[s].buckets[b]; *link;) {
                struct entry *entry = *link;
                if (entry->claim.context != context) {
                    link = &entry->next;
                    continue;
                }
                *link = entry->next;
                baton_discharge(entry->claim.gpu, entry->claim.bytes, entry->claim.substituted);
                free(entry);
            }
        }
        pthread_mutex_unlock(&stripes[s].mutex);
    }
}

void baton_ledger_reset_in_child(void)
{
    for (unsigned s = 0; s < STRIPES; s++) {
        pthread_mutex_init(&stripes[s].mutex, NULL);
        for (unsigned b = 0; b < BUCKETS; b++)
            stripes[s].buckets[b] = NULL;
    }
}
