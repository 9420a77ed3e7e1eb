"""A cluster that runs for months keeps nothing for pods that are long gone."""

import pytest

from baton.engine.events import PodChanged, PodRemoved
from baton.engine.objects import AffinityTerm, LabelSelector
from baton.engine.state import cluster as cluster_module
from baton.model.ids import PodKey
from tests.engine.clusters import Cluster, node, pod, spec

HOST = "kubernetes.io/hostname"


def test_specs_and_affinity_terms_of_removed_pods_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "FORGET_FROM", 50)
    cluster = Cluster(nodes=[node("a", pods=9999)])
    for number in range(300):
        own = LabelSelector((("job", f"j{number}"),))
        what = spec(cpu=0, memory_gib=0, anti_affinity=(AffinityTerm(selector=own, topology_key=HOST),))
        cluster.apply(PodChanged(pod(f"p{number}", what, labels={"job": f"j{number}"})))
        assert f"p{number}" in cluster.run(float(number)).placed
        cluster.apply(PodRemoved(PodKey(f"team/p{number}")))
    state = cluster.engine.state
    assert len(state._needs) + len(state.placed) < 200


def test_terms_that_are_still_needed_are_kept() -> None:
    apart = spec(anti_affinity=(AffinityTerm(selector=LabelSelector((("app", "x"),)), topology_key=HOST),))
    cluster = Cluster(nodes=[node("a"), node("b")], pods=[pod("p0", apart, labels={"app": "x"})])
    cluster.run()
    cluster.engine.state._forget_at = 0
    cluster.apply(PodChanged(pod("p1", apart, labels={"app": "x"})), PodChanged(pod("p2", apart, labels={"app": "x"})))
    assert len(cluster.run(1.0).placed) == 1, "one host is taken by p0, one is free"
