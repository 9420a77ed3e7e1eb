/* Devices: the properties that a card reports. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const simgpu_profile *profile_of(CUdevice device)
{
    return &driver_card(driver.cards[device])->profile;
}

CUDA_API CUresult cuDeviceGetCount(int *count)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS || count == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    *count = (int)driver.card_count;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult checked = device_check(ordinal);
    if (checked != CUDA_SUCCESS || device == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || name == NULL || length <= 0)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", profile_of(device)->name);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || uuid == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, profile_of(device)->uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

CUDA_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || bytes == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    *bytes = profile_of(device)->memory_bytes;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || major == NULL || minor == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    *major = (int)profile_of(device)->compute_major;
    *minor = (int)profile_of(device)->compute_minor;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || text == NULL || length <= 0)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    const simgpu_profile *profile = profile_of(device);
    snprintf(text, (size_t)length, "%04x:%02x:%02x.0", profile->pci_domain, profile->pci_bus, profile->pci_device);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    CUresult ready = driver_ready();
    unsigned int domain = 0, bus, slot;
    if (ready != CUDA_SUCCESS || device == NULL || text == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (uint32_t index = 0; index < driver.card_count; index++) {
        const simgpu_profile *profile = profile_of((CUdevice)index);
        if (profile->pci_domain == domain && profile->pci_bus == bus && profile->pci_device == slot) {
            *device = (CUdevice)index;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUDA_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult checked = device_check(device);
    if (checked == CUDA_SUCCESS)
        checked = device_check(peer);
    if (checked != CUDA_SUCCESS || can == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer)
{
    int can;
    CUresult checked = cuDeviceCanAccessPeer(&can, device, peer);
    if (checked != CUDA_SUCCESS || value == NULL || attribute < 1 || attribute > 5)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    *value = attribute == 2 && can;
    return CUDA_SUCCESS;
}

static int attribute_of(const simgpu_profile *profile, int attribute)
{
    int shared = (int)(profile->shared_kib_per_sm * 1024);
    switch (attribute) {
    case 1: /* threads per block, and block dimensions */
    case 2:
    case 3:
        return 1024;
    case 4:
        return 64;
    case 5:
        return 2147483647;
    case 6: /* grid dimensions */
    case 7:
        return 65535;
    case 8: /* shared memory per block */
        return 48 * 1024;
    case 9: /* constant memory */
        return 64 * 1024;
    case 10:
        return 32;
    case 11:
        return 2147483647;
    case 12: /* registers per block and per SM */
    case 82:
        return 65536;
    case 13:
        return (int)profile->sm_clock_mhz * 1000;
    case 14: /* alignments */
    case 30:
        return 512;
    case 16:
        return (int)profile->sm_count;
    case 21:
    case 22:
    case 23:
        return 131072;
    case 32:
        return (int)profile->ecc;
    case 33:
        return (int)profile->pci_bus;
    case 34:
        return (int)profile->pci_device;
    case 50:
        return (int)profile->pci_domain;
    case 36:
        return (int)profile->memory_clock_mhz * 1000;
    case 37:
        return (int)profile->memory_bus_bits;
    case 38:
        return (int)profile->l2_kib * 1024;
    case 39:
        return (int)profile->threads_per_sm;
    case 40: /* copy engines */
        return 2;
    case 51:
        return 32;
    case 75:
        return (int)profile->compute_major;
    case 76:
        return (int)profile->compute_minor;
    case 81:
        return shared;
    case 87: /* ratio of single to double precision */
        return 2;
    case 97: /* shared memory per block, opt-in */
        return profile->compute_major >= 7 ? shared - 1024 : 48 * 1024;
    case 106:
        return 32;
    case 15: /* abilities: overlap, mapped memory, concurrency, unified addressing, priorities, L1, managed memory, */
    case 19: /* concurrent managed access, pre-emption, cooperative launch, host registration, VMM, pools */
    case 31:
    case 41:
    case 78:
    case 79:
    case 80:
    case 83:
    case 89:
    case 90:
    case 91:
    case 95:
    case 99:
    case 102:
    case 115:
    case 122:
        return 1;
    case 126:
        return 1;
    case 131: /* NUMA node of the card's own memory (none), and of the nearest host memory */
        return -1;
    case 134:
        return profile->numa_node;
    case 139:
        return (int)profile->pci_device_id;
    case 140:
        return (int)profile->pci_subsystem_id;
    default:
        return 0;
    }
}

CUDA_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || value == NULL || attribute < 1 || attribute > 161)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    *value = attribute_of(profile_of(device), attribute);
    return CUDA_SUCCESS;
}

/* The structure from CUDA 2: fourteen integers. */
CUDA_API CUresult cuDeviceGetProperties(int *properties, CUdevice device)
{
    static const int attributes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || properties == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    for (size_t index = 0; index < sizeof attributes / sizeof attributes[0]; index++)
        properties[index] = attribute_of(profile_of(device), attributes[index]);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice device)
{
    CUresult checked = device_check(device);
    if (checked != CUDA_SUCCESS || supported == NULL)
        return checked != CUDA_SUCCESS ? checked : CUDA_ERROR_INVALID_VALUE;
    *supported = 0;
    return CUDA_SUCCESS;
}
