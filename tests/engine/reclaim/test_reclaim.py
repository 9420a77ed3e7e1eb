"""Between queues: a queue gets its deserved share back from reclaimable queues, which lose no more than necessary."""

from typing import Any

import pytest

from baton.engine.objects import Queue
from tests.engine.clusters import Cluster, gang, job, node, queue, running, spec, whole

PROPORTION = """
actions: "enqueue, allocate, backfill, reclaim"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: proportion
  - name: predicates
"""
CAPACITY = PROPORTION.replace("proportion", "capacity")
CARD = spec(ask=[whole()])
CARDS = "baton.dev/cards"
HOST = "kubernetes.io/hostname"


def queues(conf: str, **theirs: Any) -> list[Queue]:
    deserved: dict[str, Any] = {"deserved": {CARDS: 2}} if conf is CAPACITY else {}
    return [queue("mine", **deserved), queue("theirs", **{**deserved, **theirs})]


@pytest.mark.parametrize("conf", [PROPORTION, CAPACITY])
def test_a_queue_takes_back_its_deserved_share_and_no_more(conf: str) -> None:
    theirs = job("theirs", pods=4, what=CARD, on=["a"] * 4, queue="theirs")
    mine = job("mine", pods=4, what=CARD, queue="mine", min_member=2)
    outcome = Cluster(nodes=[node("a", cards=4)], jobs=[theirs, mine], queues=queues(conf), conf=conf).run()
    assert len(outcome.evicted) == 2
    assert len(outcome.nominated) == 2


@pytest.mark.parametrize("conf", [PROPORTION, CAPACITY])
def test_a_queue_that_is_not_reclaimable_keeps_everything(conf: str) -> None:
    theirs = job("theirs", pods=4, what=CARD, on=["a"] * 4, queue="theirs")
    mine = job("mine", pods=1, what=CARD, queue="mine")
    both = queues(conf, reclaimable=False)
    assert Cluster(nodes=[node("a", cards=4)], jobs=[theirs, mine], queues=both, conf=conf).run().evicted == set()


@pytest.mark.parametrize("conf", [PROPORTION, CAPACITY])
def test_nothing_is_reclaimed_while_there_is_room(conf: str) -> None:
    theirs = job("theirs", pods=3, what=CARD, on=["a"] * 3, queue="theirs")
    mine = job("mine", pods=1, what=CARD, queue="mine")
    outcome = Cluster(nodes=[node("a", cards=4)], jobs=[theirs, mine], queues=queues(conf), conf=conf).run()
    assert outcome.evicted == set()
    assert outcome.placed == {"mine-0": "a"}


@pytest.mark.parametrize("conf", [PROPORTION, CAPACITY])
def test_nothing_is_reclaimed_for_a_gang_that_would_not_fit(conf: str) -> None:
    theirs = job("theirs", pods=4, what=CARD, on=["a"] * 4, queue="theirs")
    mine = gang("mine", pods=3, what=CARD, queue="mine")
    outcome = Cluster(nodes=[node("a", cards=4)], jobs=[theirs, mine], queues=queues(conf), conf=conf).run()
    assert outcome.evicted == set()


def test_a_job_of_a_missing_queue_reclaims_nothing_with_a_reason() -> None:
    theirs = job("theirs", pods=1, what=CARD, on=["a"], queue="theirs")
    mine = job("mine", pods=1, what=CARD, queue="nowhere")
    outcome = Cluster(nodes=[node("a", cards=1)], jobs=[theirs, mine], queues=[queue("theirs")], conf=PROPORTION).run()
    assert outcome.evicted == set()
    assert "no queue nowhere" in outcome.verdicts["mine"].detail


ONE_TIER = CAPACITY.replace("- plugins:\n  - name: capacity", "  - name: capacity")


@pytest.mark.parametrize("conf", [ONE_TIER, ONE_TIER.replace("capacity", "proportion")], ids=["capacity", "proportion"])
def test_a_queue_within_its_deserved_share_gives_up_nothing(conf: str) -> None:
    """Three queues and four cards: `full` has its two, `greedy` has the other two, and `mine` deserves one."""
    deserved = {"full": 2, "greedy": 1, "mine": 1}
    queues = [queue(name, deserved={CARDS: number}, weight=number) for name, number in deserved.items()]
    jobs = [
        job("full", pods=2, what=CARD, on=["a", "a"], queue="full", priority=0),
        job("greedy", pods=2, what=CARD, on=["a", "a"], queue="greedy", priority=5),
        job("mine", what=CARD, queue="mine"),
    ]
    outcome = Cluster(nodes=[node("a", cards=4)], jobs=jobs, queues=queues, conf=conf).run()
    assert len(outcome.evicted) == 1
    assert next(iter(outcome.evicted)).startswith("greedy")


def test_a_guarantee_is_kept_even_above_the_deserved_share() -> None:
    both = [queue("mine", deserved={CARDS: 4}), queue("theirs", guarantee={CARDS: 3})]
    theirs = job("theirs", pods=4, what=CARD, on=["a"] * 4, queue="theirs")
    mine = gang("mine", pods=2, what=CARD, queue="mine")
    assert Cluster(nodes=[node("a", cards=4)], jobs=[theirs, mine], queues=both, conf=ONE_TIER).run().evicted == set()


@pytest.mark.parametrize("preset", ["multi-tenant", "high-performance"])
def test_presets_let_queue_plugins_vote_on_victims(preset: str) -> None:
    from baton.engine.presets import configured

    tiers = [{option.name for option in tier} for tier in configured(preset).tiers]
    assert any({"gang", "conformance"} <= tier and tier & {"capacity", "proportion"} for tier in tiers)


ONE_TIER = CAPACITY.replace("- plugins:\n  - name: capacity", "  - name: capacity")


def test_a_gang_and_its_queue_name_the_same_victim() -> None:
    """The queue is one card over its share, and the gang can spare a worker, but not the launcher, which is first."""
    roles = (("launcher", 1), ("worker", 2))
    workers = job(
        "theirs",
        pods=3,
        min_member=3,
        what=CARD,
        on=["b", "c", "d"],
        queue="theirs",
        pod_options={"role": "worker"},
        min_role_members=roles,
    )
    launcher = running("launcher", "a", CARD, group=workers.group.key, role="launcher", created_s=9.0)
    mine = job("mine", what=CARD, queue="mine")
    both = [queue("mine", deserved={CARDS: 1}), queue("theirs", deserved={CARDS: 3})]
    nodes = [node(name, cards=1) for name in "abcd"]
    (victim,) = Cluster(nodes=nodes, jobs=[workers, mine], pods=[launcher], queues=both, conf=ONE_TIER).run().evicted
    assert victim != "launcher"


def test_another_pod_is_evicted_if_the_first_allowed_one_does_not_help() -> None:
    """The job needs two cards of one node; next to the first candidate runs a pod that must not be evicted."""
    theirs = job("theirs", pods=2, what=CARD, on=["a", "b"], queue="theirs")
    firm = running("firm", "a", CARD, preemptable=False)
    mine = job("mine", what=spec(ask=[whole(2)]), queue="mine")
    both = [queue("default"), queue("mine", deserved={CARDS: 2}), queue("theirs", deserved={CARDS: 1})]
    nodes = [node("a", cards=2), node("b", cards=2)]
    outcome = Cluster(nodes=nodes, jobs=[theirs, mine], pods=[firm], queues=both, conf=ONE_TIER).run()
    assert outcome.evicted == {"theirs-1"}


def test_a_queue_at_a_limit_reclaims_nothing_and_takes_nothing() -> None:
    """It is below its deserved share of one resource, but at its limit of another one that the pod also requests."""
    licensed = spec(cpu=1, also=[("example.com/licence", 1)])
    both = [queue("mine", deserved={"cpu": 8000}, capability={"example.com/licence": 1}), queue("theirs")]
    held = [job("old", what=licensed, on=["a"], queue="mine"), job("theirs", pods=4, on=["a"] * 4, queue="theirs")]
    free = node("a", also=[("example.com/licence", 4)])
    cluster = Cluster(nodes=[free], jobs=[*held, job("new", what=licensed, queue="mine")], queues=both, conf=CAPACITY)
    outcome = cluster.run()
    assert (outcome.placed, outcome.evicted) == ({}, set())


@pytest.mark.parametrize("ready", [True, False])
def test_a_node_that_is_not_ready_is_not_shared(ready: bool) -> None:
    """Otherwise a queue that holds the whole remaining cluster would seem to hold only its half."""
    theirs = job("theirs", pods=4, what=CARD, on=["a"] * 4, queue="theirs")
    mine = job("mine", pods=4, what=spec(ask=[whole()], node_selector=((HOST, "a"),)), queue="mine", min_member=2)
    nodes = [node("a", cards=4), node("b", cards=4, ready=ready)]
    conf = PROPORTION.replace("- plugins:\n  - name: proportion", "  - name: proportion")
    outcome = Cluster(nodes=nodes, jobs=[theirs, mine], queues=queues(conf), conf=conf).run()
    assert len(outcome.evicted) == (0 if ready else 2)
