/* The table of GPUs in use. It only grows: a pointer to an entry stays valid for the life of the process. */
#include "gpu.h"

#include "client.h"
#include "driver.h"
#include "settings.h"

#include <stdio.h>
#include <string.h>

static struct baton_gpu gpus[BATON_MAX_GPUS];
static atomic_uint gpu_count;
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;

unsigned baton_gpu_count(void) { return atomic_load_explicit(&gpu_count, memory_order_acquire); }

struct baton_gpu *baton_gpu_at(unsigned index) { return &gpus[index]; }

static struct baton_gpu *find(CUdevice device)
{
    unsigned count = baton_gpu_count();
    for (unsigned i = 0; i < count; i++)
        if (gpus[i].device == device)
            return &gpus[i];
    return NULL;
}

struct baton_gpu *baton_gpu_of_uuid(const char *uuid_text)
{
    unsigned count = baton_gpu_count();
    for (unsigned i = 0; i < count; i++)
        if (strcmp(gpus[i].uuid_text, uuid_text) == 0)
            return &gpus[i];
    return NULL;
}

static void write_uuid(const CUuuid *uuid, char *text)
{
    static const char digits[] = "0123456789abcdef";
    memcpy(text, "GPU-", 4);
    text += 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *text++ = '-';
        *text++ = digits[uuid->bytes[i] >> 4];
        *text++ = digits[uuid->bytes[i] & 15];
    }
    *text = '\0';
}

static struct baton_gpu *add(CUdevice device)
{
    unsigned count = baton_gpu_count();
    CUuuid uuid;
    int managed = 0;
    if (count == BATON_MAX_GPUS)
        return NULL;
    /* Only the second form supports MIG instances. */
    CUresult result = baton_driver_has(ROW_cuDeviceGetUuid_v2) ? REAL(cuDeviceGetUuid_v2)(&uuid, device)
                                                               : REAL(cuDeviceGetUuid)(&uuid, device);
    if (result != CUDA_SUCCESS)
        return NULL;
    struct baton_gpu *gpu = &gpus[count];
    memset(gpu, 0, sizeof *gpu);
    gpu->index = count;
    gpu->device = device;
    gpu->uuid = uuid;
    write_uuid(&uuid, gpu->uuid_text);
    pthread_mutex_init(&gpu->mutex, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&gpu->changed, &monotonic);
    pthread_cond_init(&gpu->job_set, &monotonic);
    pthread_condattr_destroy(&monotonic);
    REAL(cuDeviceTotalMem_v2)(&gpu->total_bytes, device);
    REAL(cuDeviceGetAttribute)(&managed, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, device);
    gpu->managed_works = managed != 0;
    gpu->daemon_oversubscribe = -1;
    gpu->link.fd = gpu->link.passed_fd = -1;
    pthread_mutex_init(&gpu->allowance.mutex, NULL);
    baton_idle_set_cost(&gpu->link.idle, baton_settings()->idle_us);
    atomic_store_explicit(&gpu_count, count + 1, memory_order_release);
    return gpu;
}

/* A gang requests all its GPUs at once, so all of them must be connected before the first request. */
static void add_all(void)
{
    int count = 0;
    CUdevice device;
    if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return;
    for (int ordinal = 0; ordinal < count; ordinal++)
        if (REAL(cuDeviceGet)(&device, ordinal) == CUDA_SUCCESS && !find(device))
            add(device);
}

struct baton_gpu *baton_gpu_of_device(CUdevice device)
{
    struct baton_gpu *gpu = find(device);
    if (BATON_LIKELY(gpu != NULL))
        return gpu;
    pthread_mutex_lock(&table_mutex);
    gpu = find(device);
    if (!gpu) {
        if (baton_settings()->gang)
            add_all();
        gpu = find(device);
        if (!gpu)
            gpu = add(device);
        if (gpu)
            baton_client_start();
    }
    pthread_mutex_unlock(&table_mutex);
    return gpu;
}

void baton_gpus_reset_in_child(void)
{
    pthread_mutex_init(&table_mutex, NULL);
    atomic_store(&gpu_count, 0);
}
