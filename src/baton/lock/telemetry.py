"""The daemon's port for readings of cards, implemented by NVML, by a simulation, or by nothing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from baton.model.ids import CardId


class CardInfo(NamedTuple):
    """One card of the machine; the order of cards is the order of their indices."""

    id: CardId
    capacity_bytes: int
    link_bytes_per_s: float = 0.0
    """How fast paging moves memory over the link; 0 if unknown."""


class Reading(NamedTuple):
    """One reading of a card; None where the source has no value. `pcie_bytes` only grows."""

    capacity_bytes: int | None = None
    pcie_bytes: int | None = None
    memory_by_pid: Mapping[int, int] | None = None


class Telemetry(Protocol):
    """A source of readings. Calls may block and are made from a thread."""

    def cards(self) -> Sequence[CardInfo]:
        """The machine's cards."""

    def read(self) -> Mapping[CardId, Reading]:
        """One reading of every card that answers."""


class NoTelemetry:
    """No telemetry: the cards are given on the command line or named by clients."""

    def __init__(self, given: Sequence[CardInfo] = ()) -> None:
        self._given = tuple(given)

    def cards(self) -> Sequence[CardInfo]:
        """The given cards."""
        return self._given

    def read(self) -> Mapping[CardId, Reading]:
        """No readings."""
        return {}
