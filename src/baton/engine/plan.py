"""The decisions of a session, as values: the adapter carries out these and no others."""

import msgspec

from baton.engine.objects import CardGrant
from baton.engine.verdicts import Verdict
from baton.model.ids import GroupKey, NodeName, PodKey
from baton.model.names import PodGroupPhase


class Binding(msgspec.Struct, frozen=True, gc=False):
    """Put the pod on the node, with these cards."""

    pod: PodKey
    node: NodeName
    cards: tuple[CardGrant, ...] = ()


class Eviction(msgspec.Struct, frozen=True, gc=False):
    pod: PodKey
    node: NodeName
    reason: str
    for_pod: PodKey | None = None
    """The pod that the eviction makes room for."""


class Nomination(msgspec.Struct, frozen=True, gc=False):
    """The pod will go to this node once evicted pods are gone."""

    pod: PodKey
    node: NodeName


class PhaseChange(msgspec.Struct, frozen=True, gc=False):
    group: GroupKey
    phase: PodGroupPhase


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    now_s: float
    bindings: tuple[Binding, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    nominations: tuple[Nomination, ...] = ()
    phases: tuple[PhaseChange, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """One for each job that still waits."""
    refused: bool = False
    """Whether some jobs wait for admission to their queues."""
    cut: bool = False
    """Whether time ran out before every job had its turn: the next cycle continues, and there are no verdicts yet."""
