/* The kernels known by name: they compute, or take the time, that their arguments specify. */
#include "driver.h"

#include <string.h>

static uint64_t word(const unsigned char *arguments, size_t offset)
{
    uint64_t value;
    memcpy(&value, arguments + offset, sizeof value);
    return value;
}

static int32_t number(const unsigned char *arguments, size_t offset)
{
    int32_t value;
    memcpy(&value, arguments + offset, sizeof value);
    return value;
}

static float *floats(const unsigned char *arguments, size_t offset)
{
    return (float *)(uintptr_t)word(arguments, offset);
}

/* baton_busy(u64 nanoseconds) */
static double busy_ns(const unsigned char *arguments)
{
    return (double)word(arguments, 0);
}

/* baton_touch(void *memory, u64 bytes, u64 nanoseconds) */
static double touch_ns(const unsigned char *arguments)
{
    return (double)word(arguments, 16);
}

/* vector_add(const float *a, const float *b, float *sum, int n) */
static void vector_add(const unsigned char *arguments)
{
    const float *a = floats(arguments, 0), *b = floats(arguments, 8);
    float *sum = floats(arguments, 16);
    for (int32_t index = 0, n = number(arguments, 24); index < n; index++)
        sum[index] = a[index] + b[index];
}

/* saxpy(int n, float a, const float *x, float *y) */
static void saxpy(const unsigned char *arguments)
{
    float a;
    memcpy(&a, arguments + 4, sizeof a);
    const float *x = floats(arguments, 8);
    float *y = floats(arguments, 16);
    for (int32_t index = 0, n = number(arguments, 0); index < n; index++)
        y[index] = a * x[index] + y[index];
}

static const kernel_model models[] = {
    {.name = "baton_busy", .sizes = {8}, .work_ns = busy_ns},
    {.name = "baton_touch", .sizes = {8, 8, 8}, .work_ns = touch_ns, .pointers = {1}},
    {.name = "vector_add", .sizes = {8, 8, 8, 4}, .effect = vector_add, .pointers = {1, 2, 3}},
    {.name = "saxpy", .sizes = {4, 4, 8, 8}, .effect = saxpy, .pointers = {3, 4}},
};

const kernel_model *kernel_find(const char *name)
{
    for (size_t index = 0; index < sizeof models / sizeof models[0]; index++)
        if (strcmp(models[index].name, name) == 0)
            return &models[index];
    return NULL;
}
