/* Initialisation, shutdown, versions and error strings of the simulated NVML. */
#include "nvml_session.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;
static unsigned holders; /* nvmlInit calls without a matching nvmlShutdown */
static bool attached;
static simgpu_handle machine;
static struct nvml_device devices[SIMGPU_MAX_CARDS];
static uint32_t device_count;

/* The attachment belongs to the process that made it: a forked child starts without one and attaches with its first
 * call. Its existing handles stay valid, because they are only indices. */
static void child_after_fork(void)
{
    pthread_rwlock_init(&gate, NULL);
    if (attached) {
        simgpu_forget_after_fork(&machine);
        attached = false;
    }
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, child_after_fork);
}

static nvmlReturn_t attach(void)
{
    char error[512] = "";
    int result = simgpu_attach(&machine, NULL, error, sizeof error);
    if (result == SIMGPU_OK) {
        uint32_t cards[SIMGPU_MAX_CARDS];
        attached = true;
        device_count = simgpu_visible_cards(&machine, cards);
        for (uint32_t i = 0; i < device_count; i++)
            devices[i] = (struct nvml_device){i, cards[i]};
        return NVML_SUCCESS;
    }
    simgpu_debug("nvml: %s", error);
    switch (result) {
    case SIMGPU_ABSENT:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case SIMGPU_MISMATCH:
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    case SIMGPU_FULL:
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    default:
        return errno == EACCES || errno == EPERM ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNKNOWN;
    }
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_rwlock_wrlock(&gate);
    nvmlReturn_t result = attached ? NVML_SUCCESS : attach();
    if (result == NVML_SUCCESS)
        holders++;
    pthread_rwlock_unlock(&gate);
    return result;
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_rwlock_wrlock(&gate);
    if (holders == 0) {
        result = NVML_ERROR_UNINITIALIZED;
    } else if (--holders == 0 && attached) {
        simgpu_detach(&machine);
        attached = false;
    }
    pthread_rwlock_unlock(&gate);
    return result;
}

nvmlReturn_t session_enter(void)
{
    for (;;) {
        pthread_rwlock_rdlock(&gate);
        if (attached)
            return NVML_SUCCESS;
        bool forked = holders > 0;
        pthread_rwlock_unlock(&gate);
        if (!forked)
            return NVML_ERROR_UNINITIALIZED;
        pthread_rwlock_wrlock(&gate);
        nvmlReturn_t result = attached || holders == 0 ? NVML_SUCCESS : attach();
        pthread_rwlock_unlock(&gate);
        if (result != NVML_SUCCESS)
            return result;
    }
}

void session_leave(void)
{
    pthread_rwlock_unlock(&gate);
}

simgpu_handle *session_handle(void)
{
    return &machine;
}

uint32_t session_card_count(void)
{
    return device_count;
}

nvmlDevice_t session_device(uint32_t index)
{
    return &devices[index];
}

const simgpu_profile *session_profile(uint32_t index)
{
    return &machine.shared->cards[devices[index].card].profile;
}

/* The session has been entered; it is left again unless this succeeds. */
static nvmlReturn_t lock_card(uint32_t number, simgpu_card **card)
{
    if (!atomic_load(&machine.shared->stopped)) {
        simgpu_reap_sometimes(&machine);
        *card = simgpu_card_lock(&machine, number);
        if (!(*card)->lost)
            return NVML_SUCCESS;
        simgpu_card_unlock(&machine, *card);
    }
    session_leave();
    return NVML_ERROR_GPU_IS_LOST; /* also if the machine was removed while this process used it */
}

nvmlReturn_t card_enter(nvmlDevice_t device, simgpu_card **card)
{
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    if (device >= devices && device < devices + device_count)
        return lock_card(device->card, card);
    session_leave();
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t machine_card_enter(uint32_t number, simgpu_card **card)
{
    nvmlReturn_t result = session_enter();
    return result == NVML_SUCCESS ? lock_card(number, card) : result;
}

void card_leave(simgpu_card *card)
{
    simgpu_card_unlock(&machine, card);
    session_leave();
}

nvmlReturn_t copy_text(const char *text, char *buffer, unsigned length)
{
    NEED(buffer);
    size_t needed = strlen(text) + 1;
    if (needed > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(buffer, text, needed);
    return NVML_SUCCESS;
}

/* The machine's directory. NVIDIA's library has no such symbol, so it identifies the simulated library. */
NVML_API const char *baton_simgpu_directory(void)
{
    if (session_enter() != NVML_SUCCESS)
        return "";
    session_leave();
    return machine.directory;
}

/* A card's modelled seconds per real second, needed to relate NVML's values to a clock. */
NVML_API double baton_simgpu_time_scale(nvmlDevice_t device)
{
    simgpu_card *card;
    if (card_enter(device, &card) != NVML_SUCCESS)
        return 1.0;
    double scale = card->profile.time_scale;
    card_leave(card);
    return scale;
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    result = copy_text(machine.shared->driver_name, version, length);
    session_leave();
    return result;
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    char text[64];
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    snprintf(text, sizeof text, "%u.%s", machine.shared->driver_version / 1000, machine.shared->driver_name);
    session_leave();
    return copy_text(text, version, length);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    NEED(version);
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    *version = (int)machine.shared->driver_version;
    session_leave();
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
    static const struct {
        nvmlReturn_t code;
        const char *text;
    } strings[] = {
        {NVML_SUCCESS, "Success"},
        {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
        {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
        {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
        {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
        {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
        {NVML_ERROR_NOT_FOUND, "Not Found"},
        {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
        {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
        {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
        {NVML_ERROR_TIMEOUT, "Timeout"},
        {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
        {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
        {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
        {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
        {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
        {NVML_ERROR_RESET_REQUIRED, "GPU requires restart"},
        {NVML_ERROR_OPERATING_SYSTEM, "The operating system has blocked the request."},
        {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch."},
        {NVML_ERROR_IN_USE, "In use by another client"},
        {NVML_ERROR_MEMORY, "Insufficient Memory"},
        {NVML_ERROR_NO_DATA, "No data"},
        {NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "Operation not supported on vGPU with ECC enabled"},
        {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
        {NVML_ERROR_FREQ_NOT_SUPPORTED, "Frequency not supported"},
        {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
        {NVML_ERROR_DEPRECATED, "Deprecated"},
        {NVML_ERROR_NOT_READY, "System is not ready"},
        {NVML_ERROR_GPU_NOT_FOUND, "No GPUs were found"},
        {NVML_ERROR_INVALID_STATE, "Resource not in correct state"},
        {NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, "Reset type not supported"},
    };
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        if (strings[i].code == result)
            return strings[i].text;
    return "Unknown Error";
}
