/* Cancels a thread that waits for its turn, and continues with another one. */
#include <pthread.h>
#include <stdio.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared,
                   void *stream, void **params, void **extra);

static int launch(void)
{
    void *context;
    if (cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    return cuLaunchKernel((void *)0xf0, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void *wait_for_a_turn(void *unused)
{
    launch();
    for (;;)
        pthread_testcancel();
    return unused;
}

int main(void)
{
    pthread_t thread;
    char line[16];
    void *ended;
    if (cuInit(0) || pthread_create(&thread, NULL, wait_for_a_turn, NULL) || !fgets(line, sizeof line, stdin))
        return 1;
    pthread_cancel(thread);
    puts("cancelled");
    fflush(stdout);
    if (launch() || pthread_join(thread, &ended) || ended != PTHREAD_CANCELED)
        return 1;
    puts("launched");
    return 0;
}
