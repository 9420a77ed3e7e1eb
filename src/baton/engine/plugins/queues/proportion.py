"""Queues share the cluster by weight: deserved shares are computed by water-filling, bounded by limits and requests.

In every round the remaining capacity is divided by weight among the queues that still want more. A queue never gets
more than it requests or than its real capability (its own limit, and what the guarantees of the others leave), and
never less than its guarantee. Capacity that is left over goes to the next round.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from baton.engine.framework import (
    PODS,
    Change,
    Floats,
    InqueueSums,
    Job,
    Lack,
    NoArguments,
    OrderKey,
    Plugin,
    PodGroupPhase,
    QueueShare,
    SessionView,
    Task,
    Vector,
    Vote,
    counted,
    dominant_share,
    guaranteed_left,
    lacks,
    min_resources,
    real_capability,
    together,
)
from baton.model.ids import QueueName


class ProportionPlugin(Plugin[NoArguments]):
    name = "proportion"
    rejections_end_with = frozenset({Change.NODES, Change.PODS, Change.GROUPS, Change.QUEUES})

    def __init__(self, arguments: NoArguments, *, hierarchy: bool = False) -> None:
        super().__init__(arguments, hierarchy=hierarchy)
        self._deserved: dict[QueueName, Floats] = {}

    def open(self, session: SessionView) -> None:
        state = session.state
        self._resources = state.resources
        self._total = state.table.capacity_total.copy()
        queues = {name: share for name, share in state.queues.items() if share.jobs}
        self._guarantee = {name: self._resources.vector(share.queue.guarantee) for name, share in queues.items()}
        # Guarantees are kept even for queues without jobs; an inner queue's guarantee is the sum of its leaves'.
        kept = (share for share in state.queues.values() if share.jobs or not share.children)
        self._promised = together((self._resources.vector(share.queue.guarantee) for share in kept), self._resources)
        self._capability: dict[QueueName, Vector] = {name: self._real(share) for name, share in queues.items()}
        self._deserved = self._fill(queues)
        self._inqueue = InqueueSums(state, self._resources)

    def _fill(self, queues: dict[QueueName, QueueShare]) -> dict[QueueName, Floats]:
        remaining = self._total.astype(np.float64)
        deserved = {name: np.zeros(len(remaining)) for name in queues}
        met: set[QueueName] = set()
        while len(met) < len(queues):
            weights = sum(share.queue.weight for name, share in queues.items() if name not in met)
            if weights <= 0:
                break
            given = np.zeros(len(remaining))
            for name in sorted(queues):
                if name in met:
                    continue
                share = queues[name]
                before = deserved[name]
                wish = np.maximum(share.requested, self._guarantee[name])
                after = before + remaining * (share.queue.weight / weights)
                after = np.minimum(after, np.minimum(wish, self._capability[name]))
                after = np.maximum(after, np.minimum(self._guarantee[name], self._capability[name]))
                if np.all(after >= np.minimum(wish, self._capability[name]) - 1e-6):
                    met.add(name)
                given += after - before
                deserved[name] = after
            remaining = np.maximum(remaining - given, 0.0)
            if not given.any() or not remaining.any():
                break
        return deserved

    def deserved(self, queue: QueueName) -> Floats | None:
        return self._deserved.get(queue)

    def queue_key(self, queue: QueueShare) -> OrderKey:
        deserved = self._deserved.get(queue.name)
        share = 0.0 if deserved is None else dominant_share(queue.allocated, deserved)
        return (-queue.queue.priority, share)

    def overused(self, queue: QueueShare) -> bool:
        deserved = self._deserved.get(queue.name)
        if deserved is None:
            return False
        considered = counted(self._total)
        return bool(np.all(deserved[considered] <= queue.allocated[considered]))

    def allocatable(self, queue: QueueShare, task: Task) -> bool:
        return self._stays_below(queue, task)

    def share_lacks(self, queue: QueueShare, charge: Vector) -> Iterable[Lack]:
        deserved = self._deserved.get(queue.name)
        if deserved is None:
            return ()
        wanted, most = np.where(self._total > 0, charge, 0), deserved.astype(np.int64)
        wanted[PODS] = 0
        return lacks(f"queue {queue.name}", wanted, most - queue.allocated, most, self._resources, self._total)

    def preemptive(self, queue: QueueShare, task: Task) -> bool:
        return self._stays_below(queue, task)

    def _stays_below(self, queue: QueueShare, task: Task) -> bool:
        deserved = self._deserved.get(queue.name)
        if deserved is None:
            return True
        charge, total = task.needs.charge, self._total
        allocated = queue.allocated
        return all(
            allocated[place] + charge[place] <= deserved[place] + 1e-6
            for place in task.needs.charge_places
            if place != PODS and total[place]
        )

    def job_enqueueable(self, job: Job) -> Vote:
        queue = job.queue
        if queue is None or job.group.min_resources is None:
            return Vote.PERMIT
        wanted = min_resources(job, self._resources)
        capability = self._capability.get(queue.name)
        if capability is None:
            return Vote.PERMIT
        after = wanted + queue.allocated + self._inqueue.of(queue.name) - self._inqueue.elastic(queue)
        asked = (wanted > 0) & (self._total > 0)
        return Vote.PERMIT if bool(np.all(after[asked] <= capability[asked])) else Vote.REJECT

    def credit(self, queue: QueueShare, queues: int) -> Vector:
        left: Vector = self._real(queue) - queue.allocated - self._inqueue.of(queue.name)
        return left

    def _real(self, queue: QueueShare) -> Vector:
        own = self._resources.vector(queue.queue.guarantee)
        return real_capability(queue, self._total, own, self._promised, self._resources)

    def lacks(self, job: Job) -> Iterable[Lack]:
        queue = job.queue
        if queue is None or queue.name not in self._capability:
            return ()
        most, held = self._capability[queue.name], queue.allocated + self._inqueue.of(queue.name)
        left = most - held + self._inqueue.elastic(queue)
        wanted = np.where(self._total > 0, min_resources(job, self._resources), 0)
        return lacks(f"queue {queue.name}", wanted, left, most, self._resources, self._total)

    def job_enqueued(self, job: Job) -> None:
        if job.queue is not None and job.phase is PodGroupPhase.INQUEUE:
            self._inqueue.add(job)

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Tasks of queues above their deserved share of the requested resources, down to that share."""
        left: dict[QueueName, Vector] = {}
        chosen = []
        wanted = reclaimer.needs.charge_places
        for victim in victims:
            queue = victim.job.queue if victim.job is not None else None
            if queue is None or queue.name not in self._deserved:
                continue
            allocated = left.setdefault(queue.name, queue.allocated.copy())
            deserved = self._deserved[queue.name]
            over = any(allocated[place] > deserved[place] + 1e-6 for place in wanted if place != PODS)
            if over and guaranteed_left(allocated, victim, self._guarantee[queue.name]):
                allocated -= victim.needs.charge
                chosen.append(victim)
        return chosen
