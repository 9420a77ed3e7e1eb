"""Waiting lines, one per shape of job; the engine sees only the head of each.

Equal jobs are interchangeable for placement: the second cannot start before the first. The engine therefore needs to
see only as much of a line as could start in one cycle, and a backlog of ten thousand jobs costs no more than one of a
hundred. A line is in the policy's order; when a better job joins, it displaces the last visible one.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from baton.model.ids import GroupKey

Place = tuple[float | int | str, ...]


@dataclass(slots=True)
class _Line:
    seen: list[tuple[Place, GroupKey]] = field(default_factory=list)
    unseen: list[tuple[Place, GroupKey]] = field(default_factory=list)


class WaitingLines:
    """Jobs by shape; each line has a visible head and a hidden rest."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}
        self._places: dict[GroupKey, tuple[Hashable, Place]] = {}
        self.seen: set[GroupKey] = set()

    def __len__(self) -> int:
        return len(self._places)

    def join(self, key: GroupKey, shape: Hashable, place: Place) -> None:
        """Add a waiting job, hidden at first."""
        heapq.heappush(self._lines.setdefault(shape, _Line()).unseen, (place, key))
        self._places[key] = (shape, place)

    def leave(self, key: GroupKey) -> None:
        """Remove a visible job that has started."""
        shape, place = self._places.pop(key)
        self._lines[shape].seen.remove((place, key))
        self.seen.discard(key)

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._places

    def hasten(self, key: GroupKey, place: Place) -> None:
        """Move a job up in its line."""
        shape, before = self._places[key]
        line = self._lines[shape]
        self._places[key] = (shape, place)
        if key in self.seen:
            line.seen.remove((before, key))
            insort(line.seen, (place, key))
        else:
            line.unseen.remove((before, key))
            heapq.heapify(line.unseen)
            heapq.heappush(line.unseen, (place, key))

    def look(self, most: Callable[[Hashable], int]) -> Iterator[tuple[GroupKey, bool]]:
        """The jobs that become visible (true) and hidden (false) when each line may show `most(shape)` jobs."""
        for shape, line in self._lines.items():
            limit = most(shape)
            while line.unseen and (len(line.seen) < limit or (line.seen and line.unseen[0] < line.seen[-1])):
                entry = heapq.heappop(line.unseen)
                insort(line.seen, entry)
                self.seen.add(entry[1])
                yield entry[1], True
                if len(line.seen) > limit:
                    last = line.seen.pop()
                    heapq.heappush(line.unseen, last)
                    self.seen.discard(last[1])
                    yield last[1], False
