/* Gets cuLaunchKernel in the way that its argument names, launches once and prints the result. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int launch_function(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                            void **);
typedef int get_v1(const char *, void **, int, uint64_t);
typedef int get_v2(const char *, void **, int, uint64_t, int *);
typedef void *dlsym_function(void *, const char *);

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern launch_function cuLaunchKernel;
extern int cuGetProcAddress(const char *, void **, int, uint64_t);
extern int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

static const char *oldest_version(void)
{
#ifdef __x86_64__
    return "GLIBC_2.2.5";
#else
    return "GLIBC_2.17";
#endif
}

static void *find(const char *way)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *function = NULL;
    int status = 7;
    if (!strcmp(way, "linked"))
        return (void *)cuLaunchKernel;
    if (!strcmp(way, "dlsym"))
        return dlsym(driver, "cuLaunchKernel");
    if (!strcmp(way, "dlsym_default"))
        return dlsym(RTLD_DEFAULT, "cuLaunchKernel");
    if (!strcmp(way, "dlsym_main"))
        return dlsym(dlopen(NULL, RTLD_NOW), "cuLaunchKernel");
    if (!strcmp(way, "dlsym_of_old_version"))
        return ((dlsym_function *)dlvsym(RTLD_DEFAULT, "dlsym", oldest_version()))(driver, "cuLaunchKernel");
    if (!strcmp(way, "dlsym_of_libc"))
        return ((dlsym_function *)dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym"))(driver, "cuLaunchKernel");
    if (!strcmp(way, "get_v1"))
        cuGetProcAddress("cuLaunchKernel", &function, 11030, 0);
    if (!strcmp(way, "get_v2"))
        cuGetProcAddress_v2("cuLaunchKernel", &function, 12000, 0, &status);
    if (!strcmp(way, "get_dlsym_v2"))
        ((get_v2 *)dlsym(driver, "cuGetProcAddress_v2"))("cuLaunchKernel", &function, 12000, 0, &status);
    if (!strcmp(way, "get_by_get_v1")) {
        cuGetProcAddress("cuGetProcAddress", &function, 11030, 0);
        ((get_v1 *)function)("cuLaunchKernel", &function, 11030, 0);
    }
    if (!strcmp(way, "get_by_get_v2")) {
        cuGetProcAddress_v2("cuGetProcAddress", &function, 12000, 0, NULL);
        ((get_v2 *)function)("cuLaunchKernel", &function, 12000, 0, &status);
        if (status != 0) /* the five-argument form fills it in; the four-argument one cannot */
            abort();
    }
    if (!strcmp(way, "per_thread"))
        cuGetProcAddress_v2("cuLaunchKernel", &function, 12000, 2, &status);
    return function;
}

int main(int argc, char **argv)
{
    void *context, *function;
    if (!strcmp(argv[1], "young")) {
        cuGetProcAddress_v2("cuLaunchKernel", &function, 99000, 0, NULL);
        return ((int (*)(int))function)(77) == 77 ? puts("untouched"), 0 : 1;
    }
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    if (!strcmp(argv[1], "unexported")) {
        if (cuGetProcAddress_v2("cuMemcpyWithAttributesAsync", &function, 13000, 0, NULL))
            return 2;
        printf("%d\n", ((int (*)(unsigned long long, unsigned long long, size_t, void *, void *))function)(1, 2, 3, NULL, NULL));
        return 0;
    }
    function = find(argv[1]);
    if (!function)
        return 3;
    printf("%d\n", ((launch_function *)function)((void *)0xf0, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    return 0;
}
