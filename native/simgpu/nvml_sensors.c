/* The activity of a card: memory, utilisation, temperature, power, clocks, fans, the link. */
#include "nvml_session.h"

#include <math.h>
#include <string.h>

#define WINDOW_NS 1e9           /* for averaging utilisation */
#define POWER_CAP_NEAR 0.98     /* fraction of the limit above which power is reported as the throttle reason */
#define TRAFFIC_WINDOW_NS 200e6 /* for averaging link throughput */

enum { P0 = 0, P8 = 8, PSTATE_UNKNOWN = 32 };

enum {
    REASON_IDLE = 0x1,
    REASON_SOFTWARE_POWER_CAP = 0x4,
    REASON_HARDWARE_SLOWDOWN = 0x8,
    REASON_HARDWARE_THERMAL = 0x40,
};

static double since_epoch_ns(void)
{
    return (double)(simgpu_real_ns() - session_handle()->shared->epoch_real_ns);
}

unsigned percent(double fraction)
{
    return (unsigned)lround(100 * fmin(1, fmax(0, fraction)));
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    NEED(memory);
    WITH_CARD(device, card, memory->total = card->profile.memory_bytes;
              memory->used = card->device_bytes + card->resident_bytes; memory->free = simgpu_card_free_bytes(card));
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    NEED(memory);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlMemory_t plain;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result != NVML_SUCCESS)
        return result;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1)
{
    NEED(bar1);
    WITH_CARD(device, card, bar1->bar1Total = 256; /* the next power of two above the card's memory */
              while (bar1->bar1Total * SIMGPU_MIB < card->profile.memory_bytes) bar1->bar1Total *= 2;
              bar1->bar1Total *= SIMGPU_MIB; bar1->bar1Used = 2 * SIMGPU_MIB;
              bar1->bar1Free = bar1->bar1Total - bar1->bar1Used);
}

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    NEED(rates);
    WITH_CARD(device, card,
              rates->gpu = percent(simgpu_card_busy_fraction(card, (uint64_t)since_epoch_ns(), (uint64_t)WINDOW_NS));
              rates->memory = percent(simgpu_meter_rate(&card->sensors.memory_busy, since_epoch_ns(), WINDOW_NS)));
}

/* The encoder, decoder and image engines exist but are never used. */
static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned *utilisation, unsigned *period_us)
{
    NEED(utilisation && period_us);
    WITH_CARD(device, card, *utilisation = 0; *period_us = (unsigned)(WINDOW_NS / 1e3));
}

NVML_API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *utilisation, unsigned *period_us)
{
    return idle_engine(device, utilisation, period_us);
}

NVML_API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *utilisation, unsigned *period_us)
{
    return idle_engine(device, utilisation, period_us);
}

unsigned temperature_reading(const simgpu_card *card)
{
    return (unsigned)lround(card->sensors.temperature_c);
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    NEED(celsius && sensor == 0);
    WITH_CARD(device, card, *celsius = temperature_reading(card));
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *reading)
{
    NEED(reading);
    if (reading->version != NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    NEED(reading->sensorType == 0);
    WITH_CARD(device, card, reading->temperature = (int)temperature_reading(card));
}

NVML_API nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *margin)
{
    NEED(margin);
    if (margin->version != NVML_STRUCT_VERSION(nvmlMarginTemperature_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    WITH_CARD(device, card,
              margin->marginTemperature = (int)card->profile.temperature_slowdown_c - (int)temperature_reading(card));
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *celsius)
{
    enum { SHUTDOWN, SLOWDOWN, MEMORY_MAX, GPU_MAX, THRESHOLDS = 8 };
    NEED(celsius && threshold < THRESHOLDS);
    simgpu_card *card;
    nvmlReturn_t result = card_enter(device, &card);
    if (result != NVML_SUCCESS)
        return result;
    switch (threshold) {
    case SHUTDOWN:
        *celsius = card->profile.temperature_shutdown_c;
        break;
    case SLOWDOWN:
    case MEMORY_MAX:
        *celsius = card->profile.temperature_slowdown_c;
        break;
    case GPU_MAX:
        *celsius = (card->profile.temperature_busy_c + card->profile.temperature_slowdown_c) / 2;
        break;
    default:
        result = NVML_ERROR_NOT_SUPPORTED;
    }
    card_leave(card);
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    NEED(milliwatts);
    WITH_CARD(device, card, *milliwatts = (unsigned)lround(simgpu_sensors_power_w(card) * 1e3));
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    NEED(millijoules);
    WITH_CARD(device, card, *millijoules = (unsigned long long)card->sensors.energy_mj);
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *mode)
{
    NEED(mode);
    WITH_CARD(device, card, *mode = NVML_FEATURE_ENABLED);
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    NEED(milliwatts);
    WITH_CARD(device, card, *milliwatts = card->profile.power_limit_mw);
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

NVML_API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
    NEED(least && most);
    WITH_CARD(device, card, *least = card->profile.power_min_mw; *most = card->profile.power_max_mw);
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerSource(nvmlDevice_t device, unsigned *source)
{
    NEED(source);
    WITH_CARD(device, card, *source = 0);
}

NVML_API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state)
{
    NEED(state);
    WITH_CARD(device, card, *state = simgpu_sensors_in_use(card) ? P0 : P8);
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned *state)
{
    return nvmlDeviceGetPerformanceState(device, state);
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, unsigned *states, unsigned bytes)
{
    static const unsigned supported[] = {P0, P8};
    NEED(states);
    unsigned room = bytes / sizeof *states, count = sizeof supported / sizeof *supported;
    if (room < count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    WITH_CARD(device, card,
              for (unsigned i = 0; i < room; i++) states[i] = i < count ? supported[i] : (unsigned)PSTATE_UNKNOWN);
}

static unsigned video_clock(unsigned sm_clock)
{
    return sm_clock * 9 / 10;
}

static unsigned clock_now(const simgpu_card *card, unsigned type)
{
    unsigned sm_clock = simgpu_sensors_sm_clock_mhz(card);
    if (type == NVML_CLOCK_MEM)
        return simgpu_sensors_in_use(card) ? card->profile.memory_clock_mhz
                                           : (unsigned)fmin(405, card->profile.memory_clock_mhz);
    return type == NVML_CLOCK_VIDEO ? video_clock(sm_clock) : sm_clock;
}

static unsigned clock_most(const simgpu_card *card, unsigned type)
{
    if (type == NVML_CLOCK_MEM)
        return card->profile.memory_clock_mhz;
    return type == NVML_CLOCK_VIDEO ? video_clock(card->profile.sm_clock_mhz) : card->profile.sm_clock_mhz;
}

NVML_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    NEED(mhz && type < NVML_CLOCK_COUNT);
    WITH_CARD(device, card, *mhz = clock_now(card, type));
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    NEED(mhz && type < NVML_CLOCK_COUNT);
    WITH_CARD(device, card, *mhz = clock_most(card, type));
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    NEED(mhz && type < NVML_CLOCK_COUNT);
    WITH_CARD(device, card,
              *mhz = type == NVML_CLOCK_MEM ? card->profile.memory_clock_mhz : card->profile.sm_clock_base_mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    return nvmlDeviceGetApplicationsClock(device, type, mhz);
}

NVML_API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned kind, unsigned *mhz)
{
    enum { CURRENT, APPLICATION, APPLICATION_DEFAULT, BOOST_MOST };
    switch (kind) {
    case CURRENT:
        return nvmlDeviceGetClockInfo(device, type, mhz);
    case APPLICATION:
    case APPLICATION_DEFAULT:
        return nvmlDeviceGetApplicationsClock(device, type, mhz);
    case BOOST_MOST:
        return nvmlDeviceGetMaxClockInfo(device, type, mhz);
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *clocks)
{
    NEED(count);
    simgpu_card *card;
    nvmlReturn_t result = card_enter(device, &card);
    if (result != NVML_SUCCESS)
        return result;
    unsigned only = card->profile.memory_clock_mhz, room = *count;
    card_leave(card);
    *count = 1;
    if (clocks == NULL || room < 1)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    clocks[0] = only;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory_mhz, unsigned *count,
                                                           unsigned *clocks)
{
    enum { STEP_MHZ = 15 };
    NEED(count);
    simgpu_card *card;
    nvmlReturn_t result = card_enter(device, &card);
    if (result != NVML_SUCCESS)
        return result;
    unsigned most = card->profile.sm_clock_mhz, least = card->profile.sm_clock_idle_mhz;
    bool known = memory_mhz == card->profile.memory_clock_mhz;
    card_leave(card);
    if (!known)
        return NVML_ERROR_NOT_FOUND;
    unsigned steps = (most - least) / STEP_MHZ + 1, room = *count;
    *count = steps;
    if (clocks == NULL || room < steps)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < steps; i++)
        clocks[i] = most - i * STEP_MHZ;
    return NVML_SUCCESS;
}

static unsigned long long clock_reasons(const simgpu_card *card)
{
    unsigned long long reasons = 0;
    if (card->active_count == 0)
        reasons |= REASON_IDLE;
    else if (simgpu_sensors_power_w(card) * 1e3 >= POWER_CAP_NEAR * card->profile.power_limit_mw)
        reasons |= REASON_SOFTWARE_POWER_CAP;
    if (simgpu_sensors_too_hot(card))
        reasons |= REASON_HARDWARE_SLOWDOWN | REASON_HARDWARE_THERMAL;
    return reasons;
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    NEED(reasons);
    WITH_CARD(device, card, *reasons = clock_reasons(card));
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    NEED(reasons);
    WITH_CARD(device, card,
              *reasons = REASON_IDLE | REASON_SOFTWARE_POWER_CAP | REASON_HARDWARE_SLOWDOWN | REASON_HARDWARE_THERMAL);
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

NVML_API nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned *count)
{
    NEED(count);
    WITH_CARD(device, card, *count = card->profile.fan_count);
}

/* Fan speed rises from 30 % at the idle temperature to 100 % at the slowdown threshold. */
static unsigned fan_percent(const simgpu_card *card)
{
    double idle = card->profile.temperature_idle_c, hot = card->profile.temperature_slowdown_c;
    double part = hot > idle ? (card->sensors.temperature_c - idle) / (hot - idle) : 0;
    return percent(0.3 + 0.7 * part);
}

NVML_API nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned *speed)
{
    NEED(speed);
    WITH_CARD(device, card, *speed = fan_percent(card);
              result = card->profile.fan_count == 0       ? NVML_ERROR_NOT_SUPPORTED
                       : fan >= card->profile.fan_count ? NVML_ERROR_INVALID_ARGUMENT
                                                          : NVML_SUCCESS);
}

NVML_API nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *speed)
{
    return nvmlDeviceGetFanSpeed_v2(device, 0, speed);
}

NVML_API nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *cores)
{
    NEED(cores);
    WITH_CARD(device, card, *cores = card->profile.sm_count * card->profile.cores_per_sm);
}

NVML_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned direction, unsigned *kib_per_s)
{
    enum { SENT, RECEIVED, DIRECTIONS };
    NEED(kib_per_s && direction < DIRECTIONS);
    WITH_CARD(device, card,
              const simgpu_meter *meter = direction == SENT ? &card->sensors.sent : &card->sensors.received;
              *kib_per_s = (unsigned)(simgpu_meter_rate(meter, since_epoch_ns(), TRAFFIC_WINDOW_NS) * 1e9 / 1024));
}

/* A slow link has trained to fewer lanes, or to a lower rate if a single lane is not slow enough. */
static void link_now(const simgpu_card *card, unsigned *generation, unsigned *width)
{
    double factor = card->link_factor;
    *generation = card->profile.link_generation;
    *width = card->profile.link_width;
    for (; *width > 1 && factor <= 0.5; factor *= 2)
        *width /= 2;
    for (; *generation > 1 && factor <= 0.5; factor *= 2)
        *generation -= 1;
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    unsigned width;
    NEED(generation);
    WITH_CARD(device, card, link_now(card, generation, &width));
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *width)
{
    unsigned generation;
    NEED(width);
    WITH_CARD(device, card, link_now(card, &generation, width));
}

NVML_API nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *count)
{
    NEED(count);
    WITH_CARD(device, card, *count = 0);
}
