/* The cost of a piece of work on the card, and its effect on memory. */
#define _GNU_SOURCE
#include "driver.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096ULL
#define WORTH_DROPPING (1ULL << 20) /* clearing at least this much releases pages instead of writing zeros */

static size_t argument_offset(const kernel_model *model, uint32_t parameter)
{
    size_t offset = 0;
    for (uint32_t index = 0; index < parameter; index++) {
        size_t next = model->sizes[index + 1] ? model->sizes[index + 1] : 1;
        offset += model->sizes[index];
        offset = (offset + next - 1) / next * next;
    }
    return offset;
}

/* How much memory a known kernel accesses from its pointer: baton_touch gets the size, the others have n floats. */
static uint64_t reach(const kernel_work *kernel)
{
    uint64_t bytes = 0;
    int32_t count = 0;
    if (strcmp(kernel->function->model->name, "baton_touch") == 0) {
        memcpy(&bytes, kernel->arguments + 8, sizeof bytes);
        return bytes;
    }
    bool first = strcmp(kernel->function->model->name, "saxpy") == 0;
    memcpy(&count, kernel->arguments + (first ? 0 : 24), sizeof count);
    return count > 0 ? (uint64_t)count * sizeof(float) : 0;
}

static void describe_kernel(struct context *context, const kernel_work *kernel, simgpu_op *cost)
{
    const simgpu_profile *profile = &driver_card(context->card)->profile;
    const kernel_model *model = kernel->function->model;
    double threads = 1;
    for (int axis = 0; axis < 3; axis++)
        threads *= (double)kernel->grid[axis] * (double)kernel->block[axis];
    double room = (double)profile->sm_count * profile->threads_per_sm;
    cost->kind = SIMGPU_OP_KERNEL;
    cost->writes = 1;
    cost->demand = fmin(1, threads / room);
    if (model != NULL && model->work_ns != NULL)
        cost->work_ns = model->work_ns(kernel->arguments);
    else
        cost->work_ns = profile->kernel_overhead_ns + fmax(1, ceil(threads / room)) * profile->wave_ns;
    if (model == NULL) {
        cost->touch = driver.touch_nothing ? SIMGPU_TOUCH_NONE : SIMGPU_TOUCH_ALL;
        return;
    }
    for (int index = 0; index < 4 && model->pointers[index]; index++) {
        uint64_t address;
        memcpy(&address, kernel->arguments + argument_offset(model, model->pointers[index] - 1U), sizeof address);
        cost->range_count +=
            memory_ranges(address, reach(kernel), context->card, &cost->ranges[cost->range_count]);
    }
    cost->touch = cost->range_count ? SIMGPU_TOUCH_RANGES : SIMGPU_TOUCH_NONE;
}

static void describe_copy(struct context *context, const copy_work *copy, simgpu_op *cost)
{
    uint64_t bytes = (uint64_t)copy->width * copy->height * copy->depth;
    cost->bytes = (double)bytes;
    uint64_t to_reach = copy->to_slice * (copy->depth - 1) + copy->to_pitch * (copy->height - 1) + copy->width;
    uint64_t from_reach = copy->from_slice * (copy->depth - 1) + copy->from_pitch * (copy->height - 1) + copy->width;
    if (copy->to_device)
        cost->range_count += memory_ranges((uintptr_t)copy->to, to_reach, context->card, &cost->ranges[cost->range_count]);
    cost->overlaid = cost->range_count > 0 && !copy->from_device;
    cost->writes = cost->range_count > 0;
    if (copy->from_device)
        cost->range_count +=
            memory_ranges((uintptr_t)copy->from, from_reach, context->card, &cost->ranges[cost->range_count]);
    cost->touch = cost->range_count ? SIMGPU_TOUCH_RANGES : SIMGPU_TOUCH_NONE;
    if (copy->to_device == copy->from_device && !copy->between_cards)
        cost->kind = SIMGPU_OP_MEMORY;
    else
        cost->kind = copy->to_device ? SIMGPU_OP_COPY_IN : SIMGPU_OP_COPY_OUT;
    if (cost->kind == SIMGPU_OP_MEMORY)
        cost->bytes *= 2; /* read and written */
}

void work_describe(struct context *context, const work *item, simgpu_op *cost)
{
    switch (item->kind) {
    case WORK_KERNEL:
        describe_kernel(context, &item->kernel, cost);
        break;
    case WORK_COPY:
        describe_copy(context, &item->copy, cost);
        break;
    case WORK_MEMSET: {
        uint64_t row = (uint64_t)item->memset.width * item->memset.element;
        cost->kind = SIMGPU_OP_MEMORY;
        cost->bytes = (double)(row * item->memset.height);
        cost->writes = cost->overlaid = 1;
        cost->range_count = memory_ranges((uintptr_t)item->memset.to,
                                          item->memset.pitch * (item->memset.height - 1) + row, context->card, cost->ranges);
        cost->touch = cost->range_count ? SIMGPU_TOUCH_RANGES : SIMGPU_TOUCH_NONE;
        break;
    }
    case WORK_PREFETCH:
        cost->kind = SIMGPU_OP_PAGE;
        cost->range_count =
            memory_ranges(item->prefetch.address, item->prefetch.bytes, context->card, cost->ranges);
        if (item->prefetch.to_card) {
            cost->touch = cost->range_count ? SIMGPU_TOUCH_RANGES : SIMGPU_TOUCH_NONE;
        } else if (cost->range_count > 0) {
            uint64_t out = 0;
            simgpu_residency_evict(driver_card(context->card), cost->ranges[0], &out); /* the caller holds the card */
            cost->kind = SIMGPU_OP_COPY_OUT;
            cost->bytes = (double)out;
        }
        break;
    default:
        cost->kind = SIMGPU_OP_MARK;
    }
}

static void carry_out_copy(const copy_work *copy)
{
    const char *from = copy->staged != NULL ? copy->staged : copy->from;
    size_t from_pitch = copy->staged != NULL ? copy->width : copy->from_pitch;
    size_t from_slice = copy->staged != NULL ? copy->width * copy->height : copy->from_slice;
    bool flat = copy->depth == 1 && (copy->height == 1 || (copy->to_pitch == copy->width && from_pitch == copy->width));
    if (flat) {
        memmove(copy->to, from, copy->width * copy->height);
        return;
    }
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            memmove(copy->to + z * copy->to_slice + y * copy->to_pitch, from + z * from_slice + y * from_pitch,
                    copy->width);
}

/* Whole private pages are cleared by releasing them, so that clearing a large card needs no memory. */
static void clear(char *to, size_t bytes)
{
    uint64_t start = ((uint64_t)(uintptr_t)to + PAGE - 1) / PAGE * PAGE;
    uint64_t end = ((uint64_t)(uintptr_t)to + bytes) / PAGE * PAGE;
    if (bytes < WORTH_DROPPING || madvise((void *)(uintptr_t)start, end - start, MADV_DONTNEED) != 0) {
        memset(to, 0, bytes);
        return;
    }
    memset(to, 0, start - (uintptr_t)to);
    memset((char *)(uintptr_t)end, 0, (uintptr_t)to + bytes - end);
}

static void fill(char *to, const memset_work *item)
{
    size_t bytes = item->width * item->element;
    bool same = item->element == 1 || (item->element == 2 && (item->value & 0xff) == (item->value >> 8 & 0xff));
    if (item->value == 0)
        clear(to, bytes);
    else if (same)
        memset(to, (int)(item->value & 0xff), bytes);
    else
        for (size_t index = 0; index < item->width; index++)
            memcpy(to + index * item->element, &item->value, item->element);
}

static void carry_out_free(CUdeviceptr address)
{
    driver_lock();
    block *found = block_find(address);
    if (found != NULL)
        memory_free_block(found);
    driver_unlock();
}

void work_carry_out(struct stream *stream, work *item)
{
    switch (item->kind) {
    case WORK_KERNEL:
        if (item->kernel.function->model != NULL && item->kernel.function->model->effect != NULL)
            item->kernel.function->model->effect(item->kernel.arguments);
        break;
    case WORK_COPY:
        carry_out_copy(&item->copy);
        break;
    case WORK_MEMSET:
        for (size_t row = 0; row < item->memset.height; row++)
            fill(item->memset.to + row * item->memset.pitch, &item->memset);
        break;
    case WORK_HOST:
        if (item->host.callback != NULL)
            item->host.callback(stream->legacy ? NULL : stream, CUDA_SUCCESS, item->host.data);
        else
            item->host.function(item->host.data);
        break;
    case WORK_VALUE:
        memcpy((void *)(uintptr_t)item->value.address, &item->value.value, item->value.bytes);
        break;
    case WORK_FREE:
        carry_out_free(item->address);
        break;
    default:
        break;
    }
}

void work_release(work *item)
{
    if (item->kind == WORK_COPY)
        free(item->copy.staged);
}
