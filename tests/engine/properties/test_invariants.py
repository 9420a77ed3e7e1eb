"""Invariants of every cluster: gangs are whole, victims are needed, and the order of events does not matter."""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from baton.engine.engine import Engine
from baton.engine.events import Event, PodRemoved
from baton.engine.presets import PRESETS, configured
from baton.model.ids import PodKey
from tests.engine.clusters import Cluster, JobLiteral, Outcome, gang, job, milli, node, slot, spec, vgpu, whole

SPECS = [
    spec(cpu=2),
    spec(cpu=1, ask=[whole()]),
    spec(cpu=1, ask=[whole(2)]),
    spec(cpu=1, ask=[milli(400)]),
    spec(cpu=1, ask=[slot()]),
    spec(cpu=1, ask=[vgpu(memory_mib=6000, cores=20)]),
]
jobs_strategy = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, len(SPECS) - 1), st.integers(0, 3)),
    min_size=1,
    max_size=10,
)
PREEMPT = """
actions: "enqueue, allocate, backfill, preempt"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""


def literals(drawn: list[tuple[int, int, int, int]]) -> list[JobLiteral]:
    return [
        job(f"j{at}", pods=max(pods, least), min_member=least, what=SPECS[kind], priority=priority, created_s=float(at))
        for at, (pods, least, kind, priority) in enumerate(drawn)
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    drawn=jobs_strategy,
    cards=st.integers(0, 4),
    nodes=st.integers(1, 4),
    preset=st.sampled_from(["simple", "high-performance", "multi-tenant"]),
)
def test_a_gang_is_never_partial(drawn: list[tuple[int, int, int, int]], cards: int, nodes: int, preset: str) -> None:
    jobs = literals(drawn)
    outcome = Cluster(nodes=[node(f"n{at}", cpu=8, cards=cards) for at in range(nodes)], jobs=jobs, conf=preset).run()
    started = Counter(name.rpartition("-")[0] for name in outcome.placed)
    for literal in jobs:
        name = literal.group.key.removeprefix("team/")
        assert started[name] == 0 or started[name] >= literal.group.min_member


@settings(max_examples=40, deadline=None)
@given(drawn=jobs_strategy, seed=st.integers(0, 1000), preset=st.sampled_from(sorted(PRESETS)))
def test_the_order_of_events_does_not_matter(drawn: list[tuple[int, int, int, int]], seed: int, preset: str) -> None:
    cluster = Cluster(nodes=[node(f"n{at}", cpu=8, cards=at) for at in range(4)], jobs=literals(drawn), conf=preset)
    events: list[Event] = list(cluster.events)
    random.Random(seed).shuffle(events)
    shuffled = Engine(configured(preset))
    shuffled.apply(events)
    one, other = cluster.run(), Outcome(shuffled.schedule(0.0))
    assert one.plan == other.plan


@settings(max_examples=60, deadline=None)
@given(
    low=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=8),
    need=st.integers(1, 8),
    members=st.integers(1, 3),
)
@example(low=[1, 2, 3, 1, 4, 2, 3, 3], need=3, members=3)
@example(low=[2, 2, 1, 3, 2, 4, 3], need=3, members=3)
def test_every_victim_is_needed(low: list[int], need: int, members: int) -> None:
    """If any one victim keeps its room, the preemptor does not fit."""
    nodes = [node(f"n{at}", cpu=8) for at in range(3)]
    free = {str(item.name): 8 for item in nodes}
    running: list[JobLiteral] = []
    for at, cpu in enumerate(low):
        name = next((name for name, left in free.items() if left >= cpu), None)
        if name is not None:
            free[name] -= cpu
            running.append(job(f"low{at}", what=spec(cpu=cpu), on=[name], priority=1))
    high = gang("high", pods=members, what=spec(cpu=need), priority=9, created_s=9)
    outcome = Cluster(nodes=nodes, jobs=[*running, high], conf=PREEMPT).run()
    for spared in outcome.evicted:
        cluster = Cluster(nodes=nodes, jobs=[*running, high], conf=PREEMPT.replace(", preempt", ""))
        for victim in outcome.evicted - {spared}:
            cluster.apply(PodRemoved(PodKey(f"team/{victim}")))
        assert len(cluster.run().placed) < members, f"{spared} was evicted for nothing"


@pytest.mark.parametrize("preset", ["simple", "batch", "multi-tenant", "high-performance"])
def test_the_same_state_gives_the_same_plan(preset: str) -> None:
    chance = random.Random(3)
    drawn = [
        (chance.randrange(1, 5), chance.randrange(1, 5), chance.randrange(len(SPECS)), chance.randrange(4))
        for _ in range(30)
    ]
    plans = [
        Cluster(nodes=[node(f"n{at}", cpu=8, cards=at % 4) for at in range(6)], jobs=literals(drawn), conf=preset)
        .run()
        .plan
        for _ in range(2)
    ]
    assert plans[0] == plans[1]
