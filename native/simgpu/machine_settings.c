/* The settings of a new machine as a list of keys, so that Python needs to know names but no memory layout. */
#include "machine_settings.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef enum { TEXT, UNSIGNED, SIGNED, BYTES, REAL, UUID, PEERS } key_type;

typedef struct {
    const char *name;
    key_type type;
    size_t offset, size;
} key;

#define KEY(field, type) {#field, type, offsetof(simgpu_profile, field), sizeof(((simgpu_profile *)0)->field)}

static const key keys[] = {
    KEY(name, TEXT),
    KEY(brand, TEXT),
    KEY(uuid, UUID),
    KEY(serial, TEXT),
    KEY(pci_domain, UNSIGNED),
    KEY(pci_bus, UNSIGNED),
    KEY(pci_device, UNSIGNED),
    KEY(pci_device_id, UNSIGNED),
    KEY(pci_subsystem_id, UNSIGNED),
    KEY(compute_major, UNSIGNED),
    KEY(compute_minor, UNSIGNED),
    KEY(sm_count, UNSIGNED),
    KEY(threads_per_sm, UNSIGNED),
    KEY(sm_clock_mhz, UNSIGNED),
    KEY(memory_clock_mhz, UNSIGNED),
    KEY(memory_bus_bits, UNSIGNED),
    KEY(l2_kib, UNSIGNED),
    KEY(shared_kib_per_sm, UNSIGNED),
    KEY(link_generation, UNSIGNED),
    KEY(link_width, UNSIGNED),
    KEY(power_limit_mw, UNSIGNED),
    KEY(power_idle_mw, UNSIGNED),
    KEY(temperature_idle_c, UNSIGNED),
    KEY(temperature_busy_c, UNSIGNED),
    KEY(numa_node, SIGNED),
    KEY(nvlink_count, UNSIGNED),
    KEY(nvlink_peer, PEERS),
    KEY(nvlink_version, UNSIGNED),
    KEY(mig_capable, UNSIGNED),
    KEY(ecc, UNSIGNED),
    KEY(sm_clock_idle_mhz, UNSIGNED),
    KEY(sm_clock_base_mhz, UNSIGNED),
    KEY(power_min_mw, UNSIGNED),
    KEY(power_max_mw, UNSIGNED),
    KEY(temperature_slowdown_c, UNSIGNED),
    KEY(temperature_shutdown_c, UNSIGNED),
    KEY(cores_per_sm, UNSIGNED),
    KEY(fan_count, UNSIGNED),
    KEY(thermal_time_constant_s, REAL),
    KEY(nvlink_bytes_per_s, REAL),
    KEY(memory_bytes, BYTES),
    KEY(context_bytes, BYTES),
    KEY(memory_bytes_per_s, REAL),
    KEY(link_bytes_per_s, REAL),
    KEY(paging_bytes_per_s, REAL),
    KEY(kernel_overhead_ns, REAL),
    KEY(wave_ns, REAL),
    KEY(time_scale, REAL),
};

static void default_card(simgpu_profile *card, uint32_t index)
{
    *card = (simgpu_profile){
        .name = "Tesla P100-PCIE-16GB",
        .brand = "Tesla",
        .pci_bus = index + 1,
        .pci_device_id = 0x15f810de,
        .pci_subsystem_id = 0x118f10de,
        .compute_major = 6,
        .sm_count = 56,
        .threads_per_sm = 2048,
        .sm_clock_mhz = 1328,
        .memory_clock_mhz = 715,
        .memory_bus_bits = 4096,
        .l2_kib = 4096,
        .shared_kib_per_sm = 64,
        .link_generation = 3,
        .link_width = 16,
        .power_limit_mw = 250000,
        .power_idle_mw = 27000,
        .temperature_idle_c = 34,
        .temperature_busy_c = 68,
        .ecc = 1,
        .sm_clock_idle_mhz = 405,
        .sm_clock_base_mhz = 1189,
        .power_min_mw = 125000,
        .power_max_mw = 250000,
        .temperature_slowdown_c = 82,
        .temperature_shutdown_c = 85,
        .cores_per_sm = 64,
        .thermal_time_constant_s = 25,
        .memory_bytes = 16384 * SIMGPU_MIB,
        .memory_bytes_per_s = 550e9,
        .link_bytes_per_s = 11.5e9,
        .paging_bytes_per_s = 12e9,
        .kernel_overhead_ns = 3000,
        .wave_ns = 20000,
        .time_scale = 1,
    };
    for (uint32_t link = 0; link < SIMGPU_MAX_NVLINKS; link++)
        card->nvlink_peer[link] = -1;
    if (getrandom(card->uuid, sizeof card->uuid, 0) != (ssize_t)sizeof card->uuid)
        memset(card->uuid, (int)index + 1, sizeof card->uuid);
    snprintf(card->serial, sizeof card->serial, "03207170%05u", index);
}

static bool parse_uuid(uint8_t uuid[16], const char *text)
{
    uint32_t digits = 0;
    uint8_t parsed[16] = {0};
    if (strncmp(text, "GPU-", 4) == 0)
        text += 4;
    for (; *text; text++) {
        if (*text == '-')
            continue;
        if (!isxdigit((unsigned char)*text) || digits == 32)
            return false;
        int digit = isdigit((unsigned char)*text) ? *text - '0' : tolower((unsigned char)*text) - 'a' + 10;
        parsed[digits / 2] = (uint8_t)(parsed[digits / 2] << 4 | digit);
        digits++;
    }
    memcpy(uuid, parsed, sizeof parsed);
    return digits == 32;
}

static bool parse_peers(int32_t *peers, const char *text)
{
    for (uint32_t link = 0; link < SIMGPU_MAX_NVLINKS; link++)
        peers[link] = -1;
    for (uint32_t link = 0; *text; link++) {
        char *end;
        long peer = strtol(text, &end, 10);
        if (end == text || link == SIMGPU_MAX_NVLINKS || peer < -1 || peer >= SIMGPU_MAX_CARDS)
            return false;
        peers[link] = (int32_t)peer;
        text = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != 0)
            return false;
    }
    return true;
}

/* Null if the value is valid, otherwise what was expected. */
static const char *assign(simgpu_profile *card, const key *found, const char *value)
{
    char *field = (char *)card + found->offset, *end;
    switch (found->type) {
    case TEXT:
        if (strlen(value) >= found->size)
            return "a shorter text";
        memset(field, 0, found->size);
        memcpy(field, value, strlen(value));
        return NULL;
    case UUID:
        return parse_uuid((uint8_t *)field, value) ? NULL : "32 hexadecimal digits, with or without GPU- and dashes";
    case PEERS:
        return parse_peers((int32_t *)field, value) ? NULL : "card numbers separated by commas, -1 for none";
    case REAL: {
        double real = strtod(value, &end);
        if (end == value || *end != 0 || !(real >= 0 && real < 1e18))
            return "a non-negative number";
        memcpy(field, &real, sizeof real);
        return NULL;
    }
    case BYTES: {
        unsigned long long bytes = strtoull(value, &end, 0);
        if (end == value || *end != 0 || *value == '-')
            return "a number of bytes";
        uint64_t stored = bytes;
        memcpy(field, &stored, sizeof stored);
        return NULL;
    }
    default: {
        long long number = strtoll(value, &end, 0);
        if (end == value || *end != 0 || number < (found->type == SIGNED ? -1 : 0) || number > UINT32_MAX)
            return "a non-negative whole number";
        uint32_t stored = (uint32_t)number;
        memcpy(field, &stored, sizeof stored);
        return NULL;
    }
    }
}

static const char *assign_machine(simgpu_settings *settings, const char *name, const char *value)
{
    char *end;
    long number = strtol(value, &end, 0);
    bool whole = end != value && *end == 0;
    if (strcmp(name, "cards") == 0) {
        if (!whole || number < 1 || number > SIMGPU_MAX_CARDS)
            return "a number from 1 to 32";
        settings->card_count = (uint32_t)number;
    } else if (strcmp(name, "driver_version") == 0) {
        if (!whole || number < 1000 || number > 99999)
            return "a number such as 13000 for CUDA 13.0";
        settings->driver_version = (uint32_t)number;
    } else if (strcmp(name, "driver_name") == 0) {
        if (strlen(value) >= sizeof settings->driver_name)
            return "a shorter text";
        snprintf(settings->driver_name, sizeof settings->driver_name, "%s", value);
    } else if (strcmp(name, "shape") == 0) {
        if (strlen(value) >= sizeof settings->shape)
            return "a shorter text";
        snprintf(settings->shape, sizeof settings->shape, "%s", value);
    } else {
        return "one of the keys cards, driver_version, driver_name, shape, or CARD.KEY";
    }
    return NULL;
}

static const char *assign_card(simgpu_settings *settings, const char *name, const char *value)
{
    const char *dot = strchr(name, '.');
    char *end;
    long index = strtol(name, &end, 10);
    bool every = name[0] == '*' && dot == name + 1;
    if (!every && (end != dot || index < 0 || index >= SIMGPU_MAX_CARDS))
        return "a card number from 0 to 31, or *, before the dot";
    for (size_t position = 0; position < sizeof keys / sizeof keys[0]; position++) {
        if (strcmp(keys[position].name, dot + 1) != 0)
            continue;
        const char *expected = NULL;
        for (long card = every ? 0 : index; expected == NULL && card <= (every ? SIMGPU_MAX_CARDS - 1 : index); card++)
            expected = assign(&settings->cards[card], &keys[position], value);
        return expected;
    }
    return "an existing key of a card";
}

static const char *check_card(const simgpu_profile *card)
{
    if (card->memory_bytes < SIMGPU_MIB)
        return "memory_bytes must be at least 1048576";
    if (!(card->time_scale > 0 && card->time_scale <= 1e6))
        return "time_scale must be greater than 0 and at most 1000000";
    if (!(card->link_bytes_per_s >= 1e6 && card->paging_bytes_per_s >= 1e6 && card->memory_bytes_per_s >= 1e6))
        return "the bandwidths must be at least 1000000 bytes per second";
    if (!(card->thermal_time_constant_s > 0))
        return "thermal_time_constant_s must be greater than 0";
    if (card->sm_clock_idle_mhz > card->sm_clock_mhz)
        return "sm_clock_idle_mhz must be at most sm_clock_mhz";
    if (card->nvlink_count > SIMGPU_MAX_NVLINKS)
        return "nvlink_count must be at most 18";
    if (card->sm_count == 0 || card->threads_per_sm == 0)
        return "sm_count and threads_per_sm must be at least 1";
    return NULL;
}

int simgpu_settings_parse(simgpu_settings *settings, const char *text, char *error, size_t error_size)
{
    memset(settings, 0, sizeof *settings);
    settings->card_count = 1;
    settings->driver_version = 13000;
    snprintf(settings->driver_name, sizeof settings->driver_name, "580.65.06");
    for (uint32_t index = 0; index < SIMGPU_MAX_CARDS; index++)
        default_card(&settings->cards[index], index);
    while (text != NULL && *text) {
        char line[256];
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(length < 255 ? length : 255), text);
        text += length + (text[length] == '\n');
        char *value = strchr(line, '=');
        if (line[0] == 0)
            continue;
        const char *expected = "KEY=VALUE";
        if (value != NULL) {
            *value++ = 0;
            expected = strchr(line, '.') ? assign_card(settings, line, value) : assign_machine(settings, line, value);
        }
        if (expected != NULL) {
            snprintf(error, error_size, "setting %s has the value '%s'; expected %s", line, value ? value : "", expected);
            return SIMGPU_FAILED;
        }
    }
    for (uint32_t index = 0; index < settings->card_count; index++) {
        const char *wrong = check_card(&settings->cards[index]);
        if (wrong != NULL) {
            snprintf(error, error_size, "card %u: %s", index, wrong);
            return SIMGPU_FAILED;
        }
    }
    return SIMGPU_OK;
}
