"""Cards that exist only in memory, for tests of code that uses a `GpuSource`.

A test changes the public state between calls; `events` returns what was pushed, and waits for moments only.
"""

import time
from collections.abc import Callable, Iterable

from baton.gpu.cards import Card, CardEvent, CardHealth, GpuSource, Sample, Severity
from baton.gpu.containers import DriverFiles
from baton.gpu.nvidia import NVIDIA, Nvidia
from baton.gpu.xids import classify
from baton.model.ids import CardId


def card(index: int, memory_mib: int = 16384, numa_node: int | None = 0, model: str = "Fake") -> Card:
    """A card whose identity is derived from its index."""
    return Card(
        id=CardId(f"GPU-fake-{index}"),
        index=index,
        vendor=NVIDIA.name,
        model=model,
        memory_mib=memory_mib,
        compute_capability=(8, 0),
        pci_id=f"0000:{index + 1:02x}:00.0",
        numa_node=numa_node,
        device_nodes=(f"/dev/nvidia{index}",),
    )


class FakeSource:
    """A `GpuSource` that returns what the test sets."""

    description = "fake cards"
    driver_files = DriverFiles()
    silent_cards = 0

    def __init__(self, inventory: Iterable[Card]) -> None:
        self.inventory = tuple(inventory)
        self.samples: tuple[Sample, ...] = ()
        self.reasons: dict[CardId, str] = {}
        """Why a card is unhealthy; a card that is not listed is healthy."""
        self.pending: list[CardEvent] = []
        self.closed = False

    def cards(self) -> tuple[Card, ...]:
        return self.inventory

    def telemetry(self) -> tuple[Sample, ...]:
        return self.samples

    def health(self) -> tuple[CardHealth, ...]:
        return tuple(
            CardHealth(card.id, healthy=card.id not in self.reasons, reason=self.reasons.get(card.id, ""))
            for card in self.inventory
        )

    def push_xid(self, card: CardId | None, number: int) -> None:
        """Queue an Xid for the next `events`; a fatal one also makes the card unhealthy, as the driver would."""
        xid = classify(number)
        self.pending.append(CardEvent(card, xid.severity, f"Xid {number}: {xid.title}", number))
        if card is not None and xid.severity is Severity.FATAL:
            self.reasons[card] = xid.title

    def events(self, timeout_s: float) -> tuple[CardEvent, ...]:
        time.sleep(min(timeout_s, 0.02))
        happened, self.pending = tuple(self.pending), []
        return happened

    def close(self) -> None:
        self.closed = True


class FakeNvidia(Nvidia):
    """NVIDIA with a driver that the test brings."""

    def __init__(self, open_driver: Callable[[], GpuSource]) -> None:
        self.open_driver = open_driver

    def open(self) -> GpuSource:
        return self.open_driver()
