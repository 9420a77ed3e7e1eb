"""Which job goes first, and that no job waits forever."""

import pytest

from tests.engine.clusters import Cluster, JobLiteral, gang, job, node, spec, whole

CARD = spec(ask=[whole()])


def conf(policy: str) -> str:
    return f"""
actions: "allocate"
tiers:
- plugins:
  - name: gang
    enableJobOrder: false
  - name: job-order
    arguments: {{job-order.policy: {policy}}}
- plugins:
  - name: predicates
"""


def first(policy: str, *jobs: JobLiteral, now_s: float = 100.0) -> str:
    outcome = Cluster(nodes=[node("a", cards=1)], jobs=jobs, conf=conf(policy)).run(now_s)
    return next(iter(outcome.placed)).removesuffix("-0")


def test_policies() -> None:
    old = job("old", what=CARD, created_s=1, expected_duration_s=500, attained_gpu_s=9000)
    short = job("short", what=CARD, created_s=2, expected_duration_s=5, attained_gpu_s=4000)
    fresh = job("fresh", what=CARD, created_s=3, attained_gpu_s=0, priority=7)
    assert first("fcfs", short, fresh, old) == "old"
    assert first("sjf", old, fresh, short) == "short"
    assert first("las", old, short, fresh) == "fresh"
    assert first("priority", old, short, fresh) == "fresh"


def test_levels_of_attained_service_are_coarse() -> None:
    early = job("early", what=CARD, created_s=1, attained_gpu_s=3000)
    late = job("late", what=CARD, created_s=2, attained_gpu_s=10)
    assert first("las", late, early) == "early", "both are below the first level, so the older goes first"


def test_round_robin_alternates_between_tenants() -> None:
    jobs = [job(f"a{i}", what=CARD, created_s=float(i), namespace="alice") for i in range(4)]
    jobs += [job(f"b{i}", what=CARD, created_s=10.0 + i, namespace="bob") for i in range(4)]
    outcome = Cluster(nodes=[node("n", cards=4)], jobs=jobs, conf=conf("round-robin")).run(100.0)
    assert sorted(outcome.placed) == ["alice/a0-0", "alice/a1-0", "bob/b0-0", "bob/b1-0"]


def test_no_job_waits_forever_behind_shorter_jobs() -> None:
    long = job("long", what=CARD, created_s=0, expected_duration_s=1e6)
    short = job("short", what=CARD, created_s=80_000, expected_duration_s=1)
    assert first("sjf", long, short, now_s=80_001) == "short"
    assert first("sjf", long, short, now_s=86_400) == "long"


EASY = """
actions: "allocate"
tiers:
- plugins:
  - name: gang
    enableJobOrder: false
- plugins:
  - name: easy-backfill
  - name: predicates
"""


def easy_cluster(small_duration_s: float | None, nodes: int = 1) -> Cluster:
    """A gang of two waits for a card that is busy until 100; a small job is behind it."""
    busy = job("busy", what=CARD, on=["a"], expected_duration_s=100, pod_options={"started_s": 0.0})
    big = gang("big", pods=2, what=CARD, created_s=1)
    small = job("small", what=CARD, created_s=2, expected_duration_s=small_duration_s)
    return Cluster(nodes=[node("abc"[at], cards=2) for at in range(nodes)], jobs=[busy, big, small], conf=EASY)


@pytest.mark.parametrize(("duration_s", "starts"), [(50.0, True), (90.0, True), (91.0, False), (None, False)])
def test_a_small_job_overtakes_a_waiting_gang_only_if_it_ends_in_time(duration_s: float | None, starts: bool) -> None:
    outcome = easy_cluster(duration_s).run(10.0)
    assert ("small-0" in outcome.placed) is starts


def test_the_verdict_names_the_job_that_the_reservation_is_for() -> None:
    outcome = easy_cluster(None).run(10.0)
    assert "reserved" in outcome.verdicts["small"].paragraph()


def test_nodes_outside_the_reservation_are_free_for_all_jobs() -> None:
    busy = job("busy", what=spec(ask=[whole(2)]), on=["a"], expected_duration_s=100, pod_options={"started_s": 0.0})
    big = gang("big", pods=1, what=spec(ask=[whole(2)]), created_s=1)
    small = job("small", what=CARD, created_s=2)
    nodes = [node("a", cards=2), node("b", cards=1)]
    assert Cluster(nodes=nodes, jobs=[busy, big, small], conf=EASY).run(10.0).placed == {"small-0": "b"}
