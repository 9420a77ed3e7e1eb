"""Dominant resource fairness: the textbook case, properties on random small cases, and pitfalls of hierarchies."""

import random

import pytest

from tests.engine.clusters import Cluster, job, node, queue, spec

DRF = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
    enableJobOrder: false
- plugins:
  - name: drf
  - name: predicates
"""
HDRF = """
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
    enableJobOrder: false
- plugins:
  - name: drf
    enableHierarchy: true
  - name: predicates
"""


def shares(cpu: int, memory_gib: int, wants: dict[str, tuple[int, int]], pods: int = 40) -> dict[str, int]:
    jobs = [job(name, pods=pods, what=spec(cpu=c, memory_gib=m)) for name, (c, m) in wants.items()]
    outcome = Cluster(nodes=[node("n", cpu=cpu, memory_gib=memory_gib, pods=999)], jobs=jobs, conf=DRF).run()
    return {name: sum(key.startswith(f"{name}-") for key in outcome.placed) for name in wants}


def test_the_textbook_case() -> None:
    assert shares(9, 18, {"a": (1, 4), "b": (3, 1)}) == {"a": 3, "b": 2}


def dominant(count: int, want: tuple[int, int], cpu: int, memory: int) -> float:
    return count * max(want[0] / cpu, want[1] / memory)


@pytest.mark.parametrize("seed", range(25))
def test_properties_on_random_cases(seed: int) -> None:
    """Share guarantee and envy-freeness up to one task, strategy-proofness against inflated demands."""
    chance = random.Random(seed)
    cpu, memory = chance.randrange(20, 60), chance.randrange(20, 60)
    wants = {name: (chance.randrange(1, 5), chance.randrange(1, 5)) for name in "abc"[: chance.choice((2, 3))]}
    got = shares(cpu, memory, wants, pods=80)
    for name, want in wants.items():
        alone = min(cpu // len(wants) // want[0], memory // len(wants) // want[1])
        assert got[name] >= alone - 1, "sharing is not worse than a fixed partition"
        one = dominant(1, want, cpu, memory)
        for other, theirs in wants.items():
            bundle = min(got[other] * theirs[0] // want[0], got[other] * theirs[1] // want[1])
            most = max(one, dominant(1, theirs, cpu, memory))
            assert (
                dominant(min(bundle, got[name] + 99), want, cpu, memory)
                <= dominant(got[name], want, cpu, memory) + 2 * most
            ), f"{name} envies {other}"
    liar = chance.choice(sorted(wants))
    factor = 2
    inflated = {**wants, liar: (wants[liar][0] * factor, wants[liar][1])}
    lied = shares(cpu, memory, inflated, pods=80)
    assert lied[liar] <= got[liar] + 1, "requesting more than needed does not help"


def test_a_child_that_fills_an_uncontended_resource_does_not_starve_its_sibling() -> None:
    """One parent has a CPU child that may fill the CPUs; its memory child still gets half of the memory."""
    queues = [
        queue("cpu-child", hierarchy="root/one/cpu", hierarchy_weights="1/1/1"),
        queue("memory-child", hierarchy="root/one/memory", hierarchy_weights="1/1/1"),
        queue("rival", hierarchy="root/two", hierarchy_weights="1/1"),
    ]
    jobs = [
        job("cpu", pods=40, what=spec(cpu=1, memory_gib=0), queue="cpu-child"),
        job("mem", pods=40, what=spec(cpu=0, memory_gib=1), queue="memory-child"),
        job("rival", pods=40, what=spec(cpu=0, memory_gib=1), queue="rival"),
    ]
    outcome = Cluster(nodes=[node("n", cpu=20, memory_gib=20, pods=999)], jobs=jobs, queues=queues, conf=HDRF).run()
    got = {name: sum(key.startswith(f"{name}-") for key in outcome.placed) for name in ("cpu", "mem", "rival")}
    assert got["cpu"] == 20
    assert abs(got["mem"] - got["rival"]) <= 2, got


def test_weights_of_branches_count() -> None:
    queues = [
        queue("x", hierarchy="root/one", hierarchy_weights="1/3"),
        queue("y", hierarchy="root/two", hierarchy_weights="1/1"),
    ]
    jobs = [job("x", pods=40, queue="x"), job("y", pods=40, queue="y")]
    outcome = Cluster(nodes=[node("n", cpu=20, pods=999)], jobs=jobs, queues=queues, conf=HDRF).run()
    assert abs(sum(key.startswith("x-") for key in outcome.placed) - 15) <= 1


@pytest.mark.parametrize("weights", ["1/x", "1/nan", "1/inf", "1/-3", "1/0", "//"])
def test_invalid_weights_stop_no_job(weights: str) -> None:
    """The weight in the queue's spec counts instead."""
    queues = [
        queue("x", hierarchy="root/one", hierarchy_weights=weights, weight=3),
        queue("y", hierarchy="root/two", hierarchy_weights="1/1"),
    ]
    jobs = [job(name, pods=8, queue=name) for name in ("x", "y")]
    outcome = Cluster(nodes=[node("n", cpu=8)], jobs=jobs, queues=queues, conf=HDRF).run()
    assert sum(name.startswith("x") for name in outcome.placed) == 6
