/* The state of a machine as JSON text. */
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char *buffer;
    size_t size, length;
} writer;

static void __attribute__((format(printf, 2, 3))) put(writer *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = out->length < out->size ? out->size - out->length : 0;
    int wrote = vsnprintf(room ? out->buffer + out->length : NULL, room, format, arguments);
    va_end(arguments);
    out->length += wrote < 0 ? 0 : (size_t)wrote;
}

static void put_text(writer *out, const char *text)
{
    put(out, "\"");
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            put(out, "\\%c", *text);
        else if ((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f) /* another process's name may contain any bytes */
            put(out, "\\u%04x", (unsigned char)*text);
        else
            put(out, "%c", *text);
    }
    put(out, "\"");
}

static void put_uuid(writer *out, const uint8_t *uuid)
{
    put(out, "\"GPU-");
    for (int index = 0; index < 16; index++)
        put(out, "%s%02x", index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "", uuid[index]);
    put(out, "\"");
}

static void put_processes(writer *out, simgpu_handle *handle, const simgpu_card *card)
{
    const char *comma = "";
    put(out, "\"processes\":[");
    for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++) {
        const simgpu_tenant *tenant = &card->tenants[slot];
        const simgpu_process *process = &handle->shared->processes[slot];
        if (tenant->generation == 0 || tenant->generation != atomic_load(&process->generation))
            continue;
        put(out, "%s{\"slot\":%u,\"pid\":%d,\"name\":", comma, slot, (int)simgpu_process_pid(handle, slot));
        put_text(out, process->name);
        put(out, ",\"contexts\":%u,\"device_bytes\":%llu,\"managed_bytes\":%llu,\"resident_bytes\":%llu,",
            tenant->contexts, (unsigned long long)tenant->device_bytes, (unsigned long long)tenant->managed_bytes,
            (unsigned long long)tenant->resident_bytes);
        put(out, "\"paged_in_bytes\":%llu,\"paged_out_bytes\":%llu,\"copied_in_bytes\":%llu,\"copied_out_bytes\":%llu,",
            (unsigned long long)tenant->paged_in_bytes, (unsigned long long)tenant->paged_out_bytes,
            (unsigned long long)tenant->copied_in_bytes, (unsigned long long)tenant->copied_out_bytes);
        put(out, "\"kernels\":%llu,\"busy_s\":%.6f}", (unsigned long long)tenant->kernels, tenant->busy_ns / 1e9);
        comma = ",";
    }
    put(out, "]");
}

static void put_xids(writer *out, const simgpu_card *card)
{
    const char *comma = "";
    put(out, ",\"xids\":[");
    for (uint64_t number = card->xid_count > SIMGPU_MAX_XIDS ? card->xid_count - SIMGPU_MAX_XIDS : 0;
         number < card->xid_count; number++) {
        const simgpu_xid *entry = &card->xids[number % SIMGPU_MAX_XIDS];
        put(out, "%s{\"sequence\":%llu,\"xid\":%u}", comma, (unsigned long long)entry->sequence, entry->number);
        comma = ",";
    }
    put(out, "]");
}

static void put_card(writer *out, simgpu_handle *handle, uint32_t index, const simgpu_card *card)
{
    const simgpu_profile *profile = &card->profile;
    uint32_t waiting = 0;
    for (uint32_t lane = 0; lane < SIMGPU_MAX_LANES; lane++)
        if (card->lanes[lane].slot != SIMGPU_NONE)
            waiting += (uint32_t)(card->lanes[lane].tail - card->lanes[lane].run);
    put(out, "{\"index\":%u,\"name\":", index);
    put_text(out, profile->name);
    put(out, ",\"uuid\":");
    put_uuid(out, profile->uuid);
    put(out, ",\"pci\":\"%08x:%02x:%02x.0\",\"memory_bytes\":%llu,\"free_bytes\":%llu,\"device_bytes\":%llu,",
        profile->pci_domain, profile->pci_bus, profile->pci_device, (unsigned long long)profile->memory_bytes,
        (unsigned long long)simgpu_card_free_bytes(card), (unsigned long long)card->device_bytes);
    put(out, "\"managed_bytes\":%llu,\"resident_bytes\":%llu,", (unsigned long long)card->managed_bytes,
        (unsigned long long)card->resident_bytes);
    put(out, "\"paged_in_bytes\":%llu,\"paged_out_bytes\":%llu,\"copied_in_bytes\":%llu,\"copied_out_bytes\":%llu,",
        (unsigned long long)card->paged_in_bytes, (unsigned long long)card->paged_out_bytes,
        (unsigned long long)card->copied_in_bytes, (unsigned long long)card->copied_out_bytes);
    put(out, "\"kernels\":%llu,\"work_waiting\":%u,\"busy_s\":%.6f,\"modelled_s\":%.6f,\"time_scale\":%g,",
        (unsigned long long)card->kernels, waiting, card->busy_ns / 1e9, (double)card->advanced_ns / 1e9,
        profile->time_scale);
    uint64_t since = simgpu_real_ns() - handle->shared->epoch_real_ns;
    put(out, "\"utilization\":%.4f,", simgpu_card_busy_fraction(card, since, 1000000000ULL));
    put(out, "\"health\":\"%s\",\"link_factor\":%g,\"ecc_uncorrectable\":%llu", card->lost ? "lost" : "ok",
        card->link_factor, (unsigned long long)card->ecc_uncorrectable);
    put(out, ",\"reset_xid\":%u,\"hang_next\":%s", card->reset_xid, card->hang_next ? "true" : "false");
    put(out, ",\"temperature_c\":%.1f,\"power_w\":%.1f,\"sm_clock_mhz\":%u", card->sensors.temperature_c,
        simgpu_sensors_power_w(card), simgpu_sensors_sm_clock_mhz(card));
    put_xids(out, card);
    put(out, ",");
    put_processes(out, handle, card);
    put(out, "}");
}

/* All attached processes except the caller, whether or not they use a card. */
static void put_clients(writer *out, simgpu_handle *handle)
{
    const char *comma = "";
    put(out, "\"clients\":[");
    for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++) {
        const simgpu_process *process = &handle->shared->processes[slot];
        if (slot == handle->slot || !atomic_load(&process->used) ||
            !simgpu_process_alive(handle, slot, atomic_load(&process->generation)))
            continue;
        put(out, "%s{\"pid\":%d,\"name\":", comma, (int)simgpu_process_pid(handle, slot));
        put_text(out, process->name);
        put(out, "}");
        comma = ",";
    }
    put(out, "]");
}

SIMGPU_EXPORT long simgpu_status(const char *directory, char *buffer, size_t size, char *error, size_t error_size)
{
    simgpu_handle handle;
    writer out = {buffer, size, 0};
    int result = simgpu_attach(&handle, directory, error, error_size);
    if (result != SIMGPU_OK)
        return result;
    simgpu_card *copy = malloc(sizeof *copy); /* formats a copy, so that other processes do not wait for the lock */
    if (copy == NULL) {
        simgpu_detach(&handle);
        return SIMGPU_FAILED;
    }
    put(&out, "{\"directory\":");
    put_text(&out, handle.directory);
    put(&out, ",\"shape\":");
    put_text(&out, handle.shared->shape);
    put(&out, ",\"driver_version\":%u,\"driver_name\":", handle.shared->driver_version);
    put_text(&out, handle.shared->driver_name);
    put(&out, ",\"cards\":[");
    for (uint32_t index = 0; index < handle.shared->card_count; index++) {
        simgpu_card *card = simgpu_card_lock(&handle, index);
        memcpy(copy, card, sizeof *copy);
        simgpu_card_unlock(&handle, card);
        put(&out, "%s", index ? "," : "");
        put_card(&out, &handle, index, copy);
    }
    put(&out, "],");
    put_clients(&out, &handle);
    put(&out, ",\"unsupported\":{");
    for (uint32_t index = 0; index < SIMGPU_MAX_UNSUPPORTED; index++) {
        const simgpu_unsupported *entry = &handle.shared->unsupported[index];
        if (entry->name[0] == 0)
            break;
        put(&out, "%s", index ? "," : "");
        put_text(&out, entry->name);
        put(&out, ":%llu", (unsigned long long)atomic_load(&entry->count));
    }
    put(&out, "}}");
    free(copy);
    simgpu_detach(&handle);
    return (long)out.length;
}
