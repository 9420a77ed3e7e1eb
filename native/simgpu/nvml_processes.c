/* The processes on a card, with their memory and their share of its time.
 *
 * A process is on a card while it has a context there. The kernel translates its pid for the caller, so a tool on the
 * host sees host pids even for processes in containers.
 */
#include "nvml_session.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

unsigned percent(double fraction);

#define SHORTEST_WINDOW_NS 100e6
#define LONGEST_WINDOW_NS 1e9

typedef struct {
    uint32_t slot;
    unsigned pid;
    uint64_t bytes;
    double part; /* share of the card's time */
} user;

static bool present(const simgpu_card *card, uint32_t slot)
{
    const simgpu_tenant *tenant = &card->tenants[slot];
    return tenant->generation != 0 && tenant->contexts > 0 &&
           tenant->generation == atomic_load(&session_handle()->shared->processes[slot].generation);
}

/* All processes with a context. Pids are translated after the card is unlocked, because each takes a system call. */
static nvmlReturn_t users_of(nvmlDevice_t device, double window_ns, user **users, unsigned *count)
{
    simgpu_card *card;
    *users = NULL;
    *count = 0;
    user *found = malloc(SIMGPU_MAX_PROCESSES * sizeof *found);
    if (found == NULL)
        return NVML_ERROR_MEMORY;
    nvmlReturn_t result = card_enter(device, &card);
    if (result != NVML_SUCCESS) {
        free(found);
        return result;
    }
    double now = (double)(simgpu_real_ns() - session_handle()->shared->epoch_real_ns);
    unsigned number = 0;
    for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++) {
        const simgpu_tenant *tenant = &card->tenants[slot];
        if (!present(card, slot))
            continue;
        found[number++] = (user){
            .slot = slot,
            .bytes = tenant->device_bytes + tenant->resident_bytes,
            .part = simgpu_meter_rate(&tenant->used, now, window_ns),
        };
    }
    simgpu_card_unlock(session_handle(), card);
    for (unsigned i = 0; i < number; i++)
        found[i].pid = (unsigned)simgpu_process_pid(session_handle(), found[i].slot);
    session_leave();
    *users = found;
    *count = number;
    return NVML_SUCCESS;
}

/* The protocol that all versions of the call share: return the count, and one record each if there is room. */
static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned *count, void *records, size_t record_bytes)
{
    user *users;
    unsigned found;
    NEED(count);
    nvmlReturn_t result = users_of(device, LONGEST_WINDOW_NS, &users, &found);
    if (result != NVML_SUCCESS)
        return result;
    unsigned room = records == NULL ? 0 : *count;
    *count = found;
    if (found > room) {
        free(users);
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; i < found; i++) {
        nvmlProcessInfo_v2_t full = {users[i].pid, users[i].bytes, NVML_INSTANCE_NONE, NVML_INSTANCE_NONE};
        memcpy((char *)records + i * record_bytes, &full, record_bytes);
    }
    free(users);
    return NVML_SUCCESS;
}

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count)
{
    NEED(count);
    WITH_CARD(device, card, *count = 0);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                           nvmlProcessInfo_v1_t *records)
{
    return list_processes(device, count, records, sizeof *records);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                              nvmlProcessInfo_v2_t *records)
{
    return list_processes(device, count, records, sizeof *records);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                              nvmlProcessInfo_v2_t *records)
{
    return list_processes(device, count, records, sizeof *records);
}

/* Simulated cards run no graphics, and MPS is not simulated. */
#define NO_PROCESSES(name)                                                                                             \
    NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *records)                                    \
    {                                                                                                                  \
        return no_processes(device, count);                                                                            \
    }

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

NVML_API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    enum { COMPUTE, GRAPHICS, MPS, MODES };
    user *users;
    unsigned found;
    NEED(list);
    if (list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    NEED(list->mode < MODES);
    if (list->mode != COMPUTE)
        return no_processes(device, &list->numProcArrayEntries);
    nvmlReturn_t result = users_of(device, LONGEST_WINDOW_NS, &users, &found);
    if (result != NVML_SUCCESS)
        return result;
    unsigned room = list->procArray == NULL ? 0 : list->numProcArrayEntries;
    list->numProcArrayEntries = found;
    if (found > room)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found && result == NVML_SUCCESS; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = users[i].pid,
                                                      .usedGpuMemory = users[i].bytes,
                                                      .gpuInstanceId = NVML_INSTANCE_NONE,
                                                      .computeInstanceId = NVML_INSTANCE_NONE,
                                                      .usedGpuCcProtectedMemory = ~0ULL};
    free(users);
    return result;
}

static unsigned long long wall_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000ULL + (unsigned long long)now.tv_nsec / 1000;
}

/* Processes that ran since `last_seen_us` (wall clock), each with its share of the time since then, at most a
 * second. */
static nvmlReturn_t busy_users(nvmlDevice_t device, unsigned long long last_seen_us, unsigned long long now_us,
                               user **users, unsigned *count)
{
    double window_ns = last_seen_us < now_us ? (double)(now_us - last_seen_us) * 1e3 : 0;
    window_ns = window_ns < SHORTEST_WINDOW_NS ? SHORTEST_WINDOW_NS : window_ns;
    window_ns = window_ns > LONGEST_WINDOW_NS ? LONGEST_WINDOW_NS : window_ns;
    nvmlReturn_t result = users_of(device, window_ns, users, count);
    if (result != NVML_SUCCESS)
        return result;
    unsigned busy = 0;
    for (unsigned i = 0; i < *count; i++)
        if ((*users)[i].part > 0)
            (*users)[busy++] = (*users)[i];
    *count = busy;
    if (busy > 0)
        return NVML_SUCCESS;
    free(*users);
    *users = NULL;
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                      unsigned *count, unsigned long long last_seen_us)
{
    user *users;
    unsigned found;
    unsigned long long now_us = wall_clock_us();
    NEED(count);
    nvmlReturn_t result = busy_users(device, last_seen_us, now_us, &users, &found);
    if (result != NVML_SUCCESS)
        return result;
    unsigned room = samples == NULL ? 0 : *count;
    *count = found;
    if (found > room)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found && result == NVML_SUCCESS; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = users[i].pid, .timeStamp = now_us, .smUtil = percent(users[i].part)};
    free(users);
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                            nvmlProcessesUtilizationInfo_v1_t *info)
{
    user *users;
    unsigned found;
    unsigned long long now_us = wall_clock_us();
    NEED(info);
    if (info->version != NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = busy_users(device, info->lastSeenTimeStamp, now_us, &users, &found);
    if (result != NVML_SUCCESS)
        return result;
    unsigned room = info->procUtilArray == NULL ? 0 : info->processSamplesCount;
    info->processSamplesCount = found;
    if (found > room)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found && result == NVML_SUCCESS; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = now_us, .pid = users[i].pid, .smUtil = percent(users[i].part)};
    free(users);
    return result;
}

NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64], text[1024];
    NEED(name && length > 0);
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    session_leave();
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return NVML_ERROR_NOT_FOUND;
    text[got] = 0; /* the name ends at the first argument's NUL */
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}
