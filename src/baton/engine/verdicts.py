"""Why a pod or a job waits: a structure for programs, and one paragraph that a person can act on."""

from enum import StrEnum

import msgspec

from baton.errors import BatonError
from baton.model.ids import GroupKey, NodeName, PodKey, QueueName
from baton.model.quantities import Amounts


class UnknownWorkloadError(BatonError):
    """The scheduler knows no pod and no PodGroup of that name."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the scheduler knows no pod or PodGroup {key}; check the namespace and the name")


class Cause(StrEnum):
    """Where a pod or a job stands: the first gate on its way to running that it has not passed.

    The first seven are facts of the pod's own status; a pod in one of those states does not wait for the scheduler.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETING = "deleting"
    STARTING = "starting"
    RUNNING = "running"
    CANNOT_START = "cannot-start"
    """The pod has a node, where kubelet cannot start its containers."""
    OTHER_SCHEDULER = "other-scheduler"

    NO_GROUP = "no-group"
    """The pod belongs to a PodGroup that does not exist, or its owner, which may ask for one, is not known yet."""
    BIND_FAILED = "bind-failed"
    """The API server refused the pod's binding; the scheduler tries again after a pause."""
    NO_QUEUE = "no-queue"
    QUEUE_CLOSED = "queue-closed"
    QUEUE_OVERUSED = "queue-overused"
    QUEUE_SHARE = "queue-share"
    NOT_ADMITTED = "not-admitted"
    GATED = "gated"
    NOT_VALID = "not-valid"
    HELD_BACK = "held-back"
    GANG = "gang"
    NODES = "nodes"
    PIPELINED = "pipelined"
    NEXT = "next"
    """There is room: the job waits only for the next cycle, or for a job that goes first."""

    @property
    def waits(self) -> bool:
        """Whether the pod or job waits for the scheduler."""
        return self not in _SETTLED


_SETTLED = frozenset(
    {
        Cause.SUCCEEDED,
        Cause.FAILED,
        Cause.DELETING,
        Cause.STARTING,
        Cause.RUNNING,
        Cause.CANNOT_START,
        Cause.OTHER_SCHEDULER,
    }
)


class NodeReason(msgspec.Struct, frozen=True, gc=False):
    """A predicate and how many nodes it rejected; each node counts once, under its first failing predicate."""

    reason: str
    nodes: int
    resolvable: bool = True


class NearestFit(msgspec.Struct, frozen=True, gc=False):
    """A node that lacks little, and what it lacks."""

    node: NodeName
    missing: tuple[str, ...]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a job waits, told for the pod that is stuck; or why a pod does not wait for the scheduler."""

    group: GroupKey
    cause: Cause
    pod: PodKey | None = None
    queue: QueueName | None = None
    detail: str = ""
    min_member: int = 1
    ready: int = 0
    placeable: int = 0
    """How many pods could be placed before the first one could not."""
    nodes: int = 0
    reasons: tuple[NodeReason, ...] = ()
    nearest: tuple[NearestFit, ...] = ()
    would_help: tuple[str, ...] = ()
    missing: Amounts = ()

    def sentence(self, asked: str = "") -> str:
        """The cause in one sentence; `asked` is the name that the reader asked about, where it is not the pod's."""
        who = asked or self.pod or self.group
        if not self.cause.waits:
            return f"{who} {self.detail}."
        if self.cause in (Cause.NODES, Cause.BIND_FAILED) and self.pod is not None and self.pod != who:
            who = f"{who} ({self.pod})"
        where = f" in queue {self.queue}" if self.queue else ""
        return f"{who} waits{where}: {self.detail}."

    def paragraph(self) -> str:
        """The verdict as one paragraph."""
        parts = [self.sentence()]
        if self.cause is Cause.GANG or (self.min_member > 1 and self.reasons):
            parts.append(
                f"The gang needs {self.min_member} pods at once; {self.ready} run already"
                f" and {self.placeable} more could start."
            )
        if self.reasons:
            listed = ", ".join(f"{item.nodes} {item.reason}" for item in self.reasons)
            parts.append(f"Of {self.nodes} nodes: {listed}.")
        parts += [f"Nearest is {fit.node}: {'; '.join(fit.missing)}." for fit in self.nearest]
        if self.would_help:
            parts.append(f"What would help: {'; or '.join(self.would_help)}.")
        return " ".join(parts)
