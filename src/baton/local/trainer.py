"""A stand-in for a training job: phases of GPU work over a working set, with phases of CPU work between them.

The demo and the measurements run it as a separate program (`python -m baton.local.trainer`), because they show
processes that share a GPU. It calls the CUDA driver API through ctypes, so it enters the driver and the hook like any
other program. On a simulated GPU its kernels cost exactly the time that it asks for.

Times are modelled seconds. In a CPU phase the job sleeps in real time, divided by the time scale of the simulated
machine, so one factor speeds up the whole job. It writes its progress to stdout, one JSON object per step.
"""

import argparse
import ctypes
import json
import sys
import time

from baton.errors import BatonError

_CUDA_ERROR_OUT_OF_MEMORY = 2
_MEM_ATTACH_GLOBAL = 1


class DriverError(BatonError):
    """A CUDA driver call failed; the sentence names the call and the error."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call} failed with {name} ({code})")
        self.code = code


class Gpu:
    """The current thread's context on one visible GPU, and the few driver calls a job needs."""

    def __init__(self, ordinal: int = 0) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.call("cuCtxSetCurrent", self._context)
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), b"baton\0")
        self._touch = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(self._touch), module, b"baton_touch")

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(name, code, (text.value or b"an unknown error").decode())

    def allocate(self, size: int, *, managed: bool) -> ctypes.c_uint64:
        """Device memory; managed memory may exceed what the card has."""
        pointer = ctypes.c_uint64()
        if managed:
            self.call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size), _MEM_ATTACH_GLOBAL)
        else:
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def touch(self, pointer: ctypes.c_uint64, size: int, seconds: float, blocks: int) -> None:
        """Launch a kernel that uses the whole range and computes for `seconds` on `blocks` blocks of 1024 threads."""
        values = (pointer, ctypes.c_uint64(size), ctypes.c_uint64(int(seconds * 1e9)))
        arguments = (ctypes.c_void_p * 3)(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        self.call("cuLaunchKernel", self._touch, blocks, 1, 1, 1024, 1, 1, 0, None, arguments, None)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")


def train(
    *,
    working_set: int,
    steps: int,
    gpu_s: float,
    cpu_s: float,
    kernels: int,
    blocks: int,
    time_scale: float,
    managed: bool,
) -> None:
    """Run the job: `steps` times a GPU phase of `kernels` kernels that take `gpu_s` in total, then a CPU phase."""
    gpu = Gpu()
    data = gpu.allocate(working_set, managed=managed)
    _report(0, steps)
    for step in range(1, steps + 1):
        for _ in range(kernels):
            gpu.touch(data, working_set, gpu_s / kernels, blocks)
        gpu.synchronize()
        time.sleep(cpu_s / time_scale)
        _report(step, steps)


def _report(step: int, steps: int) -> None:
    sys.stdout.write(json.dumps({"step": step, "of": steps, "at": time.monotonic()}) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for a training job.")
    parser.add_argument("--working-set", type=int, required=True, help="bytes of GPU memory that each step uses")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gpu-seconds", type=float, default=1.0, help="GPU time of one step, modelled")
    parser.add_argument("--cpu-seconds", type=float, default=1.0, help="CPU time of one step, modelled")
    parser.add_argument("--kernels", type=int, default=10, help="kernels in one step")
    parser.add_argument("--blocks", type=int, default=112, help="blocks of a kernel; 112 fill a simulated P100")
    parser.add_argument("--time-scale", type=float, default=1.0, help="modelled seconds per real second")
    parser.add_argument(
        "--managed", action="store_true", help="allocate managed memory, which may exceed the memory of the GPU"
    )
    options = parser.parse_args()
    try:
        train(
            working_set=options.working_set,
            steps=options.steps,
            gpu_s=options.gpu_seconds,
            cpu_s=options.cpu_seconds,
            kernels=options.kernels,
            blocks=options.blocks,
            time_scale=options.time_scale,
            managed=options.managed,
        )
    except DriverError as error:
        sys.stderr.write(f"trainer: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
