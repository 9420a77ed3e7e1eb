"""A hard gang starts in one hyper node of an allowed tier, exactly when one of them has room, and nowhere else."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.events import HyperNodeChanged
from baton.engine.objects import Closeness, HyperNode, HyperNodeMember, Parts
from tests.engine.clusters import Cluster, JobLiteral, gang, node, running, spec

CONF = """
actions: "allocate"
tiers:
- plugins: [{name: gang}, {name: predicates}, {name: nodeorder}, {name: binpack}, {name: network-topology-aware}]
"""
NODES = 6


class Scene(msgspec.Struct, frozen=True):
    """Six nodes with some free CPUs, hyper nodes of any shape over them, and a gang."""

    free: tuple[int, ...]
    hyper_nodes: tuple[HyperNode, ...]
    pods: int
    cpu: int
    highest: int
    running: tuple[int, ...] = ()


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    free = draw(st.lists(st.integers(0, 4), min_size=NODES, max_size=NODES))
    made = []
    for number in range(draw(st.integers(1, 5))):
        tier = draw(st.integers(1, 3))
        nodes = draw(st.sets(st.integers(0, NODES - 1), max_size=3))
        others = draw(st.sets(st.integers(0, 4), max_size=2))
        members = [HyperNodeMember(name=f"n{at}") for at in sorted(nodes)]
        members += [HyperNodeMember(nodes=False, name=f"h{at}") for at in sorted(others)]
        made.append(HyperNode(name=f"h{number}", tier=tier, members=tuple(members)))
    pods = draw(st.integers(1, 4))
    already = draw(st.lists(st.integers(0, NODES - 1), max_size=pods - 1))
    return Scene(tuple(free), tuple(made), pods, draw(st.integers(1, 2)), draw(st.integers(0, 3)), tuple(already))


def held(scene: Scene) -> dict[str, set[int]]:
    """The nodes of every hyper node, computed independently of the engine."""
    by_name = {item.name: item for item in scene.hyper_nodes}

    def nodes(item: HyperNode) -> set[int]:
        found = {int(member.name[1:]) for member in item.members if member.nodes}
        for member in item.members:
            other = by_name.get(member.name)
            if not member.nodes and other is not None and other.tier < item.tier:
                found |= nodes(other)
        return found

    return {item.name: nodes(item) for item in scene.hyper_nodes}


def allowed(scene: Scene) -> list[set[int]]:
    tiers = {item.name: item.tier for item in scene.hyper_nodes}
    return [nodes for name, nodes in held(scene).items() if tiers[name] <= scene.highest and nodes]


def train(scene: Scene, **more: Any) -> JobLiteral:
    on = [f"n{at}" for at in scene.running]
    closeness = Closeness(highest_tier=scene.highest)
    return gang("train", pods=scene.pods, what=spec(cpu=scene.cpu), on=on, closeness=closeness, **more)


def cluster(scene: Scene, job: JobLiteral) -> Cluster:
    """Nodes whose size is their free CPUs plus the CPUs that the gang already holds there."""
    size = [free + scene.cpu * scene.running.count(at) for at, free in enumerate(scene.free)]
    made = Cluster(
        nodes=[node(f"n{at}", cpu=cpu + 1) for at, cpu in enumerate(size)],
        pods=[running(f"other-{at}", f"n{at}", spec(cpu=1)) for at in range(NODES)],
        jobs=[job],
        conf=CONF,
    )
    made.apply(*(HyperNodeChanged(item) for item in scene.hyper_nodes))
    return made


@settings(max_examples=200, deadline=None)
@given(scenes())
def test_a_hard_gang_starts_exactly_when_one_allowed_hyper_node_has_room_and_never_leaves_it(scene: Scene) -> None:
    placed = cluster(scene, train(scene)).run().placed
    already = set(scene.running)
    waiting = scene.pods - len(scene.running)
    fits = [
        nodes
        for nodes in allowed(scene)
        if already <= nodes and sum(scene.free[at] // scene.cpu for at in nodes) >= waiting
    ]
    assert (len(placed) == waiting) == bool(fits)
    assert len(placed) in (0, waiting)
    if placed:
        where = {int(name[1:]) for name in placed.values()} | already
        assert any(where <= nodes for nodes in allowed(scene))


@settings(max_examples=100, deadline=None)
@given(scenes(), st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_change_the_plan(scene: Scene, chance: Any) -> None:
    first = cluster(scene, train(scene))
    second = Cluster(conf=CONF)
    events = [*first.events, *(HyperNodeChanged(item) for item in scene.hyper_nodes)]
    chance.shuffle(events)
    second.apply(*events)
    assert first.run().placed == second.run().placed


@settings(max_examples=100, deadline=None)
@given(scenes(), st.integers(0, 3))
def test_the_parts_of_a_gang_are_in_one_hyper_node_each_within_that_of_the_gang(scene: Scene, tier: int) -> None:
    fresh = msgspec.structs.replace(scene, running=(), pods=4)
    rule = Parts(name="p", keys=("part",), size=2, minimum=2, closeness=Closeness(highest_tier=tier))
    literal = train(fresh, parts=(rule,))
    pods = tuple(msgspec.structs.replace(pod, labels=(("part", str(at % 2)),)) for at, pod in enumerate(literal.pods))
    placed = cluster(fresh, JobLiteral(literal.group, pods)).run().placed
    if not placed:
        return
    assert len(placed) == 4
    assert any({int(on[1:]) for on in placed.values()} <= nodes for nodes in allowed(fresh))
    for part in range(2):
        where = {int(on[1:]) for name, on in placed.items() if int(name[-1]) % 2 == part}
        assert any(where <= nodes for nodes in allowed(msgspec.structs.replace(fresh, highest=tier)))


@settings(max_examples=100, deadline=None)
@given(scenes())
def test_a_soft_gang_starts_exactly_when_the_cluster_has_room(scene: Scene) -> None:
    fresh = msgspec.structs.replace(scene, running=())
    literal = train(fresh)
    soft = msgspec.structs.replace(literal.group, closeness=Closeness(hard=False, highest_tier=scene.highest))
    placed = cluster(fresh, JobLiteral(soft, literal.pods)).run().placed
    assert bool(placed) == (sum(free // scene.cpu for free in scene.free) >= scene.pods)
