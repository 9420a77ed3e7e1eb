/* What every part of libbaton.so shares: export marks, branch hints, logging. */
#ifndef BATON_LIBBATON_H
#define BATON_LIBBATON_H

#include "glibc.h"

#include <stdbool.h>
#include <stdint.h>

#define BATON_HOOK_VERSION "0.1.0"
#define BATON_EXPORT __attribute__((visibility("default")))
#define BATON_LIKELY(x) __builtin_expect(!!(x), 1)
#define BATON_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define BATON_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Lets `baton doctor` and a debugger tell which hook a process carries. */
BATON_EXPORT const char *baton_hook_version(void);

/* One line on stderr, in one write, prefixed with "baton: ". */
void baton_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, only when BATON_DEBUG=1 or NVSHARE_DEBUG asks for it. */
void baton_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Monotonic time; the quantum and every timeout are measured by it alone. */
uint64_t baton_now_us(void);

/* Around a wait of ours: a thread that was cancelled in it would take a mutex along, and everybody would wait for ever.
 * To the program a call of the driver's is no place to be cancelled at; the request holds, and acts after it. */
int baton_cancel_defer(void);
void baton_cancel_allow(int before);

#endif
