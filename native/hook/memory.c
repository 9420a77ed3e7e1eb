/* Allocation and release on every path except virtual memory management (vmm.c).
 *
 * Memory is charged before the driver is called and discharged if the driver refuses. With oversubscription, plain and
 * pitched allocations become managed memory, which the driver pages between card and host as turns change.
 * Stream-ordered allocations are not changed: managed memory has no stream order, and programs that use a pool rely on
 * it.
 */
#include "client.h"
#include "context.h"
#include "driver.h"
#include "ledger.h"

/* A driver may implement one call with another and reach it through the hook; only the outer call is counted. */
static __thread bool counting __attribute__((tls_model("initial-exec")));

/* The claim for an allocation in the current context; false if there is no context, which the driver will report. */
static bool claim_here(struct baton_claim *claim, enum baton_kind kind)
{
    CUcontext context = NULL;
    struct baton_gpu *gpu = counting ? NULL : baton_current_gpu(&context);
    if (!gpu)
        return false;
    baton_client_await_limits(gpu);
    *claim = (struct baton_claim){.kind = kind, .gpu = gpu, .context = context};
    return true;
}

static bool charge(struct baton_claim *claim, uint64_t bytes)
{
    if (bytes > INT64_MAX || !baton_charge(claim->gpu, bytes, claim->substituted)) {
        baton_debug("%s: an allocation of %llu bytes exceeds the limit", claim->gpu->uuid_text,
                    (unsigned long long)bytes);
        return false;
    }
    claim->bytes = (int64_t)bytes;
    counting = true;
    return true;
}

static CUresult settle(struct baton_claim *claim, CUresult result, uint64_t key)
{
    counting = false;
    if (result == CUDA_SUCCESS) {
        claim->key = key;
        baton_ledger_add(claim);
    } else {
        baton_discharge(claim->gpu, claim->bytes, claim->substituted);
    }
    return result;
}

static CUresult give_back(struct baton_claim *claim, CUresult result)
{
    if (result == CUDA_SUCCESS)
        baton_discharge(claim->gpu, claim->bytes, claim->substituted);
    else
        baton_ledger_add(claim);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
    struct baton_claim claim;
    if (!ptr || !size || !claim_here(&claim, BATON_POINTER))
        return REAL(cuMemAlloc_v2)(ptr, size);
    claim.substituted = baton_substitutes(claim.gpu);
    if (!charge(&claim, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = claim.substituted ? REAL(cuMemAllocManaged)(ptr, size, CU_MEM_ATTACH_GLOBAL)
                                        : REAL(cuMemAlloc_v2)(ptr, size);
    return settle(&claim, result, *ptr);
}

/* The pitch of every driver is a multiple of this. */
static const uint64_t pitch_alignment = 512;

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element)
{
    struct baton_claim claim;
    uint64_t row, bytes, real_bytes;
    bool valid = ptr && pitch && width && height && (element == 4 || element == 8 || element == 16);
    if (!valid || !claim_here(&claim, BATON_POINTER))
        return REAL(cuMemAllocPitch_v2)(ptr, pitch, width, height, element);
    if (__builtin_add_overflow((uint64_t)width, pitch_alignment - 1, &row) ||
        __builtin_mul_overflow(row & ~(pitch_alignment - 1), (uint64_t)height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    claim.substituted = baton_substitutes(claim.gpu);
    if (!charge(&claim, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (claim.substituted) {
        CUresult result = REAL(cuMemAllocManaged)(ptr, bytes, CU_MEM_ATTACH_GLOBAL);
        if (result == CUDA_SUCCESS)
            *pitch = bytes / height;
        return settle(&claim, result, *ptr);
    }
    CUresult result = REAL(cuMemAllocPitch_v2)(ptr, pitch, width, height, element);
    if (result == CUDA_SUCCESS) {
        real_bytes = (uint64_t)*pitch * height;
        if (real_bytes > bytes && !baton_charge(claim.gpu, real_bytes - bytes, false)) {
            REAL(cuMemFree_v2)(*ptr);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            claim.bytes = (int64_t)real_bytes;
            if (real_bytes < bytes)
                baton_discharge(claim.gpu, (int64_t)(bytes - real_bytes), false);
        }
    }
    return settle(&claim, result, *ptr);
}

CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned flags)
{
    struct baton_claim claim;
    if (!ptr || !size || !claim_here(&claim, BATON_POINTER))
        return REAL(cuMemAllocManaged)(ptr, size, flags);
    if (!charge(&claim, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemAllocManaged)(ptr, size, flags);
    return settle(&claim, result, *ptr);
}

/* Pool memory belongs to the device: it outlives the context. */
#define ALLOC_ASYNC(symbol)                                             \
    CUresult symbol(CUdeviceptr *ptr, size_t size, CUstream stream)     \
    {                                                                   \
        struct baton_claim claim;                                       \
        if (!ptr || !size || !claim_here(&claim, BATON_POINTER))        \
            return REAL(symbol)(ptr, size, stream);                     \
        claim.context = NULL;                                           \
        if (!charge(&claim, size))                                      \
            return CUDA_ERROR_OUT_OF_MEMORY;                            \
        CUresult result = REAL(symbol)(ptr, size, stream);              \
        return settle(&claim, result, *ptr);                            \
    }

ALLOC_ASYNC(cuMemAllocAsync)
ALLOC_ASYNC(cuMemAllocAsync_ptsz)

/* A pool created by the program may be on another GPU, or on the host, which is not counted. Other pools are on the
 * current GPU. */
static bool claim_pool(struct baton_claim *claim, CUmemoryPool pool)
{
    struct baton_claim made;
    if (!baton_ledger_look(BATON_POOL, (uintptr_t)pool, &made))
        return claim_here(claim, BATON_POINTER);
    *claim = (struct baton_claim){.kind = BATON_POINTER, .gpu = made.gpu};
    return made.gpu != NULL && !counting;
}

#define ALLOC_FROM_POOL(symbol)                                                            \
    CUresult symbol(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)     \
    {                                                                                      \
        struct baton_claim claim;                                                          \
        if (!ptr || !size || !claim_pool(&claim, pool))                                    \
            return REAL(symbol)(ptr, size, pool, stream);                                  \
        claim.context = NULL;                                                              \
        if (!charge(&claim, size))                                                         \
            return CUDA_ERROR_OUT_OF_MEMORY;                                               \
        CUresult result = REAL(symbol)(ptr, size, pool, stream);                           \
        return settle(&claim, result, *ptr);                                               \
    }

ALLOC_FROM_POOL(cuMemAllocFromPoolAsync)
ALLOC_FROM_POOL(cuMemAllocFromPoolAsync_ptsz)

CUresult cuMemPoolCreate(CUmemoryPool *pool, const baton_placement *properties)
{
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result != CUDA_SUCCESS)
        return result;
    bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct baton_gpu *gpu = on_device ? baton_gpu_of_device(properties->location.id) : NULL;
    if (gpu || !on_device)
        baton_ledger_add(&(struct baton_claim){.kind = BATON_POOL, .key = (uintptr_t)*pool, .gpu = gpu});
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct baton_claim claim;
    bool known = baton_ledger_take(BATON_POOL, (uintptr_t)pool, &claim);
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    if (known && result != CUDA_SUCCESS)
        baton_ledger_add(&claim);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    struct baton_claim claim;
    if (!baton_ledger_take(BATON_POINTER, ptr, &claim))
        return REAL(cuMemFree_v2)(ptr);
    return give_back(&claim, REAL(cuMemFree_v2)(ptr));
}

/* Substituted memory cannot be freed in stream order; the plain call waits for the work that uses it. */
#define FREE_ASYNC(symbol)                                                                              \
    CUresult symbol(CUdeviceptr ptr, CUstream stream)                                                   \
    {                                                                                                   \
        struct baton_claim claim;                                                                       \
        if (!baton_ledger_take(BATON_POINTER, ptr, &claim))                                             \
            return REAL(symbol)(ptr, stream);                                                           \
        return give_back(&claim, claim.substituted ? REAL(cuMemFree_v2)(ptr) : REAL(symbol)(ptr, stream)); \
    }

FREE_ASYNC(cuMemFreeAsync)
FREE_ASYNC(cuMemFreeAsync_ptsz)

/* Bytes per channel of an array format. Formats not listed are block-compressed or video formats of at most one
 * byte. */
static uint64_t format_bytes(int format)
{
    switch (format) {
    case 0x02: /* 16-bit integers and halves */
    case 0x09:
    case 0x10:
        return 2;
    case 0x03: /* 32-bit integers and floats */
    case 0x0a:
    case 0x20:
        return 4;
    default:
        return 1;
    }
}

static uint64_t array_bytes(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned channels)
{
    uint64_t bytes = width, factors[4] = {height ? height : 1, depth ? depth : 1, format_bytes(format), channels};
    for (unsigned i = 0; i < 4; i++)
        if (__builtin_mul_overflow(bytes, factors[i], &bytes))
            return UINT64_MAX;
    return bytes;
}

static uint64_t shape_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    uint64_t sum = 0, width = shape->Width, height = shape->Height, depth = shape->Depth;
    if (shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0; /* memory is mapped into it later; its handles are counted */
    for (unsigned level = 0; level < levels && level < 64; level++) {
        if (__builtin_add_overflow(sum, array_bytes(width, height, depth, shape->Format, shape->NumChannels), &sum))
            return UINT64_MAX;
        width = width > 1 ? width / 2 : 1;
        height = height > 1 ? height / 2 : height;
        depth = depth > 1 ? depth / 2 : depth;
    }
    return sum;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    struct baton_claim claim;
    if (!array || !shape || !claim_here(&claim, BATON_ARRAY))
        return REAL(cuArrayCreate_v2)(array, shape);
    if (!charge(&claim, array_bytes(shape->Width, shape->Height, 1, shape->Format, shape->NumChannels)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuArrayCreate_v2)(array, shape);
    return settle(&claim, result, (uintptr_t)*array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    struct baton_claim claim;
    if (!array || !shape || !claim_here(&claim, BATON_ARRAY))
        return REAL(cuArray3DCreate_v2)(array, shape);
    if (!charge(&claim, shape_bytes(shape, 1)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuArray3DCreate_v2)(array, shape);
    return settle(&claim, result, (uintptr_t)*array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    struct baton_claim claim;
    if (!array || !shape || !claim_here(&claim, BATON_MIPMAP))
        return REAL(cuMipmappedArrayCreate)(array, shape, levels);
    if (!charge(&claim, shape_bytes(shape, levels)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMipmappedArrayCreate)(array, shape, levels);
    return settle(&claim, result, (uintptr_t)*array);
}

CUresult cuArrayDestroy(CUarray array)
{
    struct baton_claim claim;
    if (!baton_ledger_take(BATON_ARRAY, (uintptr_t)array, &claim))
        return REAL(cuArrayDestroy)(array);
    return give_back(&claim, REAL(cuArrayDestroy)(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct baton_claim claim;
    if (!baton_ledger_take(BATON_MIPMAP, (uintptr_t)array, &claim))
        return REAL(cuMipmappedArrayDestroy)(array);
    return give_back(&claim, REAL(cuMipmappedArrayDestroy)(array));
}
