/* A libcuda.so.1 that contains only cuGetProcAddress: it records each query to the driver named by DRIVER, one line per
 * query: name, version, flags, result. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    static int (*ask)(const char *, void **, int, uint64_t, int *);
    static FILE *notes;
    if (!ask) {
        *(void **)&ask = dlsym(dlopen(getenv("DRIVER"), RTLD_NOW | RTLD_LOCAL), "cuGetProcAddress_v2");
        notes = fopen(getenv("NOTES"), "w");
    }
    int result = ask(name, function, version, flags, status);
    fprintf(notes, "%s %d %llu %d\n", name, version, (unsigned long long)flags, result);
    fflush(notes);
    return result;
}
