"""What the daemon would like to know about cards, and from whom: a port that NVML, a simulation or nothing fills."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from baton.model.ids import CardId


class CardInfo(NamedTuple):
    """One card of the machine; the order of cards is the order of their indices."""

    id: CardId
    capacity_bytes: int
    link_bytes_per_s: float = 0.0
    """How fast paging moves memory over the link; 0 where nobody knows."""


class Reading(NamedTuple):
    """One look at a card; None where the source cannot tell. `pcie_bytes` only grows."""

    capacity_bytes: int | None = None
    pcie_bytes: int | None = None
    memory_by_pid: Mapping[int, int] | None = None


class Telemetry(Protocol):
    """A source of readings. Calls may block and are made from a thread."""

    def cards(self) -> Sequence[CardInfo]:
        """The machine's cards."""

    def read(self) -> Mapping[CardId, Reading]:
        """Look at every card that answers."""


class NoTelemetry:
    """A machine that tells nothing: cards are those given by hand or named by clients."""

    def __init__(self, given: Sequence[CardInfo] = ()) -> None:
        self._given = tuple(given)

    def cards(self) -> Sequence[CardInfo]:
        """The cards given by hand."""
        return self._given

    def read(self) -> Mapping[CardId, Reading]:
        """Nothing."""
        return {}
