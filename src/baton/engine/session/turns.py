"""Whose turn it was, where a cycle is not given the time to look at every job.

A *round* gives every job its turn with every action. It is one cycle, unless time is up before: then the cycle ends,
always between two jobs and never inside a gang, and the next one goes on with the jobs that have not had their turn.
So however little time a cycle has, nobody waits for ever behind others that cannot be placed. Jobs that are new have
their turn at once, in their order; those that had it wait for the next round, as they would in one long cycle.
"""

from collections.abc import Callable, Iterable, Iterator

from baton.engine.state.cluster import ClusterState
from baton.engine.state.jobs import Job, Status, Task
from baton.engine.verdicts import Cause
from baton.model.ids import GroupKey

OutOfTime = Callable[[], bool]
"""Whether the cycle should end; asked between jobs."""
Blocked = dict[GroupKey, tuple[Cause, Task | None]]


class Turns:
    """One round; the engine keeps it from cycle to cycle."""

    def __init__(self) -> None:
        self._had: dict[str, set[GroupKey]] = {}
        self._now: set[GroupKey] = set()
        self._action = ""
        self._out_of_time: OutOfTime | None = None
        self._progress = False
        self.cut = False
        """Whether time was up in this cycle."""
        self._blocked: Blocked = {}
        self._placeable: dict[GroupKey, int] = {}

    def start_cycle(self, out_of_time: OutOfTime | None) -> None:
        self._out_of_time = out_of_time
        self._progress = self.cut = False

    def start_action(self, action: str) -> None:
        self._action = action
        self._now = self._had.setdefault(action, set())

    def end_cycle(self, blocked: Blocked, placeable: dict[GroupKey, int]) -> None:
        """Keep what was found out of those who had their turn; a round that is over is forgotten."""
        if not self.cut:
            self._had.clear()
            self._blocked, self._placeable = {}, {}
            return
        looked_at: set[GroupKey] = set().union(*self._had.values())
        self._blocked = {key: found for key, found in blocked.items() if key in looked_at}
        self._placeable = {key: count for key, count in placeable.items() if key in looked_at}

    def found_before(self, state: ClusterState) -> tuple[Blocked, dict[GroupKey, int]]:
        """Why jobs wait and how many of their tasks had a place, as earlier cycles of the round found."""
        blocked: Blocked = {}
        for key, (cause, stuck) in self._blocked.items():
            job = state.active.get(key)
            if job is not None and job.pending:
                known = stuck is not None and stuck.status is Status.PENDING and state.tasks.get(stuck.key) is stuck
                blocked[key] = (cause, stuck if known else None)
        return blocked, {key: count for key, count in self._placeable.items() if key in blocked}

    def had(self, job: Job) -> bool:
        return job.key in self._now

    def looked_at(self, job: Job, *, more: bool) -> None:
        """A job was tried; one whose gang stands and that has `more` to place keeps its turn."""
        self._progress |= job.key not in self._now
        if not more:
            self._now.add(job.key)

    def time_is_up(self) -> bool:
        """True when the cycle should end. Every cycle gives at least one job its turn."""
        if self._progress and self._out_of_time is not None and self._out_of_time():
            self.cut = True
        return self.cut

    def remaining(self, jobs: Iterable[Job], part: str = "") -> Iterator[Job]:
        """Of these jobs those without a turn yet, until time is up; `part` tells passes of an action apart."""
        had = self._had.setdefault(f"{self._action} {part}", set()) if part else self._now
        for job in jobs:
            if job.key in had:
                continue
            if self.time_is_up():
                return
            had.add(job.key)
            self._progress = True
            yield job
