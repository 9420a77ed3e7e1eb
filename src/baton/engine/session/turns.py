"""Turns: which jobs have been tried, if a cycle does not have the time to try every job.

A *round* gives every job its turn with every action. A round is one cycle, unless time runs out: then the cycle ends,
always between two jobs and never inside a gang, and the next cycle continues with the jobs that have not had their
turn. However little time a cycle has, no job waits forever behind others that cannot be placed. New jobs get their turn
in the current round, in order; jobs that had theirs wait for the next round, as they would in one long cycle.
"""

from collections.abc import Callable, Iterable, Iterator

from baton.engine.state.cluster import ClusterState
from baton.engine.state.jobs import Job, Status, Task
from baton.engine.verdicts import Cause
from baton.model.ids import GroupKey

OutOfTime = Callable[[], bool]
"""Whether the cycle should end; called between jobs."""
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
        """Whether time ran out in this cycle."""
        self._blocked: Blocked = {}
        self._placeable: dict[GroupKey, int] = {}

    def start_cycle(self, out_of_time: OutOfTime | None) -> None:
        self._out_of_time = out_of_time
        self._progress = self.cut = False

    def start_action(self, action: str) -> None:
        self._action = action
        self._now = self._had.setdefault(action, set())

    def end_cycle(self, blocked: Blocked, placeable: dict[GroupKey, int]) -> None:
        """Keep the results of jobs that had their turn, or drop them if the round is over."""
        if not self.cut:
            self._had.clear()
            self._blocked, self._placeable = {}, {}
            return
        looked_at: set[GroupKey] = set().union(*self._had.values())
        self._blocked = {key: found for key, found in blocked.items() if key in looked_at}
        self._placeable = {key: count for key, count in placeable.items() if key in looked_at}

    def found_before(self, state: ClusterState) -> tuple[Blocked, dict[GroupKey, int]]:
        """Why jobs wait and how many of their tasks had a place, from earlier cycles of the round."""
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
        """Record that a job was tried; a job whose gang is ready and that has `more` to place keeps its turn."""
        self._progress |= job.key not in self._now
        if not more:
            self._now.add(job.key)

    def time_is_up(self) -> bool:
        """Whether the cycle should end. Every cycle gives at least one job its turn."""
        if self._progress and self._out_of_time is not None and self._out_of_time():
            self.cut = True
        return self.cut

    def remaining(self, jobs: Iterable[Job], part: str = "") -> Iterator[Job]:
        """The jobs that have had no turn yet, until time is up; `part` distinguishes passes of an action."""
        had = self._had.setdefault(f"{self._action} {part}", set()) if part else self._now
        for job in jobs:
            if job.key in had:
                continue
            if self.time_is_up():
                return
            had.add(job.key)
            self._progress = True
            yield job
