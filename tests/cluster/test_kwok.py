"""Nodes that KWOK plays: a real scheduler places pods on them, pods run, succeed and fail, and there can be many."""

from collections.abc import Callable

import pytest

from testbed.bed import Bed, BedOptions
from testbed.kwok import OUTCOME, RUN_FOR
from tests.cluster.manifests import pod

pytestmark = pytest.mark.cluster

GPU = "nvidia.com/gpu"
SHARE = "nvshare.com/gpu"


def create(bed: Bed, namespace: str, name: str, **settings: object) -> None:
    bed.api.create(f"/api/v1/namespaces/{namespace}/pods", pod(name, **settings))  # type: ignore[arg-type]  # fields by name


def test_the_real_scheduler_places_pods_by_an_extended_resource(kwok_bed: Bed, kwok_namespace: str) -> None:
    kwok_bed.add_kwok_nodes(2, prefix="cpu")
    kwok_bed.add_kwok_nodes(1, prefix="gpu", resources={GPU: 2})
    names = ("first", "second", "third")
    for name in names:
        create(kwok_bed, kwok_namespace, name, limits={GPU: "1"})

    def node_of(name: str) -> str:
        return str(kwok_bed.pod(kwok_namespace, name)["spec"].get("nodeName", ""))

    # The scheduler may see the pods before the node, and then it says no to all of them first.
    kwok_bed.wait_for(lambda: sorted(map(node_of, names)) == ["", "gpu-0", "gpu-0"], "two of three pods to be placed")
    (left,) = (name for name in names if not node_of(name))

    def refusal() -> bool:
        conditions = kwok_bed.pod(kwok_namespace, left)["status"].get("conditions", [{}])
        known = (conditions[0].get("type"), conditions[0].get("reason"))
        return known == ("PodScheduled", "Unschedulable") and f"Insufficient {GPU}" in conditions[0]["message"]

    kwok_bed.wait_for(refusal, f"{left} to be told that the GPUs are taken")


def test_labels_and_taints_of_nodes_decide_who_may_come(kwok_bed: Bed, kwok_namespace: str) -> None:
    taint = {"key": "reserved", "value": "team-a", "effect": "NoSchedule"}
    kwok_bed.add_kwok_nodes(1, prefix="reserved", labels={"pool": "a"}, taints=[taint], resources={SHARE: 4})
    selector = {"pool": "a"}
    create(kwok_bed, kwok_namespace, "stranger", nodeSelector=selector, limits={SHARE: "1"})
    tolerance = [{"key": "reserved", "operator": "Exists"}]
    create(kwok_bed, kwok_namespace, "member", nodeSelector=selector, tolerations=tolerance, limits={SHARE: "1"})
    assert kwok_bed.wait_for_pod(kwok_namespace, "member", "Running")["spec"]["nodeName"] == "reserved-0"
    assert "nodeName" not in kwok_bed.pod(kwok_namespace, "stranger")["spec"]


def test_a_running_pod_can_be_made_to_succeed_or_to_fail(kwok_bed: Bed, kwok_namespace: str) -> None:
    kwok_bed.add_kwok_nodes(1, prefix="outcome")
    on_it = {"kubernetes.io/hostname": "outcome-0"}
    for name in ("good", "bad"):
        create(kwok_bed, kwok_namespace, name, nodeSelector=on_it)
        kwok_bed.wait_for_pod(kwok_namespace, name, "Running")
    kwok_bed.finish_pod(kwok_namespace, "good", "succeed")
    kwok_bed.finish_pod(kwok_namespace, "bad", "fail")
    good = kwok_bed.wait_for_pod(kwok_namespace, "good", "Succeeded")
    bad = kwok_bed.wait_for_pod(kwok_namespace, "bad", "Failed")
    assert good["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert bad["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 1


def test_a_pod_can_bring_its_outcome_and_its_duration_along(kwok_bed: Bed, kwok_namespace: str) -> None:
    kwok_bed.add_kwok_nodes(1, prefix="brought")
    destiny = {OUTCOME: "fail", RUN_FOR: "1500ms"}
    create(
        kwok_bed, kwok_namespace, "doomed", nodeSelector={"kubernetes.io/hostname": "brought-0"}, annotations=destiny
    )
    ended = kwok_bed.wait_for_pod(kwok_namespace, "doomed", "Failed")
    terminated = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["finishedAt"] > terminated["startedAt"]


def test_a_thousand_nodes_become_ready(new_bed: Callable[[BedOptions], Bed]) -> None:
    bed = new_bed(BedOptions(kwok=True))
    names = bed.add_kwok_nodes(1000, resources={GPU: 8})
    assert bed.ready_nodes() == set(names)
    assert len(names) == 1000


def test_a_scheduler_runs_with_the_given_configuration_and_without_a_controller_manager(
    new_bed: Callable[[BedOptions], Bed],
) -> None:
    profiles = [{"schedulerName": "packer", "plugins": {"score": {"disabled": [{"name": "*"}]}}}]
    bed = new_bed(BedOptions(kwok_nodes=2, scheduler=True, scheduler_config={"profiles": profiles}))
    with bed.namespace() as namespace:
        create(bed, namespace, "known", schedulerName="packer")
        create(bed, namespace, "unknown", schedulerName="default-scheduler")
        bed.wait_for_pod(namespace, "known", "Running")
        assert "nodeName" not in bed.pod(namespace, "unknown")["spec"]
