"""The events that the lock handles and the instructions that it gives.

An event is a fact that the driver observed (a frame, a lost connection, a sample, a command). An instruction is
something that only the driver can do (send a frame, close a connection). Both are frozen, so that a sequence of events
can be stored, printed and replayed.
"""

import enum
from typing import NewType

import msgspec

from baton.model.ids import CardId

ClientId = NewType("ClientId", int)


class Mode(enum.StrEnum):
    """How the clients of one card share it; AUTO decides by what fits and by what was measured."""

    AUTO = "auto"
    SERIAL = "serial"
    CONCURRENT = "concurrent"


class Priority(enum.IntEnum):
    """A waiter of a higher class goes first, until the wait of a lower one exceeds its bound."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


class Measure(enum.StrEnum):
    """What the lock does about a client that ignores DROP_LOCK."""

    REPORT = "report"
    DISCONNECT = "disconnect"
    KILL = "kill"


class Terms(msgspec.Struct, frozen=True, gc=False):
    """The terms under which a client is served. A limit of 0 means no limit."""

    weight: float = 1.0
    priority: Priority = Priority.NORMAL
    cores_percent: float = 0.0
    memory_bytes: int = 0
    oversubscribe: bool = True


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that happened."""


class CardAdded(Event, frozen=True, gc=False):
    """A card exists. A value of 0 means that its memory, or the paging speed of its link, is unknown."""

    card: CardId
    capacity_bytes: int = 0
    link_bytes_per_s: float = 0.0


class Joined(Event, frozen=True, gc=False):
    """A client registered for a card. `extended` clients know Baton's message types and report their memory."""

    client: ClientId
    card: CardId
    pid: int = 0
    uid: int = 0
    pod: str = ""
    namespace: str = ""
    tenant: str = ""
    extended: bool = False
    terms: Terms = Terms()
    pod_uid: str = ""


class Described(Event, frozen=True, gc=False):
    """A client described itself. `terms` are the terms in force, not those that it asked for."""

    client: ClientId
    name: str = ""
    tenant: str = ""
    run: str = ""
    terms: Terms = Terms()
    gang: str = ""
    gang_size: int = 1


class Requested(Event, frozen=True, gc=False):
    """REQ_LOCK."""

    client: ClientId


class Released(Event, frozen=True, gc=False):
    """LOCK_RELEASED: the answer to DROP_LOCK, an early release, or a waiter that no longer wants the lock."""

    client: ClientId


class Left(Event, frozen=True, gc=False):
    """The client's connection was lost or closed."""

    client: ClientId


class Reported(Event, frozen=True, gc=False):
    """REPORT: numbers cumulative since registration, except `allocated_bytes`."""

    client: ClientId
    allocated_bytes: int
    launches: int = 0
    sync_s: float = 0.0
    wait_s: float = 0.0


class Resumed(Event, frozen=True, gc=False):
    """A client has reconnected after it lost its connection or the daemon."""

    client: ClientId
    previous: ClientId
    holding: bool
    waiting: bool
    held_s: float = 0.0


class Recalled(Event, frozen=True, gc=False):
    """The journal of an earlier daemon names a holder whose process is alive; client 0 stands for an unknown one."""

    client: ClientId
    card: CardId
    pid: int
    exclusive: bool
    grace_s: float


class Vanished(Event, frozen=True, gc=False):
    """The process of a recalled holder ended before it resumed."""

    client: ClientId
    card: CardId


class Sampled(Event, frozen=True, gc=False):
    """What telemetry measured on a card; None where it has no value."""

    card: CardId
    capacity_bytes: int | None = None
    pcie_bytes: int | None = None
    memory_by_pid: dict[int, int] | None = None


class Ticked(Event, frozen=True, gc=False):
    """Time passed; sent when `next_deadline` is reached."""


class QuantumSet(Event, frozen=True, gc=False):
    """A fixed quantum, or None for the adaptive one. Card None means every card, including future ones."""

    quantum_s: float | None
    card: CardId | None = None


class ModeSet(Event, frozen=True, gc=False):
    """A mode for one card, or for all cards."""

    mode: Mode
    card: CardId | None = None


class SchedulingSet(Event, frozen=True, gc=False):
    """Scheduling was switched on or off: when it is off, all clients run."""

    on: bool
    card: CardId | None = None


class TermsSet(Event, frozen=True, gc=False):
    """A client was given new terms."""

    client: ClientId
    terms: Terms


class Parked(Event, frozen=True, gc=False):
    """A client was parked or unparked: a parked client keeps its process and gets no turn."""

    client: ClientId
    parked: bool


class Instruction(msgspec.Struct, frozen=True, gc=False):
    """Something that the driver must do; the order of instructions counts."""


class Grant(Instruction, frozen=True, gc=False):
    """Send LOCK_OK. The journal must be written before."""

    client: ClientId


class Drop(Instruction, frozen=True, gc=False):
    """Send DROP_LOCK."""

    client: ClientId


class Switch(Instruction, frozen=True, gc=False):
    """Tell a client whether scheduling is on."""

    client: ClientId
    on: bool


class Limit(Instruction, frozen=True, gc=False):
    """Send a client its limits."""

    client: ClientId
    memory_bytes: int
    cores_percent: float
    oversubscribe: bool


class Hint(Instruction, frozen=True, gc=False):
    """The idle time after which clients of a card should give the lock back has changed."""

    card: CardId
    idle_s: float


class Notice(Instruction, frozen=True, gc=False):
    """One sentence for the workload's log."""

    client: ClientId
    code: str
    reason: str


class Close(Instruction, frozen=True, gc=False):
    """Close the connection; the core has already forgotten the client."""

    client: ClientId
    reason: str


class Kill(Instruction, frozen=True, gc=False):
    """Kill the process of a client that does not release the lock."""

    client: ClientId
    pid: int
    reason: str


class Record(Instruction, frozen=True, gc=False):
    """The holders of a card have changed: write the journal now, before carrying out what follows."""

    card: CardId


class Log(Instruction, frozen=True, gc=False):
    """Write a line to the daemon's log."""

    level: str
    event: str
    client: ClientId | None = None
    card: CardId | None = None
    detail: str = ""
