/* libbaton.so, the preload library inside the workload: version, clock and log. */
#include "libbaton.h"

#include "settings.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

const char *baton_hook_version(void) { return BATON_HOOK_VERSION; }

uint64_t baton_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

int baton_cancel_defer(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

void baton_cancel_allow(int before) { pthread_setcancelstate(before, &before); }

/* The whole line goes out in one write, so that lines of several threads and processes do not mix. */
static void write_line(const char *format, va_list arguments)
{
    char line[1024] = "baton: ";
    size_t used = 7;
    int saved = errno;
    int length = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    if (length < 0)
        return;
    used += (size_t)length < sizeof line - used - 1 ? (size_t)length : sizeof line - used - 2;
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written; /* a closed stderr is the program's own choice */
    errno = saved;
}

void baton_log(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}

void baton_debug(const char *format, ...)
{
    if (!baton_settings()->debug)
        return;
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}
