/* What this process has allocated on each GPU, by pointer or handle, and whether it may allocate more. */
#ifndef BATON_LEDGER_H
#define BATON_LEDGER_H

#include "gpu.h"

enum baton_kind { BATON_POINTER, BATON_ARRAY, BATON_MIPMAP, BATON_HANDLE, BATON_POOL };

struct baton_claim {
    enum baton_kind kind;
    uint64_t key;
    struct baton_gpu *gpu;
    CUcontext context; /* NULL: outlives contexts */
    int64_t bytes;
    bool substituted; /* plain allocation served with managed memory */
};

/* The limit on this GPU in bytes, 0 for none: the smaller of the user's and the daemon's. */
uint64_t baton_limit_bytes(struct baton_gpu *gpu);

/* Whether plain allocations become managed memory on this GPU. */
bool baton_substitutes(struct baton_gpu *gpu);

/* How much substituted memory one process may have, unless it may exceed the card. */
uint64_t baton_substituted_room_bytes(struct baton_gpu *gpu);

/* Claims memory before it is allocated, so that threads cannot jointly exceed a limit; false if it exceeds the
 * limit. */
bool baton_charge(struct baton_gpu *gpu, uint64_t bytes, bool substituted);
void baton_discharge(struct baton_gpu *gpu, int64_t bytes, bool substituted);

/* Records an allocation that has been charged. */
void baton_ledger_add(const struct baton_claim *claim);

/* Removes an entry before the driver can reuse its pointer for another thread; the caller discharges it or restores
 * it. */
bool baton_ledger_take(enum baton_kind kind, uint64_t key, struct baton_claim *claim);
bool baton_ledger_look(enum baton_kind kind, uint64_t key, struct baton_claim *claim);

/* Removes everything that belonged to a destroyed context. */
void baton_ledger_forget_context(CUcontext context);

void baton_ledger_reset_in_child(void);

#endif
