"""NVIDIA cards through NVML, NVIDIA's management library, and NVIDIA's Python bindings of it.

The same code serves real and simulated cards: the simulated driver is another `libnvidia-ml.so.1`. By default the
dynamic linker decides which one is loaded; `library` names one by path. A process can load only one NVML.

A card can vanish between two calls ("fallen off the bus"), and many answers are optional. So every question goes
through `_ask`, which returns None if the card does not report the value, and raises if the card fails. Each method
handles that error in one place, so that one failing card does not hide the others. The NUMA node comes from the card's
memory affinity, because `nvmlDeviceGetNumaNodeId` answers only for cards that are NUMA nodes themselves.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from baton.errors import BatonError, UnavailableError
from baton.gpu.cards import Card, CardEvent, CardHealth, NoDriverError, ProcessUse, Sample, Severity
from baton.gpu.containers import DriverFiles, Mount
from baton.gpu.nvidia import NVIDIA
from baton.gpu.xids import classify
from baton.model.ids import CardId
from baton.native import library as native_library

_MIB = 1 << 20
_PROCESS_WINDOW_S = 1.0
_MAX_TIMEOUT_MS = 0xFFFF_FFFE  # the greatest finite wait of NVML
_NUMA_WORDS = 4
_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""The bandwidth of one lane of each PCIe generation in one direction, after encoding."""
_SYSFS = Path("/sys/bus/pci/devices")
_FAMILIES = {3: "kepler", 5: "maxwell", 6: "pascal", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}
_SIMULATED_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_SIMULATED_MACHINE = "/run/baton/simgpu"
"""Where a container sees the directory of the simulated machine."""

_SILENT = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    pynvml.NVML_ERROR_CORRUPTED_INFOROM,  # such a card works; only its records cannot be read
)
_GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND, pynvml.NVML_ERROR_UNKNOWN)
_RECOVERY = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "the driver asks for a reset of this GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "the driver asks for a reboot of this machine",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "the driver asks to stop peer-to-peer work and reset this GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "the driver asks to drain and reset this GPU",
}


class NvmlSource:
    """A `GpuSource` over NVML.

    The constructor opens the library: `NoDriverError` if there is none, `UnavailableError` if no driver answers.
    """

    def __init__(self, library: Path | None = None) -> None:
        _load(library)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise _unavailable(error) from None
        self._open = True
        self._handles: dict[CardId, Any] = {}
        self._indices: dict[CardId, int] = {}
        self._event_set: Any = None
        self._watched: set[CardId] = set()
        self._silent = 0
        self._deaf = False

    @property
    def simulated(self) -> bool:
        """Whether the library is Baton's simulated driver, which has a symbol that NVIDIA's library lacks."""
        return _is_simulated()

    @property
    def driver_files(self) -> DriverFiles:
        """NVIDIA's container runtime brings the real driver. Containers find the simulated one in the same way as
        NVIDIA's: through the dynamic linker."""
        if not self.simulated:
            return DriverFiles()
        from baton.gpu import simulated

        return DriverFiles(
            tuple(native_library(f"simgpu/{name}") for name in _SIMULATED_LIBRARIES),
            simulated.LIBRARY_PATH_VARIABLE,
            (Mount(str(simulated.default_directory()), _SIMULATED_MACHINE, read_only=False),),
            {simulated.DIRECTORY_VARIABLE: _SIMULATED_MACHINE},
        )

    @property
    def silent_cards(self) -> int:
        return self._silent

    @property
    def description(self) -> str:
        driver = _ask_driver(pynvml.nvmlSystemGetDriverVersion)
        return f"simulated NVIDIA driver {driver}" if self.simulated else f"NVIDIA driver {driver}"

    def cards(self) -> tuple[Card, ...]:
        found: dict[CardId, tuple[int, Any]] = {}
        count = _ask_driver(pynvml.nvmlDeviceGetCount)
        for index in range(count):
            with contextlib.suppress(_CardFailsError):
                handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
                identity = _ask(pynvml.nvmlDeviceGetUUID, handle) if handle is not None else None
                if identity is not None:
                    found[CardId(str(identity))] = (index, handle)
        # New mappings, because another thread may be waiting in `events` with the present ones.
        self._indices = {**self._indices, **{card: index for card, (index, _) in found.items()}}
        self._handles = {**self._handles, **{card: handle for card, (_, handle) in found.items()}}
        self._silent = count - len(found)
        by_pci = {}
        for card, (_, handle) in found.items():
            with contextlib.suppress(_CardFailsError):
                by_pci[_pci_id(handle)] = card
        result = []
        for card, (index, handle) in found.items():
            with contextlib.suppress(_CardFailsError):
                result.append(_card(card, index, handle, by_pci))
        return tuple(result)

    def telemetry(self) -> tuple[Sample, ...]:
        samples = []
        for card, handle in self._known().items():
            with contextlib.suppress(_CardFailsError):
                samples.append(_sample(card, handle))
        return tuple(samples)

    def health(self) -> tuple[CardHealth, ...]:
        states = []
        for card, handle in self._known().items():
            try:
                reason = _defect(handle)
            except _CardFailsError as error:
                reason = str(error)
            states.append(CardHealth(card, healthy=not reason, reason=reason))
        return tuple(states)

    def events(self, timeout_s: float) -> tuple[CardEvent, ...]:
        self._watch()
        happened: list[CardEvent] = []
        wait_ms = min(max(int(timeout_s * 1000), 0), _MAX_TIMEOUT_MS)
        while True:
            try:
                data = pynvml.nvmlEventSetWait_v2(self._event_set, wait_ms)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    self._deaf = False
                    return tuple(happened)
                if self._deaf:
                    time.sleep(timeout_s)  # already reported; a caller in a loop must not spin
                    return tuple(happened)
                self._deaf = True
                return (*happened, CardEvent(None, Severity.FATAL, f"NVML cannot wait for events: {error}"))
            self._deaf = False
            happened.append(self._event(data))
            wait_ms = 0

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(pynvml.NVMLError):
            if self._event_set is not None:
                pynvml.nvmlEventSetFree(self._event_set)
            pynvml.nvmlShutdown()

    def __enter__(self) -> "NvmlSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _known(self) -> dict[CardId, Any]:
        if not self._handles:
            self.cards()
        return dict(sorted(self._handles.items(), key=lambda item: self._indices[item[0]]))

    def _watch(self) -> None:
        if self._event_set is None:
            self._event_set = _ask_driver(pynvml.nvmlEventSetCreate)
        wanted = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
        for card, handle in self._known().items():
            if card in self._watched:
                continue
            with contextlib.suppress(_CardFailsError):
                if supported := _ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle):
                    _ask(pynvml.nvmlDeviceRegisterEvents, handle, wanted & supported, self._event_set)
                self._watched.add(card)

    def _event(self, data: Any) -> CardEvent:
        address = ctypes.cast(data.device, ctypes.c_void_p).value
        card = next(
            (known for known, handle in self._handles.items() if ctypes.cast(handle, ctypes.c_void_p).value == address),
            None,
        )
        if data.eventType == pynvml.nvmlEventTypeDoubleBitEccError:
            return CardEvent(card, Severity.FATAL, "double bit ECC error")
        number = int(data.eventData)
        xid = classify(number)
        return CardEvent(card, xid.severity, f"Xid {number}: {xid.title}", number)


class _CardFailsError(Exception):
    """The card does not answer, or no longer does; the text says why."""


def _is_simulated() -> bool:
    return hasattr(pynvml.nvmlLib, "baton_simgpu_directory")


def _load(library: Path | None) -> None:
    if library is None:
        return
    loaded = pynvml.nvmlLib
    if loaded is None:
        try:
            pynvml.nvmlLib = ctypes.CDLL(str(library))
        except OSError as error:
            raise UnavailableError(f"cannot load the NVML library {library}: {error}") from None
    elif getattr(loaded, "_name", None) != str(library):
        raise BatonError(f"this process already uses the NVML library {loaded._name} and cannot use {library} as well")


def _unavailable(error: pynvml.NVMLError) -> UnavailableError:
    simulated = "without a GPU, `baton simgpu start` creates simulated ones"
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return NoDriverError(f"no NVIDIA driver: libnvidia-ml.so.1 does not load; install the driver; {simulated}")
    if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return UnavailableError(f"libnvidia-ml.so.1 is installed, but no driver answers; load the driver; {simulated}")
    return UnavailableError(f"NVML does not start: {error}; `nvidia-smi` may show more")


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None if this card or driver does not report it; `_CardFailsError` if the card fails."""
    try:
        return question(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _SILENT:
            return None
        if error.value in _GONE:
            raise _CardFailsError("it has fallen off the bus; reset it or reboot the machine") from None
        if error.value == pynvml.NVML_ERROR_RESET_REQUIRED:
            raise _CardFailsError(_RECOVERY[pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET]) from None
        raise _CardFailsError(f"NVML fails in {question.__name__}: {error}") from None


def _ask_driver(question: Callable[[], Any]) -> Any:
    """The answer to a question about the driver."""
    try:
        return question()
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML fails in {question.__name__}: {error}") from None


def _field(handle: Any, field: int) -> int | None:
    values = _ask(pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    value = values[0].value
    wide = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
    return int(value.ullVal if values[0].valueType in wide else value.uiVal)


def _pci_id(handle: Any) -> str:
    """The address as the kernel writes it: a four-digit domain, lower case. Empty for a card without a bus address."""
    info = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
    return _kernel_pci_id(info.busId) if info is not None else ""


def _kernel_pci_id(bus_id: bytes | str) -> str:
    text = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _card(card: CardId, index: int, handle: Any, by_pci: dict[str, CardId]) -> Card:
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    compute_capability = (int(capability[0]), int(capability[1])) if capability else None
    pci_id = _pci_id(handle)
    minor = _ask(pynvml.nvmlDeviceGetMinorNumber, handle)
    return Card(
        id=card,
        index=index,
        vendor=NVIDIA.name,
        model=str(_ask(pynvml.nvmlDeviceGetName, handle)),
        memory_mib=int(memory.total) // _MIB if memory else 0,
        compute_capability=compute_capability,
        pci_id=pci_id,
        numa_node=_numa_node(handle, pci_id),
        nvlink_peers=_nvlink_peers(handle, by_pci),
        link_bytes_per_s=_link_bytes_per_s(handle),
        device_nodes=(f"/dev/nvidia{index if minor is None else minor}",),
        family=_family(compute_capability),
    )


def _family(compute_capability: tuple[int, int] | None) -> str:
    if compute_capability is None:
        return ""
    major, minor = compute_capability
    if major == 7:
        return "turing" if minor >= 5 else "volta"
    if (major, minor) == (8, 9):
        return "ada-lovelace"
    return _FAMILIES.get(major, "")


def _link_bytes_per_s(handle: Any) -> float | None:
    generation = _ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = _ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    if generation not in _LANE_BYTES_PER_S or not width:
        return None
    speed = _LANE_BYTES_PER_S[generation] * float(width)
    if _is_simulated():
        # A simulated card reports the modelled rate; in real time the rate is higher by the time scale.
        scale = pynvml.nvmlLib.baton_simgpu_time_scale
        scale.restype = ctypes.c_double
        speed *= float(scale(handle))
    return speed


def _numa_node(handle: Any, pci_id: str) -> int | None:
    words = _ask(pynvml.nvmlDeviceGetMemoryAffinity, handle, _NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    if words is not None:
        near = [bit for bit in range(64 * _NUMA_WORDS) if words[bit // 64] >> (bit % 64) & 1]
        if len(near) == 1:
            return near[0]
    try:
        node = int((_SYSFS / pci_id / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _nvlink_peers(handle: Any, by_pci: dict[str, CardId]) -> tuple[CardId, ...]:
    linked = set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = _ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if active is None:
            break
        if active:
            remote = _ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if remote is not None:
                linked.add(_kernel_pci_id(remote.busId))
    return tuple(card for pci_id, card in by_pci.items() if pci_id in linked)


def _sample(card: CardId, handle: Any) -> Sample:
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    busy = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power_mw = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit_mw = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return Sample(
        card=card,
        utilisation_percent=int(busy.gpu) if busy else None,
        memory_used_mib=int(memory.used) // _MIB if memory else None,
        memory_total_mib=int(memory.total) // _MIB if memory else None,
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power_w=power_mw / 1000 if power_mw is not None else None,
        power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
        sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        pcie_sent_bytes=_field(handle, pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES),
        pcie_received_bytes=_field(handle, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES),
        processes=_processes(handle),
        link_lanes=_ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        link_lanes_most=_ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )


def _processes(handle: Any) -> tuple[ProcessUse, ...]:
    memory_mib: dict[int, int | None] = {}
    for question in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in _ask(question, handle) or ():
            used = process.usedGpuMemory
            memory_mib[int(process.pid)] = int(used) // _MIB if used is not None else None
    since_us = int((time.time() - _PROCESS_WINDOW_S) * 1_000_000)
    latest: dict[int, Any] = {}
    for reading in _ask(pynvml.nvmlDeviceGetProcessUtilization, handle, since_us) or ():
        known = latest.get(int(reading.pid))
        if known is None or reading.timeStamp > known.timeStamp:
            latest[int(reading.pid)] = reading
    return tuple(
        ProcessUse(pid, memory_mib[pid], int(latest[pid].smUtil) if pid in latest else None)
        for pid in sorted(memory_mib)
    )


def _defect(handle: Any) -> str:
    """Why the card must not be used, as far as the driver can tell; empty for a healthy card."""
    _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)  # a lost card fails here
    action = _field(handle, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
    if action:
        return _RECOVERY.get(action, f"the driver asks for recovery action {action}")
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None and rows[3]:
        return "remapping a faulty memory row failed; replace the card"
    if _ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        return "memory pages are waiting for retirement; reset this GPU"
    return ""
