/* Virtual memory management: reserved addresses, physical memory, and mappings between them. Physical memory is an
 * anonymous file, so that one piece can be mapped at several addresses. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY (2 * SIMGPU_MIB)

struct physical {
    uint32_t magic;
    int fd;
    uint32_t card;
    uint64_t size;
    unsigned int references; /* the handle and all mappings */
    bool on_card;
    CUmemAllocationProp properties;
};

typedef struct reservation {
    uint64_t base, size;
    struct reservation *next;
} reservation;

#define MAGIC_PHYSICAL 0x70687931

static reservation *reservations;

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    return physical != NULL && physical->magic == MAGIC_PHYSICAL ? physical : NULL;
}

static void physical_drop(struct physical *physical)
{
    if (--physical->references > 0)
        return;
    if (physical->on_card) {
        simgpu_card *card = simgpu_card_lock(&driver.machine, physical->card);
        simgpu_device_give(&driver.machine, card, physical->size);
        simgpu_card_unlock(&driver.machine, card);
    }
    close(physical->fd);
    physical->magic = 0;
    free(physical);
}

CUDA_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *asked, int option)
{
    if (granularity == NULL || asked == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return driver_ready();
}

CUDA_API CUresult cuMemAddressReserve(CUdeviceptr *result, size_t size, size_t alignment, CUdeviceptr wanted,
                                      unsigned long long flags)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (result == NULL || size == 0 || size % GRANULARITY != 0 || flags != 0 || (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    size_t align = alignment > GRANULARITY ? alignment : GRANULARITY;
    driver_lock();
    reservation *fresh = malloc(sizeof *fresh);
    char *pages = mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fresh == NULL || pages == MAP_FAILED) {
        free(fresh);
        LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    }
    uint64_t start = (uintptr_t)pages, base = (start + align - 1) / align * align;
    if (base > start)
        munmap(pages, base - start);
    if (start + size + align > base + size)
        munmap((void *)(uintptr_t)(base + size), start + align - base);
    *fresh = (reservation){base, size, reservations};
    reservations = fresh;
    *result = base;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    for (reservation **link = &reservations; *link != NULL; link = &(*link)->next) {
        reservation *found = *link;
        if (found->base != address || found->size != size)
            continue;
        for (uint64_t at = address; at < address + size; at += GRANULARITY)
            if (block_find(at) != NULL)
                LEAVE(CUDA_ERROR_INVALID_VALUE);
        *link = found->next;
        munmap((void *)(uintptr_t)address, size);
        free(found);
        LEAVE(CUDA_SUCCESS);
    }
    LEAVE(CUDA_ERROR_INVALID_VALUE);
}

CUDA_API CUresult cuMemCreate(CUmemGenericAllocationHandle *result, size_t size, const CUmemAllocationProp *asked,
                              unsigned long long flags)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (result == NULL || asked == NULL || size == 0 || size % GRANULARITY != 0 || flags != 0 || asked->type != 1)
        return CUDA_ERROR_INVALID_VALUE;
    bool on_card = asked->location.type == 1;
    if (on_card && device_check(asked->location.id) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    if (asked->requestedHandleTypes != 0)
        return driver_unsupported("cuMemCreate with shareable handles");
    driver_lock();
    struct physical *physical = calloc(1, sizeof *physical);
    int fd = physical != NULL ? memfd_create("simgpu", MFD_CLOEXEC) : -1;
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
        if (fd >= 0)
            close(fd);
        free(physical);
        LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *physical = (struct physical){MAGIC_PHYSICAL, fd, 0, size, 1, on_card, *asked};
    for (int attempt = 0; on_card && attempt < 2; attempt++) {
        physical->card = driver.cards[asked->location.id];
        simgpu_card *card = simgpu_card_lock(&driver.machine, physical->card);
        int taken = card->lost ? SIMGPU_FAILED : simgpu_device_take(&driver.machine, card, size);
        simgpu_card_unlock(&driver.machine, card);
        if (taken == SIMGPU_OK)
            break;
        if (attempt == 0) {
            simgpu_reap(&driver.machine);
            continue;
        }
        close(fd);
        free(physical);
        LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *result = (uintptr_t)physical;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    struct physical *physical = physical_of(handle);
    if (physical == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    physical_drop(physical);
    LEAVE(CUDA_SUCCESS);
}

static bool reserved(uint64_t address, uint64_t size)
{
    for (const reservation *one = reservations; one != NULL; one = one->next)
        if (address >= one->base && address + size <= one->base + one->size)
            return true;
    return false;
}

CUDA_API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                           unsigned long long flags)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    struct physical *physical = physical_of(handle);
    if (physical == NULL || size == 0 || size % GRANULARITY != 0 || address % GRANULARITY != 0 || flags != 0 ||
        offset > physical->size || size > physical->size - offset || !reserved(address, size))
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    for (uint64_t at = address; at < address + size; at += GRANULARITY)
        if (block_find(at) != NULL)
            LEAVE(CUDA_ERROR_ALREADY_MAPPED);
    void *mapped = mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd, (off_t)offset);
    block fresh = {.kind = BLOCK_MAPPED, .base = address, .size = size, .card = physical->card};
    fresh.physical = physical;
    fresh.size_class = SIMGPU_NONE;
    if (mapped == MAP_FAILED || block_add(&fresh) == NULL)
        LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
    physical->references++;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    for (struct context *context = driver.contexts; context != NULL; context = context->next)
        if (!context->destroyed && context_health(context) == CUDA_SUCCESS)
            context_wait(context);
    for (uint64_t at = address; at < address + size;) {
        block *found = block_find(at);
        if (found == NULL || found->kind != BLOCK_MAPPED || found->base != at || at + found->size > address + size)
            LEAVE(CUDA_ERROR_INVALID_VALUE);
        struct physical *physical = found->physical;
        uint64_t bytes = found->size;
        block_remove(at);
        (void)!mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                    0);
        physical_drop(physical);
        at += bytes;
    }
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *asked, size_t count)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    if (asked == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    for (uint64_t at = address; at < address + size;) {
        block *found = block_find(at);
        if (found == NULL || found->kind != BLOCK_MAPPED)
            LEAVE(CUDA_ERROR_INVALID_VALUE);
        /* The host stands in for the card, so anything but "no access" allows it to read and write. */
        found->flags = (unsigned int)asked[0].flags;
        mprotect((void *)(uintptr_t)found->base, found->size, asked[0].flags ? PROT_READ | PROT_WRITE : PROT_NONE);
        at = found->base + found->size;
    }
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    block *found = block_find(address);
    if (flags == NULL || location == NULL || found == NULL || found->kind != BLOCK_MAPPED)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    *flags = found->flags;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *result,
                                                         CUmemGenericAllocationHandle handle)
{
    struct physical *physical = physical_of(handle);
    if (result == NULL || physical == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *result = physical->properties;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *result, void *address)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    block *found = block_find((uintptr_t)address);
    if (result == NULL || found == NULL || found->kind != BLOCK_MAPPED)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    found->physical->references++;
    *result = (uintptr_t)found->physical;
    LEAVE(CUDA_SUCCESS);
}
