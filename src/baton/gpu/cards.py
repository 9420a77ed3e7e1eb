"""The vocabulary for cards, and the interface through which the rest of Baton sees them.

A `GpuSource` answers three questions: which cards exist (`cards`), what they are doing (`telemetry`), and which of them
may be used (`health`, with `events` to wait for the next change instead of polling). Answers are frozen values; a
source keeps no history. A number that a card does not report is None, never a guess.

Health is a state and an event is a moment: a card is unhealthy while `health` says so, and it is healthy again when
`health` says so, without a restart. An event without a card means that the source cannot tell which card it was about.
"""

import enum
from typing import NewType, Protocol

import msgspec

from baton.errors import UnavailableError
from baton.gpu.containers import DriverFiles
from baton.model.ids import CardId

VendorName = NewType("VendorName", str)
"""The maker of a card in lower case, as the `name` of a `GpuVendor`."""


class NoDriverError(UnavailableError):
    """The vendor's driver is not installed, as opposed to a driver that does not work."""


class Card(msgspec.Struct, frozen=True):
    """One physical GPU, as it was when the inventory was taken."""

    id: CardId
    index: int
    """The driver's number for it. It may change when cards come and go; use `id` to remember a card."""
    vendor: VendorName
    model: str
    memory_mib: int
    compute_capability: tuple[int, int] | None
    """CUDA's version of the card's features; None for cards that do not run CUDA."""
    pci_id: str
    """Domain, bus, device and function, as in `0000:3b:00.0`."""
    numa_node: int | None = None
    nvlink_peers: tuple[CardId, ...] = ()
    """Cards reached by at least one active direct link (NVLink, xGMI), in the order of their indices."""
    link_bytes_per_s: float | None = None
    """The bandwidth of all lanes of the link to the host, in one direction and in real time."""
    device_nodes: tuple[str, ...] = ()
    """The card's own device files, such as `/dev/nvidia0`."""
    family: str = ""
    """The generation of the architecture in lower case, such as `ampere`; empty if unknown."""


class ProcessUse(msgspec.Struct, frozen=True):
    """What one process uses of a card. The pid is the host's."""

    pid: int
    memory_mib: int | None
    utilisation_percent: int | None


class Sample(msgspec.Struct, frozen=True):
    """The load of a card at one moment."""

    card: CardId
    utilisation_percent: int | None
    """Share of the last moments in which at least one kernel ran."""
    memory_used_mib: int | None
    memory_total_mib: int | None
    temperature_c: int | None
    power_w: float | None
    power_limit_w: float | None
    sm_clock_mhz: int | None
    pcie_sent_bytes: int | None
    """Sent by the card to the host since the driver was loaded."""
    pcie_received_bytes: int | None
    processes: tuple[ProcessUse, ...] = ()
    link_lanes: int | None = None
    """Lanes that the link to the host uses now; unlike the link's rate, their number does not fall when the card is
    idle."""
    link_lanes_most: int | None = None
    """Lanes that both the card and its slot have."""


class CardHealth(msgspec.Struct, frozen=True):
    """Whether containers may get a card. `reason` is empty for a healthy card."""

    card: CardId
    healthy: bool
    reason: str = ""


class Severity(enum.StrEnum):
    """What an event means for the card."""

    FATAL = "fatal"
    """The card is unreliable until it is reset or replaced."""
    APPLICATION = "application"
    """A program failed, through its own fault or a contained error; the card still works."""
    IGNORABLE = "ignorable"
    """Only worth a log line."""


class CardEvent(msgspec.Struct, frozen=True):
    """An event of a card.

    Without `card`, the source could not tell which card it was: treat it as every card.
    """

    card: CardId | None
    severity: Severity
    summary: str
    xid: int | None = None


class GpuSource(Protocol):
    """An open driver and the cards behind it.

    Not safe for several threads, except that `events` may block in a separate thread.
    """

    @property
    def description(self) -> str:
        """The driver, its version, and whether it is simulated, in a few words for people."""

    @property
    def driver_files(self) -> DriverFiles:
        """What containers need of this driver that the vendor's container runtime does not bring."""

    @property
    def silent_cards(self) -> int:
        """How many cards the driver counted at the last inventory that did not answer."""

    def cards(self) -> tuple[Card, ...]:
        """The inventory, in the order of the indices. A card that does not answer is omitted."""

    def telemetry(self) -> tuple[Sample, ...]:
        """A sample of every card that answers."""

    def health(self) -> tuple[CardHealth, ...]:
        """The state of every card that was ever in the inventory."""

    def events(self, timeout_s: float) -> tuple[CardEvent, ...]:
        """Wait for the next events, at most `timeout_s`; empty if there were none."""

    def close(self) -> None:
        """Release the driver. Calling it twice is fine."""
