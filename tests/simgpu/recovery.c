/* A process dies while it holds a card's lock, with every derived record of the card half written. The next process
 * that takes the lock must see totals and lists that match what living processes own. Compiled with the machine's
 * sources. */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static simgpu_range fill(simgpu_handle *handle, uint64_t plain, uint64_t managed)
{
    simgpu_range range;
    uint64_t each, in = 0, out = 0;
    simgpu_card *card = simgpu_card_lock(handle, 0);
    CHECK(simgpu_device_take(handle, card, plain) == SIMGPU_OK);
    CHECK(simgpu_managed_take(handle, card, managed, &range, &each) == SIMGPU_OK);
    simgpu_lane owner = {.slot = handle->slot, .generation = handle->generation};
    simgpu_op op = {.touch = SIMGPU_TOUCH_ALL, .writes = 1};
    simgpu_residency_touch(card, &owner, &op, &in, &out);
    simgpu_card_unlock(handle, card);
    return range;
}

static void die_in_the_middle(void)
{
    simgpu_handle handle;
    CHECK(simgpu_attach(&handle, NULL, NULL, 0) == SIMGPU_OK);
    fill(&handle, 10 * SIMGPU_MIB, 64 * SIMGPU_MIB);
    simgpu_card *card = simgpu_card_lock(&handle, 0);
    uint32_t lane = simgpu_lane_take(&handle, card);
    simgpu_op op = {.kind = SIMGPU_OP_KERNEL, .work_ns = 1e15, .demand = 1};
    CHECK(simgpu_lane_submit(card, lane, &op));
    card->device_bytes = 1;
    card->resident_bytes = UINT64_MAX;
    card->managed_bytes = 77;
    card->newest = 5;
    card->oldest = SIMGPU_MAX_EXTENTS + 9;
    card->active_count = SIMGPU_MAX_LANES;
    memset(card->active, 0xee, sizeof card->active);
    card->tenants[handle.slot].resident_bytes = 3;
    card->tenants[handle.slot].first_extent = 12345;
    for (uint32_t index = 0; index < SIMGPU_MAX_EXTENTS; index++)
        card->extents[index].newer = card->extents[index].older = card->extents[index].sibling = index;
    _exit(0);
}

int main(void)
{
    simgpu_handle handle;
    CHECK(simgpu_attach(&handle, NULL, NULL, 0) == SIMGPU_OK);
    simgpu_range range = fill(&handle, 20 * SIMGPU_MIB, 32 * SIMGPU_MIB);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0)
            die_in_the_middle();
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        simgpu_card *card = simgpu_card_lock(&handle, 0);
        CHECK(card->device_bytes == 30 * SIMGPU_MIB);
        CHECK(card->managed_bytes == 96 * SIMGPU_MIB);
        CHECK(card->resident_bytes == 96 * SIMGPU_MIB);
        CHECK(card->active_count == 1);
        simgpu_card_unlock(&handle, card);
        simgpu_reap(&handle);
        card = simgpu_card_lock(&handle, 0);
        CHECK(card->device_bytes == 20 * SIMGPU_MIB);
        CHECK(card->managed_bytes == 32 * SIMGPU_MIB && card->resident_bytes == 32 * SIMGPU_MIB);
        CHECK(card->active_count == 0);
        uint32_t length = 0;
        for (uint32_t index = card->newest; index != SIMGPU_NONE; index = card->extents[index].older)
            CHECK(index >= range.first && index < range.first + range.count && ++length <= range.count);
        CHECK(length == range.count);
        simgpu_card_unlock(&handle, card);
    }
    simgpu_detach(&handle);
    puts("done");
    return 0;
}
