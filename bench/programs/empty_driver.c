/* A driver whose calls do nothing: a launch on it costs only the call itself, and with the hook, the hook. */
#include <stddef.h>
#include <string.h>

#define OK(name) \
    int name(void) { return 0; }

OK(cuInit)
OK(cuCtxSetCurrent)
OK(cuCtxPushCurrent_v2)
OK(cuCtxPopCurrent_v2)
OK(cuCtxSynchronize)
OK(cuStreamSynchronize)
OK(cuEventRecord)
OK(cuEventQuery)
OK(cuEventDestroy_v2)

static int give(void **handle)
{
    static int any;
    *handle = &any;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { return give(context); }
int cuCtxGetCurrent(void **context) { return give(context); }
int cuModuleLoadData(void **module, const void *image) { return give(module); }
int cuModuleGetFunction(void **function, void *module, const char *name) { return give(function); }
int cuStreamCreate(void **stream, unsigned flags) { return give(stream); }
int cuEventCreate(void **event, unsigned flags) { return give(event); }

static int tell(int *answer, int value)
{
    *answer = value;
    return 0;
}

int cuDeviceGetCount(int *count) { return tell(count, 1); }
int cuDeviceGet(int *device, int ordinal) { return tell(device, ordinal); }
int cuCtxGetDevice(int *device) { return tell(device, 0); }
int cuDeviceGetAttribute(int *value, int attribute, int device) { return tell(value, 0); }
int cuStreamIsCapturing(void *stream, int *status) { return tell(status, 0); }

int cuDeviceGetUuid(char *uuid, int device)
{
    memset(uuid, 0, 15);
    uuid[15] = (char)0xb1;
    return 0;
}

int cuDeviceGetUuid_v2(char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = (size_t)16 << 30;
    return 0;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra)
{
    return 0;
}
