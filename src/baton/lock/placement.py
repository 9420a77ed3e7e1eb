"""Choosing GPUs for a program that starts now, on a machine without another scheduler.

A program counts on its GPUs from the moment of the choice, long before its hook registers, so programs that start at
the same time spread over the GPUs just as if they had started one after another.
"""

from collections import Counter

from baton.errors import UsageError
from baton.lock.status import Status

_WANTS_TO_RUN = 1000
"""How many idle clients count as much as one that wants to run."""


def check(status: Status, count: int) -> None:
    """Raise an error if there are fewer GPUs."""
    if count > len(status.gpus):
        there = f"this machine has {len(status.gpus)}" if status.gpus else "the lock daemon knows no GPU"
        raise UsageError(f"--gpus is {count}, but {there}; `baton lock status` lists them")


class Placements:
    """The choices of programs that have not registered yet."""

    def __init__(self) -> None:
        self._coming: dict[str, list[str]] = {}

    def choose(self, status: Status, run: str, count: int) -> list[str]:
        """The GPUs for a run: those with the fewest programs that want to run, then the most spare memory, then by
        index."""
        check(status, count)
        for client in status.clients:
            self.forget(client.run)
        busy: Counter[str] = Counter()
        spare = Counter({gpu.gpu: gpu.memory_bytes for gpu in status.gpus})
        for gpus in self._coming.values():
            busy.update(dict.fromkeys(gpus, _WANTS_TO_RUN))
        for client in status.clients:
            busy[client.gpu] += 1 if client.state == "idle" else _WANTS_TO_RUN
            spare[client.gpu] -= client.working_set_bytes or 0
        ranked = sorted((gpu.gpu for gpu in status.gpus), key=lambda gpu: (busy[gpu], -spare[gpu]))
        chosen = set(ranked[:count])
        self._coming[run] = [gpu.gpu for gpu in status.gpus if gpu.gpu in chosen]
        return self._coming[run]

    def forget(self, run: str) -> None:
        """A run has registered, or has ended without registering."""
        self._coming.pop(run, None)
