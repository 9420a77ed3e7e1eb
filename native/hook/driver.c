/* Finds the real driver and decides which wrapper replaces which of its functions.
 *
 * The real driver is the library in which the program itself looked up a symbol, or else libcuda.so.1 by name. It is
 * pinned, so that a dlclose by the program cannot unload it while another thread is inside a wrapper.
 *
 * cuGetProcAddress returns one of several ABIs, chosen by version and flags. Only the driver decides which: the hook
 * compares the returned pointer with the driver's exported functions and returns a wrapper only on an exact match. A
 * pointer that is not exported under any name is matched by version. A pointer that is exported under a name the hook
 * does not wrap is an ABI newer than this table and passes unhooked, because a wrong wrapper is worse than none.
 */
#include "driver.h"

#include "symbols.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

_Atomic(void *) baton_real[BATON_ROWS];

struct row {
    const char *symbol;
    const char *api;
    int since;
    bool per_thread;
    void *wrapper;
};

#define WRAPPED(symbol, api, since, per_thread, group, stream, parameters, arguments) \
    {#symbol, api, per_thread && (since) < 7000 ? 7000 : (since), per_thread, (void *)symbol},
#define USED_ONLY(symbol, api, since, per_thread, group, stream, parameters, arguments) \
    {#symbol, "", since, per_thread, NULL},
static const struct row rows[BATON_ROWS] = {BATON_WRAPPED_ROWS(WRAPPED) BATON_USED_ROWS(USED_ONLY)};
#undef WRAPPED
#undef USED_ONLY

enum { WRAPPED_ROWS = ROW_cuDeviceGetCount };

/* Recursive, because the driver may look up symbols in its own initialiser. */
static pthread_mutex_t load_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static atomic_bool loaded;
static bool loading;
static void *driver_handle;

static CUresult no_driver(void) { return CUDA_ERROR_NO_DEVICE; }
static CUresult no_function(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static bool is_stand_in(const void *function)
{
    return function == (void *)no_driver || function == (void *)no_function;
}

static void *own_or(void *found, const struct row *row) { return found == row->wrapper ? NULL : found; }

static void load_from(void *handle)
{
    for (size_t id = 0; id < BATON_ROWS; id++) {
        void *found = handle ? own_or(baton_real_dlsym(handle, rows[id].symbol), &rows[id]) : NULL;
        if (!found)
            found = handle ? (void *)no_function : (void *)no_driver;
        atomic_store_explicit(&baton_real[id], found, memory_order_relaxed);
    }
    driver_handle = handle;
    atomic_store_explicit(&loaded, true, memory_order_release);
}

static void load(void *handle, const void *found)
{
    pthread_mutex_lock(&load_mutex);
    if (!atomic_load(&loaded) && !loading) {
        Dl_info where;
        loading = true;
        if (handle && dladdr(found, &where) && where.dli_fname) {
            void *pinned = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
            handle = pinned ? pinned : handle;
        } else {
            handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NODELETE);
            if (!handle)
                baton_log("cannot open libcuda.so.1; CUDA calls report that there is no device");
        }
        load_from(handle);
        loading = false;
    }
    pthread_mutex_unlock(&load_mutex);
}

void *baton_real_resolve(enum baton_row_id id)
{
    if (!atomic_load_explicit(&loaded, memory_order_acquire))
        load(NULL, NULL);
    void *function = atomic_load_explicit(&baton_real[id], memory_order_relaxed);
    return function ? function : (void *)no_driver;
}

bool baton_driver_has(enum baton_row_id id) { return !is_stand_in(baton_real_pointer(id)); }

void baton_driver_adopt(void *handle, void *found)
{
    if (!atomic_load_explicit(&loaded, memory_order_acquire))
        load(handle, found);
}

static const struct row *row_of_symbol(const char *symbol)
{
    for (size_t id = 0; id < WRAPPED_ROWS; id++)
        if (strcmp(rows[id].symbol, symbol) == 0)
            return &rows[id];
    return NULL;
}

bool baton_wraps(const char *symbol) { return row_of_symbol(symbol) != NULL; }

bool baton_is_wrapper(const char *symbol, const void *function)
{
    const struct row *row = row_of_symbol(symbol);
    return row && row->wrapper == function;
}

void *baton_wrap_symbol(const char *symbol, void *found)
{
    const struct row *row = row_of_symbol(symbol);
    if (!row || !found)
        return found;
    void *real = baton_real_pointer((enum baton_row_id)(row - rows));
    return real == found || row->wrapper == found ? row->wrapper : found;
}

/* Whether the driver exports `function` under a newer version of the API than any that is wrapped. */
static bool is_unknown_abi(const char *api, const void *function)
{
    static const char *const flavours[] = {"", "_ptsz", "_ptds"};
    char name[128];
    for (int version = 1; version <= 9; version++) {
        for (size_t f = 0; f < BATON_COUNT(flavours); f++) {
            if (version == 1)
                snprintf(name, sizeof name, "%s%s", api, flavours[f]);
            else
                snprintf(name, sizeof name, "%s_v%d%s", api, version, flavours[f]);
            if (!row_of_symbol(name) && baton_real_dlsym(driver_handle, name) == function)
                return true;
        }
    }
    return false;
}

static void *wrap_function(const char *symbol, void *found, int version, cuuint64_t flags)
{
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const struct row *same = NULL, *newest = NULL;
    if (!found)
        return found;
    for (size_t id = 0; id < WRAPPED_ROWS; id++) {
        const struct row *row = &rows[id];
        if (strcmp(row->api, symbol) != 0 && strcmp(row->symbol, symbol) != 0)
            continue;
        if (row->wrapper == found)
            return found;
        if (baton_real_pointer((enum baton_row_id)id) == found && (!same || row->per_thread == per_thread))
            same = row;
        if (row->since <= version && (!row->per_thread || per_thread) && (!newest || row->since >= newest->since))
            newest = row;
    }
    if (same)
        return same->wrapper;
    if (!newest || is_unknown_abi(symbol, found))
        return found;
    /* Not exported at all: remember the pointer that the driver returned. */
    void *missing = (void *)no_function;
    atomic_compare_exchange_strong(&baton_real[newest - rows], &missing, found);
    return newest->wrapper;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    if (result == CUDA_SUCCESS && symbol && function)
        *function = wrap_function(symbol, *function, version, flags);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags, int *status)
{
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && symbol && function)
        *function = wrap_function(symbol, *function, version, flags);
    return result;
}
