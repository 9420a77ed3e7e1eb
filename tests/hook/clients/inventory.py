"""The devices as seen by nvidia-ml-py and by the driver."""

import pynvml as nvml
from cuda.bindings import driver as cuda

from tests.hook.clients.calls import ok, start

nvml.nvmlInit()
print("cards", nvml.nvmlDeviceGetCount())
for index in range(nvml.nvmlDeviceGetCount()):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    again = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    print(nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle), memory.total, again.total)
    print(nvml.nvmlDeviceGetPciInfo(handle).busId, nvml.nvmlDeviceGetCudaComputeCapability(handle))
device, _ = start()
print("driver", ok(cuda.cuDeviceTotalMem(device)), ok(cuda.cuMemGetInfo())[1])
