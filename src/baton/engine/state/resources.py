"""Resource names as positions, amounts as integer vectors.

Every vector of the engine (a node's allocatable, a task's request, a queue's share) has one entry per resource name
seen so far. Integers are exact, so there is no epsilon: a node with 4000 milli-cores takes four pods of 1000. The
width has room to spare and doubles when a new name needs it; listeners then widen the vectors that they hold. The width
does not change inside a session, because plugins hold vectors, too: names are registered when an event is applied.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from baton.model.quantities import Amounts

Vector = npt.NDArray[np.int64]
UNLIMITED = np.int64(2**62)
_MOST = 2**56
"""Upper limit for an amount. A request may contain a number that overflows 64 bits; this limit is more than a cluster
has of any resource, and small enough to be summed."""

CPU, MEMORY, PODS = 0, 1, 2
VGPU_NUMBER, VGPU_MEMORY, VGPU_CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
SLOTS, CARDS, CARD_MILLI = "nvshare.com/gpu", "baton.dev/cards", "baton.dev/card-milli"
ALIASES = {CARDS: (CARD_MILLI, 1000)}
"""Names for another resource in a larger unit. If both were counted, fairness would treat them as two resources."""


class ResourceNames:
    """The registry; positions 0, 1 and 2 are always cpu, memory and pods."""

    def __init__(self) -> None:
        self.names: list[str] = ["cpu", "memory", "pods"]
        self._position: dict[str, int] = {name: place for place, name in enumerate(self.names)}
        self.width = 8
        self._widen: list[Callable[[int], None]] = []

    def on_widen(self, listener: Callable[[int], None]) -> None:
        self._widen.append(listener)

    def position(self, name: str) -> int:
        place = self._position.get(name)
        if place is None:
            place = len(self.names)
            self.names.append(name)
            self._position[name] = place
            if place >= self.width:
                self.width *= 2
                for listener in self._widen:
                    listener(self.width)
        return place

    def weights(self, listed: str, by_name: Mapping[str, int]) -> dict[int, int]:
        """The weight of each name in a comma-separated list: `by_name` or 1. Names that are not in use are left out."""
        names = [name.strip() for name in listed.split(",")]
        return {self._position[name]: by_name.get(name, 1) for name in names if name in self._position}

    def learn(self, amounts: Amounts | None) -> None:
        """Register the names before a session compares the amounts."""
        self._positions(amounts or ())

    def zeros(self) -> Vector:
        return np.zeros(self.width, dtype=np.int64)

    def vector(self, amounts: Amounts | Iterable[tuple[str, int]], most: int = _MOST) -> Vector:
        pairs = self._positions(amounts)
        result = self.zeros()
        for place, amount in pairs:
            result[place] += min(amount, most)
        return result

    def limits(self, amounts: Amounts) -> Vector:
        """Like `vector`, but a name that is not mentioned is unlimited."""
        pairs = self._positions(amounts)
        result = np.full(self.width, UNLIMITED, dtype=np.int64)
        for place, amount in pairs:
            result[place] = min(amount, int(UNLIMITED))
        return result

    def _positions(self, amounts: Iterable[tuple[str, int]]) -> list[tuple[int, int]]:
        pairs = []
        for name, amount in amounts:
            plain, factor = ALIASES.get(name, (name, 1))
            pairs.append((self.position(plain), amount * factor))
        return pairs

    def amounts(self, vector: Vector) -> Amounts:
        return tuple(
            (self.names[place], int(vector[place])) for place in np.flatnonzero(vector) if place < len(self.names)
        )


def widened(vector: Vector, width: int, fill: int = 0) -> Vector:
    """`vector` with new entries up to `width`."""
    if len(vector) >= width:
        return vector
    result = np.full(width, fill, dtype=np.int64)
    result[: len(vector)] = vector
    return result
