/* The placement of the cards: NUMA nodes, nearby CPUs, paths between cards, NVLink.
 *
 * Cards of one NUMA node share a host bridge; cards of different nodes are connected at system level. The CPUs of a
 * node come from the kernel; a node that this computer does not have gets all CPUs, so that programs that pin
 * themselves still run.
 */
#include "nvml_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void pci_fill(const simgpu_profile *profile, nvmlPciInfo_t *pci);

enum { WORD_BITS = 64, SAME_CARD = 0, HOST_BRIDGE = 30, SYSTEM = 50 };

NVML_API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
    NEED(node);
    WITH_CARD(device, card, *node = (unsigned)card->profile.numa_node;
              result = card->profile.numa_node < 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *nodes,
                                                  unsigned scope)
{
    enum { SCOPES = 2 };
    NEED(nodes && words > 0 && scope < SCOPES);
    memset(nodes, 0, words * sizeof *nodes);
    simgpu_card *card;
    nvmlReturn_t result = card_enter(device, &card);
    if (result != NVML_SUCCESS)
        return result;
    int node = card->profile.numa_node;
    card_leave(card);
    if (node < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if ((unsigned)node / WORD_BITS >= words)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    nodes[node / WORD_BITS] |= 1UL << (node % WORD_BITS);
    return NVML_SUCCESS;
}

static void set_cpus(unsigned long *cpus, unsigned words, unsigned from, unsigned to)
{
    for (unsigned cpu = from; cpu <= to && cpu / WORD_BITS < words; cpu++)
        cpus[cpu / WORD_BITS] |= 1UL << (cpu % WORD_BITS);
}

/* Parses a list such as 0-3,8,10-11, in the kernel's format. */
static bool read_cpus(int node, unsigned long *cpus, unsigned words)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool any = false;
    unsigned from, to;
    while (fscanf(file, "%u", &from) == 1) {
        int separator = fgetc(file);
        to = from;
        if (separator == '-' && fscanf(file, "%u", &to) == 1)
            separator = fgetc(file);
        set_cpus(cpus, words, from, to);
        any = true;
        if (separator != ',')
            break;
    }
    fclose(file);
    return any;
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *cpus,
                                                          unsigned scope)
{
    NEED(cpus && words > 0);
    memset(cpus, 0, words * sizeof *cpus);
    simgpu_card *card;
    nvmlReturn_t result = card_enter(device, &card);
    if (result != NVML_SUCCESS)
        return result;
    int node = card->profile.numa_node;
    card_leave(card);
    if (node < 0 || !read_cpus(node, cpus, words))
        set_cpus(cpus, words, 0, (unsigned)sysconf(_SC_NPROCESSORS_CONF) - 1);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *cpus)
{
    return nvmlDeviceGetCpuAffinityWithinScope(device, words, cpus, 0);
}

/* The profiles for a query about two cards; neither may be lost. */
static nvmlReturn_t two_profiles(nvmlDevice_t first, nvmlDevice_t second, const simgpu_profile **a,
                                 const simgpu_profile **b)
{
    nvmlDevice_t ends[2] = {first, second};
    const simgpu_profile *profiles[2];
    for (int i = 0; i < 2; i++) {
        simgpu_card *card;
        nvmlReturn_t result = card_enter(ends[i], &card);
        if (result != NVML_SUCCESS)
            return result;
        profiles[i] = &card->profile;
        card_leave(card);
    }
    *a = profiles[0];
    *b = profiles[1];
    return NVML_SUCCESS;
}

static unsigned ancestor(const simgpu_profile *a, const simgpu_profile *b)
{
    if (a == b)
        return SAME_CARD;
    return a->numa_node == b->numa_node ? HOST_BRIDGE : SYSTEM;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned *level)
{
    const simgpu_profile *a, *b;
    NEED(level);
    nvmlReturn_t result = two_profiles(first, second, &a, &b);
    if (result == NVML_SUCCESS)
        *level = ancestor(a, b);
    return result;
}

/* With a null array, returns only the count; the bindings call it twice. */
NVML_API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count,
                                                       nvmlDevice_t *nearest)
{
    NEED(count);
    simgpu_card *card;
    nvmlReturn_t result = card_enter(device, &card);
    if (result != NVML_SUCCESS)
        return result;
    unsigned found = 0;
    for (uint32_t i = 0; i < session_card_count(); i++) {
        const simgpu_profile *other = session_profile(i);
        if (other == &card->profile || ancestor(&card->profile, other) != level)
            continue;
        if (nearest != NULL && found < *count)
            nearest[found] = session_device(i);
        found++;
    }
    card_leave(card);
    if (nearest != NULL && found > *count)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    *count = found;
    return result;
}

NVML_API nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *near_cpu)
{
    enum { WORDS = 128 };
    NEED(count && cpu < WORDS * WORD_BITS);
    unsigned cards;
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    cards = session_card_count();
    session_leave();
    unsigned found = 0;
    for (unsigned i = 0; i < cards; i++) {
        unsigned long cpus[WORDS];
        if (nvmlDeviceGetCpuAffinity(session_device(i), WORDS, cpus) != NVML_SUCCESS)
            continue;
        if (!(cpus[cpu / WORD_BITS] >> (cpu % WORD_BITS) & 1))
            continue;
        if (near_cpu != NULL && found < *count)
            near_cpu[found] = session_device(i);
        found++;
    }
    if (near_cpu != NULL && found > *count)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    *count = found;
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second, int *same)
{
    const simgpu_profile *a, *b;
    NEED(same);
    nvmlReturn_t result = two_profiles(first, second, &a, &b);
    if (result == NVML_SUCCESS)
        *same = a == b;
    return result;
}

static bool linked(const simgpu_profile *profile, uint32_t peer)
{
    for (uint32_t link = 0; link < profile->nvlink_count; link++)
        if (profile->nvlink_peer[link] == (int32_t)peer)
            return true;
    return false;
}

NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned capability,
                                             unsigned *status)
{
    enum { READ, WRITE, NVLINK, ATOMICS, PROP, OK = 0, NOT_SUPPORTED = 5 };
    const simgpu_profile *a, *b;
    NEED(status && capability <= PROP);
    nvmlReturn_t result = two_profiles(first, second, &a, &b);
    if (result != NVML_SUCCESS)
        return result;
    NEED(first != second);
    bool nvlink = linked(a, second->card), near = ancestor(a, b) == HOST_BRIDGE;
    switch (capability) {
    case READ:
    case WRITE:
        *status = nvlink || near ? OK : NOT_SUPPORTED;
        break;
    case PROP:
        *status = near ? OK : NOT_SUPPORTED;
        break;
    default:
        *status = nvlink ? OK : NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

/* Begins a query about one link: returns the peer's index, or -1 for an unconnected link. */
static nvmlReturn_t link_enter(nvmlDevice_t device, unsigned link, simgpu_card **card, int32_t *peer)
{
    NEED(link < SIMGPU_MAX_NVLINKS);
    nvmlReturn_t result = card_enter(device, card);
    if (result != NVML_SUCCESS)
        return result;
    if (link >= (*card)->profile.nvlink_count) {
        result = (*card)->profile.nvlink_count == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
        card_leave(*card);
        return result;
    }
    *peer = (*card)->profile.nvlink_peer[link];
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    simgpu_card *card;
    int32_t peer;
    NEED(active);
    nvmlReturn_t result = link_enter(device, link, &card, &peer);
    if (result != NVML_SUCCESS)
        return result;
    card_leave(card);
    /* A link to a card that has fallen off the bus is down at this end too. */
    *active = peer >= 0 && machine_card_enter((uint32_t)peer, &card) == NVML_SUCCESS;
    if (*active)
        card_leave(card);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    simgpu_card *card;
    int32_t peer;
    NEED(pci);
    nvmlReturn_t result = link_enter(device, link, &card, &peer);
    if (result != NVML_SUCCESS)
        return result;
    if (peer < 0)
        result = NVML_ERROR_NOT_SUPPORTED;
    else
        pci_fill(&session_handle()->shared->cards[peer].profile, pci);
    card_leave(card);
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type)
{
    enum { GPU = 0, UNKNOWN = 0xFF };
    simgpu_card *card;
    int32_t peer;
    NEED(type);
    nvmlReturn_t result = link_enter(device, link, &card, &peer);
    if (result != NVML_SUCCESS)
        return result;
    *type = peer >= 0 ? GPU : UNKNOWN;
    card_leave(card);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    /* NVML counts 2.2 and 3.1 as separate versions, so its numbers are ahead of the generation. */
    static const unsigned numbers[] = {0, 1, 2, 4, 6, 7, 8};
    simgpu_card *card;
    int32_t peer;
    NEED(version);
    nvmlReturn_t result = link_enter(device, link, &card, &peer);
    if (result != NVML_SUCCESS)
        return result;
    uint32_t generation = card->profile.nvlink_version;
    *version = generation < sizeof numbers / sizeof *numbers ? numbers[generation] : 0;
    card_leave(card);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, unsigned capability,
                                                    unsigned *value)
{
    enum { P2P, SYSMEM_ACCESS, P2P_ATOMICS, SYSMEM_ATOMICS, SLI_BRIDGE, VALID, CAPABILITIES };
    simgpu_card *card;
    int32_t peer;
    NEED(value && capability < CAPABILITIES);
    nvmlReturn_t result = link_enter(device, link, &card, &peer);
    if (result != NVML_SUCCESS)
        return result;
    *value = (capability == P2P || capability == P2P_ATOMICS || capability == VALID) && peer >= 0;
    card_leave(card);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter,
                                                      unsigned long long *value)
{
    enum { COUNTERS = 5 };
    simgpu_card *card;
    int32_t peer;
    NEED(value && counter < COUNTERS);
    nvmlReturn_t result = link_enter(device, link, &card, &peer);
    if (result != NVML_SUCCESS)
        return result;
    *value = 0;
    card_leave(card);
    return NVML_SUCCESS;
}
