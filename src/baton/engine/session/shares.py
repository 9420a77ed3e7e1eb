"""Arithmetic that the queue plugins share: shares, limits, and what admitted jobs will still use."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from baton.engine.session.plugin import Lack
from baton.engine.state.cluster import ClusterState
from baton.engine.state.columns import FUTURE, Floats
from baton.engine.state.jobs import CHARGED, STARTED, Job, QueueShare, Task
from baton.engine.state.resources import PODS, ResourceNames, Vector
from baton.model.ids import QueueName
from baton.model.names import PodGroupPhase

SHARE_EPSILON = 1e-6


def counted(total: Vector) -> npt.NDArray[np.intp]:
    """The resources that count in shares: those that the cluster has, without the number of pods."""
    places = np.flatnonzero(total)
    result: npt.NDArray[np.intp] = places[places != PODS]
    return result


def dominant_share(amounts: Vector, total: Vector | Floats) -> float:
    """The largest share of any resource; for a resource that the cluster lacks, any amount is a share of 1."""
    share = 0.0
    for place in np.flatnonzero(amounts):
        if place == PODS:
            continue
        share = max(share, amounts[place] / total[place] if total[place] > 0 else 1.0)
    return float(share)


def richer_than(amounts: Vector, tasks: Iterable[Task], total: Vector | Floats) -> list[Task]:
    """The tasks, in order, whose job keeps at least the dominant share of `amounts` without them and those before."""
    share = dominant_share(amounts, total)
    left: dict[str, Vector] = {}
    chosen = []
    for task in tasks:
        if task.job is None:
            continue
        left[task.job.key] = left.get(task.job.key, task.job.allocated) - task.needs.charge
        if share <= dominant_share(left[task.job.key], total) + SHARE_EPSILON:
            chosen.append(task)
    return chosen


def own_amounts(queue: QueueShare, which: str) -> Vector:
    """`allocated` or `requested` of the queue's own jobs, without those of its sub-queues."""
    amounts: Vector = getattr(queue, which)
    for child in queue.children.values():
        amounts = amounts - getattr(child, which)
    return amounts


def together(vectors: Iterable[Vector], resources: ResourceNames) -> Vector:
    return sum(vectors, resources.zeros())


def in_use(state: ClusterState) -> Vector:
    """The amounts in use on the nodes that count, by pods of our queues and of other schedulers.

    Only queues are charged for cards under the names that queues use; only nodes count pods without a queue.
    """
    table, counts = state.table, state.table.counts()
    by_queues = together((queue.allocated for queue in state.queues.values() if queue.parent is None), state.resources)
    for row in np.flatnonzero(~counts):
        for task in table.tasks[row].values():
            if task.status in CHARGED and task.job is not None and task.job.queue is not None:
                by_queues -= task.needs.charge
    by_nodes = table.used[FUTURE, :, : table.count][:, counts].sum(axis=1)
    result: Vector = np.maximum(by_queues, by_nodes)
    return result


def real_capability(
    share: QueueShare, total: Vector, own: Vector, promised: Vector, resources: ResourceNames
) -> Vector:
    """The minimum of the queue's own limit and what the guarantees of other queues leave of the cluster.

    `own` is the part of the queue's guarantee that is included in `promised`, the sum of all guarantees.
    """
    ceiling = np.maximum(total - (promised - own), own)
    limit = resources.limits(share.queue.capability)
    result: Vector = np.minimum(ceiling, limit)
    result[PODS] = limit[PODS]
    return result


def guaranteed_left(allocated: Vector, victim: Task, guarantee: Vector) -> bool:
    """Whether the queue keeps its guarantee without the victim."""
    places = np.flatnonzero(guarantee)
    return not len(places) or bool(np.all(allocated[places] - victim.needs.charge[places] >= guarantee[places]))


def min_resources(job: Job, resources: ResourceNames) -> Vector:
    amounts = job.group.min_resources
    return resources.vector(amounts) if amounts is not None else resources.zeros()


def lacks(
    where: str, wanted: Vector, left: Vector, most: Vector, resources: ResourceNames, total: Vector | None = None
) -> Iterator[Lack]:
    """The resources of which less is left than wanted; `total` is the capacity of the cluster."""
    for place in np.flatnonzero((wanted > 0) & (wanted > left)):
        everything = total is not None and bool(most[place] >= total[place])
        yield Lack(
            where, resources.names[place], int(wanted[place]), max(int(left[place]), 0), int(most[place]), everything
        )


class InqueueSums:
    """What admitted jobs are still going to use, by queue, and what running jobs hold above their minimum.

    A gang that lost pods is going to use their room again. Pods with scheduling gates do not count, because their start
    is unknown and other jobs would wait for them in vain; finished pods do not count either.
    """

    def __init__(self, state: ClusterState, resources: ResourceNames) -> None:
        self._state = state
        self._resources = resources
        self._elastic_as_of = (-1, -1)
        self._elastic: dict[QueueName, Vector] = {}
        self._sums: dict[QueueName, Vector] = {}
        self._all: Vector = resources.zeros()
        for job in state.active.values():
            if job.phase is PodGroupPhase.INQUEUE or (job.phase in STARTED and not job.is_ready()):
                self.add(job)

    def add(self, job: Job) -> None:
        if job.queue is None or job.group.min_resources is None:
            return
        out = sum((task.needs.charge for task in (*job.gated(), *job.finished())), self._resources.zeros())
        still = np.maximum(min_resources(job, self._resources) - job.allocated - out, 0)
        self._all = self._all + still
        for queue in job.queue.lineage():
            self._sums[queue.name] = self._sums.get(queue.name, self._resources.zeros()) + still

    def of(self, queue: QueueName) -> Vector:
        return self._sums.get(queue, self._resources.zeros())

    def everywhere(self) -> Vector:
        return self._all

    def elastic(self, queue: QueueShare) -> Vector:
        """The amounts that jobs of the queue and its sub-queues hold above their minimum and could give up."""
        table = self._state.table
        if self._elastic_as_of != (table.epoch, len(table.changes)):
            self._elastic_as_of = (table.epoch, len(table.changes))
            self._elastic = self._elastic_sums()
        return self._elastic.get(queue.name, self._resources.zeros())

    def _elastic_sums(self) -> dict[QueueName, Vector]:
        sums: dict[QueueName, Vector] = {}
        for share in self._state.queues.values():
            for job in share.jobs.values():
                if job.group.min_resources is not None and job.ready > job.min_member:
                    above = np.maximum(job.allocated - min_resources(job, self._resources), 0)
                    for queue in share.lineage():
                        sums[queue.name] = sums.get(queue.name, self._resources.zeros()) + above
        return sums
