/* A card's health: ECC, retired pages and remapped rows, and the numbered field values, which repeat much of the rest.
 *
 * An uncorrectable error counts in device memory. On older cards it retires a page, from Ampere on it remaps a row;
 * both stay pending until a reset, which is what healing the card does.
 */
#include "nvml_session.h"

#include <math.h>
#include <string.h>
#include <time.h>

unsigned temperature_reading(const simgpu_card *card);

enum { CORRECTED = 0, UNCORRECTED = 1, ERROR_TYPES = 2, VOLATILE = 0, AGGREGATE = 1, COUNTER_TYPES = 2 };
enum { ROW_REMAPPING_SINCE = 8 }; /* major compute capability */

static unsigned long long ecc_count(const simgpu_card *card, unsigned error, unsigned counter)
{
    if (error == CORRECTED)
        return card->ecc_corrected;
    return card->ecc_uncorrectable + (counter == AGGREGATE ? card->ecc_uncorrectable_past : 0);
}

static bool remaps_rows(const simgpu_card *card)
{
    return card->profile.compute_major >= ROW_REMAPPING_SINCE;
}

NVML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    NEED(current && pending);
    WITH_CARD(device, card, *current = *pending = card->profile.ecc ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED);
}

NVML_API nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *mode)
{
    unsigned pending;
    return nvmlDeviceGetEccMode(device, mode, &pending);
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned error, unsigned counter,
                                                  unsigned long long *count)
{
    NEED(count && error < ERROR_TYPES && counter < COUNTER_TYPES);
    WITH_CARD(device, card, *count = ecc_count(card, error, counter);
              result = card->profile.ecc ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned error, unsigned counter,
                                                      unsigned location, unsigned long long *count)
{
    enum { L1, L2, DEVICE_MEMORY, LOCATIONS = 8 };
    NEED(count && error < ERROR_TYPES && counter < COUNTER_TYPES && location < LOCATIONS);
    WITH_CARD(device, card, *count = location == DEVICE_MEMORY ? ecc_count(card, error, counter) : 0;
              result = card->profile.ecc ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

NVML_API nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned error, unsigned counter,
                                                     nvmlEccErrorCounts_t *counts)
{
    NEED(counts && error < ERROR_TYPES && counter < COUNTER_TYPES);
    memset(counts, 0, sizeof *counts);
    WITH_CARD(device, card, counts->deviceMemory = ecc_count(card, error, counter);
              result = card->profile.ecc ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

NVML_API nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, unsigned counter)
{
    NEED(counter < COUNTER_TYPES);
    WITH_CARD(device, card, card->ecc_corrected = 0; card->ecc_uncorrectable = 0;
              if (counter == AGGREGATE) card->ecc_uncorrectable_past = 0);
}

/* Addresses are made up, one page for each error, downwards from the end of the memory. */
NVML_API nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count,
                                                   unsigned long long *addresses, unsigned long long *timestamps)
{
    enum { SINGLE_BIT, DOUBLE_BIT, CAUSES, PAGE = 65536 };
    NEED(count && cause < CAUSES);
    simgpu_card *card;
    nvmlReturn_t result = card_enter(device, &card);
    if (result != NVML_SUCCESS)
        return result;
    bool supported = card->profile.ecc && !remaps_rows(card);
    unsigned found = cause == DOUBLE_BIT ? (unsigned)ecc_count(card, UNCORRECTED, AGGREGATE) : 0;
    unsigned long long end = card->profile.memory_bytes;
    card_leave(card);
    if (!supported)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned room = addresses == NULL ? 0 : *count;
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        addresses[i] = end - (i + 1ULL) * PAGE;
        if (timestamps != NULL)
            timestamps[i] = (unsigned long long)time(NULL);
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count,
                                                unsigned long long *addresses)
{
    return nvmlDeviceGetRetiredPages_v2(device, cause, count, addresses, NULL);
}

NVML_API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
    NEED(pending);
    WITH_CARD(device, card, *pending = card->ecc_uncorrectable > 0;
              result = card->profile.ecc && !remaps_rows(card) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                                unsigned *pending, unsigned *failed)
{
    NEED(corrected && uncorrected && pending && failed);
    WITH_CARD(device, card, *corrected = 0; *uncorrected = (unsigned)ecc_count(card, UNCORRECTED, AGGREGATE);
              *pending = card->ecc_uncorrectable > 0; *failed = 0;
              result = card->profile.ecc && remaps_rows(card) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

NVML_API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    enum { BANKS = 640 };
    NEED(values);
    memset(values, 0, sizeof *values);
    WITH_CARD(device, card, values->high = (unsigned)fmin(BANKS, ecc_count(card, UNCORRECTED, AGGREGATE));
              values->max = BANKS - values->high;
              result = card->profile.ecc && remaps_rows(card) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

/* Slowdowns are not accumulated, so every kind of violation has a duration of zero. */
NVML_API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *violation)
{
    enum { POLICIES = 12 };
    NEED(violation && policy < POLICIES);
    WITH_CARD(device, card, violation->referenceTime = card->advanced_ns; violation->violationTime = 0);
}

static nvmlReturn_t put_uint(nvmlFieldValue_t *field, unsigned value)
{
    field->valueType = NVML_VALUE_UINT;
    field->value.ullVal = 0;
    field->value.uiVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t put_ull(nvmlFieldValue_t *field, unsigned long long value)
{
    field->valueType = NVML_VALUE_ULL;
    field->value.ullVal = value;
    return NVML_SUCCESS;
}

static unsigned recovery_action(const simgpu_card *card)
{
    enum { NONE, GPU_RESET };
    return card->reset_xid != 0 ? GPU_RESET : NONE;
}

static nvmlReturn_t answer_field(const simgpu_card *card, nvmlFieldValue_t *field)
{
    enum {
        ECC_CURRENT = 1, ECC_PENDING, SBE_VOLATILE, DBE_VOLATILE, SBE_AGGREGATE, DBE_AGGREGATE,
        SBE_VOLATILE_DEVICE = 11, DBE_VOLATILE_DEVICE, SBE_AGGREGATE_DEVICE = 22, DBE_AGGREGATE_DEVICE,
        RETIRED_SBE = 29, RETIRED_DBE, RETIRED_PENDING,
        MEMORY_TEMPERATURE = 82, TOTAL_ENERGY, NVLINK_SPEED_COMMON = 90, NVLINK_LINKS,
        PCIE_REPLAYS = 94, REMAPPED_CORRECTED = 142, REMAPPED_UNCORRECTED, REMAPPED_PENDING, REMAPPED_FAILURE,
        NVLINK_SPEED = 164, NVLINK_STATE, POWER_AVERAGE = 185, POWER_INSTANT, POWER_MIN, POWER_MAX, POWER_DEFAULT,
        POWER_CURRENT, POWER_REQUESTED = 192,
        PCIE_SENT_BYTES = 197, PCIE_RECEIVED_BYTES, RECOVERY_ACTION = 230,
    };
    const simgpu_profile *profile = &card->profile;
    const bool rows = remaps_rows(card);
    switch (field->fieldId) {
    case ECC_CURRENT:
    case ECC_PENDING:
        return put_uint(field, profile->ecc);
    case PCIE_SENT_BYTES:
        return put_ull(field, card->copied_out_bytes + card->paged_out_bytes);
    case PCIE_RECEIVED_BYTES:
        return put_ull(field, card->copied_in_bytes + card->paged_in_bytes);
    case PCIE_REPLAYS:
        return put_uint(field, 0);
    case MEMORY_TEMPERATURE:
        return put_uint(field, temperature_reading(card));
    case TOTAL_ENERGY:
        return put_ull(field, (unsigned long long)card->sensors.energy_mj);
    case POWER_AVERAGE:
    case POWER_INSTANT:
        return put_uint(field, (unsigned)lround(simgpu_sensors_power_w(card) * 1e3));
    case POWER_MIN:
        return put_uint(field, profile->power_min_mw);
    case POWER_MAX:
        return put_uint(field, profile->power_max_mw);
    case POWER_DEFAULT:
    case POWER_CURRENT:
    case POWER_REQUESTED:
        return put_uint(field, profile->power_limit_mw);
    case RECOVERY_ACTION:
        return put_uint(field, recovery_action(card));
    case NVLINK_LINKS:
        return put_uint(field, profile->nvlink_count);
    case NVLINK_SPEED_COMMON:
    case NVLINK_SPEED:
        return profile->nvlink_count ? put_uint(field, (unsigned)(profile->nvlink_bytes_per_s / 1e6))
                                     : NVML_ERROR_NOT_SUPPORTED;
    case NVLINK_STATE:
        if (field->scopeId >= profile->nvlink_count)
            return NVML_ERROR_INVALID_ARGUMENT;
        return put_uint(field, profile->nvlink_peer[field->scopeId] >= 0);
    default:
        break;
    }
    if (!profile->ecc)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->fieldId) {
    case SBE_VOLATILE:
    case SBE_VOLATILE_DEVICE:
        return put_ull(field, ecc_count(card, CORRECTED, VOLATILE));
    case DBE_VOLATILE:
    case DBE_VOLATILE_DEVICE:
        return put_ull(field, ecc_count(card, UNCORRECTED, VOLATILE));
    case SBE_AGGREGATE:
    case SBE_AGGREGATE_DEVICE:
        return put_ull(field, ecc_count(card, CORRECTED, AGGREGATE));
    case DBE_AGGREGATE:
    case DBE_AGGREGATE_DEVICE:
        return put_ull(field, ecc_count(card, UNCORRECTED, AGGREGATE));
    case RETIRED_SBE:
        return rows ? NVML_ERROR_NOT_SUPPORTED : put_uint(field, 0);
    case RETIRED_DBE:
        return rows ? NVML_ERROR_NOT_SUPPORTED : put_uint(field, (unsigned)ecc_count(card, UNCORRECTED, AGGREGATE));
    case RETIRED_PENDING:
        return rows ? NVML_ERROR_NOT_SUPPORTED : put_uint(field, card->ecc_uncorrectable > 0);
    case REMAPPED_CORRECTED:
    case REMAPPED_FAILURE:
        return rows ? put_uint(field, 0) : NVML_ERROR_NOT_SUPPORTED;
    case REMAPPED_UNCORRECTED:
        return rows ? put_uint(field, (unsigned)ecc_count(card, UNCORRECTED, AGGREGATE)) : NVML_ERROR_NOT_SUPPORTED;
    case REMAPPED_PENDING:
        return rows ? put_uint(field, card->ecc_uncorrectable > 0) : NVML_ERROR_NOT_SUPPORTED;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    NEED(fields && count > 0);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    WITH_CARD(
        device, card, for (int i = 0; i < count; i++) {
            fields[i].timestamp = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
            fields[i].latencyUsec = 0;
            fields[i].nvmlReturn = answer_field(card, &fields[i]);
        });
}
