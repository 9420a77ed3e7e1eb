"""What can happen to the lock, and what it wants done.

An event is a fact that the driver saw (a frame, a lost connection, a sample, a command); an instruction is something
only the driver can do (send a frame, close a connection). Both are frozen, so that a story of events can be kept,
printed and replayed.
"""

import enum
from typing import NewType

import msgspec

from baton.model.ids import CardId

ClientId = NewType("ClientId", int)


class Mode(enum.StrEnum):
    """How clients of one card are put beside each other; AUTO decides by what fits and what was measured."""

    AUTO = "auto"
    SERIAL = "serial"
    CONCURRENT = "concurrent"


class Priority(enum.IntEnum):
    """A waiter of a higher class goes first, until a lower one has waited out its bound."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


class Measure(enum.StrEnum):
    """What is done about a client that ignores DROP_LOCK."""

    REPORT = "report"
    DISCONNECT = "disconnect"
    KILL = "kill"


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What a client is served under. A limit of 0 means none."""

    weight: float = 1.0
    priority: Priority = Priority.NORMAL
    cores_percent: float = 0.0
    memory_bytes: int = 0
    oversubscribe: bool = True


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that happened."""


class CardAdded(Event, frozen=True, gc=False):
    """A card exists; 0 means that nobody knows its memory, or how fast paging moves it over the link."""

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
    """A client said who it is. `terms` are those that count, not those that were asked for."""

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
    """LOCK_RELEASED: the answer to DROP_LOCK, an early release, or a waiter that no longer wants."""

    client: ClientId


class Left(Event, frozen=True, gc=False):
    """The connection is gone."""

    client: ClientId


class Reported(Event, frozen=True, gc=False):
    """REPORT: numbers cumulative since registration, except `allocated_bytes`."""

    client: ClientId
    allocated_bytes: int
    launches: int = 0
    sync_s: float = 0.0
    wait_s: float = 0.0


class Resumed(Event, frozen=True, gc=False):
    """A client is back after its connection, or the daemon, was lost."""

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
    """The process of a recalled holder ended before it came back."""

    client: ClientId
    card: CardId


class Sampled(Event, frozen=True, gc=False):
    """What telemetry saw of a card; None where it cannot tell."""

    card: CardId
    capacity_bytes: int | None = None
    pcie_bytes: int | None = None
    memory_by_pid: dict[int, int] | None = None


class Ticked(Event, frozen=True, gc=False):
    """Time passed; sent when `next_deadline` is reached."""


class QuantumSet(Event, frozen=True, gc=False):
    """A fixed quantum, or None for the adaptive one; card None means every card, also those to come."""

    quantum_s: float | None
    card: CardId | None = None


class ModeSet(Event, frozen=True, gc=False):
    """A mode for one card or for all."""

    mode: Mode
    card: CardId | None = None


class SchedulingSet(Event, frozen=True, gc=False):
    """Scheduling switched on or off: off means that everybody runs."""

    on: bool
    card: CardId | None = None


class TermsSet(Event, frozen=True, gc=False):
    """New terms for a client."""

    client: ClientId
    terms: Terms


class Parked(Event, frozen=True, gc=False):
    """A parked client keeps its process and gets no turn."""

    client: ClientId
    parked: bool


class Instruction(msgspec.Struct, frozen=True, gc=False):
    """Something to be done by the driver, in the order given."""


class Grant(Instruction, frozen=True, gc=False):
    """Send LOCK_OK. The journal must know of it before."""

    client: ClientId


class Drop(Instruction, frozen=True, gc=False):
    """Send DROP_LOCK."""

    client: ClientId


class Switch(Instruction, frozen=True, gc=False):
    """Tell a client that scheduling is on or off."""

    client: ClientId
    on: bool


class Limit(Instruction, frozen=True, gc=False):
    """Tell a client its limits."""

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
    """End the process of a client that does not let go."""

    client: ClientId
    pid: int
    reason: str


class Record(Instruction, frozen=True, gc=False):
    """The holders of a card changed; whoever keeps the journal writes it now, before what follows is sent."""

    card: CardId


class Say(Instruction, frozen=True, gc=False):
    """Something for the daemon's own log."""

    level: str
    event: str
    client: ClientId | None = None
    card: CardId | None = None
    detail: str = ""
