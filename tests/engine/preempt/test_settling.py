"""Preemption settles: victims are recreated at once, and after a few cycles no more pods are evicted."""

import random

import pytest

from tests.engine.clusters import Cluster, JobLiteral, evictions, job, node, spec

CONF = """
actions: "enqueue, allocate, {action}"
tiers:
- plugins: [{first}]
- plugins: [{second}, {{name: predicates}}, {{name: nodeorder}}]
"""
GANG, PLAIN_GANG = "{name: gang}", "{name: gang, enablePreemptable: false}"
PRIORITY, CONFORMANCE, DRF = "{name: priority}", "{name: conformance}", "{name: drf}"
TIERS = {
    "priority, then fair share": (f"{PRIORITY}, {PLAIN_GANG}, {CONFORMANCE}", DRF),
    "fair share, then priority": (DRF, f"{PRIORITY}, {PLAIN_GANG}"),
    "fair share alone": (DRF, PLAIN_GANG),
    "only kube-system is protected": (f"{PLAIN_GANG}, {CONFORMANCE}", DRF),
    "what gangs can spare": (GANG, DRF),
}


def conf(tiers: str, action: str = "preempt") -> str:
    first, second = TIERS[tiers]
    return CONF.format(action=action, first=first, second=second)


def random_jobs(chance: random.Random) -> list[JobLiteral]:
    jobs = []
    for number in range(chance.randrange(2, 6)):
        pods = chance.randrange(1, 7)
        what = spec(cpu=chance.randrange(1, 5), memory_gib=chance.randrange(1, 5))
        least, priority = chance.randrange(1, pods + 1), chance.choice((0, 0, 0, 1, 5))
        jobs.append(
            job(f"j{number}", pods=pods, min_member=least, what=what, priority=priority, created_s=float(number))
        )
    return jobs


@pytest.mark.parametrize("action", ["preempt", "gangpreempt"])
@pytest.mark.parametrize("tiers", TIERS)
def test_no_jobs_keep_evicting_each_other(tiers: str, action: str) -> None:
    for seed in (0, 2, 3, 13, 17, 20, 23):
        chance = random.Random(seed)
        nodes = [
            node(f"n{number}", cpu=chance.randrange(4, 12), memory_gib=chance.randrange(4, 12))
            for number in range(chance.randrange(1, 4))
        ]
        jobs = random_jobs(chance)
        found = evictions(Cluster(nodes=nodes, jobs=jobs, conf=conf(tiers, action)), jobs, cycles=16)
        assert found[-6:] == [0] * 6, f"seed {seed}: {found}"


def test_a_job_is_never_evicted_for_a_less_important_one_however_large_its_share() -> None:
    """It goes first, so it would take its room back in the next cycle."""
    jobs = [
        job("rich", pods=6, min_member=2, on=["n"] * 6, priority=1),
        job("poor", what=spec(cpu=2)),
    ]
    for tiers in TIERS:
        assert Cluster(nodes=[node("n", cpu=6)], jobs=jobs, conf=conf(tiers)).run().evicted == set()


@pytest.mark.parametrize(("pods", "least", "wanted", "gone"), [(4, 1, 3, 3), (4, 4, 2, 2), (4, 4, 3, 0), (1, 1, 1, 0)])
def test_an_equal_job_gives_up_what_its_gang_can_spare_or_fairness_requires(
    pods: int, least: int, wanted: int, gone: int
) -> None:
    jobs = [
        job("theirs", pods=pods, min_member=least, on=["n"] * pods),
        job("mine", pods=wanted, min_member=wanted, created_s=1.0),
    ]
    cluster = Cluster(nodes=[node("n", cpu=pods)], jobs=jobs, conf=conf("only kube-system is protected"))
    assert len(cluster.run().evicted) == gone
