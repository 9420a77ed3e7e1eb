"""The shares that queues get of a contended cluster."""

import pytest

from baton.model.names import PodGroupPhase, QueueState
from tests.engine.clusters import Cluster, Outcome, gang, job, node, queue, spec, whole

CARD = spec(ask=[whole()])
CARDS = "baton.dev/cards"


def conf(plugin: str, extra: str = "") -> str:
    return f"""
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: {plugin}
{extra}
  - name: predicates
"""


def by_queue(outcome: Outcome, *names: str) -> list[int]:
    return [sum(key.startswith(f"{name}-") for key in outcome.placed) for name in names]


@pytest.mark.parametrize("plugin", ["proportion", "capacity", "overcommit"])
def test_resources_named_only_by_a_limit_or_a_gang_stop_no_job(plugin: str) -> None:
    """Vectors have room for eight names before they are widened, and no node has these resources."""
    odd = tuple((f"example.com/{number}", 1) for number in range(40))
    outcome = Cluster(
        nodes=[node("n", cpu=8)],
        jobs=[
            job("a", pods=1, what=spec(cpu=1), queue="a"),
            gang("b", pods=1, what=spec(cpu=1), queue="b", phase=PodGroupPhase.PENDING, min_resources=odd[20:]),
        ],
        queues=[queue("a", capability=odd[:20], guarantee=odd[:10]), queue("b")],
        conf=conf(plugin),
    ).run()
    assert "a-0" in outcome.placed


def test_proportion_divides_by_weight() -> None:
    jobs = [job(name, pods=12, what=CARD, queue=name) for name in ("a", "b")]
    outcome = Cluster(
        nodes=[node("n", cards=8)],
        jobs=jobs,
        queues=[queue("a", weight=3), queue("b", weight=1)],
        conf=conf("proportion"),
    ).run()
    assert by_queue(outcome, "a", "b") == [6, 2]


def test_proportion_gives_what_one_queue_does_not_request_to_the_other() -> None:
    jobs = [job("a", pods=1, what=CARD, queue="a"), job("b", pods=12, what=CARD, queue="b")]
    outcome = Cluster(
        nodes=[node("n", cards=8)],
        jobs=jobs,
        queues=[queue("a", weight=3), queue("b", weight=1)],
        conf=conf("proportion"),
    ).run()
    assert by_queue(outcome, "a", "b") == [1, 7]


def test_proportion_respects_capability_and_guarantee() -> None:
    jobs = [job(name, pods=12, what=CARD, queue=name) for name in ("a", "b")]
    limited = [queue("a", capability={CARDS: 2}), queue("b")]
    assert by_queue(
        Cluster(nodes=[node("n", cards=8)], jobs=jobs, queues=limited, conf=conf("proportion")).run(), "a", "b"
    ) == [2, 6]
    kept = [queue("a", weight=1, guarantee={CARDS: 5}), queue("b", weight=100)]
    assert (
        by_queue(Cluster(nodes=[node("n", cards=8)], jobs=jobs, queues=kept, conf=conf("proportion")).run(), "a")[0]
        >= 5
    )


@pytest.mark.parametrize("plugin", ["proportion", "capacity"])
def test_a_guarantee_is_kept_free_for_a_queue_without_jobs(plugin: str) -> None:
    queues = [queue("a", guarantee={CARDS: 5}), queue("b")]
    jobs = [job("b", pods=12, what=CARD, queue="b")]
    outcome = Cluster(nodes=[node("n", cards=8)], jobs=jobs, queues=queues, conf=conf(plugin)).run()
    assert by_queue(outcome, "b") == [3]


def test_capacity_lets_a_queue_borrow_up_to_its_capability() -> None:
    jobs = [job("a", pods=12, what=CARD, queue="a")]
    queues = [queue("a", deserved={CARDS: 2}, capability={CARDS: 6}), queue("b", deserved={CARDS: 6})]
    assert by_queue(
        Cluster(nodes=[node("n", cards=8)], jobs=jobs, queues=queues, conf=conf("capacity")).run(), "a"
    ) == [6]


def test_capacity_serves_the_queue_furthest_below_its_deserved_share_first() -> None:
    jobs = [job(name, pods=8, what=CARD, queue=name) for name in ("a", "b")]
    queues = [queue("a", deserved={CARDS: 2}), queue("b", deserved={CARDS: 6})]
    assert by_queue(
        Cluster(nodes=[node("n", cards=8)], jobs=jobs, queues=queues, conf=conf("capacity")).run(), "a", "b"
    ) == [2, 6]


def test_a_tree_of_queues_is_limited_at_every_level() -> None:
    hierarchical = conf("capacity", "    enableHierarchy: true")
    queues = [
        queue("root"),
        queue("dept", parent="root", capability={CARDS: 3}, deserved={CARDS: 3}),
        queue("x", parent="dept", deserved={CARDS: 3}),
        queue("y", parent="dept", deserved={CARDS: 3}),
    ]
    jobs = [job("x", pods=4, what=CARD, queue="x"), job("y", pods=4, what=CARD, queue="y")]
    outcome = Cluster(nodes=[node("n", cards=8)], jobs=jobs, queues=queues, conf=hierarchical).run()
    assert sum(by_queue(outcome, "x", "y")) == 3


def test_a_queue_with_sub_queues_takes_no_jobs() -> None:
    hierarchical = conf("capacity", "    enableHierarchy: true")
    queues = [queue("root"), queue("dept", parent="root"), queue("x", parent="dept")]
    outcome = Cluster(
        nodes=[node("n", cards=8)], jobs=[job("j", what=CARD, queue="dept")], queues=queues, conf=hierarchical
    ).run()
    assert outcome.placed == {}
    assert "sub-queues" in outcome.verdicts["j"].detail


def test_strict_fifo_holds_back_jobs_behind_a_gang_that_does_not_fit() -> None:
    big = gang("big", pods=3, what=CARD, created_s=1, queue="q")
    small = job("small", what=CARD, created_s=2, queue="q")
    strict = Cluster(nodes=[node("n", cards=2)], jobs=[big, small], queues=[queue("q", dequeue_strategy="fifo")]).run()
    assert strict.placed == {}
    assert strict.verdicts["small"].cause == "held-back"
    loose = Cluster(nodes=[node("n", cards=2)], jobs=[big, small], queues=[queue("q")]).run()
    assert set(loose.placed) == {"small-0"}


def test_a_closed_queue_admits_nothing_new() -> None:
    new = job("new", what=CARD, queue="q", phase=PodGroupPhase.PENDING)
    outcome = Cluster(nodes=[node("n", cards=2)], jobs=[new], queues=[queue("q", state=QueueState.CLOSED)]).run()
    assert outcome.placed == {}
    assert outcome.verdicts["new"].cause == "queue-closed"


def test_an_exhausted_resource_does_not_block_jobs_that_do_not_request_it() -> None:
    jobs = [
        job("gpu", pods=4, what=CARD, on=["n", "n"], queue="a"),
        job("cpu", pods=2, what=spec(cpu=1), queue="a", created_s=9),
    ]
    outcome = Cluster(
        nodes=[node("n", cards=2)], jobs=jobs, queues=[queue("a"), queue("b")], conf=conf("proportion")
    ).run()
    assert {"cpu-0", "cpu-1"} <= set(outcome.placed)


def test_pods_with_scheduling_gates_deserve_nothing_yet() -> None:
    gated = gang("a", pods=12, what=CARD, queue="a", pod_options={"gated": True})
    jobs = [gated, job("b", pods=12, what=CARD, queue="b")]
    outcome = Cluster(
        nodes=[node("n", cards=8)], jobs=jobs, queues=[queue("a"), queue("b")], conf=conf("proportion")
    ).run()
    assert by_queue(outcome, "a", "b") == [0, 8]
