/* Launches an empty kernel many times and prints the nanoseconds per launch of every batch. The queue is drained
 * between batches, outside the measured time, so that the call is measured and not a full queue. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuModuleLoadData(void **, const void *);
extern int cuModuleGetFunction(void **, void *, const char *);
extern int cuStreamCreate(void **, unsigned);
extern int cuStreamSynchronize(void *);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                          void **);

static void must(int result, const char *what)
{
    if (result) {
        fprintf(stderr, "%s: CUDA error %d\n", what, result);
        exit(1);
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv)
{
    int batches = atoi(argv[1]), launches = atoi(argv[2]);
    void *context, *module, *function, *stream;
    uint64_t busy_ns = 0;
    void *parameters[] = {&busy_ns};
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "retain");
    must(cuCtxSetCurrent(context), "set current");
    must(cuModuleLoadData(&module, "any image"), "load");
    must(cuModuleGetFunction(&function, module, "baton_busy"), "function");
    must(cuStreamCreate(&stream, 1), "stream");
    for (int batch = -20; batch < batches; batch++) {
        uint64_t started_ns = now_ns();
        for (int i = 0; i < launches; i++)
            must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), "launch");
        uint64_t taken_ns = now_ns() - started_ns;
        must(cuStreamSynchronize(stream), "synchronize");
        if (batch >= 0)
            printf("%.1f\n", (double)taken_ns / launches);
    }
    return 0;
}
