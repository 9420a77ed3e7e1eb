/* One card without a machine around it, advanced through modelled time explicitly.
 *
 * telemetry_probe STEPS TIME_SCALE [SLOT DEMAND BUSY_S]... END_S: each group is a kernel that starts at time zero; the
 * card is then advanced to END_S in STEPS equal steps, and its sensors are printed as JSON.
 */
#include "machine.h"
#include "machine_settings.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
    char error[256] = "";
    static simgpu_settings settings;
    simgpu_card *card = calloc(1, sizeof *card);
    if (count < 4 || card == NULL || simgpu_settings_parse(&settings, "cards=1", error, sizeof error) != 0)
        return 1;
    card->profile = settings.cards[0];
    card->profile.time_scale = atof(words[2]);
    card->link_factor = 1;
    card->newest = card->oldest = SIMGPU_NONE;
    for (uint32_t i = 0; i < SIMGPU_MAX_LANES; i++)
        card->lanes[i].slot = SIMGPU_NONE;
    simgpu_sensors_start(card);

    uint32_t last_slot = 0;
    int word = 3;
    for (; word + 3 < count; word += 3) {
        simgpu_handle handle = {.slot = (uint32_t)atoi(words[word]), .generation = 1};
        simgpu_op kernel = {.kind = SIMGPU_OP_KERNEL,
                            .demand = atof(words[word + 1]),
                            .work_ns = atof(words[word + 2]) * 1e9};
        simgpu_lane_submit(card, simgpu_lane_take(&handle, card), &kernel);
        card->tenants[handle.slot].contexts = 1;
        last_slot = handle.slot > last_slot ? handle.slot : last_slot;
    }
    double end_ns = atof(words[word]) * 1e9, real_ns = end_ns / card->profile.time_scale;
    int steps = atoi(words[1]);
    for (int step = 1; step <= steps; step++)
        simgpu_card_advance(NULL, card, (uint64_t)(end_ns * step / steps));

    const simgpu_sensors *sensors = &card->sensors;
    printf("{\"temperature_c\":%.9f,\"load\":%.9f,\"energy_mj\":%.6f,", sensors->temperature_c, sensors->load,
           sensors->energy_mj);
    printf("\"clock_mhz\":%u,\"power_w\":%.6f,", simgpu_sensors_sm_clock_mhz(card), simgpu_sensors_power_w(card));
    printf("\"busy\":%.6f,\"memory\":%.6f,\"parts\":[",
           simgpu_card_busy_fraction(card, (uint64_t)real_ns, 1000000000ULL),
           simgpu_meter_rate(&sensors->memory_busy, real_ns, 1e9));
    for (uint32_t slot = 0; slot <= last_slot; slot++)
        printf("%s%.6f", slot ? "," : "", simgpu_meter_rate(&card->tenants[slot].used, real_ns, 1e9));
    printf("]}\n");
    free(card);
    return 0;
}
