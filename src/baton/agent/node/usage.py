"""What each container got of its cards, summed over its processes.

The lock daemon and the driver count per process. Processes come and go within a container, and a restarted daemon
counts from zero. A container's numbers must never decrease, so the differences between two looks are summed here, under
the container that the process belonged to when it was first seen. A process that starts and ends between two looks is
not counted; looks are two seconds apart.
"""

from collections.abc import Callable, Collection

import msgspec

from baton.agent.node.identity import PodProcess, pod_of_process
from baton.lock.status import Status
from baton.model.ids import CardId, PodUid

ContainerOnCard = tuple[PodProcess, CardId]
"""A container, by its pod and its id, on one of its cards."""


class LockTimes(msgspec.Struct, frozen=True):
    """Time with the lock, time waiting for it, and turns."""

    held_s: float = 0.0
    waited_s: float = 0.0
    turns: int = 0
    longest_wait_s: float = 0.0

    def plus(self, other: "LockTimes") -> "LockTimes":
        """The sum of both."""
        return LockTimes(
            self.held_s + other.held_s,
            self.waited_s + other.waited_s,
            self.turns + other.turns,
            max(self.longest_wait_s, other.longest_wait_s),
        )

    def since(self, before: "LockTimes") -> "LockTimes":
        """What was added since `before`."""
        return LockTimes(
            max(0.0, self.held_s - before.held_s),
            max(0.0, self.waited_s - before.waited_s),
            max(0, self.turns - before.turns),
            self.longest_wait_s,
        )


class LockUsage:
    """Sums per container and card over all looks at the lock daemon's status."""

    def __init__(self, home: Callable[[int], PodProcess | None] = pod_of_process) -> None:
        self._home = home
        self._seen: dict[tuple[str, str, str], tuple[PodProcess | None, LockTimes]] = {}
        self.totals: dict[ContainerOnCard, LockTimes] = {}

    def take(self, status: Status) -> None:
        """Add the lock daemon's present status."""
        present = {}
        for client in status.clients:
            key = (status.epoch, client.id, client.gpu)
            home, before = self._seen.get(key) or (self._home(client.pid), LockTimes())
            account = client.account
            now = LockTimes(account.received_s, account.waited_s, account.grants, account.longest_wait_s)
            present[key] = (home, now)
            if home is not None:
                place = (home, CardId(client.gpu))
                self.totals[place] = self.totals.get(place, LockTimes()).plus(now.since(before))
        self._seen = present

    def keep(self, pods: Collection[PodUid]) -> None:
        """Drop all pods except these."""
        self.totals = {place: times for place, times in self.totals.items() if place[0].uid in pods}
