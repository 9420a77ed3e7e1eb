"""Queues with explicit shares: a queue may use up to its capability, and reclaims resources up to its `deserved`.

With `enableHierarchy` queues form a tree below `root`: every limit is checked for all ancestors, only leaf queues have
jobs, and a queue without a capability inherits its parent's. A queue without `deserved` is best effort: it may use free
resources and always comes last.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from baton.engine.framework import (
    PODS,
    Change,
    InqueueSums,
    Job,
    Lack,
    OrderKey,
    Plugin,
    QueueShare,
    Rows,
    SessionView,
    Task,
    Vector,
    Vote,
    guaranteed_left,
    lacks,
    min_resources,
    real_capability,
    together,
)
from baton.model.ids import QueueName


class CapacityArguments(msgspec.Struct, frozen=True):
    ancestor_level: int = msgspec.field(default=0, name="ancestorReclaimLevel")
    """How many levels above a victim's queue must also exceed their deserved share before it may be reclaimed."""
    dra: bool = msgspec.field(default=False, name="capacity.DynamicResourceAllocationEnable")
    dra_capacity: bool = msgspec.field(default=False, name="capacity.DRAConsumableCapacityEnable")


class CapacityPlugin(Plugin[CapacityArguments]):
    name = "capacity"
    arguments_type = CapacityArguments
    rejections_end_with = frozenset({Change.NODES, Change.PODS, Change.GROUPS, Change.QUEUES})

    def open(self, session: SessionView) -> None:
        state = session.state
        self._resources = state.resources
        self._total = state.table.capacity_total.copy()
        queues = state.queues
        self._guarantee = {name: self._resources.vector(share.queue.guarantee) for name, share in queues.items()}
        nothing = self._resources.zeros()
        leaves = {name: vector for name, vector in self._guarantee.items() if not queues[name].children}
        promised = together(leaves.values(), self._resources)
        self._capability: dict[QueueName, Vector] = {}
        for name, share in queues.items():
            others = nothing if self.hierarchy and share.children else promised
            own = leaves.get(name, nothing)
            self._capability[name] = real_capability(share, self._total, own, others, self._resources)
        if self.hierarchy:
            for name, share in queues.items():
                for ancestor in share.lineage()[1:]:
                    limit = self._resources.limits(ancestor.queue.capability)
                    self._capability[name] = np.minimum(self._capability[name], limit)
        self._deserved = {name: self._resources.vector(share.queue.deserved) for name, share in queues.items()}
        self._inqueue = InqueueSums(state, self._resources)

    def job_valid(self, job: Job) -> str | None:
        if self.hierarchy and job.queue is not None and job.queue.children:
            return f"queue {job.queue.name} has sub-queues and accepts no jobs itself; use one of its leaf queues"
        return None

    def queue_key(self, queue: QueueShare) -> OrderKey:
        """Priority, then usage relative to the deserved share; in a tree level by level, so that idle shares go to
        siblings first."""
        if not self.hierarchy:
            return (-queue.queue.priority, self._share(queue))
        line = [ancestor for ancestor in reversed(queue.lineage()) if ancestor.parent is not None]
        key: list[float | str] = []
        for ancestor in line:
            key += [-ancestor.queue.priority, self._share(ancestor), ancestor.name]
        return tuple(key)

    def _share(self, queue: QueueShare) -> float:
        deserved = self._deserved[queue.name]
        if not deserved.any():
            return 1.0
        return max((float(queue.allocated[place] / deserved[place]) for place in np.flatnonzero(deserved)), default=0.0)

    def allocatable(self, queue: QueueShare, task: Task) -> bool:
        line = queue.lineage() if self.hierarchy else [queue]
        return all(self._below(item, task.needs.charge, task.needs.charge_places, self._capability) for item in line)

    def _below(self, queue: QueueShare, charge: Vector, places: Rows, limits: dict[QueueName, Vector]) -> bool:
        limit = limits[queue.name]
        return all(
            queue.allocated[place] + charge[place] <= limit[place]
            for place in places
            if place == PODS or self._total[place]
        )

    def share_lacks(self, queue: QueueShare, charge: Vector) -> Iterable[Lack]:
        wanted = np.where(self._total > 0, charge, 0)
        for share in queue.lineage() if self.hierarchy else [queue]:
            most = self._capability[share.name]
            left = most - share.allocated
            yield from lacks(f"queue {share.name}", wanted, left, most, self._resources, self._total)

    def preemptive(self, queue: QueueShare, task: Task) -> bool:
        """A queue may reclaim for a task if it stays within its deserved share of at least one resource."""
        deserved = self._deserved[queue.name]
        asked = [place for place in task.needs.charge_places if deserved[place] > 0]
        charge = task.needs.charge
        return any(queue.allocated[place] + charge[place] <= deserved[place] for place in asked)

    def job_enqueueable(self, job: Job) -> Vote:
        if job.queue is None or job.group.min_resources is None:
            return Vote.PERMIT
        wanted = min_resources(job, self._resources)
        asked = (wanted > 0) & (self._total > 0)
        for queue in job.queue.lineage() if self.hierarchy else [job.queue]:
            after = wanted + queue.allocated + self._inqueue.of(queue.name) - self._inqueue.elastic(queue)
            if not np.all(after[asked] <= self._capability[queue.name][asked]):
                return Vote.REJECT
        return Vote.PERMIT

    def credit(self, queue: QueueShare, queues: int) -> Vector:
        left = self._resources.limits(())
        for share in queue.lineage() if self.hierarchy else [queue]:
            own = self._capability[share.name] - share.allocated - self._inqueue.of(share.name)
            # The queue shares the limits of its ancestors with others.
            left = np.minimum(left, own if share is queue else own // queues)
        return left

    def lacks(self, job: Job) -> Iterable[Lack]:
        wanted = np.where(self._total > 0, min_resources(job, self._resources), 0)
        line = [] if job.queue is None else job.queue.lineage() if self.hierarchy else [job.queue]
        for queue in line:
            most, held = self._capability[queue.name], queue.allocated + self._inqueue.of(queue.name)
            left = most - held + self._inqueue.elastic(queue)
            yield from lacks(f"queue {queue.name}", wanted, left, most, self._resources, self._total)

    def job_enqueued(self, job: Job) -> None:
        self._inqueue.add(job)

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Tasks of queues that exceed their deserved share of a resource in the request, while guarantees are kept."""
        left: dict[QueueName, Vector] = {}
        chosen = []
        mine = reclaimer.job.queue if reclaimer.job is not None else None
        for victim in victims:
            queue = victim.job.queue if victim.job is not None else None
            if queue is None or (mine is not None and self._would_come_back(mine, reclaimer, queue, victim)):
                continue
            levels = queue.lineage()[: 1 + self.arguments.ancestor_level] if self.hierarchy else [queue]
            allocated = {item.name: left.setdefault(item.name, item.allocated.copy()) for item in levels}
            if all(self._over(item.name, allocated[item.name], reclaimer, victim) for item in levels):
                for item in levels:
                    left[item.name] = allocated[item.name] - victim.needs.charge
                chosen.append(victim)
        return chosen

    def _would_come_back(self, mine: QueueShare, reclaimer: Task, theirs: QueueShare, victim: Task) -> bool:
        """Whether the victim's queue could immediately reclaim for it, so that the two would alternate forever.

        One queue may be within its deserved share of one resource, and the other queue of another resource.
        """
        after = mine.allocated + reclaimer.needs.charge
        deserved = self._deserved[mine.name]
        asked = [place for place in victim.needs.charge_places if place != PODS]
        if not any(0 < deserved[place] < after[place] for place in asked):
            return False
        deserved = self._deserved[theirs.name]
        return any(0 < theirs.allocated[place] <= deserved[place] for place in asked)

    def _over(self, name: QueueName, allocated: Vector, reclaimer: Task, victim: Task) -> bool:
        """Whether the queue exceeds its deserved share; `deserved` limits only the resources that it names, and a queue
        without it exceeds everything."""
        deserved = self._deserved[name]
        best_effort = not deserved.any()
        relevant = [
            place
            for place in reclaimer.needs.charge_places
            if place != PODS and victim.needs.charge[place] > 0 and (best_effort or deserved[place] > 0)
        ]
        over = any(allocated[place] > deserved[place] for place in relevant)
        return over and guaranteed_left(allocated, victim, self._guarantee[name])
