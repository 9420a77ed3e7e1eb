/* A driver for tests of the hook: it computes nothing, but keeps a record that a test can read while it runs.
 *
 * The record is a file mapped by both ($PROBE_FILE). Settings make rare timings likely: a launch that takes time inside
 * the driver, kernels that occupy the device for long. It breaks a capture exactly where the real driver does: when a
 * capturing context is synchronised, or an event queried.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
typedef int R;
typedef unsigned long long P;

struct device {
    _Atomic int64_t launches, copies, inside, busy_until_us;
};
struct record {
    _Atomic int64_t syncs, broken_captures, managed, plain, freed_async, per_thread, v1_lookups, v2_lookups, events;
    struct device devices[4];
};
struct context {
    int device;
};
struct stream {
    int capturing;
};
struct event {
    int64_t due_us;
};

static struct record local, *record = &local;
static struct context primary[4] = {{0}, {1}, {2}, {3}};
static struct stream default_stream, thread_stream;
static __thread struct context *stack[8];
static __thread int depth;
static atomic_int captures;
static int broken;

static int64_t knob(const char *name, int64_t otherwise)
{
    const char *value = getenv(name);
    return value ? atoll(value) : otherwise;
}

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void pause_us(int64_t us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    if (us > 0)
        nanosleep(&t, NULL);
}

static void start(void)
{
    static atomic_int started;
    if (atomic_exchange(&started, 1))
        return;
    const char *path = getenv("PROBE_FILE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *mapped = mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED)
            record = mapped;
        close(file);
    }
}

static struct device *current(void)
{
    start();
    return depth ? &record->devices[stack[depth - 1]->device] : NULL;
}

static R submit(_Atomic int64_t *counter, struct stream *stream)
{
    struct device *device = current();
    if (!device)
        return 201;
    if (stream && stream->capturing)
        return broken ? 901 : 0;
    atomic_fetch_add(&device->inside, 1);
    atomic_fetch_add(counter, 1);
    pause_us(knob("PROBE_LAUNCH_US", 0));
    int64_t busy = atomic_load(&device->busy_until_us), now = now_us();
    atomic_store(&device->busy_until_us, (busy > now ? busy : now) + knob("PROBE_KERNEL_US", 0));
    atomic_fetch_sub(&device->inside, 1);
    return (int)knob("PROBE_LAUNCH_RESULT", 0);
}

EXPORT R cuInit(unsigned flags) { start(); return 0; }
EXPORT R cuDriverGetVersion(int *version) { *version = 13000; return 0; }
EXPORT R cuDeviceGetCount(int *count) { *count = (int)knob("PROBE_DEVICES", 1); return 0; }
EXPORT R cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < knob("PROBE_DEVICES", 1) ? 0 : 101; }
EXPORT R cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    memset(uuid, 0xa0 + device, 16);
    return 0;
}
EXPORT R cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
EXPORT R cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)knob("PROBE_TOTAL", 16ll << 30); return 0; }
EXPORT R cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 89; return 0; }
EXPORT R cuDevicePrimaryCtxRetain(void **context, int device) { *context = &primary[device]; return 0; }
EXPORT R cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
EXPORT R cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
EXPORT R cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    struct context *made = malloc(sizeof *made);
    made->device = device;
    stack[depth++] = *context = made;
    return 0;
}
EXPORT R cuCtxDestroy_v2(void *context)
{
    if (depth && stack[depth - 1] == context)
        depth--;
    free(context);
    return 0;
}
EXPORT R cuCtxGetCurrent(void **context) { *context = depth ? stack[depth - 1] : NULL; return 0; }
EXPORT R cuCtxSetCurrent(void *context)
{
    depth = context ? 1 : 0;
    stack[0] = context;
    return 0;
}
EXPORT R cuCtxPushCurrent_v2(void *context) { stack[depth++] = context; return 0; }
EXPORT R cuCtxPopCurrent_v2(void **context) { *context = stack[--depth]; return 0; }
EXPORT R cuCtxGetDevice(int *device) { if (!depth) return 201; *device = stack[depth - 1]->device; return 0; }

static R disturbed(void)
{
    if (!captures)
        return 0;
    broken = 1;
    atomic_fetch_add(&record->broken_captures, 1);
    return 900;
}

EXPORT R cuCtxSynchronize(void)
{
    struct device *device = current();
    if (!device)
        return 201;
    atomic_fetch_add(&record->syncs, 1);
    R result = disturbed();
    for (int64_t rest; !result && (rest = atomic_load(&device->busy_until_us) - now_us()) > 0;)
        pause_us(rest < 5000 ? rest : 5000); /* a test may end the work */
    return result ? result : disturbed();
}
EXPORT R cuStreamCreate(void **stream, unsigned flags) { *stream = calloc(1, sizeof(struct stream)); return 0; }
EXPORT R cuStreamDestroy_v2(void *stream) { free(stream); return 0; }
EXPORT R cuStreamSynchronize(void *stream) { return cuCtxSynchronize(); }

static struct stream *stream_of(void *handle)
{
    return (uintptr_t)handle > 2 ? handle : (uintptr_t)handle == 2 ? &thread_stream : &default_stream;
}

EXPORT R cuStreamBeginCapture_v2(void *stream, int mode)
{
    if (stream_of(stream)->capturing)
        return 901;
    stream_of(stream)->capturing = 1;
    atomic_fetch_add(&captures, 1);
    return 0;
}
EXPORT R cuStreamEndCapture(void *stream, void **graph)
{
    if (!stream_of(stream)->capturing)
        return 901;
    stream_of(stream)->capturing = 0;
    atomic_fetch_sub(&captures, 1);
    *graph = broken ? NULL : (void *)0x60;
    R result = broken ? 901 : 0;
    broken = 0;
    return result;
}
EXPORT R cuStreamIsCapturing(void *stream, int *status) { *status = stream_of(stream)->capturing; return 0; }
EXPORT R cuEventCreate(void **event, unsigned flags) { record->events++; *event = calloc(1, sizeof(struct event)); return 0; }
EXPORT R cuEventDestroy_v2(void *event) { record->events--; free(event); return 0; }
EXPORT R cuEventRecord(struct event *event, void *stream) { event->due_us = current()->busy_until_us; return 0; }
EXPORT R cuEventQuery(struct event *event) { R r = disturbed(); return r ? r : now_us() < event->due_us ? 600 : 0; }

EXPORT R cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared,
                        void *stream, void **params, void **extra)
{
    struct device *device = current();
    if (f != (void *)0xf0)
        return 400;
    return device ? submit(&device->launches, stream_of(stream)) : 201;
}
EXPORT R cuLaunchKernel_ptsz(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                             unsigned shared, void *stream, void **params, void **extra)
{
    start();
    atomic_fetch_add(&record->per_thread, 1);
    return cuLaunchKernel(f, a, b, c, d, e, g, shared, stream ? stream : (void *)2, params, extra);
}
EXPORT R cuGraphLaunch(void *exec, void *stream) { struct device *d = current(); return submit(&d->launches, stream_of(stream)); }
EXPORT R cuMemAlloc_v2(P *ptr, size_t size) { start(); record->plain++; *ptr = (P)(uintptr_t)malloc(16); return *ptr ? 0 : 2; }
EXPORT R cuMemAllocManaged(P *ptr, size_t size, unsigned flags) { start(); record->managed++; *ptr = (P)(uintptr_t)malloc(16); return *ptr ? 0 : 2; }
EXPORT R cuMemFree_v2(P ptr) { free((void *)(uintptr_t)ptr); return 0; }
EXPORT R cuMemAllocAsync(P *ptr, size_t size, void *stream) { *ptr = (P)(uintptr_t)malloc(16); return 0; }
EXPORT R cuMemFreeAsync(P ptr, void *stream) { record->freed_async++; free((void *)(uintptr_t)ptr); return 0; }
EXPORT R cuMemGetInfo_v2(size_t *left, size_t *total) { *left = *total = (size_t)knob("PROBE_TOTAL", 16ll << 30); return 0; }
EXPORT R cuMemcpyHtoD_v2(P dst, const void *src, size_t size) { struct device *d = current(); return d ? submit(&d->copies, NULL) : 201; }
EXPORT R cuMemsetD8_v2(P dst, unsigned char value, size_t size) { struct device *d = current(); return d ? submit(&d->copies, NULL) : 201; }
/* Only reachable through cuGetProcAddress, like some functions of a real driver. */
static R hidden_copy(P dst, P src, size_t size, void *attributes, void *stream) { struct device *d = current(); return submit(&d->copies, stream_of(stream)); }
/* A newer ABI of a known function, which no current hook can know. */
EXPORT R cuLaunchKernel_v9(int answer) { return answer; }

EXPORT R cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
EXPORT R cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);

static R look_up(const char *symbol, void **function, int version, uint64_t flags)
{
    static const struct { const char *name; int since; int per_thread; void *function; } known[] = {
        {"cuGetProcAddress", 11030, 0, cuGetProcAddress}, {"cuGetProcAddress", 12000, 0, cuGetProcAddress_v2},
        {"cuLaunchKernel", 4000, 0, cuLaunchKernel}, {"cuLaunchKernel", 7000, 1, cuLaunchKernel_ptsz},
        {"cuLaunchKernel", 99000, 0, cuLaunchKernel_v9},
        {"cuMemcpyHtoD", 3020, 0, cuMemcpyHtoD_v2}, {"cuMemAlloc", 3020, 0, cuMemAlloc_v2},
        {"cuMemcpyWithAttributesAsync", 13000, 0, hidden_copy},
        {"cuInit", 2000, 0, cuInit}, {"cuCtxSetCurrent", 4000, 0, cuCtxSetCurrent},
    };
    start();
    *function = NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(known[i].name, symbol) && known[i].since <= version && (!known[i].per_thread || flags & 2))
            *function = known[i].function;
    return *function ? 0 : 500;
}
EXPORT R cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    R result = look_up(symbol, function, version, flags);
    record->v1_lookups++;
    return result;
}
EXPORT R cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    R result = look_up(symbol, function, version, flags);
    record->v2_lookups++;
    if (status)
        *status = result ? 1 : 0;
    return result;
}
