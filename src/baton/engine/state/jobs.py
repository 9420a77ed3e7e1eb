"""Tasks, jobs and queues as the engine keeps them between cycles: the reported objects, and running sums.

A `Task` is one pod; a `Job` is a PodGroup with its tasks (a pod without a group is a job of one). The state updates the
sums as tasks change status, so that opening a session costs nothing per running pod.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from baton.engine.cards.demands import Needs
from baton.engine.objects import Pod, PodGroup, Queue
from baton.engine.state.resources import ResourceNames, Vector, widened
from baton.model.ids import GroupKey, NodeName, PodKey, QueueName
from baton.model.names import PodGroupPhase

if TYPE_CHECKING:
    from baton.engine.search.signatures import Signature


class Status(IntEnum):
    GATED = 0
    PENDING = 1
    PIPELINED = 2
    ALLOCATED = 3
    BINDING = 4
    BOUND = 5
    RUNNING = 6
    RELEASING = 7
    SUCCEEDED = 8
    FAILED = 9
    UNKNOWN = 10

    # Enum members hash their name in Python code; hashed as integers, set lookups are about five times faster.
    __hash__ = int.__hash__


HELD = frozenset({Status.ALLOCATED, Status.BINDING, Status.BOUND, Status.RUNNING, Status.UNKNOWN})
"""Statuses that take room now and later."""
CHARGED = HELD | {Status.PIPELINED}
"""Statuses for which a job and a queue are charged: a promise counts like a placement."""
ON_NODE = HELD | {Status.RELEASING, Status.PIPELINED}
READY = frozenset({Status.ALLOCATED, Status.BINDING, Status.BOUND, Status.RUNNING, Status.SUCCEEDED})
"""Statuses that count towards a gang's minimum."""
VALID = READY | {Status.PENDING, Status.PIPELINED}
FINISHED = frozenset({Status.SUCCEEDED, Status.FAILED})
ASKS_NOTHING = FINISHED | {Status.GATED}
"""Statuses that count in no share: finished, or not yet admitted."""
STARTED = frozenset({PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN})
"""The phases of a job whose gang is complete, or was complete until it lost pods."""


class Effect(NamedTuple):
    """What a task's change of status adds to the counts and sums of its job: -1, 0 or 1 each."""

    ready: int
    valid: int
    allocated: int
    requested: int


def _effect(before: Status, status: Status) -> Effect:
    return Effect(
        (status in READY) - (before in READY),
        (status in VALID) - (before in VALID),
        (status in CHARGED) - (before in CHARGED),
        (before in ASKS_NOTHING) - (status in ASKS_NOTHING),
    )


EFFECTS = [[_effect(before, status) for status in Status] for before in Status]
"""By the status before and after."""


class Task:
    """One pod. `row` is the node's row or -1."""

    __slots__ = (
        "__weakref__",
        "_signature",
        "_signature_stamp",
        "job",
        "key",
        "label_class",
        "label_epoch",
        "needs",
        "nominated",
        "pod",
        "priority",
        "row",
        "status",
        "stays_until_s",
    )

    def __init__(self, pod: Pod, needs: Needs, job: "Job | None") -> None:
        self.key: PodKey = pod.key
        self.pod = pod
        self.needs = needs
        self.job = job
        self.status = Status.PENDING
        self.row = -1
        self.priority = pod.priority
        self.nominated: NodeName | None = pod.nominated
        self.stays_until_s = 0.0
        """The task is not evicted before this time, because an eviction was refused."""
        self.label_class: tuple[str, tuple[tuple[str, str], ...]] | None = None
        """A cache of `affinity.PlacedPods`, valid in `label_epoch`."""
        self.label_epoch = -1
        self._signature: Signature | None = None
        self._signature_stamp = (-1, -1)

    def __repr__(self) -> str:
        return f"<{self.key} {self.status.name}>"


class Job:
    """A PodGroup and its pods."""

    def __init__(self, group: PodGroup, resources: ResourceNames, *, implicit: bool = False) -> None:
        self.key: GroupKey = group.key
        self.group = group
        self.implicit = implicit
        self.queue: QueueShare | None = None
        self.tasks: dict[PodKey, Task] = {}
        self.pending: dict[PodKey, Task] = {}
        self.counts: list[int] = [0] * len(Status)
        self.allocated: Vector = resources.zeros()
        self.requested: Vector = resources.zeros()
        """Charges of every task, except in a status of `ASKS_NOTHING`."""
        self.phase = group.phase
        self.best_effort_pending = 0
        self.ready = 0
        """Tasks in a status of `READY`."""
        self.valid = 0
        """Tasks in a status of `VALID`."""
        self.last_start_s: float = 0.0

    @property
    def created_s(self) -> float:
        return self.group.created_s

    @property
    def priority(self) -> int:
        return self.group.priority

    @property
    def min_member(self) -> int:
        return self.group.min_member

    def ready_count(self) -> int:
        return self.ready + self.best_effort_pending

    def pipelined_count(self) -> int:
        return self.counts[Status.PIPELINED]

    def recount(self, before: Status, status: Status) -> Effect:
        """Update the counts for one task's change of status."""
        effect = EFFECTS[before][status]
        self.counts[before] -= 1
        self.counts[status] += 1
        self.ready += effect.ready
        self.valid += effect.valid
        return effect

    def gated(self) -> "Iterable[Task]":
        """Tasks with scheduling gates. Tasks that are just being added or removed also have status GATED."""
        return (task for task in self.tasks.values() if task.pod.gated) if self.counts[Status.GATED] else ()

    def finished(self) -> "Iterable[Task]":
        if not any(self.counts[status] for status in FINISHED):
            return ()
        return (task for task in self.tasks.values() if task.status in FINISHED)

    def remaining(self) -> "Iterable[Task]":
        """Tasks that run, succeeded, or will start; not those that failed, are leaving, or were on a node that is
        gone."""
        for task in self.tasks.values():
            held_back = task.status is Status.GATED and task.pod.node is None and not task.pod.deleting
            if held_back or task.status in VALID:
                yield task

    def has_lost_pods(self) -> bool:
        """Whether too few tasks remain for the gang, so that its owner has to create new pods."""
        roles = Counter(task.pod.role for task in self.remaining())
        minima = self.role_minima()
        return roles.total() < self.min_member or any(roles[role] < minimum for role, minimum in minima.items())

    def asking(self) -> "list[Task]":
        """The waiting tasks that request resources; the others are best effort."""
        waiting = self.pending.values()
        return [task for task in waiting if not task.needs.best_effort] if self.best_effort_pending else [*waiting]

    def uniform_tasks(self) -> "list[Task] | None":
        """The waiting tasks that request resources, if their requests are all the same; None otherwise."""
        tasks = self.asking()
        if not tasks:
            return None
        needs = tasks[0].needs
        return tasks if len(tasks) == 1 or all(task.needs is needs for task in tasks) else None

    def role_counts(self, statuses: frozenset[Status]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for task in self.tasks.values():
            if task.status in statuses or (task.status is Status.PENDING and task.needs.best_effort):
                counts[task.pod.role] = counts.get(task.pod.role, 0) + 1
        return counts

    def role_minima(self) -> dict[str, int]:
        """minTaskMember, which only applies if the job's minimum covers the sum of the roles' minima."""
        roles = self.group.min_role_members
        return dict(roles) if roles and self.min_member >= sum(minimum for _, minimum in roles) else {}

    def roles_met(self, statuses: frozenset[Status]) -> bool:
        minima = self.role_minima()
        if not minima:
            return True
        counts = self.role_counts(statuses)
        return all(counts.get(role, 0) >= minimum for role, minimum in minima.items())

    def part_of(self, task: Task) -> "tuple[str, ...] | None":
        """The sub-group that the task belongs to, as (kind, values of its labels); None if it belongs to none."""
        for parts in self.group.parts:
            labels = dict(task.pod.labels)
            if parts.selector.matches(labels) and all(key in labels for key in parts.keys):
                return (parts.name, *(labels[key] for key in parts.keys))
        return None

    def part_counts(self, statuses: frozenset[Status]) -> "dict[tuple[str, ...], int]":
        counts: dict[tuple[str, ...], int] = {}
        for task in self.tasks.values():
            part = self.part_of(task) if task.status in statuses else None
            if part is not None:
                counts[part] = counts.get(part, 0) + 1
        return counts

    def parts_short(self, statuses: frozenset[Status]) -> list[str]:
        """A phrase for each kind of sub-group that has fewer complete ones than it needs."""
        if not any(parts.minimum for parts in self.group.parts):
            return []
        counts = self.part_counts(statuses)
        short = []
        for parts in self.group.parts:
            whole = sum(part[0] == parts.name and number >= parts.size for part, number in counts.items())
            if whole < parts.minimum:
                short.append(f"{whole} of {parts.minimum} sub-groups {parts.name} have {parts.size} pods")
        return short

    def parts_whole(self, tasks: "Iterable[Task]") -> bool:
        """Whether the sub-groups of these tasks are complete."""
        if not self.group.parts:
            return True
        sizes = {parts.name: parts.size for parts in self.group.parts}
        counts = self.part_counts(READY)
        return all(part is None or counts.get(part, 0) >= sizes[part[0]] for part in map(self.part_of, tasks))

    def is_ready(self) -> bool:
        if self.ready + self.best_effort_pending < self.group.min_member:
            return False
        if self.group.min_role_members and not self.roles_met(READY):
            return False
        return not self.group.parts or not self.parts_short(READY)

    def is_pipelined(self) -> bool:
        promised = READY | {Status.PIPELINED}
        return (
            self.ready_count() + self.pipelined_count() >= self.min_member
            and self.roles_met(promised)
            and not self.parts_short(promised)
        )

    def is_pending_phase(self) -> bool:
        return self.phase is PodGroupPhase.PENDING

    def lineage(self) -> "Sequence[QueueShare]":
        """The queue and its ancestors, whose sums include those of the job."""
        return self.queue.lineage() if self.queue is not None else ()

    def widen(self, width: int) -> None:
        self.allocated = widened(self.allocated, width)
        self.requested = widened(self.requested, width)

    def __repr__(self) -> str:
        return f"<job {self.key} ready {self.ready_count()}/{self.min_member}>"


class QueueShare:
    """A queue with the sums over its jobs and the jobs of its descendants."""

    def __init__(self, queue: Queue, resources: ResourceNames) -> None:
        self.name: QueueName = queue.name
        self.queue = queue
        self.jobs: dict[GroupKey, Job] = {}
        self.parent: QueueShare | None = None
        self.children: dict[QueueName, QueueShare] = {}
        self.line: list[QueueShare] | None = None
        self.allocated: Vector = resources.zeros()
        self.requested: Vector = resources.zeros()

    @property
    def strict(self) -> bool:
        """A job that does not fit holds back those behind it."""
        return self.queue.dequeue_strategy == "fifo"

    def lineage(self) -> "list[QueueShare]":
        """This queue and its ancestors; `state` drops the cached list when the tree changes."""
        if self.line is None:
            self.line = self._ancestors()
        return self.line

    def _ancestors(self) -> "list[QueueShare]":
        line: list[QueueShare] = []
        queue: QueueShare | None = self
        while queue is not None and queue not in line:
            line.append(queue)
            queue = queue.parent
        return line

    def widen(self, width: int) -> None:
        self.allocated = widened(self.allocated, width)
        self.requested = widened(self.requested, width)

    def __repr__(self) -> str:
        return f"<queue {self.name}>"
