/* Fault injection: the effects on a card, and healing. */
#define _GNU_SOURCE
#include "machine.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The results that CUDA returns for a context killed by a fault. */
#define CUDA_ECC_UNCORRECTABLE 214
#define CUDA_ILLEGAL_ADDRESS 700
#define CUDA_LAUNCH_FAILED 719
#define CUDA_DEVICE_UNAVAILABLE 46

void simgpu_fault_xid(simgpu_card *card, uint32_t number, uint32_t slot)
{
    simgpu_xid *entry = &card->xids[card->xid_count % SIMGPU_MAX_XIDS];
    *entry = (simgpu_xid){.sequence = card->xid_count + 1, .at_real_ns = simgpu_real_ns(), .number = number, .slot = slot};
    card->xid_count++;
}

/* The process to hit if none was named: the one whose kernel is running, or else any with a context. */
static uint32_t pick_victim(simgpu_card *card)
{
    for (uint32_t position = 0; position < card->active_count; position++)
        return card->lanes[card->active[position]].slot;
    for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++)
        if (card->tenants[slot].contexts > 0)
            return slot;
    return SIMGPU_NONE;
}

static void kill_contexts(simgpu_card *card, uint32_t slot, int32_t code)
{
    if (slot == SIMGPU_NONE) {
        card->fatal_code = code;
        card->fatal_sequence++;
    } else {
        card->tenants[slot].fatal_code = code;
        card->tenants[slot].fatal_sequence++;
    }
}

typedef struct {
    uint8_t first, last;
} numbers;

static bool is_one_of(uint32_t number, const numbers *list, size_t count)
{
    for (size_t index = 0; index < count; index++)
        if (number >= list[index].first && number <= list[index].last)
            return true;
    return false;
}

/* Xids that end a program but do not damage the card. */
static bool is_application_xid(uint32_t number)
{
    static const numbers list[] = {{8, 8},   {13, 13}, {31, 32}, {39, 41}, {43, 45},  {60, 60},   {68, 73},   {75, 77},
                                   {80, 80}, {82, 86}, {88, 89}, {96, 105}, {109, 109}, {126, 135}, {139, 139}};
    return is_one_of(number, list, sizeof list / sizeof list[0]);
}

/* Contained to one process (94), or only logged; after any other Xid the card requires a reset. */
static bool leaves_card_well(uint32_t number)
{
    static const numbers list[] = {{37, 37},   {42, 42},   {56, 56},   {63, 63},   {65, 67},   {92, 94},  {106, 108},
                                   {121, 121}, {137, 137}, {141, 141}, {147, 148}, {154, 154}, {157, 157}, {160, 161}};
    return is_one_of(number, list, sizeof list / sizeof list[0]);
}

static void apply_xid(simgpu_card *card, uint32_t number, uint32_t slot)
{
    if (is_application_xid(number)) {
        uint32_t victim = slot != SIMGPU_NONE ? slot : pick_victim(card);
        simgpu_fault_xid(card, number, victim);
        if (victim != SIMGPU_NONE)
            kill_contexts(card, victim, number == 31 ? CUDA_ILLEGAL_ADDRESS : CUDA_LAUNCH_FAILED);
        return;
    }
    simgpu_fault_xid(card, number, slot);
    if (!leaves_card_well(number))
        card->reset_xid = number;
    if (number == 79) {
        card->lost = 1;
        kill_contexts(card, SIMGPU_NONE, CUDA_DEVICE_UNAVAILABLE);
    } else if (number == 48 || number == 95) {
        card->ecc_uncorrectable++;
        kill_contexts(card, SIMGPU_NONE, CUDA_ECC_UNCORRECTABLE);
    } else if (number == 94) { /* contained: affects only the process that read the cell */
        uint32_t victim = slot != SIMGPU_NONE ? slot : pick_victim(card);
        card->ecc_uncorrectable++;
        if (victim != SIMGPU_NONE)
            kill_contexts(card, victim, CUDA_ECC_UNCORRECTABLE);
    }
}

static void heal(simgpu_card *card)
{
    card->lost = 0;
    card->hang_next = 0;
    card->link_factor = 1;
    card->reset_xid = 0;
    card->ecc_uncorrectable_past += card->ecc_uncorrectable;
    card->ecc_uncorrectable = 0;
    for (uint32_t index = 0; index < SIMGPU_MAX_LANES; index++) {
        simgpu_lane *lane = &card->lanes[index];
        if (lane->slot == SIMGPU_NONE || lane->run == lane->tail)
            continue;
        card->tenants[lane->slot].hang_next = 0;
        if (lane->ops[lane->run % SIMGPU_RING].phase == SIMGPU_PHASE_HUNG) /* a reset ends the hanging process */
            kill_contexts(card, lane->slot, CUDA_LAUNCH_FAILED);
    }
}

int simgpu_fault_apply(simgpu_handle *handle, simgpu_card *card, const char *fault, uint32_t number, double factor,
                       uint32_t slot, char *error, size_t error_size)
{
    if (strcmp(fault, "xid") == 0) {
        if (number == 0) {
            snprintf(error, error_size, "the fault xid needs xid=NUMBER, for example xid=31");
            return SIMGPU_FAILED;
        }
        apply_xid(card, number, slot);
    } else if (strcmp(fault, "lost") == 0) {
        apply_xid(card, 79, SIMGPU_NONE);
    } else if (strcmp(fault, "ecc") == 0) {
        apply_xid(card, 48, SIMGPU_NONE);
    } else if (strcmp(fault, "hang") == 0) {
        if (slot == SIMGPU_NONE)
            card->hang_next = 1;
        else
            card->tenants[slot].hang_next = 1;
    } else if (strcmp(fault, "slow-link") == 0) {
        if (!(factor > 0 && factor <= 1)) {
            snprintf(error, error_size, "factor=%g of the fault slow-link must be above 0 and at most 1", factor);
            return SIMGPU_FAILED;
        }
        card->link_factor = factor;
    } else if (strcmp(fault, "heal") == 0) {
        heal(card);
    } else {
        snprintf(error, error_size, "unknown fault '%s'; expected xid, lost, ecc, hang, slow-link or heal", fault);
        return SIMGPU_FAILED;
    }
    atomic_fetch_add(&handle->shared->events, 1);
    syscall(SYS_futex, &handle->shared->events, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return SIMGPU_OK;
}
