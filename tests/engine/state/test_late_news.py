"""Events of a pod after it was placed, while it is being bound, or while its node is unknown."""

from msgspec.structs import replace

from baton.engine.events import BindFailed, GroupChanged, NodeChanged, NodeRemoved, PodChanged, PodRemoved
from baton.engine.objects import AffinityTerm, CardGrant, CardKind, LabelSelector
from baton.model.ids import CardId, NodeName
from baton.model.names import PodPhase
from tests.engine.clusters import Cluster, job, node, pod, running, spec, whole

HOST = "kubernetes.io/hostname"
APART = spec(anti_affinity=(AffinityTerm(selector=LabelSelector((("app", "x"),)), topology_key=HOST),))


def test_a_running_pod_is_counted_by_its_current_labels() -> None:
    other = running("other", "a", labels={"app": "x"})
    cluster = Cluster(nodes=[node("a")], pods=[other, pod("p", APART)])
    assert cluster.run().placed == {}
    cluster.apply(PodChanged(replace(other, labels=(("app", "y"),))))
    assert cluster.run(1.0).placed == {"p": "a"}
    cluster.apply(PodChanged(replace(other, labels=(("app", "x"),))), PodChanged(pod("q", APART)))
    assert cluster.run(2.0).placed == {}


def test_a_pod_that_ended_while_its_node_was_unknown_takes_no_room() -> None:
    other = running("other", "a", spec(cpu=64))
    cluster = Cluster(pods=[other])
    cluster.apply(PodChanged(replace(other, phase=PodPhase.SUCCEEDED)))
    cluster.apply(NodeChanged(node("a")), PodChanged(pod("p", spec(cpu=64))))
    assert cluster.run().placed == {"p": "a"}


def test_a_pod_removed_with_the_node_of_its_binding_stays_removed() -> None:
    cluster = Cluster(nodes=[node("a")], pods=[pod("p")])
    assert cluster.run().placed == {"p": "a"}
    cluster.apply(NodeRemoved(NodeName("a")), PodRemoved(pod("p").key), NodeChanged(node("a")))
    assert cluster.run(1.0).placed == {}


def test_a_pod_whose_binding_failed_because_the_node_is_gone_goes_elsewhere() -> None:
    cluster = Cluster(nodes=[node("a")], pods=[pod("p")])
    assert cluster.run().placed == {"p": "a"}
    cluster.apply(NodeRemoved(NodeName("a")), NodeChanged(node("b")))
    assert cluster.run(1.0).placed == {}, "the first bind may still succeed"
    cluster.apply(BindFailed(pod("p").key))
    assert cluster.run(2.0).placed == {"p": "b"}


def test_a_deleted_pod_whose_binding_failed_is_not_placed_again() -> None:
    cluster = Cluster(nodes=[node("a")], pods=[pod("p")])
    cluster.run()
    cluster.apply(PodChanged(pod("p", deleting=True)), BindFailed(pod("p").key))
    assert cluster.run(1.0).placed == {}


def test_a_pod_that_gets_its_group_while_it_is_being_bound_keeps_its_card() -> None:
    alone, group = pod("p", spec(ask=[whole()])), job("g").group
    cluster = Cluster(nodes=[node("a", cards=1)], pods=[alone])
    assert cluster.run().placed == {"p": "a"}
    cluster.apply(GroupChanged(group), PodChanged(replace(alone, group=group.key)))
    cluster.apply(PodChanged(pod("q", spec(ask=[whole()]))))
    assert cluster.run(1.0).placed == {}
    cluster.apply(BindFailed(alone.key))
    assert len(cluster.run(2.0).placed) == 1


def test_cards_that_a_running_pod_reports_later_replace_the_assumed_ones() -> None:
    other = running("other", "a", spec(ask=[whole()]))
    cluster = Cluster(nodes=[node("a", cards=2)], pods=[other])
    for card, left in (("a/1", "a/0"), ("a/0", "a/1")):
        grant = CardGrant("main", CardId(card), CardKind.WHOLE, 16_000, 1000)
        cluster.apply(PodChanged(replace(other, cards=(grant,))), PodChanged(pod("p", spec(ask=[whole()]))))
        assert cluster.run().cards == {"p": [left]}
        cluster.apply(PodRemoved(pod("p").key))


def test_a_victim_that_changes_before_it_leaves_stays_a_victim() -> None:
    low, high = job("low", on=["a"], what=spec(ask=[whole()])), job("high", what=spec(ask=[whole()]), priority=9)
    cluster = Cluster(nodes=[node("a", cards=1)], jobs=[low, high], conf="multi-tenant")
    assert cluster.run().evicted == {"low-0"}
    changed = replace(low.pods[0], spec=spec(ask=[whole()], images=("other",)))
    cluster.apply(PodChanged(changed))
    again = cluster.run(1.0)
    assert (again.evicted, again.placed) == (set(), {})
    cluster.apply(PodRemoved(changed.key))
    assert cluster.run(2.0).placed == {"high-0": "a"}
