/* The real CUDA driver behind the hook: its functions, and which wrapper replaces which function. */
#ifndef BATON_DRIVER_H
#define BATON_DRIVER_H

#include "libbaton.h"
#include "table.h"

enum baton_group { LAUNCH, COPY, MEMSET, GRAPH, ALLOC, FREE, INFO, CAPTURE, CONTEXT, SYMBOL, WAIT, USED };

#define BATON_ROW_ID(symbol, api, since, per_thread, group, stream, parameters, arguments) ROW_##symbol,
enum baton_row_id { BATON_ALL_ROWS(BATON_ROW_ID) BATON_ROWS };
#undef BATON_ROW_ID

#define BATON_TYPE(symbol, api, since, per_thread, group, stream, parameters, arguments) \
    typedef CUresult baton_fn_##symbol parameters;
BATON_ALL_ROWS(BATON_TYPE)
#undef BATON_TYPE

#define BATON_PROTOTYPE(symbol, api, since, per_thread, group, stream, parameters, arguments) \
    BATON_EXPORT CUresult symbol parameters;
BATON_WRAPPED_ROWS(BATON_PROTOTYPE)
#undef BATON_PROTOTYPE

extern _Atomic(void *) baton_real[BATON_ROWS];

/* Opens the driver if it is not open yet. Never returns NULL: if the driver lacks the function, or there is no driver,
 * the result is a stand-in that returns an error. */
void *baton_real_resolve(enum baton_row_id id);

static inline void *baton_real_pointer(enum baton_row_id id)
{
    void *function = __atomic_load_n((void **)&baton_real[id], __ATOMIC_RELAXED);
    return BATON_LIKELY(function != NULL) ? function : baton_real_resolve(id);
}

/* The driver's own function, with its type: REAL(cuMemFree_v2)(pointer). */
#define REAL(symbol) ((baton_fn_##symbol *)baton_real_pointer(ROW_##symbol))

/* Whether the driver has the function. */
bool baton_driver_has(enum baton_row_id id);

/* Adopts the library behind `handle`, in which `found` was looked up, as the real driver if there is none yet. */
void baton_driver_adopt(void *handle, void *found);

/* What to return for an exported symbol that the driver resolves to `found`: our wrapper, or `found` itself. */
void *baton_wrap_symbol(const char *symbol, void *found);

/* Whether the table has a wrapper for the exported symbol. */
bool baton_wraps(const char *symbol);

/* Whether `function` is one of our wrappers. */
bool baton_is_wrapper(const char *symbol, const void *function);

#endif
