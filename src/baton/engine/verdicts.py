"""Why something waits: a structure that a program can read and one paragraph that a person can act on."""

from enum import StrEnum

import msgspec

from baton.model.ids import GroupKey, NodeName, PodKey, QueueName
from baton.model.quantities import Amounts


class Cause(StrEnum):
    """The first gate that the job did not pass."""

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
    """There is room: only the next cycle, or a job that goes first, is waited for."""


class NodeReason(msgspec.Struct, frozen=True, gc=False):
    """A predicate and how many nodes it turned down; each node counts once, under its first failing predicate."""

    reason: str
    nodes: int
    resolvable: bool = True


class NearestFit(msgspec.Struct, frozen=True, gc=False):
    """The node that misses least."""

    node: NodeName
    missing: tuple[str, ...]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a job waits, told for the task that is stuck."""

    group: GroupKey
    cause: Cause
    pod: PodKey | None = None
    queue: QueueName | None = None
    detail: str = ""
    min_member: int = 1
    ready: int = 0
    placeable: int = 0
    """How many of its tasks could be placed before the first one could not."""
    nodes: int = 0
    reasons: tuple[NodeReason, ...] = ()
    nearest: tuple[NearestFit, ...] = ()
    would_help: tuple[str, ...] = ()
    missing: Amounts = ()

    def paragraph(self) -> str:
        """The verdict as one paragraph."""
        who = f"{self.pod or self.group} waits"
        where = f" in queue {self.queue}" if self.queue else ""
        parts = [f"{who}{where}: {self.detail}."]
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
