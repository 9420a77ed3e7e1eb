/* Linking images. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    size_t bytes;
    char *image;
} link_state;

/* The linked images are never inspected, so the last piece added represents the whole. */
CUDA_API CUresult cuLinkCreate_v2(unsigned int count, void *options, void **values, void **result)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS || result == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    *result = calloc(1, sizeof(link_state));
    return *result != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuLinkAddData_v2(void *state, int type, void *data, size_t bytes, const char *name,
                                   unsigned int count, void *options, void **values)
{
    link_state *link = state;
    if (link == NULL || data == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    char *image = malloc(bytes);
    if (image == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(image, data, bytes);
    free(link->image);
    link->image = image;
    link->bytes = bytes;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLinkComplete(void *state, void **image, size_t *bytes)
{
    link_state *link = state;
    if (link == NULL || link->image == NULL || image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *image = link->image;
    if (bytes != NULL)
        *bytes = link->bytes;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLinkDestroy(void *state)
{
    link_state *link = state;
    if (link == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    free(link->image);
    free(link);
    return CUDA_SUCCESS;
}
