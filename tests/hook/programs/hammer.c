/* Threads that launch, allocate, copy and capture as fast as they can until standard input ends. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                          void **);
extern int cuMemAlloc_v2(unsigned long long *, size_t);
extern int cuMemFree_v2(unsigned long long);
extern int cuMemcpyHtoD_v2(unsigned long long, const void *, size_t);
extern int cuStreamCreate(void **, unsigned);
extern int cuStreamDestroy_v2(void *);
extern int cuStreamBeginCapture_v2(void *, int);
extern int cuStreamEndCapture(void *, void **);

static atomic_int stop, failures;
static int captures;

static void must(int result, const char *what)
{
    if (result) {
        fprintf(stderr, "%s: %d\n", what, result);
        atomic_fetch_add(&failures, 1);
    }
}

static int launch(void *stream) { return cuLaunchKernel((void *)0xf0, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL); }

static void *work(void *device)
{
    void *context, *stream;
    must(cuDevicePrimaryCtxRetain(&context, (int)(intptr_t)device), "retain");
    must(cuCtxSetCurrent(context), "set current");
    must(cuStreamCreate(&stream, 1), "stream");
    for (unsigned turn = 0; !atomic_load(&stop); turn++) {
        must(launch(stream), "launch");
        if (turn % 7 == 0) {
            unsigned long long memory = 0;
            char bytes[16] = {0};
            must(cuMemAlloc_v2(&memory, sizeof bytes), "alloc");
            must(cuMemcpyHtoD_v2(memory, bytes, sizeof bytes), "copy");
            must(cuMemFree_v2(memory), "free");
        }
        if (captures && turn % 50 == 0) {
            void *graph;
            must(cuStreamBeginCapture_v2(stream, 0), "begin capture");
            for (int i = 0; i < 5; i++)
                must(launch(stream), "captured launch");
            must(cuStreamEndCapture(stream, &graph), "end capture");
        }
    }
    must(cuStreamDestroy_v2(stream), "destroy");
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 4, devices = argc > 2 ? atoi(argv[2]) : 1;
    char byte;
    pthread_t started[64];
    captures = argc > 3;
    must(cuInit(0), "init");
    for (int i = 0; i < threads; i++)
        pthread_create(&started[i], NULL, work, (void *)(intptr_t)(i % devices));
    while (read(0, &byte, 1) > 0)
        ;
    atomic_store(&stop, 1);
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    return failures ? 1 : 0;
}
