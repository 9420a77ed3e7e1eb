"""The events to come, ordered by time.

Events at the same time are ordered by kind (an end frees a card before an arrival in the same second asks for one), and
then by a sequence number, so that a run is a function of its inputs.
"""

import heapq
from enum import IntEnum
from itertools import count
from typing import NamedTuple

from baton.model.ids import GroupKey, NodeName


class Kind(IntEnum):
    """Order of events at the same time."""

    END = 0
    NODE_UP = 1
    NODE_DOWN = 2
    ARRIVAL = 3
    LEVEL = 4
    PATIENCE = 5
    CYCLE = 6


class Entry(NamedTuple):
    time_s: float
    kind: Kind
    number: int
    subject: GroupKey | NodeName | None
    stamp: int
    """Distinguishes a valid entry from a superseded one; the code that enters it defines its meaning."""


class Agenda:
    """The entries to come, and the time of the last entry that was taken."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[Entry] = []
        self._numbers = count()

    def enter(self, time_s: float, kind: Kind, subject: GroupKey | NodeName | None, stamp: int = 0) -> None:
        heapq.heappush(self._heap, Entry(time_s, kind, next(self._numbers), subject, stamp))

    def take(self) -> Entry:
        """Take the next entry; its time becomes the current time."""
        entry = heapq.heappop(self._heap)
        self.now_s = entry.time_s
        return entry

    def more_now(self) -> bool:
        """Whether another entry has the current time."""
        return bool(self._heap) and self._heap[0].time_s <= self.now_s

    def __len__(self) -> int:
        return len(self._heap)
