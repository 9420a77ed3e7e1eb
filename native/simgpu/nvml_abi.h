/* The part of NVML's binary interface that is simulated: types, codes and the definitions that every module needs.
 *
 * The layouts are NVIDIA's, from its public documentation and its Python bindings; a versioned struct carries its size
 * in its version word, and a call checks that word before it writes.
 */
#ifndef BATON_SIMGPU_NVML_ABI_H
#define BATON_SIMGPU_NVML_ABI_H

#include <stdint.h>

#define NVML_API __attribute__((visibility("default")))
#define NVML_STRUCT_VERSION(type, version) ((unsigned)(sizeof(type) | ((version) << 24)))

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_ALREADY_INITIALIZED = 5,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_INSUFFICIENT_POWER = 8,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_IRQ_ISSUE = 11,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_CORRUPTED_INFOROM = 14,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_NO_DATA = 21,
    NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = 22,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_FREQ_NOT_SUPPORTED = 24,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_DEPRECATED = 26,
    NVML_ERROR_NOT_READY = 27,
    NVML_ERROR_GPU_NOT_FOUND = 28,
    NVML_ERROR_INVALID_STATE = 29,
    NVML_ERROR_RESET_TYPE_NOT_SUPPORTED = 30,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvml_device *nvmlDevice_t;
typedef struct nvml_event_set *nvmlEventSet_t;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device;
    unsigned pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned version;
    unsigned domain, bus, device;
    unsigned pciDeviceId, pciSubSystemId;
    unsigned baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_v1_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t; /* v3 has the same layout */

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
    unsigned pid;
    unsigned long long timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long timeStamp;
    unsigned pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
    unsigned version, processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

typedef struct {
    unsigned version, sensorType;
    int temperature;
} nvmlTemperature_v1_t;

typedef struct {
    unsigned version;
    int marginTemperature;
} nvmlMarginTemperature_v1_t;

typedef struct {
    unsigned version, type;
    union {
        char str[41];
        unsigned char bytes[16];
    } value;
} nvmlUUID_v1_t;

typedef union {
    double dVal;
    unsigned uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    long long sllVal;
    int siVal;
} nvmlValue_t;

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    unsigned nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

enum { NVML_VALUE_DOUBLE = 0, NVML_VALUE_UINT = 1, NVML_VALUE_ULONG = 2, NVML_VALUE_ULL = 3, NVML_VALUE_SINT = 5 };

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

enum {
    NVML_EVENT_SINGLE_BIT_ECC = 0x1,
    NVML_EVENT_DOUBLE_BIT_ECC = 0x2,
    NVML_EVENT_XID_CRITICAL = 0x8,
};

typedef struct {
    unsigned long long l1Cache, l2Cache, deviceMemory, registerFile;
} nvmlEccErrorCounts_t;

typedef struct {
    unsigned max, high, partial, low, none;
} nvmlRowRemapperHistogramValues_t;

typedef struct {
    unsigned long long referenceTime, violationTime;
} nvmlViolationTime_t;

enum { NVML_CLOCK_GRAPHICS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_CLOCK_VIDEO = 3, NVML_CLOCK_COUNT = 4 };

enum { NVML_FEATURE_DISABLED = 0, NVML_FEATURE_ENABLED = 1 };

#define NVML_INSTANCE_NONE 0xFFFFFFFFu

_Static_assert(sizeof(nvmlPciInfo_t) == 68 && sizeof(nvmlPciInfoExt_v1_t) == 64, "NVML's layout");
_Static_assert(sizeof(nvmlMemory_t) == 24 && sizeof(nvmlMemory_v2_t) == 40, "NVML's layout");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_v2_t) == 24, "NVML's layout");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32 && sizeof(nvmlProcessDetailList_v1_t) == 24, "NVML's layout");
_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "NVML's layout");
_Static_assert(sizeof(nvmlProcessUtilizationInfo_v1_t) == 40, "NVML's layout");
_Static_assert(sizeof(nvmlProcessesUtilizationInfo_v1_t) == 24, "NVML's layout");
_Static_assert(sizeof(nvmlFieldValue_t) == 40 && sizeof(nvmlEventData_t) == 32, "NVML's layout");
_Static_assert(sizeof(nvmlUUID_v1_t) == 52 && sizeof(nvmlTemperature_v1_t) == 12, "NVML's layout");

#endif
