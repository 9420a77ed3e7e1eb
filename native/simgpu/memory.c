/* Memory by address: the table of blocks; plain, managed and host allocation; and queries about pointers.
 *
 * A device address is the address of host memory behind it, which is reserved but not backed until it is written. So
 * contents are real, and a large card needs no more host memory than its programs use.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GRAIN 512ULL
#define SMALL_LIMIT (512ULL * 1024) /* larger pieces get their own mapping */
#define SMALL_CLASSES 11            /* 512 bytes ... 512 KiB */
#define SLAB (2 * SIMGPU_MIB)

static block *blocks; /* by address */
static size_t block_count, block_room;
static struct {
    uint64_t *pieces;
    size_t count, room;
} stock[SMALL_CLASSES];

static size_t position_of(uint64_t address)
{
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

block *block_find(uint64_t address)
{
    size_t position = position_of(address);
    if (position == 0)
        return NULL;
    block *found = &blocks[position - 1];
    return address - found->base < found->size ? found : NULL;
}

block *block_add(const block *fresh)
{
    if (block_count == block_room) {
        size_t room = block_room ? block_room * 2 : 256;
        block *grown = realloc(blocks, room * sizeof *grown);
        if (grown == NULL)
            return NULL;
        blocks = grown;
        block_room = room;
    }
    size_t position = position_of(fresh->base);
    memmove(&blocks[position + 1], &blocks[position], (block_count - position) * sizeof *blocks);
    blocks[position] = *fresh;
    blocks[position].id = ++driver.next_id;
    block_count++;
    return &blocks[position];
}

void block_remove(uint64_t base)
{
    size_t position = position_of(base);
    if (position == 0 || blocks[position - 1].base != base)
        return;
    block_count--;
    memmove(&blocks[position - 1], &blocks[position], (block_count - position + 1) * sizeof *blocks);
}

void *pages_take(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void pages_give(void *pages, size_t bytes)
{
    munmap(pages, bytes);
}

static bool stock_put(uint32_t class_number, uint64_t piece)
{
    if (stock[class_number].count == stock[class_number].room) {
        size_t room = stock[class_number].room ? stock[class_number].room * 2 : 64;
        uint64_t *grown = realloc(stock[class_number].pieces, room * sizeof *grown);
        if (grown == NULL)
            return false;
        stock[class_number].pieces = grown;
        stock[class_number].room = room;
    }
    stock[class_number].pieces[stock[class_number].count++] = piece;
    return true;
}

static uint64_t small_take(uint32_t class_number)
{
    uint64_t size = GRAIN << class_number;
    if (stock[class_number].count == 0) {
        char *slab = pages_take(SLAB);
        for (uint64_t at = 0; slab != NULL && at < SLAB; at += size)
            if (!stock_put(class_number, (uintptr_t)slab + SLAB - size - at))
                break;
    }
    return stock[class_number].count ? stock[class_number].pieces[--stock[class_number].count] : 0;
}

/* Address space for a block; the card's memory is accounted for elsewhere. */
static CUresult place(block *fresh, uint64_t bytes)
{
    uint64_t rounded = (bytes + GRAIN - 1) / GRAIN * GRAIN;
    fresh->size_class = SIMGPU_NONE;
    if (rounded <= SMALL_LIMIT && fresh->kind != BLOCK_MANAGED) {
        uint32_t class_number = 0;
        while ((GRAIN << class_number) < rounded)
            class_number++;
        fresh->size_class = class_number;
        fresh->base = small_take(class_number);
    } else {
        fresh->base = (uintptr_t)pages_take(rounded);
    }
    fresh->size = bytes;
    return fresh->base != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void unplace(const block *old)
{
    if (old->size_class == SIMGPU_NONE)
        pages_give((void *)(uintptr_t)old->base, (old->size + GRAIN - 1) / GRAIN * GRAIN);
    else
        stock_put(old->size_class, old->base);
}

/* Takes card memory; before failing, cleans up after dead processes. */
static CUresult charge(uint32_t card_index, uint64_t bytes, block *fresh)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        simgpu_card *card = simgpu_card_lock(&driver.machine, card_index);
        int taken = fresh->kind == BLOCK_MANAGED
                        ? simgpu_managed_take(&driver.machine, card, bytes, &fresh->range, &fresh->extent_bytes)
                        : simgpu_device_take(&driver.machine, card, bytes);
        simgpu_card_unlock(&driver.machine, card);
        if (taken == SIMGPU_OK) {
            fresh->charged = bytes;
            return CUDA_SUCCESS;
        }
        if (attempt == 0)
            simgpu_reap(&driver.machine);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memory_take(struct context *context, size_t bytes, block *fresh)
{
    uint64_t rounded = ((uint64_t)bytes + GRAIN - 1) / GRAIN * GRAIN;
    fresh->card = context->card;
    fresh->context = context;
    CUresult result = rounded < bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    bool on_card = fresh->kind == BLOCK_DEVICE || fresh->kind == BLOCK_MANAGED || fresh->kind == BLOCK_ARRAY;
    if (result == CUDA_SUCCESS && on_card)
        result = charge(context->card, rounded, fresh);
    if (result != CUDA_SUCCESS)
        return result;
    result = place(fresh, bytes);
    block *added = result == CUDA_SUCCESS ? block_add(fresh) : NULL;
    if (added != NULL) {
        fresh->id = added->id;
        return CUDA_SUCCESS;
    }
    simgpu_card *card = simgpu_card_lock(&driver.machine, fresh->card);
    if (fresh->kind == BLOCK_MANAGED)
        simgpu_managed_give(&driver.machine, card, fresh->range);
    else if (on_card)
        simgpu_device_give(&driver.machine, card, fresh->charged);
    simgpu_card_unlock(&driver.machine, card);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void memory_free_block(block *found)
{
    block old = *found;
    block_remove(old.base);
    if (old.kind == BLOCK_MANAGED || old.charged > 0) {
        simgpu_card *card = simgpu_card_lock(&driver.machine, old.card);
        if (old.kind == BLOCK_MANAGED)
            simgpu_managed_give(&driver.machine, card, old.range);
        else
            simgpu_device_give(&driver.machine, card, old.charged);
        simgpu_card_unlock(&driver.machine, card);
    }
    if (old.pool != NULL)
        pool_freed(old.pool, old.charged);
    if (old.kind != BLOCK_REGISTERED)
        unplace(&old);
}

void memory_forget_context(struct context *context)
{
    for (size_t position = block_count; position-- > 0;) {
        block *candidate = &blocks[position];
        bool on_card = candidate->kind == BLOCK_DEVICE || candidate->kind == BLOCK_MANAGED || candidate->kind == BLOCK_ARRAY;
        if (candidate->context == context && (on_card || candidate->kind == BLOCK_HOST))
            memory_free_block(candidate);
    }
}

/* The extents of managed memory in [address, address + bytes); returns 1 if there are any on this card. */
uint32_t memory_ranges(uint64_t address, uint64_t bytes, uint32_t card, simgpu_range *range)
{
    block *found = bytes > 0 ? block_find(address) : NULL;
    if (found == NULL || found->kind != BLOCK_MANAGED || found->card != card)
        return 0;
    uint64_t offset = address - found->base;
    uint64_t end = bytes < found->size - offset ? offset + bytes : found->size;
    uint32_t first = (uint32_t)(offset / found->extent_bytes), last = (uint32_t)((end - 1) / found->extent_bytes);
    *range = (simgpu_range){found->range.first + first, last - first + 1};
    return 1;
}

static CUresult allocate(CUdeviceptr *result, size_t bytes, int kind, unsigned int flags)
{
    ENTER(context);
    if (result == NULL || bytes == 0)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    CUresult allowed = capture_forbid(context);
    if (allowed != CUDA_SUCCESS)
        LEAVE(allowed);
    block fresh = {.kind = kind, .flags = flags};
    CUresult taken = memory_take(context, bytes, &fresh);
    if (taken == CUDA_SUCCESS)
        *result = fresh.base;
    LEAVE(taken);
}

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *result, size_t bytes)
{
    return allocate(result, bytes, BLOCK_DEVICE, 0);
}

CUDA_API CUresult cuMemAllocManaged(CUdeviceptr *result, size_t bytes, unsigned int flags)
{
    if (flags != 1 && flags != 2)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(result, bytes, BLOCK_MANAGED, flags);
}

CUDA_API CUresult cuMemAllocPitch_v2(CUdeviceptr *result, size_t *pitch, size_t width, size_t height,
                                     unsigned int element)
{
    if (pitch == NULL || (element != 4 && element != 8 && element != 16) || width == 0 || height == 0)
        return CUDA_ERROR_INVALID_VALUE;
    size_t rounded = (width + 511) / 512 * 512;
    if (rounded < width || height > SIZE_MAX / rounded)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult taken = allocate(result, rounded * height, BLOCK_DEVICE, 0);
    if (taken == CUDA_SUCCESS)
        *pitch = rounded;
    return taken;
}

/* Freeing waits for work that may still use the memory, as the real call does. */
static CUresult release(uint64_t address, int first_kind, int second_kind)
{
    if (address == 0)
        return driver_ready();
    ENTER(context);
    block *found = block_find(address);
    if (found == NULL || found->base != address || found->freed ||
        (found->kind != first_kind && found->kind != second_kind))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    CUresult result = capture_forbid(context);
    if (result != CUDA_SUCCESS)
        LEAVE(result);
    struct context *owner = found->context;
    result = owner->destroyed ? CUDA_SUCCESS : context_wait(owner);
    found = block_find(address); /* the table may have been moved during the wait */
    if (found != NULL && found->base == address)
        memory_free_block(found);
    LEAVE(result);
}

CUDA_API CUresult cuMemFree_v2(CUdeviceptr address)
{
    return release(address, BLOCK_DEVICE, BLOCK_MANAGED);
}

CUDA_API CUresult cuMemHostAlloc(void **result, size_t bytes, unsigned int flags)
{
    CUdeviceptr address = 0;
    CUresult taken = result == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(&address, bytes, BLOCK_HOST, flags);
    if (taken == CUDA_SUCCESS)
        *result = (void *)(uintptr_t)address;
    return taken;
}

CUDA_API CUresult cuMemAllocHost_v2(void **result, size_t bytes)
{
    return cuMemHostAlloc(result, bytes, 0);
}

CUDA_API CUresult cuMemFreeHost(void *memory)
{
    return release((uintptr_t)memory, BLOCK_HOST, BLOCK_HOST);
}

CUDA_API CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
    ENTER(context);
    if (memory == NULL || bytes == 0)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (block_find((uintptr_t)memory) != NULL || block_find((uintptr_t)memory + bytes - 1) != NULL)
        LEAVE(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    block fresh = {.kind = BLOCK_REGISTERED, .flags = flags, .base = (uintptr_t)memory, .size = bytes};
    fresh.card = context->card;
    fresh.context = context;
    LEAVE(block_add(&fresh) != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUDA_API CUresult cuMemHostUnregister(void *memory)
{
    ENTER(context);
    block *found = block_find((uintptr_t)memory);
    if (found == NULL || found->kind != BLOCK_REGISTERED || found->base != (uintptr_t)memory)
        LEAVE(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CUresult result = context_wait(context);
    block_remove((uintptr_t)memory);
    LEAVE(result);
}

CUDA_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *result, void *memory, unsigned int flags)
{
    ENTER(context);
    block *found = block_find((uintptr_t)memory);
    if (result == NULL || found == NULL || (found->kind != BLOCK_HOST && found->kind != BLOCK_REGISTERED))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *result = (uintptr_t)memory;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemHostGetFlags(unsigned int *flags, void *memory)
{
    ENTER(context);
    block *found = block_find((uintptr_t)memory);
    if (flags == NULL || found == NULL || (found->kind != BLOCK_HOST && found->kind != BLOCK_REGISTERED))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *flags = found->flags;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER(context);
    simgpu_reap_sometimes(&driver.machine);
    simgpu_card *card = simgpu_card_lock(&driver.machine, context->card);
    if (free_bytes != NULL)
        *free_bytes = simgpu_card_free_bytes(card);
    if (total != NULL)
        *total = card->profile.memory_bytes;
    simgpu_card_unlock(&driver.machine, card);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    ENTER(context);
    block *found = block_find(address);
    if (found == NULL)
        LEAVE(CUDA_ERROR_NOT_FOUND);
    if (base != NULL)
        *base = found->base;
    if (size != NULL)
        *size = found->size;
    LEAVE(CUDA_SUCCESS);
}
