"""What a plugin is: one short class that overrides the hooks it cares about.

Hooks over nodes are batched: they get a task and a `NodeView` and answer with one array for all of its rows, because
a callable per node costs some thirty times more. `PerNode` adapts a policy that is easier to say for one node.

A hook answers for the rows it is given and nothing else: the engine keeps the answers and asks again only for rows that
changed. What depends on pods elsewhere (affinity, spread) goes into the `world_` hooks, which are asked for every
placement. A plugin whose answer depends on the queue or the job says so with `scope`; one whose answers change without
any event (a time window) returns a new `revision`.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from baton.engine.objects import LabelSelector, Node
from baton.engine.state.columns import Bools, Floats, Rows
from baton.engine.state.jobs import Job, QueueShare, Task
from baton.engine.state.nodes import NodeView
from baton.engine.state.resources import Vector
from baton.model.ids import QueueName

if TYPE_CHECKING:
    from baton.engine.cards.choice import Assignment
    from baton.engine.search.domains import DomainView
    from baton.engine.state.cluster import ClusterState

MAX_SCORE = 100.0


class Check(NamedTuple):
    """One predicate over the rows of a view. `resolvable`: evicting pods could turn a no into a yes."""

    reason: str
    ok: Bools
    resolvable: bool = True


class Vote(StrEnum):
    REJECT = "reject"
    ABSTAIN = "abstain"
    PERMIT = "permit"


class Scope(StrEnum):
    """What of a task, beside its spec, a plugin's answers about nodes depend on."""

    SPEC = "spec"
    LABELS = "labels"
    """And its namespace."""
    QUEUE = "queue"
    JOB = "job"


class NoArguments(msgspec.Struct, frozen=True):
    """A plugin without arguments."""


A = TypeVar("A", bound=msgspec.Struct)
OrderKey = tuple[float | int | str, ...]


class Lack(NamedTuple):
    """One resource of a job's minimum that somebody has too little of."""

    where: str
    """As in `queue research`."""
    resource: str
    wanted: int
    left: int
    most: int
    """What there would be with nobody else there."""
    everything: bool = False
    """That is all the cluster has."""


class SessionView(Protocol):
    """What a plugin may ask of the session."""

    @property
    def state(self) -> "ClusterState":
        """The cluster as it is at this moment of the session. To be read, not changed."""
        ...

    @property
    def now_s(self) -> float: ...

    @property
    def foreseeing(self) -> bool:
        """Whether the question is about the time when tasks that are leaving have left."""
        ...

    def task_key(self, task: Task) -> OrderKey:
        """Tasks of a job sort by it, the first one first."""
        ...

    def checks(self, task: Task, nodes: NodeView) -> Iterable[Check]:
        """The predicates of all plugins, and room."""
        ...

    def pick_cards(self, task: Task, row: int, plane: int) -> "Assignment | None":
        """The cards of the node that the task would get, or None where there are too few."""
        ...

    def copies_that_fit(self, task: Task, row: int, most: int) -> int:
        """How many such tasks the node would take, once evicted pods are gone."""
        ...

    def could_hold(self, job: Job) -> list[Rows] | None:
        """The rows of each hyper node that could hold a job of a hard topology rule whole; None for other jobs."""
        ...

    def disruptions_left(self) -> dict[tuple[str, str], int]:
        """By namespace and name of a disruption budget: the evictions it still allows."""
        ...


class Plugin(Generic[A]):
    """Base of all plugins. A hook that is not overridden does not take part.

    Keys of the order hooks sort ascending; plugins are asked in tier order and the first difference decides.
    """

    name: ClassVar[str]
    arguments_type: ClassVar[type[msgspec.Struct]] = NoArguments
    argument_prefixes: ClassVar[dict[str, str]] = {}
    """Argument families such as `binpack.resources.<name>`: prefix to the dict field that collects them."""
    scope: ClassVar[Scope] = Scope.SPEC
    keys_change: ClassVar[bool] = False
    """Starting one job may change the keys of others."""
    needs_load: ClassVar[bool] = False
    """It reads the measured load of nodes and cards, so the adapter has to bring it."""
    locks_nodes: bool = False
    """vGPU pods are to be bound to a node one at a time, under the lock of Volcano's device plugins."""
    card_exclusions: tuple[LabelSelector, ...] = ()
    """Pods that match the same selector never share a card."""
    card_order: str = ""
    """`binpack` or `spread`: how cards inside a node are preferred."""

    def __init__(self, arguments: A, *, hierarchy: bool = False) -> None:
        self.arguments = arguments
        self.hierarchy = hierarchy

    def open(self, session: SessionView) -> None:
        """A session begins; compute what holds for all of it."""

    def close(self, session: SessionView) -> None:
        """The session ends."""

    def revision(self, session: SessionView) -> object:
        """Changes whenever answers about nodes may have changed without a change of any node."""
        return None

    def job_key(self, job: Job) -> OrderKey:
        raise NotImplementedError

    def task_key(self, task: Task) -> OrderKey:
        raise NotImplementedError

    def queue_key(self, queue: QueueShare) -> OrderKey:
        raise NotImplementedError

    def filters(self, task: Task, nodes: NodeView) -> Iterable[Check]:
        raise NotImplementedError

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        raise NotImplementedError

    def world_filters(self, task: Task, nodes: NodeView) -> Iterable[Check]:
        raise NotImplementedError

    def world_scores(self, task: Task, nodes: NodeView) -> Floats | None:
        raise NotImplementedError

    def card_scores(self, task: Task, row: int) -> Sequence[float] | None:
        """Preference among the cards of one node, higher first; those of several plugins add up. None: no opinion."""
        raise NotImplementedError

    def domain_scores(self, need: Vector, domains: "DomainView") -> Floats:
        """Preference among hyper nodes of one tier for a job that is to be in one of them; `need` is what it asks for.

        One number per domain, by custom 0 to 100 times a weight.
        """
        raise NotImplementedError

    def job_valid(self, job: Job) -> str | None:
        """None, or the reason why this job is not to be looked at now."""
        raise NotImplementedError

    def job_ready(self, job: Job) -> bool:
        raise NotImplementedError

    def job_pipelined(self, job: Job) -> Vote:
        raise NotImplementedError

    def job_enqueueable(self, job: Job) -> Vote:
        raise NotImplementedError

    def lacks(self, job: Job) -> Iterable[Lack]:
        """For the explanation: what there is too little of where `job_enqueueable` rejects the job."""
        return ()

    def job_enqueued(self, job: Job) -> None:
        """The job was admitted; count it."""
        raise NotImplementedError

    def credit(self, queue: QueueShare, queues: int) -> Vector | None:
        """For a plugin with `job_enqueueable`: as much as it would let into the queue now, whatever jobs it is for.

        None: that depends on the job. What several queues have in common is divided by `queues`. A plugin without this
        is asked about every job.
        """
        raise NotImplementedError

    def deserved(self, queue: QueueName) -> Floats | None:
        """For metrics: what the queue deserves by the last session, for a plugin that works it out."""
        return None

    def job_starving(self, job: Job) -> bool:
        raise NotImplementedError

    def overused(self, queue: QueueShare) -> bool:
        raise NotImplementedError

    def allocatable(self, queue: QueueShare, task: Task) -> bool:
        raise NotImplementedError

    def share_lacks(self, queue: QueueShare, charge: Vector) -> Iterable[Lack]:
        """For the explanation: what there is too little of for such a charge where `allocatable` refuses."""
        return ()

    def preemptive(self, queue: QueueShare, task: Task) -> bool:
        raise NotImplementedError

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Those of `victims` that may go for the preemptor; None abstains."""
        raise NotImplementedError

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        raise NotImplementedError

    def victims(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Running tasks that the shuffle action should move away."""
        raise NotImplementedError

    def sees_world(self, task: Task) -> bool:
        """Whether the `world_` hooks have something to say about this task beside pod affinity and spread."""
        raise NotImplementedError

    def job_started(self, job: Job) -> None:
        """Tasks of the job were placed and committed."""
        raise NotImplementedError

    def job_blocked(self, job: Job, stuck: Task | None) -> None:
        """The allocate action could not place the job."""
        raise NotImplementedError

    def minds_blocked(self, job: Job) -> bool:
        """Whether `job_blocked` matters for this job. A job that no node can take is passed over if nobody minds."""
        raise NotImplementedError

    def may_start(self, job: Job) -> str | None:
        """None, or the reason why this job must wait for another one (reservations, strict order)."""
        raise NotImplementedError


class PerNode(Plugin[A]):
    """For a policy that is easier to say for one node: override `fits` and `rate`, which may look at a pod's labels."""

    scope = Scope.LABELS

    def fits(self, task: Task, node: Node) -> str | None:
        """None, or the reason why the node will not do."""
        return None

    def rate(self, task: Task, node: Node) -> float:
        """0 to 100."""
        return 0.0

    def filters(self, task: Task, nodes: NodeView) -> Iterable[Check]:
        if type(self).fits is PerNode.fits:
            return ()
        reasons = [self.fits(task, node) for node in self._nodes(nodes)]
        return [
            Check(reason, np.array([other != reason for other in reasons], dtype=np.bool_), resolvable=False)
            for reason in sorted({reason for reason in reasons if reason is not None})
        ]

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        if type(self).rate is PerNode.rate:
            return None
        return np.array([self.rate(task, node) for node in self._nodes(nodes)], dtype=np.float64)

    @staticmethod
    def _nodes(nodes: NodeView) -> list[Node]:
        rows = range(nodes.table.count) if nodes.rows is None else nodes.rows
        return [nodes.table.node(int(row)) for row in rows]
