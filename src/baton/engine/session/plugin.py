"""The interface of plugins: a plugin is one short class that overrides the hooks it needs.

Hooks over nodes are batched: they get a task and a `NodeView` and return one array for all of its rows, because one
call per node costs about thirty times more. `PerNode` adapts a policy that is easier to express for one node.

The result for a row may depend only on that row: the engine caches results and calls the hook again only for rows that
changed. Results that depend on pods elsewhere (affinity, spread) belong into the `world_` hooks, which are called for
every placement. A plugin whose results depend on the queue or the job declares it with `scope`; one whose results
change without an event (a time window) returns a new `revision`.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from baton.engine.objects import LabelSelector, Node
from baton.engine.state.changes import Change
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
    """One predicate over the rows of a view. `resolvable`: evicting pods could make a failing row pass."""

    reason: str
    ok: Bools
    resolvable: bool = True


class Vote(StrEnum):
    REJECT = "reject"
    ABSTAIN = "abstain"
    PERMIT = "permit"


class Scope(StrEnum):
    """The properties of a task, besides its spec, that a plugin's results for nodes depend on."""

    SPEC = "spec"
    LABELS = "labels"
    """Labels and namespace."""
    QUEUE = "queue"
    JOB = "job"


class NoArguments(msgspec.Struct, frozen=True):
    """A plugin without arguments."""


A = TypeVar("A", bound=msgspec.Struct)
OrderKey = tuple[float | int | str, ...]


class Lack(NamedTuple):
    """A resource that is too scarce for a request, for example for a job's minimum."""

    where: str
    """Where the resource is scarce, for example `queue research`."""
    resource: str
    wanted: int
    left: int
    most: int
    """The amount that would be left without other jobs."""
    everything: bool = False
    """Whether `most` is all that the cluster has."""


class SessionView(Protocol):
    """The part of a session that plugins may use."""

    @property
    def state(self) -> "ClusterState":
        """The current state of the cluster. Read-only for plugins."""
        ...

    @property
    def now_s(self) -> float: ...

    @property
    def foreseeing(self) -> bool:
        """Whether results must assume that tasks that are leaving have left."""
        ...

    def task_key(self, task: Task) -> OrderKey:
        """The sort key of tasks within a job, ascending."""
        ...

    def checks(self, task: Task, nodes: NodeView) -> Iterable[Check]:
        """The predicates of all plugins, and room."""
        ...

    def pick_cards(self, task: Task, row: int, plane: int) -> "Assignment | None":
        """The cards of the node that the task would get, or None if there are too few."""
        ...

    def copies_that_fit(self, task: Task, row: int, most: int) -> int:
        """How many copies of the task the node would take once evicted pods are gone."""
        ...

    def could_hold(self, job: Job) -> list[Rows] | None:
        """The rows of each hyper node that could hold the whole job, if it has a hard topology rule; otherwise None."""
        ...

    def disruptions_left(self) -> dict[tuple[str, str], int]:
        """The evictions that each disruption budget still allows, by namespace and name."""
        ...


class Plugin(Generic[A]):
    """Base of all plugins. A hook that is not overridden is not called.

    Keys of the order hooks sort ascending; plugins are compared in tier order, and the first difference decides.
    """

    name: ClassVar[str]
    arguments_type: ClassVar[type[msgspec.Struct]] = NoArguments
    argument_prefixes: ClassVar[dict[str, str]] = {}
    """Argument families such as `binpack.resources.<name>`: prefix to the dict field that collects them."""
    scope: ClassVar[Scope] = Scope.SPEC
    keys_change: ClassVar[bool] = False
    """Whether starting one job may change the keys of others."""
    rejections_end_with: ClassVar[frozenset[Change] | None] = None
    """After which changes `job_enqueueable` may stop rejecting a job; until then the job is not asked about again.

    None: after any, or as time goes by.
    """
    needs_load: ClassVar[bool] = False
    """Whether the plugin reads the measured load of nodes and cards, which the adapter then has to provide."""
    locks_nodes: bool = False
    """Whether vGPU pods must be bound to a node one at a time, under the lock of Volcano's device plugins."""
    card_exclusions: tuple[LabelSelector, ...] = ()
    """Pods that match the same selector never share a card."""
    card_order: str = ""
    """`binpack` or `spread`: the preference among the cards of a node."""

    def __init__(self, arguments: A, *, hierarchy: bool = False) -> None:
        self.arguments = arguments
        self.hierarchy = hierarchy

    def open(self, session: SessionView) -> None:
        """A session begins; compute values that hold for the whole session."""

    def close(self, session: SessionView) -> None:
        """The session ends."""

    def revision(self, session: SessionView) -> object:
        """A value that changes whenever results for nodes may have changed without a change of any node."""
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
        """A score for each card of one node, higher is better; plugins' scores are added. None: no preference."""
        raise NotImplementedError

    def domain_scores(self, need: Vector, domains: "DomainView") -> Floats:
        """Scores of the hyper nodes of one tier for a job that must be placed in one of them; `need` is its request.

        One number per domain, by convention 0 to 100 times a weight.
        """
        raise NotImplementedError

    def job_valid(self, job: Job) -> str | None:
        """None, or the reason why this job cannot be scheduled now."""
        raise NotImplementedError

    def job_ready(self, job: Job) -> bool:
        raise NotImplementedError

    def job_pipelined(self, job: Job) -> Vote:
        raise NotImplementedError

    def job_enqueueable(self, job: Job) -> Vote:
        raise NotImplementedError

    def lacks(self, job: Job) -> Iterable[Lack]:
        """For explanations: the scarce resources if `job_enqueueable` rejects the job."""
        return ()

    def job_enqueued(self, job: Job) -> None:
        """The job was admitted; count its resources."""
        raise NotImplementedError

    def credit(self, queue: QueueShare, queues: int) -> Vector | None:
        """For a plugin with `job_enqueueable`: how much it would admit into the queue now, whatever the jobs are.

        None if that depends on the job. Capacity that several queues share is divided by `queues`. Without this hook,
        the plugin has to check every job.
        """
        raise NotImplementedError

    def deserved(self, queue: QueueName) -> Floats | None:
        """For metrics: the queue's deserved share in the last session, if the plugin computes one."""
        return None

    def job_starving(self, job: Job) -> bool:
        raise NotImplementedError

    def overused(self, queue: QueueShare) -> bool:
        raise NotImplementedError

    def allocatable(self, queue: QueueShare, task: Task) -> bool:
        raise NotImplementedError

    def share_lacks(self, queue: QueueShare, charge: Vector) -> Iterable[Lack]:
        """For explanations: the scarce resources if `allocatable` refuses such a charge."""
        return ()

    def preemptive(self, queue: QueueShare, task: Task) -> bool:
        raise NotImplementedError

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Those of `victims` that may be evicted for the preemptor; None abstains."""
        raise NotImplementedError

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        raise NotImplementedError

    def victims(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Running tasks that the shuffle action should move away."""
        raise NotImplementedError

    def sees_world(self, task: Task) -> bool:
        """Whether the `world_` hooks matter for this task apart from pod affinity and spread."""
        raise NotImplementedError

    def job_started(self, job: Job) -> None:
        """Tasks of the job were placed and committed."""
        raise NotImplementedError

    def job_blocked(self, job: Job, stuck: Task | None) -> None:
        """The allocate action could not place the job."""
        raise NotImplementedError

    def minds_blocked(self, job: Job) -> bool:
        """Whether `job_blocked` matters for this job. If no plugin needs it, jobs that fit on no node are skipped."""
        raise NotImplementedError

    def may_start(self, job: Job) -> str | None:
        """None, or the reason why this job must wait for another one (reservations, strict order)."""
        raise NotImplementedError


class PerNode(Plugin[A]):
    """For a policy that is easier to express for one node: override `fits` and `rate`, which may use pod labels."""

    scope = Scope.LABELS

    def fits(self, task: Task, node: Node) -> str | None:
        """None, or the reason why the node is not suitable."""
        return None

    def rate(self, task: Task, node: Node) -> float:
        """A score from 0 to 100."""
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
