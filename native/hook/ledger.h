/* What this process has allocated on which GPU, by pointer or handle, and whether more is allowed. */
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
    bool substituted; /* plain memory that was given as managed memory */
};

/* The limit on this GPU in bytes, 0 without one: the smaller of the user's and the daemon's. */
uint64_t baton_limit_bytes(struct baton_gpu *gpu);

/* Whether plain allocations become managed memory on this GPU. */
bool baton_substitutes(struct baton_gpu *gpu);

/* What one process may have in substituted memory, unless it may exceed the card. */
uint64_t baton_substituted_room_bytes(struct baton_gpu *gpu);

/* Claims memory before it is allocated, so that threads cannot exceed a limit together; false when it is too much. */
bool baton_charge(struct baton_gpu *gpu, uint64_t bytes, bool substituted);
void baton_discharge(struct baton_gpu *gpu, int64_t bytes, bool substituted);

/* Enters an allocation that has been charged. */
void baton_ledger_add(const struct baton_claim *claim);

/* Takes an entry out, before the driver can give its pointer to another thread; the caller discharges it or puts it back. */
bool baton_ledger_take(enum baton_kind kind, uint64_t key, struct baton_claim *claim);
bool baton_ledger_look(enum baton_kind kind, uint64_t key, struct baton_claim *claim);

/* The context is gone and its memory with it. */
void baton_ledger_forget_context(CUcontext context);

void baton_ledger_reset_in_child(void);

#endif
