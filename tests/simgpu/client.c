/* A program for the sanitizers: many threads, streams, events, graphs, pools and contexts on the simulated driver.
 * The declarations match what a program linked against the driver would use. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
typedef unsigned long long address;
int cuInit(unsigned), cuCtxCreate_v2(handle *, unsigned, int), cuCtxSetCurrent(handle), cuCtxSynchronize(void);
int cuCtxDestroy_v2(handle), cuModuleLoadData(handle *, const void *), cuModuleUnload(handle);
int cuModuleGetFunction(handle *, handle, const char *), cuMemAlloc_v2(address *, size_t), cuMemFree_v2(address);
int cuMemAllocManaged(address *, size_t, unsigned), cuMemAllocAsync(address *, size_t, handle);
int cuMemFreeAsync(address, handle), cuMemcpyHtoDAsync_v2(address, const void *, size_t, handle);
int cuMemcpyDtoHAsync_v2(void *, address, size_t, handle), cuMemsetD32Async(address, unsigned, size_t, handle);
int cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle), cuStreamSynchronize(handle);
int cuStreamWaitEvent(handle, handle, unsigned), cuEventCreate(handle *, unsigned), cuEventRecord(handle, handle);
int cuEventDestroy_v2(handle), cuEventSynchronize(handle), cuEventQuery(handle);
int cuLaunchHostFunc(handle, void (*)(void *), void *), cuStreamBeginCapture_v2(handle, int);
int cuStreamEndCapture(handle, handle *), cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
int cuGraphLaunch(handle, handle), cuGraphExecDestroy(handle), cuGraphDestroy(handle);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        int result_ = (call);                                                                                          \
        if (result_ != 0) {                                                                                            \
            fprintf(stderr, "%s answered %d\n", #call, result_);                                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { THREADS = 4, ROUNDS = 15, N = 1000 };

static handle context, saxpy, busy;
static _Atomic int calls;

static void count(void *unused)
{
    calls++;
}

static void launch(handle stream, address x, address y, float factor)
{
    int n = N;
    uint64_t nanoseconds = 20000;
    void *values[] = {&n, &factor, &x, &y}, *time[] = {&nanoseconds};
    OK(cuLaunchKernel(busy, 8, 1, 1, 256, 1, 1, 0, stream, time, NULL));
    OK(cuLaunchKernel(saxpy, 4, 1, 1, 256, 1, 1, 0, stream, values, NULL));
}

static void *work(void *number)
{
    static float ones[N];
    float out[N];
    handle stream, side, event, graph, executable;
    address x, y, scratch, managed;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamCreate(&side, 1));
    OK(cuEventCreate(&event, 0));
    OK(cuMemAlloc_v2(&x, sizeof ones));
    OK(cuMemAllocManaged(&managed, 64 << 20, 1));
    y = managed;
    for (int round = 0; round < ROUNDS; round++) {
        float one = 1;
        unsigned bits;
        memcpy(&bits, &one, sizeof bits);
        OK(cuMemcpyHtoDAsync_v2(y, ones, sizeof ones, stream));
        OK(cuMemsetD32Async(x, bits, N, side));
        OK(cuEventRecord(event, side));
        OK(cuStreamWaitEvent(stream, event, 0));
        OK(cuMemAllocAsync(&scratch, 1 << 20, stream));
        launch(stream, x, y, 2);
        OK(cuMemFreeAsync(scratch, stream));
        OK(cuLaunchHostFunc(stream, count, NULL));
        OK(cuStreamBeginCapture_v2(side, 2));
        launch(side, x, y, 3);
        OK(cuStreamEndCapture(side, &graph));
        OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
        OK(cuGraphLaunch(executable, stream));
        OK(cuMemcpyDtoHAsync_v2(out, y, sizeof out, stream));
        cuEventQuery(event);
        OK(cuStreamSynchronize(stream));
        OK(cuGraphExecDestroy(executable));
        OK(cuGraphDestroy(graph));
        for (int index = 0; index < N; index++)
            if (out[index] != 5) {
                fprintf(stderr, "thread %d round %d: %g\n", *(int *)number, round, (double)out[index]);
                exit(1);
            }
    }
    OK(cuEventDestroy_v2(event));
    OK(cuStreamDestroy_v2(side));
    OK(cuStreamDestroy_v2(stream));
    OK(cuMemFree_v2(x));
    OK(cuMemFree_v2(managed));
    return NULL;
}

int main(void)
{
    handle module;
    pthread_t threads[THREADS];
    int numbers[THREADS];
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, "any"));
    OK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    OK(cuModuleGetFunction(&busy, module, "baton_busy"));
    for (int index = 0; index < THREADS; index++) {
        numbers[index] = index;
        pthread_create(&threads[index], NULL, work, &numbers[index]);
    }
    for (int index = 0; index < THREADS; index++)
        pthread_join(threads[index], NULL);
    OK(cuCtxSynchronize());
    if (calls != THREADS * ROUNDS)
        return 2;
    OK(cuModuleUnload(module));
    OK(cuCtxDestroy_v2(context));
    puts("done");
    return 0;
}
