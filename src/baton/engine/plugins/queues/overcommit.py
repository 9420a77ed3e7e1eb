"""Overcommit: admit jobs as long as their minima stay within the cluster's capacity times a factor."""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from baton.engine.framework import (
    Change,
    InqueueSums,
    Job,
    Lack,
    Plugin,
    QueueShare,
    SessionView,
    Vector,
    Vote,
    in_use,
    lacks,
    min_resources,
)


class OvercommitArguments(msgspec.Struct, frozen=True):
    factor: float = msgspec.field(default=1.2, name="overcommit-factor")

    def problems(self) -> Iterator[str]:
        if self.factor < 1.0:
            yield f"overcommit-factor is {self.factor}; a factor below 1 would leave room unused, use 1 or more"


class OvercommitPlugin(Plugin[OvercommitArguments]):
    name = "overcommit"
    arguments_type = OvercommitArguments
    rejections_end_with = frozenset({Change.NODES, Change.PODS, Change.GROUPS, Change.QUEUES})

    def open(self, session: SessionView) -> None:
        table = session.state.table
        self._resources = session.state.resources
        self._total = table.capacity_total.copy()
        self._most = (self._total * self.arguments.factor).astype(np.int64)
        self._idle = self._most - in_use(session.state)
        self._inqueue = InqueueSums(session.state, self._resources)

    def job_enqueueable(self, job: Job) -> Vote:
        if job.group.min_resources is None:
            return Vote.PERMIT
        wanted = min_resources(job, self._resources)
        asked = wanted > 0
        after = self._inqueue.everywhere() + wanted
        return Vote.PERMIT if bool(np.all(after[asked] <= self._idle[asked])) else Vote.REJECT

    def credit(self, queue: QueueShare, queues: int) -> Vector:
        left: Vector = (self._idle - self._inqueue.everywhere()) // queues
        return left

    def lacks(self, job: Job) -> Iterable[Lack]:
        wanted, left = min_resources(job, self._resources), self._idle - self._inqueue.everywhere()
        where = f"the cluster, counted {self.arguments.factor:g} times,"
        return lacks(where, wanted, left, self._most, self._resources)

    def job_enqueued(self, job: Job) -> None:
        self._inqueue.add(job)
