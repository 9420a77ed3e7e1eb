/* Repeatedly kills processes at random moments while they allocate, launch, page and free on a small card. Whatever
 * lock a process held and whatever it was changing, the others continue and nothing is left behind. */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
typedef unsigned long long address;
int cuInit(unsigned), cuCtxCreate_v2(handle *, unsigned, int), cuModuleLoadData(handle *, const void *);
int cuModuleGetFunction(handle *, handle, const char *), cuMemAlloc_v2(address *, size_t), cuMemFree_v2(address);
int cuMemAllocManaged(address *, size_t, unsigned), cuStreamCreate(handle *, unsigned), cuStreamSynchronize(handle);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
int cuMemGetInfo_v2(size_t *, size_t *);

enum { PROCESSES = 3 };

static unsigned pick(unsigned *seed, unsigned below)
{
    return (unsigned)rand_r(seed) % below;
}

static void churn(unsigned seed, int ready)
{
    handle context, module, touch, streams[3];
    address managed;
    if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuModuleLoadData(&module, "any") ||
        cuModuleGetFunction(&touch, module, "baton_touch") || cuMemAllocManaged(&managed, 700ULL << 20, 1))
        _exit(3);
    for (int index = 0; index < 3; index++)
        cuStreamCreate(&streams[index], 1);
    if (write(ready, "r", 1) != 1)
        _exit(4);
    for (;;) {
        address memory;
        uint64_t bytes = (uint64_t)(1 + pick(&seed, 699)) << 20, nanoseconds = 1000;
        void *values[] = {&managed, &bytes, &nanoseconds};
        handle stream = streams[pick(&seed, 3)];
        size_t free_bytes, total;
        if (cuLaunchKernel(touch, 112, 1, 1, 1024, 1, 1, 0, stream, values, NULL))
            _exit(5);
        if (cuMemAlloc_v2(&memory, (size_t)(1 + pick(&seed, 200)) << 20) == 0 && pick(&seed, 2) && cuMemFree_v2(memory))
            _exit(6);
        if (cuMemGetInfo_v2(&free_bytes, &total) || free_bytes > total)
            _exit(7);
        if (pick(&seed, 10) == 0 && cuStreamSynchronize(stream))
            _exit(8);
    }
}

int main(int count, char **arguments)
{
    int rounds = atoi(arguments[1]);
    unsigned seed = (unsigned)atoi(arguments[2]);
    for (int round = 0; count > 2 && round < rounds; round++) {
        pid_t children[PROCESSES];
        int pipes[2];
        if (pipe(pipes) != 0)
            return 1;
        for (int index = 0; index < PROCESSES; index++) {
            children[index] = fork();
            if (children[index] == 0)
                churn(seed + (unsigned)(round * PROCESSES + index), pipes[1]);
        }
        char byte;
        for (int index = 0; index < PROCESSES; index++)
            if (read(pipes[0], &byte, 1) != 1)
                return 1;
        for (int index = 0; index < PROCESSES; index++) {
            struct timespec moment = {.tv_nsec = (long)pick(&seed, 1500000)};
            nanosleep(&moment, NULL);
            kill(children[index], SIGKILL);
        }
        for (int index = 0; index < PROCESSES; index++) {
            int status;
            waitpid(children[index], &status, 0);
            if (!WIFSIGNALED(status)) {
                fprintf(stderr, "a process exited by itself with status %d\n", WEXITSTATUS(status));
                return 1;
            }
        }
        close(pipes[0]);
        close(pipes[1]);
    }
    puts("done");
    return 0;
}
