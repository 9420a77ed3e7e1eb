#ifndef SIMGPU_MACHINE_SETTINGS_H
#define SIMGPU_MACHINE_SETTINGS_H

#include "machine.h"

/* The settings of a new machine, as lines `key=value`: `cards=2` and `driver_version=13000` for the machine,
 * `*.key=value` for all cards and `0.key=value` for one card; later lines win. */
typedef struct {
    uint32_t card_count, driver_version;
    char driver_name[32];
    char shape[72];
    simgpu_profile cards[SIMGPU_MAX_CARDS];
} simgpu_settings;

int simgpu_settings_parse(simgpu_settings *settings, const char *text, char *error, size_t error_size);

#endif
