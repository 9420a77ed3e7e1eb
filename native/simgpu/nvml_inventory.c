/* The cards and their fixed properties: handles, names, identities, PCI. */
#include "nvml_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { UUID_TEXT = 48, BUS_TEXT = 32 };

static void uuid_text(const simgpu_profile *profile, char text[UUID_TEXT])
{
    const uint8_t *u = profile->uuid;
    snprintf(text, UUID_TEXT, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

void pci_fill(const simgpu_profile *profile, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", profile->pci_domain & 0xffff,
             profile->pci_bus & 0xff, profile->pci_device & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", profile->pci_domain, profile->pci_bus & 0xff,
             profile->pci_device & 0xff);
    pci->domain = profile->pci_domain;
    pci->bus = profile->pci_bus;
    pci->device = profile->pci_device;
    pci->pciDeviceId = profile->pci_device_id;
    pci->pciSubSystemId = profile->pci_subsystem_id;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    NEED(count);
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    *count = session_card_count();
    session_leave();
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    NEED(device);
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    uint32_t count = session_card_count();
    session_leave();
    NEED(index < count);
    simgpu_card *card;
    result = card_enter(session_device(index), &card);
    if (result != NVML_SUCCESS)
        return result;
    card_leave(card);
    *device = session_device(index);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* The first card whose profile satisfies `matches`. */
static nvmlReturn_t handle_where(bool (*matches)(const simgpu_profile *, const void *), const void *wanted,
                                 nvmlDevice_t *device)
{
    NEED(device && wanted);
    nvmlReturn_t result = session_enter();
    if (result != NVML_SUCCESS)
        return result;
    uint32_t count = session_card_count(), index = 0;
    while (index < count && !matches(session_profile(index), wanted))
        index++;
    session_leave();
    if (index == count)
        return NVML_ERROR_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static bool has_uuid(const simgpu_profile *profile, const void *wanted)
{
    char text[UUID_TEXT];
    uuid_text(profile, text);
    return strcasecmp(text, wanted) == 0;
}

static bool has_uuid_bytes(const simgpu_profile *profile, const void *wanted)
{
    return memcmp(profile->uuid, wanted, sizeof profile->uuid) == 0;
}

static bool has_serial(const simgpu_profile *profile, const void *wanted)
{
    return strcmp(profile->serial, wanted) == 0;
}

static bool has_bus_id(const simgpu_profile *profile, const void *wanted)
{
    const unsigned *address = wanted;
    return profile->pci_domain == address[0] && profile->pci_bus == address[1] && profile->pci_device == address[2];
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return handle_where(has_uuid, uuid, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_v1_t *uuid, nvmlDevice_t *device)
{
    enum { ASCII = 1, BINARY = 2 };
    NEED(uuid && device);
    char text[sizeof uuid->value.str + 1] = "";
    switch (uuid->type) {
    case ASCII:
        memcpy(text, uuid->value.str, sizeof uuid->value.str);
        return handle_where(has_uuid, text, device);
    case BINARY:
        return handle_where(has_uuid_bytes, uuid->value.bytes, device);
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return handle_where(has_serial, serial, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    unsigned address[3] = {0, 0, 0}, function = 0;
    NEED(bus_id);
    if (sscanf(bus_id, "%x:%x:%x.%x", &address[0], &address[1], &address[2], &function) < 3) {
        address[0] = 0;
        NEED(sscanf(bus_id, "%x:%x.%x", &address[1], &address[2], &function) >= 2);
    }
    return function == 0 ? handle_where(has_bus_id, address, device) : NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    NEED(index);
    WITH_CARD(device, card, *index = device->index);
}

NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    NEED(minor);
    WITH_CARD(device, card, *minor = device->card);
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    WITH_CARD(device, card, result = copy_text(card->profile.name, name, length));
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    char text[UUID_TEXT];
    WITH_CARD(device, card, uuid_text(&card->profile, text); result = copy_text(text, uuid, length));
}

NVML_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    WITH_CARD(device, card, const char *known = card->profile.serial;
              result = *known ? copy_text(known, serial, length) : NVML_ERROR_NOT_SUPPORTED);
}

NVML_API nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned *board)
{
    NEED(board);
    WITH_CARD(device, card, const simgpu_profile *p = &card->profile;
              *board = p->pci_domain << 16 | p->pci_bus << 8 | p->pci_device);
}

NVML_API nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned *multi)
{
    NEED(multi);
    WITH_CARD(device, card, *multi = 0);
}

NVML_API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length)
{
    char text[32];
    WITH_CARD(device, card, snprintf(text, sizeof text, "%02X.00.00.00.01", 0x80 + card->profile.compute_major * 2);
              result = copy_text(text, version, length));
}

static unsigned brand_number(const char *brand)
{
    static const struct {
        const char *name;
        unsigned number;
    } brands[] = {{"quadro", 1}, {"tesla", 2}, {"geforce", 5}, {"nvidia", 14}};
    for (size_t i = 0; i < sizeof brands / sizeof *brands; i++)
        if (strcasecmp(brand, brands[i].name) == 0)
            return brands[i].number;
    return 0;
}

NVML_API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *brand)
{
    NEED(brand);
    WITH_CARD(device, card, *brand = brand_number(card->profile.brand));
}

static unsigned architecture_number(unsigned capability)
{
    enum { PASCAL = 4, VOLTA = 5, TURING = 6, AMPERE = 7, ADA = 8, HOPPER = 9, BLACKWELL = 10 };
    if (capability >= 100)
        return BLACKWELL;
    if (capability >= 90)
        return HOPPER;
    if (capability == 89)
        return ADA;
    if (capability >= 80)
        return AMPERE;
    if (capability >= 75)
        return TURING;
    return capability >= 70 ? VOLTA : PASCAL;
}

NVML_API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture)
{
    NEED(architecture);
    WITH_CARD(device, card,
              *architecture = architecture_number(card->profile.compute_major * 10 + card->profile.compute_minor));
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    NEED(major && minor);
    WITH_CARD(device, card, *major = (int)card->profile.compute_major; *minor = (int)card->profile.compute_minor);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    NEED(pci);
    WITH_CARD(device, card, pci_fill(&card->profile, pci));
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci)
{
    enum { DISPLAY_CONTROLLER = 3, THREE_D = 2 };
    nvmlPciInfo_t plain;
    NEED(pci);
    if (pci->version != NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    WITH_CARD(device, card, pci_fill(&card->profile, &plain); pci->domain = plain.domain; pci->bus = plain.bus;
              pci->device = plain.device; pci->pciDeviceId = plain.pciDeviceId;
              pci->pciSubSystemId = plain.pciSubSystemId; pci->baseClass = DISPLAY_CONTROLLER; pci->subClass = THREE_D;
              memcpy(pci->busId, plain.busId, sizeof pci->busId));
}

NVML_API nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, unsigned *type)
{
    enum { PCIE = 2 };
    NEED(type);
    WITH_CARD(device, card, *type = PCIE);
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    NEED(generation);
    WITH_CARD(device, card, *generation = card->profile.link_generation);
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    return nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *width)
{
    NEED(width);
    WITH_CARD(device, card, *width = card->profile.link_width);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned *bits)
{
    NEED(bits);
    WITH_CARD(device, card, *bits = card->profile.memory_bus_bits);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    NEED(mode);
    WITH_CARD(device, card, *mode = 0);
}

NVML_API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
    NEED(mode);
    WITH_CARD(device, card, *mode = NVML_FEATURE_ENABLED);
}

NVML_API nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *mode)
{
    NEED(mode);
    WITH_CARD(device, card, *mode = NVML_FEATURE_DISABLED);
}

NVML_API nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *active)
{
    return nvmlDeviceGetDisplayMode(device, active);
}

NVML_API nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode)
{
    NEED(mode);
    WITH_CARD(device, card, *mode = 0);
}

/* MIG is supported if the card supports it, and always off: the machine does not model slices. */
NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    NEED(current && pending);
    *current = *pending = NVML_FEATURE_DISABLED;
    WITH_CARD(device, card, result = card->profile.mig_capable ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    NEED(count);
    WITH_CARD(device, card, *count = 0);
}

NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
    NEED(mig);
    WITH_CARD(device, card, result = card->profile.mig_capable ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED);
}

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
    NEED(is_mig);
    WITH_CARD(device, card, *is_mig = 0);
}

/* Driver models exist only on Windows; NVIDIA's library for Linux has this call and returns this result. */
NVML_API nvmlReturn_t nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    WITH_CARD(device, card, result = NVML_ERROR_NOT_SUPPORTED);
}

NVML_API nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    return nvmlDeviceGetDriverModel_v2(device, current, pending);
}
