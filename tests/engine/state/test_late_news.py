"""What is heard of a pod after it was placed, while it is being bound, or while its node is unknown."""

from msgspec.structs import replace

from baton.engine.events import PodChanged
from baton.engine.objects import AffinityTerm, LabelSelector
from tests.engine.clusters import Cluster, node, pod, running, spec

HOST = "kubernetes.io/hostname"
APART = spec(anti_affinity=(AffinityTerm(selector=LabelSelector((("app", "x"),)), topology_key=HOST),))


def test_a_running_pod_is_counted_by_the_labels_it_has_now() -> None:
    other = running("other", "a", labels={"app": "x"})
    cluster = Cluster(nodes=[node("a")], pods=[other, pod("p", APART)])
    assert cluster.run().placed == {}
    cluster.apply(PodChanged(replace(other, labels=(("app", "y"),))))
    assert cluster.run(1.0).placed == {"p": "a"}
    cluster.apply(PodChanged(replace(other, labels=(("app", "x"),))), PodChanged(pod("q", APART)))
    assert cluster.run(2.0).placed == {}
