/* Host functions that streams have reached. They run one after the other in a separate thread, as with the real driver:
 * such a function never delays a thread that queries a stream or waits for another one, even if the function waits for
 * that thread's next action. */
#define _GNU_SOURCE
#include "driver.h"

#include <sys/prctl.h>

static struct stream *first_due, *last_due; /* streams whose first piece of work is a host function to call */
static pthread_cond_t due = PTHREAD_COND_INITIALIZER;

static void *caller(void *unused)
{
    prctl(PR_SET_NAME, "simgpu-host");
    driver_lock();
    for (;;) {
        while (first_due == NULL)
            pthread_cond_wait(&due, &driver.lock);
        struct stream *stream = first_due;
        first_due = stream->next_due;
        driver_unlock();
        work_carry_out(stream, &stream->first->work);
        driver_lock();
        stream_called(stream);
    }
    return unused;
}

bool host_calls_start(void)
{
    static bool running;
    if (!running)
        running = thread_start(caller);
    return running;
}

void host_call(struct stream *stream)
{
    stream->next_due = NULL;
    if (first_due == NULL)
        first_due = stream;
    else
        last_due->next_due = stream;
    last_due = stream;
    pthread_cond_signal(&due);
}
