/* Several threads call all of NVML at once, while faults happen and NVML is initialised and shut down around them.
 *
 * It checks little; the sanitizers in the library do the checking. Exits with 0 and "done", or with the first result
 * that is neither success nor an error code that is allowed at that moment.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_abi.h"

enum { ROUNDS = 150, CARDS = 2, XIDS = 40 };

static void *library;

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "no symbol %s\n", name);
        exit(1);
    }
    return found;
}

#define CALL(name, ...) ((nvmlReturn_t(*)())symbol(#name))(__VA_ARGS__)

static void expect(nvmlReturn_t result, const char *what)
{
    if (result == NVML_SUCCESS || result == NVML_ERROR_NOT_SUPPORTED || result == NVML_ERROR_GPU_IS_LOST ||
        result == NVML_ERROR_NOT_FOUND || result == NVML_ERROR_INSUFFICIENT_SIZE)
        return;
    fprintf(stderr, "%s answered %d\n", what, (int)result);
    exit(1);
}

#define ASK(name, ...) expect(CALL(name, __VA_ARGS__), #name)

static void ask_card(nvmlDevice_t card, nvmlDevice_t other)
{
    char text[96];
    unsigned a, b, c, d, count = 8, clocks[512];
    unsigned long long wide, pages[8], times[8];
    unsigned long cpus[4];
    nvmlMemory_t memory;
    nvmlMemory_v2_t memory2 = {.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)};
    nvmlUtilization_t rates;
    nvmlPciInfo_t pci;
    nvmlProcessInfo_v2_t processes[8];
    nvmlProcessUtilizationSample_t samples[8];
    nvmlTemperature_v1_t temperature = {.version = NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1)};
    nvmlFieldValue_t fields[310];
    memset(fields, 0, sizeof fields);
    for (unsigned i = 0; i < 310; i++)
        fields[i].fieldId = i;
    ASK(nvmlDeviceGetName, card, text, (unsigned)sizeof text);
    ASK(nvmlDeviceGetUUID, card, text, (unsigned)sizeof text);
    ASK(nvmlDeviceGetName, card, text, 3u);
    ASK(nvmlDeviceGetPciInfo_v3, card, &pci);
    ASK(nvmlDeviceGetMemoryInfo, card, &memory);
    ASK(nvmlDeviceGetMemoryInfo_v2, card, &memory2);
    ASK(nvmlDeviceGetUtilizationRates, card, &rates);
    ASK(nvmlDeviceGetTemperature, card, 0u, &a);
    ASK(nvmlDeviceGetTemperatureV, card, &temperature);
    ASK(nvmlDeviceGetPowerUsage, card, &a);
    ASK(nvmlDeviceGetTotalEnergyConsumption, card, &wide);
    ASK(nvmlDeviceGetClockInfo, card, 1u, &a);
    ASK(nvmlDeviceGetFanSpeed, card, &a);
    ASK(nvmlDeviceGetSupportedPerformanceStates, card, clocks, (unsigned)(16 * sizeof *clocks));
    a = 512;
    ASK(nvmlDeviceGetSupportedGraphicsClocks, card, 1593u, &a, clocks);
    ASK(nvmlDeviceGetComputeRunningProcesses_v3, card, &count, processes);
    count = 8;
    ASK(nvmlDeviceGetProcessUtilization, card, samples, &count, 0ULL);
    ASK(nvmlDeviceGetFieldValues, card, 310, fields);
    ASK(nvmlDeviceGetCpuAffinity, card, 4u, cpus);
    ASK(nvmlDeviceGetMemoryAffinity, card, 4u, cpus, 0u);
    ASK(nvmlDeviceGetTopologyCommonAncestor, card, other, &a);
    ASK(nvmlDeviceGetP2PStatus, card, other, 2u, &a);
    for (unsigned link = 0; link < 12; link++)
        ASK(nvmlDeviceGetNvLinkState, card, link, &a);
    count = 8;
    ASK(nvmlDeviceGetRetiredPages_v2, card, 1u, &count, pages, times);
    ASK(nvmlDeviceGetRemappedRows, card, &a, &b, &c, &d);
    ASK(nvmlDeviceGetPcieThroughput, card, 0u, &a);
}

static void *monitor(void *unused)
{
    nvmlDevice_t cards[CARDS];
    for (int round = 0; round < ROUNDS; round++) {
        unsigned known = 0;
        ASK(nvmlInit_v2);
        for (unsigned i = 0; i < CARDS; i++)
            known += CALL(nvmlDeviceGetHandleByIndex_v2, i, &cards[i]) == NVML_SUCCESS;
        if (known == CARDS) {
            ask_card(cards[0], cards[1]);
            ask_card(cards[1], cards[0]);
        }
        ASK(nvmlShutdown);
    }
    return NULL;
}

/* Waits until every injected Xid below 1000 has arrived, in order. */
static void *listen(void *set)
{
    for (unsigned long long expected = 900; expected < 900 + XIDS;) {
        nvmlEventData_t data;
        nvmlReturn_t result = CALL(nvmlEventSetWait_v2, set, &data, 30000u);
        if (result != NVML_SUCCESS) {
            fprintf(stderr, "waiting answered %d\n", (int)result);
            exit(1);
        }
        if (data.eventType != NVML_EVENT_XID_CRITICAL || data.eventData < 900)
            continue;
        if (data.eventData != expected++) {
            fprintf(stderr, "Xid %llu arrived out of order\n", data.eventData);
            exit(1);
        }
    }
    return NULL;
}

static void inject(const char *words)
{
    char error[256] = "";
    int (*call)(const char *, const char *, char *, size_t) = symbol("simgpu_inject");
    if (call(NULL, words, error, sizeof error) != 0) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
}

int main(int count, char **words)
{
    pthread_t monitors[2], listener;
    nvmlDevice_t card;
    void *set;
    library = dlopen(count > 1 ? words[1] : "libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    ASK(nvmlInit_v2);
    ASK(nvmlEventSetCreate, &set);
    ASK(nvmlDeviceGetHandleByIndex_v2, 0u, &card);
    ASK(nvmlDeviceRegisterEvents, card, 11ULL, set);
    pthread_create(&listener, NULL, listen, set);
    for (int i = 0; i < 2; i++)
        pthread_create(&monitors[i], NULL, monitor, NULL);
    for (int i = 0; i < XIDS; i++) {
        char words_of_xid[64];
        snprintf(words_of_xid, sizeof words_of_xid, "card=0 fault=xid xid=%d", 900 + i);
        inject(words_of_xid);
        inject("card=1 fault=lost");
        inject("card=0 fault=ecc");
        inject("card=0 fault=heal");
        inject("card=1 fault=heal");
    }
    pthread_join(listener, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(monitors[i], NULL);
    ASK(nvmlEventSetFree, set);
    ASK(nvmlShutdown);
    printf("done\n");
    return 0;
}
