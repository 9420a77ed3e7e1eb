"""Simulated machines: create one from profiles, inspect it, inject faults, remove it.

A machine is a directory with a memory-mapped file that the simulated `libcuda.so.1` and `libnvidia-ml.so.1` work on;
there is no daemon. The C code owns the layout, and Python uses the few functions that `libsimgpu.so` exports: settings
are `key=value` lines, and the state is JSON. That library has a different name, so that a process can load it beside a
real NVIDIA library.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from baton.errors import BatonError, UnavailableError, UsageError
from baton.gpu.profiles import MAX_CARDS, Profile
from baton.native import library

_ABSENT = -1
_MISMATCH = -2
_ERROR_BYTES = 512
_GB = 1_000_000_000
_MIB = 1 << 20
_NVIDIA_VENDOR = 0x10DE
_PAGING_PART_OF_LINK = 0.9
_CARD_NAMESPACE = uuid.UUID("5c6b5f0e-2f0b-4a53-9c0c-4f1f6d0f7c11")

DIRECTORY_VARIABLE = "BATON_SIMGPU_DIR"
LIBRARY_PATH_VARIABLE = "LD_LIBRARY_PATH"


class Client(msgspec.Struct, frozen=True):
    """A process that has the machine open, whether or not it uses a card."""

    pid: int
    name: str


class CardClient(msgspec.Struct, frozen=True):
    """What a process uses on one card."""

    pid: int
    name: str
    contexts: int
    device_bytes: int
    managed_bytes: int
    resident_bytes: int
    paged_in_bytes: int
    paged_out_bytes: int
    kernels: int
    busy_s: float


class RecordedXid(msgspec.Struct, frozen=True):
    """An Xid in a card's list of recent ones."""

    sequence: int
    xid: int


class CardStatus(msgspec.Struct, frozen=True):
    """The present state of a simulated card."""

    index: int
    name: str
    uuid: str
    pci: str
    memory_bytes: int
    free_bytes: int
    device_bytes: int
    managed_bytes: int
    resident_bytes: int
    paged_in_bytes: int
    paged_out_bytes: int
    copied_in_bytes: int
    copied_out_bytes: int
    kernels: int
    work_waiting: int
    busy_s: float
    modelled_s: float
    time_scale: float
    utilization: float
    temperature_c: float
    power_w: float
    sm_clock_mhz: int
    health: str
    link_factor: float
    ecc_uncorrectable: int
    reset_xid: int
    hang_next: bool
    xids: list[RecordedXid]
    processes: list[CardClient]

    @property
    def faults(self) -> tuple[str, ...]:
        """The injected faults that are not healed yet, in a few words each."""
        found = []
        if self.health == "lost":
            found.append("off the bus")
        elif self.reset_xid:
            found.append(f"needs a reset after Xid {self.reset_xid}")
        if self.ecc_uncorrectable:
            found.append(f"{self.ecc_uncorrectable} uncorrectable ECC")
        if self.hang_next:
            found.append("next kernel hangs")
        if self.link_factor < 1:
            found.append(f"link at {self.link_factor:.0%}")
        return tuple(found)


class MachineStatus(msgspec.Struct, frozen=True):
    """The present state of a simulated machine."""

    directory: str
    shape: str
    driver_version: int
    driver_name: str
    cards: list[CardStatus]
    clients: list[Client]
    unsupported: dict[str, int]
    """Calls of programs that are not simulated, and how often they were made."""

    def describe(self) -> str:
        """The cards in a few words, as in `2 x Tesla T4`."""
        counts: dict[str, int] = {}
        for card in self.cards:
            counts[card.name] = counts.get(card.name, 0) + 1
        return ", ".join(f"{count} x {name}" for name, count in counts.items())


class NoMachineError(UnavailableError):
    """The directory has no simulated machine."""


class OtherLayoutError(BatonError):
    """Another version of Baton created the machine: it can only be removed."""


def default_directory() -> Path:
    """The default directory of a machine: $BATON_SIMGPU_DIR, else below the user's runtime directory."""
    return Path(_library().simgpu_default_directory().decode())


def environment(directory: Path) -> dict[str, str]:
    """The environment through which a program finds the simulated driver and this machine."""
    folder = str(library("simgpu/libcuda.so.1").parent)
    others = [path for path in os.environ.get(LIBRARY_PATH_VARIABLE, "").split(":") if path and path != folder]
    return {LIBRARY_PATH_VARIABLE: ":".join([folder, *others]), DIRECTORY_VARIABLE: str(directory.absolute())}


def start(profiles: Sequence[Profile], directory: Path, time_scale: float | None = None) -> bool:
    """Create a machine with one card for each profile; False if exactly that machine already exists."""
    if not 1 <= len(profiles) <= MAX_CARDS:
        raise UsageError(f"a simulated machine has 1 to {MAX_CARDS} cards, not {len(profiles)}")
    lines = settings(profiles, directory, time_scale)
    shape = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    text = "\n".join([*lines, f"shape={shape}"])
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if _library().simgpu_create(_path(directory), text.encode(), error, _ERROR_BYTES) == 0:
        return True
    try:
        running = status(directory)
    except NoMachineError:
        raise BatonError(f"cannot create a simulated machine: {error.value.decode(errors='replace')}") from None
    if running.shape == shape:
        return False
    raise BatonError(
        f"{directory} already has another simulated machine ({running.describe()}); "
        "stop it with `baton simgpu stop`, or choose another directory with --dir"
    )


def settings(profiles: Sequence[Profile], directory: Path, time_scale: float | None) -> list[str]:
    """The machine as settings for the C code."""
    lines = [f"cards={len(profiles)}"]
    peers = _nvlink_peers(profiles)
    for index, profile in enumerate(profiles):
        # A card keeps its identity when the machine restarts, and differs from cards of other machines.
        identity = uuid.uuid5(_CARD_NAMESPACE, f"{platform.node()}/{directory.absolute()}/{index}")
        major, minor = profile.compute_capability_pair
        paging_gb_s = profile.paging_gb_s or profile.link_gb_s * _PAGING_PART_OF_LINK
        values: dict[str, object] = {
            "name": profile.model,
            "brand": profile.brand.value,
            "uuid": identity,
            "serial": f"{identity.int % 10**13:013d}",
            "pci_bus": index + 1,
            "pci_device_id": profile.pci.device_id << 16 | _NVIDIA_VENDOR,
            "pci_subsystem_id": profile.pci.device_id << 16 | _NVIDIA_VENDOR,
            "compute_major": major,
            "compute_minor": minor,
            "sm_count": profile.sms,
            "threads_per_sm": profile.threads_per_sm,
            "cores_per_sm": profile.cores_per_sm,
            "sm_clock_idle_mhz": profile.clocks.idle_mhz,
            "sm_clock_base_mhz": profile.clocks.base_mhz,
            "sm_clock_mhz": profile.clocks.boost_mhz,
            "memory_clock_mhz": profile.clocks.memory_mhz,
            "memory_bus_bits": profile.memory_bus_bits,
            "l2_kib": profile.l2_kib,
            "shared_kib_per_sm": profile.shared_kib_per_sm,
            "link_generation": profile.pci.generation,
            "link_width": profile.pci.width,
            "power_idle_mw": round(profile.power.idle_w * 1000),
            "power_limit_mw": round(profile.power.limit_w * 1000),
            "power_min_mw": round(profile.power.min_limit_w * 1000),
            "power_max_mw": round(profile.power.max_limit_w * 1000),
            "temperature_idle_c": profile.thermal.idle_c,
            "temperature_busy_c": profile.thermal.load_c,
            "temperature_slowdown_c": profile.thermal.slowdown_c,
            "temperature_shutdown_c": profile.thermal.shutdown_c,
            "thermal_time_constant_s": profile.thermal.time_constant_s,
            "fan_count": profile.fans,
            "ecc": int(profile.ecc),
            "mig_capable": int(profile.mig),
            "numa_node": profile.numa_nodes[index % len(profile.numa_nodes)],
            "memory_bytes": profile.memory_mib * _MIB,
            "memory_bytes_per_s": round(profile.memory_gb_s * _GB),
            "link_bytes_per_s": round(profile.link_gb_s * _GB),
            "paging_bytes_per_s": round(paging_gb_s * _GB),
            "time_scale": time_scale if time_scale is not None else profile.time_scale,
        }
        if profile.nvlink is not None:
            values |= {
                "nvlink_count": profile.nvlink.links,
                "nvlink_version": profile.nvlink.version,
                "nvlink_peer": ",".join(map(str, peers[index])),
                "nvlink_bytes_per_s": round(profile.nvlink.link_gb_s * _GB),
            }
        lines += [f"{index}.{key}={value}" for key, value in values.items()]
    return lines


def _nvlink_peers(profiles: Sequence[Profile]) -> list[list[int]]:
    """For each card, the card at the other end of each of its links; -1 for an unconnected link."""
    groups = {group for profile in profiles for group in profile.nvlink_groups}
    if far := sorted({index for group in groups for index in group if index >= len(profiles)}):
        raise UsageError(f"nvlink_groups names card {far[0]}, but the machine has cards 0 to {len(profiles) - 1}")
    result = []
    for index, profile in enumerate(profiles):
        links = profile.nvlink.links if profile.nvlink else 0
        others = sorted({other for group in groups if index in group for other in group} - {index})
        each = links // len(others) if others else 0
        ends = [other for other in others for _ in range(each)]
        result.append(ends + [-1] * (links - len(ends)))
    return result


def status(directory: Path) -> MachineStatus:
    """The state of the machine and of its clients."""
    size = 1 << 16
    while True:
        buffer, error = ctypes.create_string_buffer(size), ctypes.create_string_buffer(_ERROR_BYTES)
        length = int(_library().simgpu_status(_path(directory), buffer, size, error, _ERROR_BYTES))
        if length < 0:
            raise _failure(length, error)
        if length < size:
            return msgspec.json.decode(buffer.value, type=MachineStatus)
        size = length * 2


def inject(directory: Path, card: int, fault: str, **details: float) -> None:
    """Break or heal a card: `fault` and its details (xid, factor, pid) as the C code names them."""
    # Write whole numbers without an exponent: a process id may have seven digits.
    numbers = {key: int(value) if value == int(value) else value for key, value in details.items()}
    words = [f"card={card}", f"fault={fault}", *(f"{key}={value}" for key, value in numbers.items())]
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    code = _library().simgpu_inject(_path(directory), " ".join(words).encode(), error, _ERROR_BYTES)
    if code != 0:
        raise _failure(code, error)


def stop(directory: Path, *, force: bool = False) -> None:
    """Remove the machine. If processes use it, this needs `force`, and they lose their cards."""
    if not force:
        clients: dict[int, str] = {}
        with contextlib.suppress(OtherLayoutError):
            clients = {client.pid: client.name for client in status(directory).clients}
        if clients:
            pid, name = next(iter(clients.items()))
            who = f"process {pid} ({Path(name).name})"
            uses = f"{who} still uses" if len(clients) == 1 else f"{who} and {len(clients) - 1} more still use"
            raise BatonError(
                f"{uses} the simulated machine in {directory}; end them first, or stop it with --force, "
                "which takes their cards away"
            )
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if _library().simgpu_destroy(_path(directory), error, _ERROR_BYTES) != 0:
        if not (directory / "machine").exists():
            raise _failure(_ABSENT, error)
        raise BatonError(error.value.decode(errors="replace"))


def _failure(code: int, error: "ctypes.Array[ctypes.c_char]") -> BatonError:
    sentence = error.value.decode(errors="replace")
    if code == _ABSENT:
        return NoMachineError(f"{sentence}; `baton simgpu start` creates one")
    if code == _MISMATCH:
        return OtherLayoutError(sentence)
    return BatonError(sentence)


def _path(directory: Path) -> bytes:
    encoded = os.fsencode(directory.absolute())
    if len(encoded) >= 200:
        raise UsageError(
            f"the path of {directory} has {len(encoded)} bytes; choose a directory with a path below 200 bytes"
        )
    return encoded


@functools.cache
def _library() -> ctypes.CDLL:
    path = library("simgpu/libsimgpu.so")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise UnavailableError(f"cannot load the native library {path}: {error}; run `make native`") from None
    loaded.simgpu_default_directory.restype = ctypes.c_char_p
    loaded.simgpu_status.restype = ctypes.c_long
    loaded.simgpu_status.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    for name in ("simgpu_create", "simgpu_inject"):
        getattr(loaded, name).argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    loaded.simgpu_destroy.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    return loaded
