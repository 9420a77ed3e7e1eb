"""Every waiting job has a reason that its user can act on."""

import pytest

from baton.engine.objects import CardRules, Quota, Taint
from baton.engine.verdicts import Cause
from baton.errors import BatonError
from baton.model.ids import GroupKey, PodKey
from baton.model.names import PodGroupPhase
from tests.engine.clusters import Cluster, gang, job, node, pod, queue, running, slot, spec, vgpu, whole


def test_each_node_is_counted_once_under_its_first_failing_predicate() -> None:
    nodes = [
        node("a", taints=(Taint("x"),)),
        node("b", taints=(Taint("x"),)),
        node("c", cards=1),
        node("d", cpu=1, cards=2),
    ]
    verdict = Cluster(nodes=nodes, pods=[pod("p", spec(cpu=2, ask=[whole(2)]))]).run().verdicts["p"]
    assert {item.reason: item.nodes for item in verdict.reasons} == {
        "had a taint that is not tolerated": 2,
        "no card combination with enough room": 1,
        "insufficient cpu": 1,
    }
    assert sum(item.nodes for item in verdict.reasons) == verdict.nodes == 4


def test_the_nearest_node_and_what_it_lacks() -> None:
    pods = [running("r", "b", spec(cpu=60)), pod("p", spec(cpu=6))]
    verdict = Cluster(nodes=[node("a", cpu=2), node("b", cpu=64)], pods=pods).run().verdicts["p"]
    assert verdict.nearest[0].node == "b"
    assert "2000m of cpu missing" in verdict.paragraph()


def test_fragmentation_is_distinguished_from_shortage() -> None:
    nodes = [node("a", cards=2), node("b", cards=2)]
    pods = [
        running("r", "a", spec(ask=[whole()])),
        running("s", "b", spec(ask=[whole()])),
        pod("p", spec(ask=[whole(2)])),
    ]
    paragraph = Cluster(nodes=nodes, pods=pods).run().verdicts["p"].paragraph()
    assert "2 such cards are free, but at most 1 on one node" in paragraph


def test_the_verdict_of_a_gang_tells_how_many_pods_fit() -> None:
    verdict = (
        Cluster(nodes=[node("a", cards=3)], jobs=[gang("g", pods=5, what=spec(ask=[whole()]))]).run().verdicts["g"]
    )
    assert verdict.cause is Cause.GANG
    assert (verdict.min_member, verdict.placeable) == (5, 3)
    assert "needs 5 pods at once" in verdict.paragraph()


def test_explaining_a_gang_places_as_many_members_as_fit_first() -> None:
    cluster = Cluster(
        nodes=[node("a", cards=3), node("b", cpu=1)], jobs=[gang("g", pods=5, what=spec(cpu=2, ask=[whole()]))]
    )
    verdict = cluster.engine.explain(GroupKey("team/g"), 0.0)
    assert verdict.cause is Cause.GANG
    assert (verdict.min_member, verdict.ready, verdict.placeable) == (5, 0, 3)
    assert verdict.pod == "team/g-3"
    assert {item.reason: item.nodes for item in verdict.reasons} == {
        "no card combination with enough room": 1,
        "insufficient cpu": 1,
    }
    assert cluster.run().placed == {}, "an explanation changes nothing"


def test_explaining_a_job_that_fits_reports_that_it_is_next() -> None:
    cluster = Cluster(nodes=[node("a", cards=3)], jobs=[gang("g", pods=3, what=spec(ask=[whole()]))])
    verdict = cluster.engine.explain(GroupKey("team/g"), 0.0)
    assert verdict.cause is Cause.NEXT
    assert "there is room for it now" in verdict.paragraph()
    assert len(cluster.run().placed) == 3


def test_a_card_model_that_no_node_has_is_not_resolvable() -> None:
    what = spec(ask=[slot()], card_rules=CardRules(models=("H100",)))
    verdict = Cluster(nodes=[node("a", cards=2, model="T4")], pods=[pod("p", what)]).run().verdicts["p"]
    assert [item.resolvable for item in verdict.reasons] == [False]


def test_an_incomplete_gang() -> None:
    verdict = Cluster(nodes=[node("a")], jobs=[job("g", pods=2, min_member=3)]).run().verdicts["g"]
    assert verdict.cause is Cause.NOT_VALID
    assert "2 of 3 pods" in verdict.detail


def test_queue_limits() -> None:
    conf = 'actions: "allocate"\ntiers:\n- plugins: [{name: gang}, {name: capacity}, {name: predicates}]\n'
    queues = [queue("q", capability={"cpu": 1000})]
    verdict = (
        Cluster(nodes=[node("a")], jobs=[job("j", pods=2, min_member=2, queue="q")], queues=queues, conf=conf)
        .run()
        .verdicts["j"]
    )
    assert verdict.cause is Cause.QUEUE_SHARE
    assert "to start it needs 2000m of cpu, and queue q has 1000m of 1000m left" in verdict.detail
    assert verdict.would_help == ("raise the weight, capability or deserved amount of queue q",)


LIMITED = """
actions: "allocate"
tiers:
- plugins: [{name: gang}, {name: capacity, enableHierarchy: true}, {name: predicates}]
"""


def test_a_gang_that_exceeds_its_queue_is_not_reported_as_next() -> None:
    queues = [queue("q", capability={"cpu": 2000})]
    cluster = Cluster(nodes=[node("a")], jobs=[gang("g", pods=4, queue="q")], queues=queues, conf=LIMITED)
    said, asked = cluster.run().verdicts["g"], cluster.engine.explain(GroupKey("team/g"), 0.0)
    assert said.cause is asked.cause is Cause.QUEUE_SHARE
    assert said.detail == asked.detail == "to start it needs 4000m of cpu, and queue q has 2000m of 2000m left"


def test_the_queue_whose_limit_applies_is_named() -> None:
    tree = [queue("root"), queue("lab", capability={"cpu": 2000}), *(queue(name, parent="lab") for name in "ab")]
    old = job("old", pods=2, on=["n", "n"], queue="a")
    cluster = Cluster(nodes=[node("n")], jobs=[old, job("new", queue="b")], queues=tree, conf=LIMITED)
    verdict = cluster.run().verdicts["new"]
    assert verdict.detail == "to start it needs 1000m of cpu, and queue lab has 0m of 2000m left"
    assert verdict.would_help[0] == "wait for jobs of queue lab to end"


def test_a_share_by_weight_is_also_named() -> None:
    conf = LIMITED.replace("capacity, enableHierarchy: true", "proportion")
    jobs = [
        job("old", pods=2, on=["n", "n"], queue="a", what=spec(memory_gib=4)),
        job("new", queue="a"),
        job("b", pods=4, queue="b"),
    ]
    cluster = Cluster(nodes=[node("n", cpu=4)], jobs=jobs, queues=[queue("a"), queue("b")], conf=conf)
    assert "queue a has 0m of 2000m left" in cluster.run().verdicts["new"].detail


def test_a_job_behind_another_in_a_strict_queue_is_not_reported_as_next() -> None:
    jobs = [gang("first", pods=8, queue="q"), job("second", queue="q", created_s=1.0)]
    strict = [queue("q", dequeue_strategy="fifo")]
    cluster = Cluster(nodes=[node("a", cpu=4)], jobs=jobs, queues=strict, conf=LIMITED)
    assert cluster.run().verdicts["second"].cause is Cause.HELD_BACK
    assert cluster.engine.explain(GroupKey("team/second"), 0.0).cause is Cause.HELD_BACK


def test_a_job_larger_than_the_cluster_is_not_advised_to_raise_a_limit() -> None:
    cluster = Cluster(nodes=[node("a", cpu=4)], jobs=[gang("g", pods=8)], conf=LIMITED)
    verdict = cluster.run().verdicts["g"]
    assert "queue default has 4000m of 4000m left, which is all there is in the cluster" in verdict.detail
    assert verdict.would_help == ("lower the job's minimum", "more cpu for the cluster")


def test_explaining_a_pod_or_its_group_changes_nothing() -> None:
    cluster = Cluster(nodes=[node("a", cards=1)], jobs=[gang("g", pods=2, what=spec(ask=[vgpu()]))])
    before = cluster.engine.state.ledger.usage.copy()
    by_pod = cluster.engine.explain(PodKey("team/g-1"), 0.0)
    by_group = cluster.engine.explain(GroupKey("team/g"), 0.0)
    assert by_pod.pod == "team/g-1"
    assert by_group.group == by_pod.group == "team/g"
    assert (before == cluster.engine.state.ledger.usage).all()


def test_an_unknown_pod_is_reported_in_one_sentence() -> None:
    with pytest.raises(BatonError, match="no pod or PodGroup team/nobody"):
        Cluster(nodes=[node("a")]).engine.explain(PodKey("team/nobody"), 0.0)


def test_every_waiting_job_has_a_verdict() -> None:
    jobs = [gang(f"g{i}", pods=2, what=spec(ask=[whole()])) for i in range(5)]
    outcome = Cluster(nodes=[node("a", cards=3)], jobs=jobs).run()
    started = {name.split("-")[0] for name in outcome.placed}
    assert started | set(outcome.verdicts) == {f"g{i}" for i in range(5)}
    assert started & set(outcome.verdicts) == set()


ADMITTING = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: gang}, {name: %s}, {name: predicates}]
"""


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ("overcommit", "its minimum is 20000m of cpu, and the cluster, counted 1.2 times, has 9000m of 12000m left"),
        ("proportion", "its minimum is 20000m of cpu, and queue small has 5000m of 8000m left"),
        ("capacity", "its minimum is 20000m of cpu, and queue small has 5000m of 8000m left"),
        ("resourcequota", "its minimum is 20000m of cpu, and quota most has 1000m of 4000m left"),
    ],
)
def test_the_verdict_of_a_job_that_is_not_admitted_names_the_shortage(plugin: str, said: str) -> None:
    cluster = Cluster(
        nodes=[node("a", cpu=10)],
        queues=[queue("default"), queue("small", capability={"cpu": 8000})],
        quotas=[Quota(namespace="team", name="most", hard=(("requests.cpu", 4000),), used=(("requests.cpu", 3000),))],
        jobs=[
            job("runs", queue="small", on=["a"], what=spec(cpu=3), phase=PodGroupPhase.RUNNING),
            job("big", queue="small", pods=0, phase=PodGroupPhase.PENDING, min_resources=(("cpu", 20_000),)),
        ],
        conf=ADMITTING % plugin,
    )
    verdict = cluster.run().verdicts["big"]
    assert verdict.cause is Cause.NOT_ADMITTED
    assert f"the job is not admitted: {said}." in verdict.paragraph()
    assert verdict.would_help[0] == "lower the job's minimum"
    assert verdict.would_help[1].startswith("more cpu for "), "waiting would not help"
    assert cluster.engine.explain(GroupKey("team/big"), 0.0).detail == verdict.detail


def test_a_job_that_will_be_admitted_is_advised_to_wait() -> None:
    least = (("cpu", 10_000),)
    jobs = [job("runs", on=["a"], what=spec(cpu=3), phase=PodGroupPhase.RUNNING)]
    jobs.append(job("big", pods=0, phase=PodGroupPhase.PENDING, min_resources=least))
    verdict = Cluster(nodes=[node("a", cpu=10)], jobs=jobs, conf=ADMITTING % "overcommit").run().verdicts["big"]
    assert verdict.would_help == ("lower the job's minimum", "wait until running jobs end")
