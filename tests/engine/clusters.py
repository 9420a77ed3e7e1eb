"""Whole clusters as literals for scenario tests: builders that take only the properties a scenario is about.

cluster = Cluster(nodes=[node("a", cards=2)], jobs=[gang("train", pods=2, cards=1)])
assert cluster.run().placed == {"train-0": "a", "train-1": "a"}
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from baton.engine.engine import Engine
from baton.engine.events import (
    BudgetChanged,
    Event,
    GroupChanged,
    NamespaceChanged,
    NodeChanged,
    PodChanged,
    PodRemoved,
    QueueChanged,
    QuotaChanged,
)
from baton.engine.objects import (
    Budget,
    Card,
    CardGrant,
    CardKind,
    CardRequest,
    Container,
    Namespace,
    Node,
    Pod,
    PodGroup,
    PodSpec,
    Queue,
    Quota,
)
from baton.engine.plan import Plan
from baton.engine.presets import configured
from baton.model.ids import CardId, GroupKey, NodeName, PodKey, QueueName
from baton.model.names import PodGroupPhase, PodPhase

GIB = 1 << 30


def node(name: str, *, cpu: int = 64, memory_gib: int = 256, pods: int = 110, cards: int = 0, **more: Any) -> Node:
    """A node with equal cards; `memory_mib`, `slots`, `model`, `share_milli` describe them."""
    described = {key: more.pop(key) for key in ("memory_mib", "slots", "model", "compute_capability") if key in more}
    made = more.pop("card_list", None) or tuple(
        Card(id=CardId(f"{name}/{place}"), **{"memory_mib": 16_000, "slots": 10, **described}) for place in range(cards)
    )
    labels = {"kubernetes.io/hostname": name, **more.pop("labels", {})}
    return Node(
        name=NodeName(name),
        allocatable=(("cpu", cpu * 1000), ("memory", memory_gib * GIB), ("pods", pods), *more.pop("also", ())),
        cards=made,
        labels=tuple(sorted(labels.items())),
        **more,
    )


def spec(*, cpu: int = 1, memory_gib: int = 1, ask: Sequence[CardRequest] = (), **more: Any) -> PodSpec:
    requests = tuple(
        (name, amount) for name, amount in (("cpu", cpu * 1000), ("memory", memory_gib * GIB)) if amount
    ) + tuple(more.pop("also", ()))
    containers = more.pop("containers", None) or (Container(requests=requests, cards=tuple(ask)),)
    return PodSpec(containers=containers, **more)


def whole(count: int = 1) -> CardRequest:
    return CardRequest(kind=CardKind.WHOLE, count=count)


def slot(count: int = 1) -> CardRequest:
    return CardRequest(kind=CardKind.SLOT, count=count)


def vgpu(count: int = 1, *, memory_mib: int = 0, percent: int = 0, cores: int = 0) -> CardRequest:
    return CardRequest(
        kind=CardKind.VGPU, count=count, memory_mib=memory_mib, memory_percent=percent, share_milli=cores * 10
    )


def milli(share: int, count: int = 1) -> CardRequest:
    return CardRequest(kind=CardKind.FRACTION, count=count, share_milli=share)


def pod(name: str, what: PodSpec | None = None, *, labels: dict[str, str] | None = None, **more: Any) -> Pod:
    key = name if "/" in name else f"team/{name}"
    return Pod(key=PodKey(key), spec=what or spec(), labels=tuple(sorted((labels or {}).items())), **more)


def running(name: str, on: str, what: PodSpec | None = None, *, cards: Sequence[CardGrant] = (), **more: Any) -> Pod:
    return pod(name, what, node=NodeName(on), phase=PodPhase.RUNNING, cards=tuple(cards), **more)


class JobLiteral(msgspec.Struct, frozen=True):
    group: PodGroup
    pods: tuple[Pod, ...]


def job(
    name: str,
    *,
    pods: int = 1,
    min_member: int = 1,
    what: PodSpec | None = None,
    on: Sequence[str] = (),
    queue: str = "default",
    priority: int = 0,
    created_s: float = 0.0,
    phase: PodGroupPhase = PodGroupPhase.INQUEUE,
    labels: dict[str, str] | None = None,
    pod_options: dict[str, Any] | None = None,
    namespace: str = "team",
    **group: Any,
) -> JobLiteral:
    """A PodGroup with equal pods; the first `len(on)` of them already run on those nodes."""
    key = GroupKey(f"{namespace}/{name}")
    members = []
    for place in range(pods):
        options: dict[str, Any] = {
            "group": key,
            "index": place,
            "priority": priority,
            "created_s": created_s,
            **(pod_options or {}),
        }
        full = f"{namespace}/{name}-{place}"
        if place < len(on):
            members.append(running(full, on[place], what, labels=labels, **options))
        else:
            members.append(pod(full, what, labels=labels, **options))
    made = PodGroup(
        key=key,
        queue=QueueName(queue),
        min_member=min_member,
        priority=priority,
        created_s=created_s,
        phase=phase,
        **group,
    )
    return JobLiteral(made, tuple(members))


def gang(name: str, *, pods: int, **more: Any) -> JobLiteral:
    return job(name, pods=pods, min_member=more.pop("min_member", pods), **more)


def queue(name: str, **more: Any) -> Queue:
    for amounts in ("capability", "deserved", "guarantee"):
        if isinstance(more.get(amounts), dict):
            more[amounts] = tuple(sorted(more[amounts].items()))
    if "parent" in more:
        more["parent"] = QueueName(more["parent"])
    return Queue(name=QueueName(name), **more)


class Outcome:
    """A plan, by the short names of a scenario."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.placed = {_short(item.pod): str(item.node) for item in plan.bindings}
        self.cards = {_short(item.pod): [str(grant.card) for grant in item.cards] for item in plan.bindings}
        self.evicted = {_short(item.pod) for item in plan.evictions}
        self.nominated = {_short(item.pod): str(item.node) for item in plan.nominations}
        self.phases = {_short(item.group): item.phase for item in plan.phases}
        self.verdicts = {_short(item.group): item for item in plan.verdicts}


class Cluster:
    """An engine that knows the given cluster."""

    def __init__(
        self,
        *,
        nodes: Iterable[Node] = (),
        jobs: Iterable[JobLiteral] = (),
        pods: Iterable[Pod] = (),
        queues: Iterable[Queue] = (),
        quotas: Iterable[Quota] = (),
        budgets: Iterable[Budget] = (),
        namespaces: Iterable[Namespace] = (),
        conf: str = "simple",
        **engine: Any,
    ) -> None:
        self.engine = Engine(configured(conf), **engine)
        given = list(queues) or [queue("default")]
        self.events: list[Event] = [
            *(QueueChanged(item) for item in given),
            *(NodeChanged(item) for item in nodes),
            *(NamespaceChanged(item) for item in namespaces),
            *(QuotaChanged(item) for item in quotas),
            *(BudgetChanged(item) for item in budgets),
        ]
        for item in jobs:
            self.events.append(GroupChanged(item.group))
            self.events += [PodChanged(member) for member in item.pods]
        self.events += [PodChanged(item) for item in pods]
        self.engine.apply(self.events)

    def run(self, now_s: float = 0.0) -> Outcome:
        return Outcome(self.engine.schedule(now_s))

    def apply(self, *events: Event) -> None:
        self.engine.apply(events)


def evictions(cluster: Cluster, jobs: Sequence[JobLiteral], cycles: int = 12) -> list[int]:
    """The number of evictions in each cycle, if victims are recreated at once and every bound pod runs."""
    known = {member.key: member for literal in jobs for member in literal.pods}
    found = []
    for cycle in range(cycles):
        plan = cluster.run(float(cycle)).plan
        found.append(len(plan.evictions))
        events: list[Event] = []
        for eviction in plan.evictions:
            again = replace(known[eviction.pod], node=None, cards=(), phase=PodPhase.PENDING, uid=f"again{cycle}")
            known[eviction.pod] = again
            events += [PodRemoved(eviction.pod), PodChanged(again)]
        for binding in plan.bindings:
            bound = replace(known[binding.pod], node=binding.node, cards=binding.cards, phase=PodPhase.RUNNING)
            known[binding.pod] = bound
            events.append(PodChanged(bound))
        cluster.apply(*events)
    return found


def _short(key: str) -> str:
    return key.removeprefix("pod:").removeprefix("team/")
