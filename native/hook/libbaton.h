/* Shared by every part of libbaton.so: export marks, branch hints, logging. */
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

/* Lets `baton doctor` and a debugger identify the hook in a process. */
BATON_EXPORT const char *baton_hook_version(void);

/* One line on stderr, in one write, prefixed with "baton: ". */
void baton_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, only when BATON_DEBUG=1 or NVSHARE_DEBUG asks for it. */
void baton_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Monotonic time. The quantum and every timeout use this clock only. */
uint64_t baton_now_us(void);

/* Disable cancellation around a wait inside the hook: a thread cancelled there would leave a mutex locked and block
 * every other thread. CUDA calls are not cancellation points for the program; a pending request takes effect after the
 * call. */
int baton_cancel_defer(void);
void baton_cancel_allow(int before);

#endif
