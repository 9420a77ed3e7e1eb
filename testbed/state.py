"""The beds of this machine: one directory each, and the names that are derived from the bed's id.

A bed's record is on disk before anything of the bed exists, and every name is a function of the record. A bed has an
owner, the process that created it and must tear it down; a bed that `up` left running has none. A bed whose owner is
dead is garbage.

The slot is a small number that no other bed has; the bed's addresses are derived from it, so beds never compete for
ports. A bed with kubelets uses 10.(128+slot).0.0/16, and every bed has the loopback address 127.(64+slot).0.1.
"""

import fcntl
import os
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

from testbed.errors import BedError
from testbed.processes import ProcessKey, is_alive, process_key

STATE_VARIABLE = "BATON_TESTBED_STATE"
SLOTS = 60
MAX_KUBELETS = 60
ETCD_PORT = 2379


class Owner(msgspec.Struct, frozen=True):
    """The process that is responsible for a bed."""

    pid: int
    start_ticks: int


class BedRecord(msgspec.Struct, frozen=True):
    """The facts about a bed that are fixed before anything of it exists."""

    id: str
    name: str
    slot: int
    boot_id: str
    owner: Owner | None

    @property
    def directory(self) -> Path:
        """The directory that contains everything the bed writes."""
        return state_root() / self.id

    @property
    def link_prefix(self) -> str:
        """The prefix of its network links' names (a link's name has at most 15 characters)."""
        return f"bt{self.id}"

    @property
    def cgroup_prefix(self) -> str:
        """The prefix of its cgroups' names."""
        return f"baton-bed-{self.id}"

    @property
    def loopback_address(self) -> str:
        """A loopback address that only this bed uses."""
        return f"127.{64 + self.slot}.0.1"

    @property
    def network(self) -> IPv4Network:
        """The addresses of a bed with kubelets: nodes in x.y.0.0/24, pods of node N in x.y.N.0/24."""
        return IPv4Network(f"10.{128 + self.slot}.0.0/16")

    @property
    def service_range(self) -> IPv4Network:
        """Cluster addresses; the first one is the API server's."""
        return IPv4Network(f"10.{128 + self.slot}.240.0/20")

    @property
    def is_garbage(self) -> bool:
        """Whether nothing is responsible for it any more: the owner died, or the machine was restarted."""
        if self.boot_id != boot_id():
            return True
        return self.owner is not None and not is_alive(ProcessKey(self.owner.pid, self.owner.start_ticks))

    def node_address(self, number: int) -> str:
        """The address of kubelet number N (from 1)."""
        return str(self.network[1 + number])

    def pod_range(self, number: int) -> IPv4Network:
        """The addresses of the pods of kubelet number N."""
        return IPv4Network(f"10.{128 + self.slot}.{number}.0/24")


def boot_id() -> str:
    """Distinguishes this boot of the machine from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def state_root() -> Path:
    """The directory of all beds of this user; another user must not own it."""
    named = os.environ.get(STATE_VARIABLE)
    root = Path(named) if named else Path(tempfile.gettempdir()) / f"baton-testbed-{os.geteuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise BedError(
            f"{root} is not a directory owned by this user; remove it or set {STATE_VARIABLE} to another directory"
        )
    return root.resolve()


@contextmanager
def locked() -> Iterator[None]:
    """Serialises all processes that create, hand over or remove beds."""
    with (state_root() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def beds() -> list[BedRecord]:
    """All beds of this user, garbage included."""
    found = []
    for path in sorted(state_root().glob("*/bed.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=BedRecord))
        except (OSError, msgspec.DecodeError):
            continue
    return found


def find_bed(name: str) -> BedRecord:
    """The bed with that name."""
    for record in beds():
        if record.name == name:
            return record
    names = ", ".join(record.name for record in beds()) or "none"
    raise BedError(f"there is no bed '{name}'; beds: {names}; create it with `python -m testbed up --name {name}`")


def create(name: str | None) -> BedRecord:
    """Register a new bed that this process owns. Without a name, its id is its name."""
    with locked():
        existing = beds()
        if name is not None and any(record.name == name for record in existing):
            raise BedError(f"a bed '{name}' already exists; stop it with `python -m testbed down --name {name}`")
        me = process_key(os.getpid())
        assert me is not None
        bed_id = secrets.token_hex(3)
        record = BedRecord(
            id=bed_id,
            name=name or bed_id,
            slot=_free_slot({record.slot for record in existing}),
            boot_id=boot_id(),
            owner=Owner(me.pid, me.start_ticks),
        )
        record.directory.mkdir()
        write(record)
        return record


def write(record: BedRecord) -> None:
    """Write a record atomically: a reader sees the old one or the new one."""
    path = record.directory / "bed.json"
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(record))
    fresh.rename(path)


def disown(record: BedRecord) -> BedRecord:
    """Remove the owner: the bed keeps running until `down`."""
    free = msgspec.structs.replace(record, owner=None)
    write(free)
    return free


def _free_slot(taken: set[int]) -> int:
    routes = _routed_networks()
    for slot in range(SLOTS):
        network = IPv4Network(f"10.{128 + slot}.0.0/16")
        if slot in taken or any(network.overlaps(route) for route in routes):
            continue
        if is_port_free(f"127.{64 + slot}.0.1", ETCD_PORT):
            return slot
    raise BedError(f"all {SLOTS} address ranges for beds are in use; remove dead beds with `python -m testbed gc`")


def _routed_networks() -> list[IPv4Network]:
    """The networks that this machine has routes to; the default route is ignored, because it overlaps everything."""
    try:
        lines = Path("/proc/net/route").read_text().splitlines()[1:]
    except OSError:
        return []
    fields = [line.split() for line in lines]
    pairs = [(_dotted(words[1]), _dotted(words[7])) for words in fields]
    return [IPv4Network(f"{target}/{mask}") for target, mask in pairs if mask != "0.0.0.0"]


def _dotted(hexadecimal: str) -> str:
    """An address in the format of the kernel's route table: hexadecimal, in host byte order."""
    return socket.inet_ntoa(int(hexadecimal, 16).to_bytes(4, sys.byteorder))


def is_port_free(address: str, port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
