"""Time division multiplexing: revocable nodes are available only at certain hours.

Such nodes have the label volcano.sh/revocable-zone. Inside the zone's hours, tasks that accept revocable nodes may go
there and prefer it; outside these hours no task may, and the shuffle action moves away preemptable tasks that are still
there, a few per job and period, within the job's disruption budget. Hours are hours of the day in UTC, shifted by
`tdm.utc-offset`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec
import numpy as np

from baton.engine.framework import MAX_SCORE, Bools, Check, Floats, Job, NodeView, Plugin, SessionView, Status, Task
from baton.model.durations import in_window, parse_duration_s, parse_window_s
from baton.model.ids import GroupKey

ZONE_LABEL = "volcano.sh/revocable-zone"
ANY_ZONE = "*"
DAY_S = 86_400


class TdmArguments(msgspec.Struct, frozen=True):
    zones: dict[str, str] = msgspec.field(default_factory=dict, name="tdm.revocable-zone.*")
    """tdm.revocable-zone.NAME: hours such as 10:00-21:00."""
    period: str = msgspec.field(default="1m", name="tdm.evict.period")
    max_victims: int = msgspec.field(default=1, name="tdm.evict.max-num")
    """How many tasks of a job are moved away per period if the job has no budget."""
    utc_offset: str = msgspec.field(default="0s", name="tdm.utc-offset")

    def problems(self) -> list[str]:
        found = [
            f"tdm.revocable-zone.{name} is {hours!r}, expected hours such as 10:00-21:00"
            for name, hours in self.zones.items()
            if parse_window_s(hours) is None
        ]
        if parse_duration_s(self.period) is None:
            found.append(f"tdm.evict.period is {self.period!r}, expected a duration such as 1m")
        if parse_duration_s(self.utc_offset.lstrip("-")) is None:
            found.append(f"tdm.utc-offset is {self.utc_offset!r}, expected a duration such as 8h or -5h")
        return found


class TdmPlugin(Plugin[TdmArguments]):
    name = "tdm"
    arguments_type = TdmArguments
    argument_prefixes: ClassVar[dict[str, str]] = {"tdm.revocable-zone.": "zones"}

    def __init__(self, arguments: TdmArguments, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._windows = {name: parse_window_s(hours) or (0, 0) for name, hours in arguments.zones.items()}
        offset = arguments.utc_offset
        self._offset_s = (parse_duration_s(offset.lstrip("-")) or 0.0) * (-1 if offset.startswith("-") else 1)
        self._last_eviction_s = -math.inf

    def open(self, session: SessionView) -> None:
        self._now_s = session.now_s
        self._table = session.state.table
        second = (session.now_s + self._offset_s) % DAY_S
        self._active = frozenset(name for name, window in self._windows.items() if in_window(window, second))

    def revision(self, session: SessionView) -> object:
        return self._active

    def filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        zones = nodes.label(ZONE_LABEL)
        yield Check("in a revocable zone outside its hours", (zones == 0) | self._open_zones(nodes), resolvable=False)
        accepts = task.needs.spec.revocable_zone
        if accepts not in ("", ANY_ZONE):
            own = nodes.table.label_values(ZONE_LABEL).get(accepts, -1)
            yield Check("in another revocable zone", (zones == 0) | (zones == own), resolvable=False)
        elif not accepts:
            yield Check("in a revocable zone, which the pod does not accept", zones == 0, resolvable=False)

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        if not task.needs.spec.revocable_zone:
            return None
        return np.where(self._open_zones(nodes), MAX_SCORE, 0.0)

    def _open_zones(self, nodes: NodeView) -> Bools:
        values = nodes.table.label_values(ZONE_LABEL)
        return np.isin(nodes.label(ZONE_LABEL), [values[name] for name in self._active if name in values])

    def victims(self, tasks: Sequence[Task]) -> Sequence[Task]:
        if self._now_s - self._last_eviction_s < (parse_duration_s(self.arguments.period) or 0.0):
            return []
        zones = self._table.label_column(ZONE_LABEL)
        names = {number: name for name, number in self._table.label_values(ZONE_LABEL).items()}
        by_job: dict[GroupKey, list[Task]] = {}
        for task in tasks:
            zone = names.get(int(zones[task.row]))
            if zone is not None and zone not in self._active and task.pod.preemptable and task.job is not None:
                by_job.setdefault(task.job.key, []).append(task)
        chosen = []
        for key in sorted(by_job):
            members = by_job[key]
            job = members[0].job
            assert job is not None
            chosen += members[: self._allowance(job)]
        if chosen:
            self._last_eviction_s = self._now_s
        return chosen

    def _allowance(self, job: Job) -> int:
        """How many of the job's tasks may be moved now; 0 if the budget is invalid."""
        running, total = job.counts[Status.RUNNING], len(job.tasks)
        if job.group.budget_min_available:
            return max(running - _of(job.group.budget_min_available, total, otherwise=total), 0)
        if job.group.budget_max_unavailable:
            return max(_of(job.group.budget_max_unavailable, total, otherwise=0) - (total - running), 0)
        return self.arguments.max_victims


def _of(amount: str, total: int, *, otherwise: int) -> int:
    """The amount for a text such as `3` or `30%`."""
    number = amount.removesuffix("%")
    if not (number.isascii() and number.isdecimal()):
        return otherwise
    return math.ceil(total * int(number) / 100) if number != amount else int(number)
