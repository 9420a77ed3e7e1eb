/* Binds libc references to their oldest symbol version, so that a library built on a new system loads on glibc 2.17.
 *
 * A function that glibc moved between libraries (2.32 to 2.34) got a new default version although its behaviour did not
 * change, and the loader of an older system rejects an object that requires the new version. The hook must not call
 * anything newer than 2.17; a test of the symbol versions fails if it does.
 */
#ifndef BATON_GLIBC_H
#define BATON_GLIBC_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <features.h>

#if defined(__x86_64__)
#define BATON_GLIBC_BASE "GLIBC_2.2.5"
#define BATON_GLIBC_PTHREAD_COND "GLIBC_2.3.2"
#define BATON_GLIBC_CONDATTR "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define BATON_GLIBC_BASE "GLIBC_2.17"
#define BATON_GLIBC_PTHREAD_COND "GLIBC_2.17"
#define BATON_GLIBC_CONDATTR "GLIBC_2.17"
#else
#error "libbaton.so knows the symbol versions of x86-64 and aarch64 only"
#endif

#define BATON_BIND(name, version) __asm__(".symver " #name "," #name "@" version)

BATON_BIND(dlopen, BATON_GLIBC_BASE);
BATON_BIND(dladdr, BATON_GLIBC_BASE);
BATON_BIND(pthread_create, BATON_GLIBC_BASE);
BATON_BIND(pthread_detach, BATON_GLIBC_BASE);
BATON_BIND(pthread_once, BATON_GLIBC_BASE);
BATON_BIND(pthread_key_create, BATON_GLIBC_BASE);
BATON_BIND(pthread_setspecific, BATON_GLIBC_BASE);
BATON_BIND(pthread_sigmask, BATON_GLIBC_BASE);
BATON_BIND(pthread_attr_setstacksize, BATON_GLIBC_BASE);
BATON_BIND(pthread_condattr_setclock, BATON_GLIBC_CONDATTR);

#endif
