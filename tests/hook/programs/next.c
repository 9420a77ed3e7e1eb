/* A library that, like many interposers, looks up the next definition of its own symbol. Built twice with different
 * answers and preloaded before and after the hook, it shows whether RTLD_NEXT still means "after the caller". */
#define _GNU_SOURCE
#include <dlfcn.h>

__attribute__((visibility("default"))) int answer(void)
{
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "answer");
    return 10 * (next ? next() : 0) + ANSWER;
}
