/* The readings of a card's sensors: recent load, heat, power, clocks, link traffic.
 *
 * All of it is a function of what ran and when, in modelled time: advancing a card passes every step to
 * simgpu_telemetry_step, which integrates exactly (the load is constant during a step), so a reading does not depend on
 * how often the sensors are read. Heat and power follow the load like a first-order system. Utilisation, which real
 * tools compare with their own clock, is kept in buckets of real time.
 */
#include "machine.h"

#include <math.h>
#include <string.h>

#define POWER_TIME_CONSTANT_NS 100e6 /* the power sensor's own averaging */
#define BUSY_FLOOR 0.35              /* share of the dynamic power that any kernel uses, however small */
#define TRAFFIC_LOAD 0.12            /* the same for copies and migrations */
#define HOT_CLOCK_LOSS 0.5           /* of the difference between boost and base clock, at the temperature of full load */
#define MEMORY_SHARE_OF_KERNELS 0.45 /* fraction of a kernel's time for which memory counts as busy */

void simgpu_meter_add(simgpu_meter *meter, double at_real_ns, double length_ns, double amount)
{
    const double bucket_ns = SIMGPU_METER_BUCKET_NS, kept_ns = bucket_ns * SIMGPU_METER_BUCKETS;
    double per_ns = length_ns > 0 ? amount / length_ns : 0;
    if (length_ns > kept_ns) {
        at_real_ns += length_ns - kept_ns;
        length_ns = kept_ns;
    }
    while (length_ns > 0) {
        uint64_t number = (uint64_t)(at_real_ns / bucket_ns);
        double piece = fmax(1, fmin(length_ns, (double)(number + 1) * bucket_ns - at_real_ns));
        uint32_t bucket = number % SIMGPU_METER_BUCKETS;
        if (meter->number[bucket] != number) {
            meter->number[bucket] = number;
            meter->amount[bucket] = 0;
        }
        meter->amount[bucket] += per_ns * fmin(piece, length_ns);
        at_real_ns += piece;
        length_ns -= piece;
    }
}

double simgpu_meter_rate(const simgpu_meter *meter, double now_real_ns, double window_ns)
{
    const double bucket_ns = SIMGPU_METER_BUCKET_NS;
    uint64_t last = (uint64_t)(now_real_ns / bucket_ns), buckets = (uint64_t)(window_ns / bucket_ns);
    double sum = 0, length = now_real_ns - (double)last * bucket_ns;
    for (uint64_t back = 0; back <= buckets && back < SIMGPU_METER_BUCKETS && back <= last; back++) {
        uint32_t bucket = (last - back) % SIMGPU_METER_BUCKETS;
        if (meter->number[bucket] == last - back)
            sum += meter->amount[bucket];
        length += back == 0 ? 0 : bucket_ns;
    }
    return length > 0 ? sum / length : 0;
}

static double follow(double value, double target, double step_ns, double time_constant_ns)
{
    return target + (value - target) * exp(-step_ns / time_constant_ns);
}

static double watts_at(const simgpu_profile *profile, double load)
{
    double idle = profile->power_idle_mw / 1e3, full = profile->power_limit_mw / 1e3;
    return idle + fmax(0, full - idle) * load;
}

void simgpu_telemetry_step(simgpu_card *card, const simgpu_activity *activity, uint64_t step_ns)
{
    const simgpu_profile *profile = &card->profile;
    simgpu_sensors *sensors = &card->sensors;
    bool traffic = activity->in_bytes_per_ns + activity->out_bytes_per_ns + activity->memory_ops > 0;
    double step = (double)step_ns, load = 0, memory = 0;
    if (activity->kernels) {
        load = BUSY_FLOOR + (1 - BUSY_FLOOR) * fmin(1, activity->demand);
        memory = MEMORY_SHARE_OF_KERNELS * fmin(1, activity->demand);
    } else if (traffic) {
        load = TRAFFIC_LOAD;
    }
    if (traffic)
        memory = 1;

    double idle_c = profile->temperature_idle_c, busy_c = profile->temperature_busy_c;
    sensors->temperature_c =
        follow(sensors->temperature_c, idle_c + (busy_c - idle_c) * load, step, profile->thermal_time_constant_s * 1e9);
    sensors->load = follow(sensors->load, load, step, POWER_TIME_CONSTANT_NS);
    sensors->energy_mj += watts_at(profile, load) * step / 1e6;

    double at = (double)card->advanced_ns / profile->time_scale, length = step / profile->time_scale;
    if (memory > 0)
        simgpu_meter_add(&sensors->memory_busy, at, length, memory * length);
    if (activity->in_bytes_per_ns > 0)
        simgpu_meter_add(&sensors->received, at, length, activity->in_bytes_per_ns * step);
    if (activity->out_bytes_per_ns > 0)
        simgpu_meter_add(&sensors->sent, at, length, activity->out_bytes_per_ns * step);
}

/* A process's share of a step in which kernels ran: the shares of all processes add up to the card's busy time. */
void simgpu_telemetry_tenant(simgpu_card *card, simgpu_tenant *tenant, double part, uint64_t step_ns)
{
    double scale = card->profile.time_scale, length = (double)step_ns / scale;
    simgpu_meter_add(&tenant->used, (double)card->advanced_ns / scale, length, part * length);
}

void simgpu_sensors_start(simgpu_card *card)
{
    memset(&card->sensors, 0, sizeof card->sensors);
    card->sensors.temperature_c = card->profile.temperature_idle_c;
}

double simgpu_sensors_power_w(const simgpu_card *card)
{
    return watts_at(&card->profile, card->sensors.load);
}

bool simgpu_sensors_too_hot(const simgpu_card *card)
{
    return lround(card->sensors.temperature_c) >= (long)card->profile.temperature_slowdown_c;
}

bool simgpu_sensors_in_use(const simgpu_card *card)
{
    if (card->active_count > 0)
        return true;
    for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++)
        if (card->tenants[slot].contexts > 0)
            return true;
    return false;
}

/* The clock falls with temperature: boost is limited by the cooling. At the slowdown threshold only the base clock is
 * left. */
uint32_t simgpu_sensors_sm_clock_mhz(const simgpu_card *card)
{
    const simgpu_profile *profile = &card->profile;
    if (!simgpu_sensors_in_use(card))
        return profile->sm_clock_idle_mhz;
    double range = fmax(0, (double)profile->sm_clock_mhz - profile->sm_clock_base_mhz);
    double idle_c = profile->temperature_idle_c, span_c = profile->temperature_busy_c - idle_c;
    double lost = span_c > 0 ? HOT_CLOCK_LOSS * (card->sensors.temperature_c - idle_c) / span_c : 0;
    if (simgpu_sensors_too_hot(card))
        lost = 1;
    return (uint32_t)(profile->sm_clock_mhz - range * lost);
}
