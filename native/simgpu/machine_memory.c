/* The memory accounting of a card, and which managed memory is resident.
 *
 * Managed allocations are divided into extents (at most 64, of at least 2 MiB each). An extent is on the card either
 * completely or not at all. The resident extents of all processes are in one list by recency, and the oldest are
 * evicted first. Every process can therefore compute what any process's next kernel has to bring in, which is what
 * allows one process to advance another one's work in time.
 */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

#define SMALLEST_EXTENT (2 * SIMGPU_MIB)

static void recency_remove(simgpu_card *card, uint32_t index)
{
    simgpu_extent *extent = &card->extents[index];
    if (extent->newer == SIMGPU_NONE)
        card->newest = extent->older;
    else
        card->extents[extent->newer].older = extent->older;
    if (extent->older == SIMGPU_NONE)
        card->oldest = extent->newer;
    else
        card->extents[extent->older].newer = extent->newer;
}

static void recency_add(simgpu_card *card, uint32_t index)
{
    simgpu_extent *extent = &card->extents[index];
    extent->newer = SIMGPU_NONE;
    extent->older = card->newest;
    if (card->newest == SIMGPU_NONE)
        card->oldest = index;
    else
        card->extents[card->newest].newer = index;
    card->newest = index;
    extent->used_at = ++card->recency;
}

static const simgpu_card *sorting; /* qsort has no context argument; sorting happens under the card's lock */

static int by_use(const void *left, const void *right)
{
    uint64_t a = sorting->extents[*(const uint32_t *)left].used_at;
    uint64_t b = sorting->extents[*(const uint32_t *)right].used_at;
    return a < b ? -1 : a > b;
}

/* Rebuilds all derived data from the primary records: the owner of the lock died in the middle of an update. */
void simgpu_card_recover(simgpu_card *card)
{
    static uint32_t resident[SIMGPU_MAX_EXTENTS];
    static _Atomic int busy;
    while (atomic_exchange(&busy, 1)) /* two threads that recover two cards at once share the scratch space */
        ;
    uint32_t count = 0;
    card->device_bytes = card->managed_bytes = card->resident_bytes = 0;
    for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++) {
        simgpu_tenant *tenant = &card->tenants[slot];
        tenant->first_extent = SIMGPU_NONE;
        tenant->resident_bytes = tenant->managed_bytes = 0;
        card->device_bytes += tenant->device_bytes;
    }
    for (uint32_t index = SIMGPU_MAX_EXTENTS; index-- > 0;) {
        simgpu_extent *extent = &card->extents[index];
        if (extent->slot == SIMGPU_NONE)
            continue;
        simgpu_tenant *tenant = &card->tenants[extent->slot];
        if (tenant->generation != extent->generation) {
            extent->slot = SIMGPU_NONE;
            continue;
        }
        extent->sibling = tenant->first_extent;
        tenant->first_extent = index;
        tenant->managed_bytes += extent->bytes;
        card->managed_bytes += extent->bytes;
        if (extent->resident) {
            tenant->resident_bytes += extent->bytes;
            card->resident_bytes += extent->bytes;
            resident[count++] = index;
        }
    }
    sorting = card;
    qsort(resident, count, sizeof resident[0], by_use);
    card->newest = card->oldest = SIMGPU_NONE;
    for (uint32_t position = 0; position < count; position++)
        recency_add(card, resident[position]);
    atomic_store(&busy, 0);
    simgpu_active_rebuild(card);
}

static void make_absent(simgpu_card *card, uint32_t index)
{
    simgpu_extent *extent = &card->extents[index];
    recency_remove(card, index);
    extent->resident = 0;
    card->resident_bytes -= extent->bytes;
    card->tenants[extent->slot].resident_bytes -= extent->bytes;
}

static uint64_t write_back(simgpu_card *card, uint32_t index)
{
    simgpu_extent *extent = &card->extents[index];
    uint64_t bytes = extent->dirty ? extent->bytes : 0;
    extent->dirty = 0;
    make_absent(card, index);
    card->paged_out_bytes += bytes;
    card->tenants[extent->slot].paged_out_bytes += bytes;
    return bytes;
}

static uint64_t make_room(simgpu_card *card, uint64_t bytes)
{
    uint64_t written = 0;
    uint64_t capacity = card->profile.memory_bytes;
    while (card->oldest != SIMGPU_NONE && card->device_bytes + card->resident_bytes + bytes > capacity)
        written += write_back(card, card->oldest);
    return written;
}

simgpu_tenant *simgpu_tenant_of(simgpu_handle *handle, simgpu_card *card)
{
    simgpu_tenant *tenant = &card->tenants[handle->slot];
    if (tenant->generation != handle->generation) {
        memset(tenant, 0, sizeof *tenant);
        tenant->first_extent = SIMGPU_NONE;
        tenant->generation = handle->generation;
    }
    return tenant;
}

void simgpu_tenant_clear(simgpu_card *card, uint32_t slot)
{
    simgpu_tenant *tenant = &card->tenants[slot];
    for (uint32_t lane = 0; lane < SIMGPU_MAX_LANES; lane++)
        if (card->lanes[lane].slot == slot)
            card->lanes[lane].slot = SIMGPU_NONE;
    for (uint32_t index = 0; index < SIMGPU_MAX_EXTENTS; index++) {
        simgpu_extent *extent = &card->extents[index];
        if (extent->slot != slot)
            continue;
        if (extent->resident)
            make_absent(card, index);
        card->managed_bytes -= extent->bytes;
        extent->slot = SIMGPU_NONE;
    }
    card->device_bytes -= tenant->device_bytes;
    memset(tenant, 0, sizeof *tenant);
    tenant->first_extent = SIMGPU_NONE;
    simgpu_active_rebuild(card);
}

uint64_t simgpu_card_free_bytes(const simgpu_card *card)
{
    uint64_t capacity = card->profile.memory_bytes;
    uint64_t used = card->device_bytes + card->resident_bytes;
    return used >= capacity ? 0 : capacity - used;
}

/* Plain memory never moves, so it is refused if the plain memory of all processes would exceed the card. Managed memory
 * is evicted to make room for it. */
int simgpu_device_take(simgpu_handle *handle, simgpu_card *card, uint64_t bytes)
{
    uint64_t capacity = card->profile.memory_bytes;
    if (bytes > capacity || card->device_bytes > capacity - bytes)
        return SIMGPU_FULL;
    make_room(card, bytes);
    simgpu_tenant_of(handle, card)->device_bytes += bytes;
    card->device_bytes += bytes;
    return SIMGPU_OK;
}

void simgpu_device_give(simgpu_handle *handle, simgpu_card *card, uint64_t bytes)
{
    simgpu_tenant *tenant = simgpu_tenant_of(handle, card);
    uint64_t given = bytes < tenant->device_bytes ? bytes : tenant->device_bytes;
    tenant->device_bytes -= given;
    card->device_bytes -= given;
}

static uint32_t find_free_extents(simgpu_card *card, uint32_t count)
{
    uint32_t start = card->extent_hint < SIMGPU_MAX_EXTENTS ? card->extent_hint : 0;
    for (int attempt = 0; attempt < 2; attempt++, start = 0) {
        uint32_t found = 0;
        for (uint32_t index = start; index < SIMGPU_MAX_EXTENTS; index++) {
            found = card->extents[index].slot == SIMGPU_NONE ? found + 1 : 0;
            if (found == count) {
                card->extent_hint = index + 1;
                return index + 1 - count;
            }
        }
    }
    return SIMGPU_NONE;
}

int simgpu_managed_take(simgpu_handle *handle, simgpu_card *card, uint64_t bytes, simgpu_range *range,
                        uint64_t *extent_bytes)
{
    uint64_t each = (bytes + SIMGPU_EXTENTS_PER_ALLOCATION - 1) / SIMGPU_EXTENTS_PER_ALLOCATION;
    each = (each + SMALLEST_EXTENT - 1) / SMALLEST_EXTENT * SMALLEST_EXTENT;
    uint32_t count = (uint32_t)((bytes + each - 1) / each);
    uint32_t first = find_free_extents(card, count);
    if (first == SIMGPU_NONE)
        return SIMGPU_FULL;
    simgpu_tenant *tenant = simgpu_tenant_of(handle, card);
    for (uint32_t index = first; index < first + count; index++) {
        simgpu_extent *extent = &card->extents[index];
        uint64_t before = (uint64_t)(index - first) * each;
        memset(extent, 0, sizeof *extent);
        extent->bytes = bytes - before < each ? bytes - before : each;
        extent->generation = handle->generation;
        extent->slot = handle->slot;
        extent->sibling = tenant->first_extent;
        tenant->first_extent = index;
    }
    tenant->managed_bytes += bytes;
    card->managed_bytes += bytes;
    *range = (simgpu_range){first, count};
    *extent_bytes = each;
    return SIMGPU_OK;
}

void simgpu_managed_give(simgpu_handle *handle, simgpu_card *card, simgpu_range range)
{
    simgpu_tenant *tenant = simgpu_tenant_of(handle, card);
    for (uint32_t index = range.first; index < range.first + range.count; index++) {
        simgpu_extent *extent = &card->extents[index];
        if (extent->slot != handle->slot)
            continue;
        if (extent->resident)
            make_absent(card, index);
        tenant->managed_bytes -= extent->bytes;
        card->managed_bytes -= extent->bytes;
        extent->slot = SIMGPU_NONE;
    }
    uint32_t *link = &tenant->first_extent;
    while (*link != SIMGPU_NONE) {
        if (*link >= range.first && *link < range.first + range.count)
            *link = card->extents[*link].sibling;
        else
            link = &card->extents[*link].sibling;
    }
}

static void touch_extent(simgpu_card *card, uint32_t index, const simgpu_op *op, uint64_t *in_bytes,
                         uint64_t *out_bytes)
{
    simgpu_extent *extent = &card->extents[index];
    if (extent->resident) {
        recency_remove(card, index);
        recency_add(card, index);
    } else {
        *out_bytes += make_room(card, extent->bytes);
        /* Memory that has not been written yet needs no transfer: the card fills it with zeros. */
        uint64_t bytes = extent->populated && !op->overlaid ? extent->bytes : 0;
        *in_bytes += bytes;
        card->paged_in_bytes += bytes;
        card->tenants[extent->slot].paged_in_bytes += bytes;
        extent->resident = 1;
        card->resident_bytes += extent->bytes;
        card->tenants[extent->slot].resident_bytes += extent->bytes;
        recency_add(card, index);
    }
    if (op->writes) {
        extent->dirty = 1;
        extent->populated = 1;
    }
}

void simgpu_residency_touch(simgpu_card *card, const simgpu_lane *lane, const simgpu_op *op, uint64_t *in_bytes,
                            uint64_t *out_bytes)
{
    if (op->touch == SIMGPU_TOUCH_ALL) {
        uint32_t index = card->tenants[lane->slot].first_extent;
        for (; index != SIMGPU_NONE; index = card->extents[index].sibling)
            touch_extent(card, index, op, in_bytes, out_bytes);
        return;
    }
    for (uint32_t position = 0; op->touch == SIMGPU_TOUCH_RANGES && position < op->range_count; position++) {
        simgpu_range range = op->ranges[position];
        for (uint32_t index = range.first; index < range.first + range.count && index < SIMGPU_MAX_EXTENTS; index++)
            if (card->extents[index].slot == lane->slot)
                touch_extent(card, index, op, in_bytes, out_bytes);
    }
}

void simgpu_residency_evict(simgpu_card *card, simgpu_range range, uint64_t *out_bytes)
{
    for (uint32_t index = range.first; index < range.first + range.count; index++)
        if (card->extents[index].slot != SIMGPU_NONE && card->extents[index].resident)
            *out_bytes += write_back(card, index);
}
