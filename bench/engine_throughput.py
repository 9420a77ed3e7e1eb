"""Engine: placements per CPU second on 1,000, 5,000 and 10,000 nodes, verdicts, preemption, memory.

The benchmark measures CPU time of this process, because wall time on a shared machine includes other programs. The
named baseline is the same engine with its predicates and scores in a per-node policy (one Python call per node), the
simplest way to write a scheduler: a ratio against it is valid on any machine.
"""

import gc
import random
import resource
import time
from collections.abc import Callable, Iterator

import msgspec

from baton.engine.engine import Engine
from baton.engine.events import Event, GroupChanged, NodeChanged, PodChanged, QueueChanged
from baton.engine.framework import NoArguments, PerNode, SessionView
from baton.engine.objects import (
    AffinityTerm,
    Card,
    CardKind,
    CardRequest,
    Container,
    LabelSelector,
    Node,
    NodeTerm,
    Pod,
    PodGroup,
    PodSpec,
    PreferredAffinityTerm,
    Queue,
    Requirement,
)
from baton.engine.plan import Plan
from baton.engine.plugins import BUILT_IN
from baton.engine.presets import configured
from baton.engine.state.jobs import Task
from baton.model.ids import CardId, GroupKey, NodeName, PodKey, QueueName
from baton.model.names import PodGroupPhase, PodPhase

GIB = 1 << 30
CARDS = 8
ROUNDS = 2
"""The best of several: noise only adds time."""
HOST = "kubernetes.io/hostname"

PREEMPT = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: nodeorder}, {name: binpack}]
"""
NAIVE = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}]
- plugins: [{name: naive}]
"""


class Naive(PerNode[NoArguments]):
    """Readiness, selector and capacity, one node at a time; results are never cached."""

    name = "naive"

    cycle = 0

    def open(self, session: SessionView) -> None:
        self.cycle += 1

    def fits(self, task: Task, node: Node) -> str | None:
        if node.unschedulable or not node.ready:
            return "not ready"
        labels = dict(node.labels)
        if any(labels.get(key) != value for key, value in task.needs.spec.node_selector):
            return "selector"
        return None

    def rate(self, task: Task, node: Node) -> float:
        return float(len(node.cards))

    def revision(self, session: SessionView) -> object:
        return self.cycle


def node(number: int) -> Node:
    name = f"node-{number:05}"
    model = ("A100", "H100", "L40")[number % 3]
    return Node(
        name=NodeName(name),
        allocatable=(("cpu", 128_000), ("memory", 1024 * GIB), ("pods", 250)),
        labels=((HOST, name), ("model", model), ("zone", f"z{number % 16}")),
        cards=tuple(
            Card(id=CardId(f"{name}-{at}"), memory_mib=81_920, slots=10, model=model, compute_capability=80)
            for at in range(CARDS)
        ),
    )


def spec(request: CardRequest | None, cpu: int = 4000, memory: int = 16 * GIB, **more: object) -> PodSpec:
    container = Container(requests=(("cpu", cpu), ("memory", memory)), cards=(request,) if request else ())
    return PodSpec(containers=(container,), **more)  # type: ignore[arg-type]  # fields by name


def jobs(specs: list[PodSpec], number: int, size: int, prefix: str = "j", **group: object) -> Iterator[Event]:
    for at in range(number):
        key = GroupKey(f"bench/{prefix}{at:06}")
        yield GroupChanged(
            PodGroup(key=key, min_member=size, phase=PodGroupPhase.INQUEUE, created_s=float(at), **group)  # type: ignore[arg-type]  # fields by name
        )
        what = specs[at % len(specs)]
        labels = (("app", f"a{at % len(specs)}"),)
        for member in range(size):
            yield PodChanged(
                Pod(
                    key=PodKey(f"{key}-{member}"),
                    spec=what,
                    group=key,
                    index=member,
                    labels=labels,
                    created_s=float(at),
                )
            )


def cluster(nodes: int, conf: str = "simple") -> Engine:
    engine = Engine(configured(conf, {**BUILT_IN, "naive": Naive}))
    engine.apply([QueueChanged(Queue(name=QueueName("default"))), *(NodeChanged(node(at)) for at in range(nodes))])
    return engine


def mixed_specs(number: int, seed: int = 1) -> list[PodSpec]:
    """Whole cards, fractions, vGPUs and slots; some with selectors, some with affinities."""
    chance = random.Random(seed)
    specs = []
    for at in range(number):
        kind = chance.choice(list(CardKind))
        request = {
            CardKind.SLOT: CardRequest(kind=kind),
            CardKind.VGPU: CardRequest(
                kind=kind, memory_mib=chance.choice((4096, 10_240)), share_milli=chance.choice((0, 250))
            ),
            CardKind.MEMORY: CardRequest(kind=kind, memory_mib=chance.choice((2048, 8192))),
            CardKind.WHOLE: CardRequest(kind=kind, count=chance.choice((1, 2))),
            CardKind.FRACTION: CardRequest(kind=kind, share_milli=chance.choice((100, 300, 500))),
        }[kind]
        more: dict[str, object] = {}
        if at % 4 == 0:
            more["node_terms"] = (NodeTerm((Requirement("model", "In", ("A100", "H100")),)),)
        if at % 10 == 0:
            term = AffinityTerm(selector=LabelSelector((("app", f"a{at}"),)), topology_key=HOST)
            more["anti_affinity"] = (term,)
        elif at % 10 == 5:
            term = AffinityTerm(selector=LabelSelector((("app", f"a{at}"),)), topology_key="zone")
            more["preferred_affinity"] = (PreferredAffinityTerm(10, term),)
        specs.append(spec(request, cpu=1000 + 10 * at, memory=2 * GIB, **more))
    return specs


def cpu_s(work: Callable[[], object]) -> tuple[float, object]:
    gc.collect()
    gc.freeze()
    before = time.process_time()
    result = work()
    return time.process_time() - before, result


def placements_per_s(engine: Engine) -> tuple[float, int]:
    took, plan = cpu_s(lambda: engine.schedule(0.0))
    assert isinstance(plan, Plan)
    return len(plan.bindings) / took, len(plan.bindings)


def equal_pods(nodes: int, pods: int = 16_000) -> float:
    """Whole cards in gangs of eight."""
    engine = cluster(nodes)
    what = spec(CardRequest(kind=CardKind.WHOLE))
    engine.apply(jobs([what], min(pods, nodes * CARDS) // 8, 8))
    return placements_per_s(engine)[0]


def single_pods(nodes: int, pods: int = 4_000) -> float:
    engine = cluster(nodes)
    engine.apply(jobs([spec(CardRequest(kind=CardKind.WHOLE))], pods, 1))
    return placements_per_s(engine)[0]


def mixed_pods(nodes: int, pods: int = 6_000) -> float:
    """200 kinds of single-pod jobs in mixed order; the first placement of each kind is not counted."""
    engine = cluster(nodes)
    specs = mixed_specs(200)
    engine.apply(jobs(specs, 200, 1, "warm"))
    engine.schedule(0.0)
    engine.apply(jobs(specs, pods, 1))
    return placements_per_s(engine)[0]


def naive_pods(nodes: int, pods: int = 20) -> float:
    engine = cluster(nodes, NAIVE)
    what = spec(CardRequest(kind=CardKind.WHOLE))
    spent = 0.0
    for at in range(pods):
        engine.apply(jobs([what], 1, 1, f"n{at}-"))
        spent += cpu_s(lambda: engine.schedule(0.0))[0]
    return pods / spent


def fill(engine: Engine, nodes: int, priority: int = 0) -> None:
    """One running single-card job on every card."""
    what = spec(CardRequest(kind=CardKind.WHOLE))
    events: list[Event] = []
    for at in range(nodes * CARDS):
        key = GroupKey(f"bench/run{at:06}")
        events.append(GroupChanged(PodGroup(key=key, phase=PodGroupPhase.RUNNING, priority=priority)))
        pod = Pod(
            key=PodKey(f"{key}-0"),
            spec=what,
            group=key,
            node=NodeName(f"node-{at // CARDS:05}"),
            phase=PodPhase.RUNNING,
            priority=priority,
            created_s=float(at),
        )
        events.append(PodChanged(pod))
    engine.apply(events)


def impossible_gang_ms() -> float:
    engine = cluster(500)
    fill(engine, 500)
    engine.schedule(0.0)
    engine.apply(jobs([spec(CardRequest(kind=CardKind.WHOLE, count=8))], 1, 10, "big"))
    took, plan = cpu_s(lambda: engine.schedule(1.0))
    assert isinstance(plan, Plan)
    assert plan.verdicts
    assert not plan.bindings
    return took * 1000


def preemption_ms(size: int) -> float:
    engine = cluster(500, PREEMPT)
    fill(engine, 500, priority=1)
    engine.schedule(0.0)
    engine.apply(jobs([spec(CardRequest(kind=CardKind.WHOLE, count=size))], 1, 1, "high", priority=9))
    took, plan = cpu_s(lambda: engine.schedule(1.0))
    assert isinstance(plan, Plan)
    assert len(plan.evictions) == size
    return took * 1000


def explain_ms(nodes: int) -> float:
    engine = cluster(nodes)
    fill(engine, nodes)
    engine.apply(jobs([spec(CardRequest(kind=CardKind.WHOLE, count=8))], 1, 1, "big"))
    engine.session(0.0).close()
    return cpu_s(lambda: engine.explain(GroupKey("bench/big000000"), 1.0))[0] * 1000


def backlog_ms(conf: str, pods: int = 20_000) -> float:
    """A cycle in which nothing can start: all cards of 1,000 nodes are in use, jobs of 20 kinds wait; with verdicts."""
    engine = cluster(1_000, conf)
    fill(engine, 1_000, priority=1)
    kinds = [spec(CardRequest(kind=CardKind.WHOLE, count=1 + at % 8), cpu=1000 + at) for at in range(20)]
    engine.apply(jobs(kinds, pods, 1, "w"))
    engine.schedule(0.0)
    took, plan = cpu_s(lambda: engine.schedule(1.0))
    assert isinstance(plan, Plan)
    assert len(plan.verdicts) == pods
    return took * 1000


def memory_mib(nodes: int = 5_000, pods: int = 150_000) -> float:
    """Growth of the resident set with a cluster full of small running pods."""
    before = _resident_mib()
    engine = cluster(nodes)
    kinds = [msgspec.json.encode(item) for item in mixed_specs(200) if not item.anti_affinity]
    for at in range(pods):
        what = msgspec.json.decode(kinds[at % len(kinds)], type=PodSpec)
        key = GroupKey(f"bench/m{at // 4:06}")
        events: list[Event] = []
        if at % 4 == 0:
            events.append(GroupChanged(PodGroup(key=key, min_member=4, phase=PodGroupPhase.RUNNING)))
        pod = Pod(
            key=PodKey(f"{key}-{at % 4}"),
            spec=msgspec.structs.replace(what, containers=(msgspec.structs.replace(what.containers[0], cards=()),)),
            group=key,
            node=NodeName(f"node-{at % nodes:05}"),
            phase=PodPhase.RUNNING,
            labels=(("app", f"a{at % 50}"),),
            uid=f"{at:032x}",
        )
        events.append(PodChanged(pod))
        engine.apply(events)
    engine.apply(jobs(mixed_specs(200), 200, 1, "new"))
    engine.schedule(0.0)
    return _resident_mib() - before


def _resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / (1 << 20)


def run() -> None:
    naive = naive_pods(1_000)
    print(f"baseline: per-node policy, 1,000 nodes      {naive:9,.0f} placements/s")
    results: dict[str, list[float]] = {}
    for name, measure in (
        ("equal pods, gangs of 8", equal_pods),
        ("equal pods, single", single_pods),
        ("mixed pods", mixed_pods),
    ):
        results[name] = [max(measure(nodes) for _ in range(ROUNDS)) for nodes in (1_000, 5_000, 10_000)]
        shown = "  ".join(f"{value:9,.0f}" for value in results[name])
        print(f"{name:28} 1k/5k/10k nodes  {shown} placements/s  ({results[name][0] / naive:,.0f}x the baseline at 1k)")
    for name, values in results.items():
        print(f"{name}: cost per placement grows {values[0] / values[2]:.2f}x for 10x the nodes")
    print(f"verdict for an impossible gang of 10 x 8 cards on 500 full nodes  {impossible_gang_ms():6.1f} ms")
    print(f"explanation on demand on 5,000 full nodes                         {explain_ms(5_000):6.1f} ms")
    one, eight = preemption_ms(1), preemption_ms(8)
    print(f"preemption plan among 4,000 running tasks: 1 card / 8 cards       {one:6.1f} / {eight:.1f} ms")
    plain, evicting = backlog_ms("simple"), backlog_ms(PREEMPT)
    print(f"cycle with 20,000 pods that fit nowhere: simple / with preemption  {plain:6.0f} / {evicting:.0f} ms")
    print(f"memory for 5,000 nodes and 150,000 pods                           {memory_mib():6.0f} MiB")
