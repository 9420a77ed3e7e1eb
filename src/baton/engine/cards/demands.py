"""The requests of a pod spec, computed once per distinct spec.

Kubernetes' rules for several containers: an init container runs alone with the sidecars declared before it; then all
other containers run together. The effective request is the largest of these phases, plus the pod's overhead.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baton.engine.objects import (
    KIND_BIT,
    WHOLE_CARD_MILLI,
    CardKind,
    CardRequest,
    CardRules,
    Container,
    ContainerRole,
    PodSpec,
)
from baton.engine.state.resources import (
    CARD_MILLI,
    PODS,
    SLOTS,
    VGPU_CORES,
    VGPU_MEMORY,
    VGPU_NUMBER,
    ResourceNames,
    Vector,
)

_MOST = 2**50
"""Upper limit for each amount of a pod's request: more than any node has, and thousands of times less than the largest
64-bit integer."""


class Demand(NamedTuple):
    """One container's request for cards, with its place in the pod. `init` is None for containers that keep running."""

    container: str
    place: int
    kind: CardKind
    kind_bit: int
    cards: int
    memory_mib: int
    memory_percent: int
    share_milli: int
    slots: int
    exclusive: bool
    init: int | None
    sidecar: bool

    @property
    def ease(self) -> tuple[int, int, int, int, int]:
        """Sorts the hardest demand first."""
        return (
            -int(self.exclusive),
            -self.cards,
            -max(self.memory_mib, self.memory_percent),
            -self.share_milli,
            self.place,
        )

    def starts_before(self, init: "Demand") -> bool:
        return self.sidecar and self.place < init.place

    def memory_on(self, physical_mib: int) -> int:
        if self.memory_percent:
            return -(-physical_mib * self.memory_percent // 100)
        return self.memory_mib

    def memory_need(self, physical_mib: npt.NDArray[Any]) -> npt.NDArray[Any] | int | None:
        """Per card, or one number for all, or None when memory does not matter."""
        if self.memory_percent:
            return -(-physical_mib * self.memory_percent // 100)
        return self.memory_mib or None


class CardPlan(NamedTuple):
    demands: tuple[Demand, ...]


class Needs:
    """The numbers behind one distinct `PodSpec`."""

    __slots__ = (
        "best_effort",
        "cards",
        "charge",
        "charge_places",
        "depends_on_pods",
        "gpu_milli",
        "number",
        "places",
        "request",
        "ruled",
        "spec",
    )

    def __init__(self, number: int, spec: PodSpec, resources: ResourceNames) -> None:
        self.number = number
        self.spec = spec
        self.cards = CardPlan(tuple(_demands(spec.containers)))
        amounts = effective_amounts(spec)
        amounts["pods"] = 1
        charge = dict(amounts)
        for name, amount in _card_amounts(self.cards, counted_by_name=any("/" in name for name in amounts)):
            charge[name] = max(charge.get(name, 0), amount)  # per-card amounts are requested once, for all cards
        charged = resources.vector(charge.items(), _MOST)
        self.request: Vector = resources.vector(amounts.items(), _MOST)
        self.charge: Vector = charged
        """The amounts a queue is charged: the request plus the card amounts, under the names that quotas use."""
        self.places: list[int] = [resources.position(name) for name in sorted(amounts)]
        """Positions sorted by name, so that sums over them do not depend on which name was seen first."""
        self.charge_places: npt.NDArray[np.intp] = np.flatnonzero(charged)
        self.ruled = spec.card_rules != CardRules()
        self.depends_on_pods = bool(
            spec.affinity
            or spec.anti_affinity
            or spec.preferred_affinity
            or spec.preferred_anti_affinity
            or spec.spread
            or spec.sole_claims
        )
        """Whether the choice of node depends on pods on other nodes."""
        self.best_effort = not self.cards.demands and self.places == [PODS]
        self.gpu_milli = int(sum(_milli(demand) * demand.cards for demand in self.cards.demands if demand.init is None))

    def widen(self, width: int) -> None:
        missing = width - len(self.request)
        if missing > 0:
            self.request = np.concatenate([self.request, np.zeros(missing, np.int64)])
            self.charge = np.concatenate([self.charge, np.zeros(missing, np.int64)])


def effective_amounts(spec: PodSpec) -> dict[str, int]:
    """The pod's request by resource name, after the rule for init containers and sidecars."""
    running: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.containers:
        if container.role is ContainerRole.INIT:
            for name, amount in container.requests:
                peak[name] = max(peak.get(name, 0), amount + sidecars.get(name, 0))
            continue
        if container.role is ContainerRole.SIDECAR:
            for name, amount in container.requests:
                sidecars[name] = sidecars.get(name, 0) + amount
        for name, amount in container.requests:
            running[name] = running.get(name, 0) + amount
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in {**running, **peak}}
    for name, amount in spec.overhead:
        total[name] = total.get(name, 0) + amount
    return {name: amount for name, amount in sorted(total.items()) if amount}


def _demands(containers: tuple[Container, ...]) -> list[Demand]:
    result: list[Demand] = []
    inits = 0
    for place, container in enumerate(containers):
        init = None
        if container.role is ContainerRole.INIT:
            init, inits = inits, inits + 1
        result += [_demand(container, place, request, init) for request in container.cards if request.count > 0]
    return result


def _demand(container: Container, place: int, request: CardRequest, init: int | None) -> Demand:
    memory_mib, percent = request.memory_mib, request.memory_percent
    if percent:
        memory_mib = 0
    elif request.kind is CardKind.VGPU and not memory_mib:
        percent = 100
    return Demand(
        container=container.name,
        place=place,
        kind=request.kind,
        kind_bit=KIND_BIT[request.kind],
        cards=request.count,
        memory_mib=memory_mib,
        memory_percent=percent,
        share_milli=request.share_milli,
        slots=1 if request.kind in (CardKind.SLOT, CardKind.VGPU) else 0,
        exclusive=request.kind is CardKind.WHOLE or request.share_milli >= WHOLE_CARD_MILLI,
        init=init,
        sidecar=container.role is ContainerRole.SIDECAR,
    )


def _milli(demand: Demand) -> int:
    """The computing power that one card of the demand counts for in fairness and fragmentation."""
    if demand.exclusive:
        return WHOLE_CARD_MILLI
    return demand.share_milli or demand.memory_percent * 10


def _card_amounts(plan: CardPlan, *, counted_by_name: bool) -> list[tuple[str, int]]:
    """The amounts a queue is charged for cards, under the resource name that kubelet counts them by if there is one."""
    totals: dict[str, int] = {}

    def add(name: str, amount: int) -> None:
        totals[name] = totals.get(name, 0) + amount

    for demand in plan.demands:
        if demand.init is not None:
            continue
        if demand.kind is CardKind.VGPU:
            add(VGPU_NUMBER, demand.cards)
            add(VGPU_MEMORY, demand.cards * demand.memory_mib)
            add(VGPU_CORES, demand.cards * (demand.share_milli // 10))
        elif demand.kind is CardKind.SLOT:
            add(SLOTS, demand.cards)
        elif not counted_by_name:
            add(CARD_MILLI, demand.cards * _milli(demand))
    return [(name, amount) for name, amount in totals.items() if amount]
