"""Plain workloads that name our scheduler: what kube-controller-manager makes of them gets its PodGroups."""

from typing import Any

import pytest

from testbed.bed import Bed
from tests.cluster.jobs.conftest import ControllerProcess, events, path
from tests.cluster.manifests import pod

pytestmark = pytest.mark.cluster

MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
GROUP = "scheduling.k8s.io/group-name"


def workload(name: str, *, annotations: dict[str, str] | None = None, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    """The metadata and spec that all of Kubernetes' workloads share."""
    labels = {"app": name}
    inner = pod("unused", schedulerName="volcano", restartPolicy=spec.pop("restart", "Always"), limits={"cpu": cpu})
    template = {"metadata": {"labels": labels}, "spec": inner["spec"]}
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


def groups(bed: Bed, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = bed.api.get(path("podgroups", namespace))["items"]
    return items


def until_groups(bed: Bed, namespace: str, count: int) -> list[dict[str, Any]]:
    bed.wait_for(lambda: len(groups(bed, namespace)) == count, f"{count} PodGroups in {namespace}")
    return groups(bed, namespace)


def pods(bed: Bed, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = bed.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return items


def until_named(bed: Bed, namespace: str, count: int, group: str) -> None:
    """All pods of the namespace are told their group."""

    def named() -> bool:
        found = [item["metadata"].get("annotations", {}).get(GROUP) for item in pods(bed, namespace)]
        return found == [group] * count

    bed.wait_for(named, f"{count} pods to be in {group}")


def test_a_deployment_has_a_group_per_revision_and_none_when_scaled_to_zero(
    crd_bed: Bed, controller: ControllerProcess, namespace: str
) -> None:
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    body = workload("web", annotations={MIN_MEMBER: "3", "volcano.sh/preemptable": "false"}, replicas=3)
    crd_bed.api.create(deployments, body)
    (first,) = until_groups(crd_bed, namespace, 1)
    assert first["spec"]["minMember"] == 3
    assert first["spec"]["queue"] == "default"
    assert first["spec"]["minResources"]["cpu"] == "3"
    assert first["metadata"]["annotations"]["volcano.sh/preemptable"] == "false"
    assert first["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
    assert first["status"]["phase"] == "Pending"
    until_named(crd_bed, namespace, 3, first["metadata"]["name"])
    assert groups(crd_bed, namespace) == [first], "nothing changed, and yet it was written"
    changed = workload("web", cpu="2", replicas=3)["spec"]["template"]
    recreate = {"type": "Recreate", "rollingUpdate": None}
    crd_bed.api.patch(f"{deployments}/web", {"spec": {"template": changed, "strategy": recreate}})

    def replaced() -> bool:
        found = groups(crd_bed, namespace)
        return [group["spec"]["minResources"]["cpu"] for group in found] == ["6"]

    crd_bed.wait_for(replaced, "the new revision's group to replace the old one")
    crd_bed.api.patch(f"{deployments}/web", {"spec": {"replicas": 0}})
    until_groups(crd_bed, namespace, 0)
    crd_bed.api.patch(f"{deployments}/web", {"spec": {"replicas": 3}})
    (again,) = until_groups(crd_bed, namespace, 1)
    until_named(crd_bed, namespace, 3, again["metadata"]["name"])


def test_a_stateful_set_and_a_job_have_one_group_each_that_is_theirs(
    crd_bed: Bed, controller: ControllerProcess, namespace: str
) -> None:
    sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    crd_bed.api.create(sets, workload("store", replicas=2, serviceName="store", podManagementPolicy="Parallel"))
    body = workload("train", annotations={MIN_MEMBER: "2"}, restart="Never", parallelism=2, completions=2)
    del body["spec"]["selector"]
    crd_bed.api.create(jobs, body)
    found = until_groups(crd_bed, namespace, 2)
    kinds = {group["metadata"]["ownerReferences"][0]["kind"]: group for group in found}
    assert kinds["StatefulSet"]["spec"]["minMember"] == 1
    assert kinds["Job"]["spec"]["minMember"] == 2
    crd_bed.api.patch(f"{sets}/store", {"metadata": {"annotations": {MIN_MEMBER: "2"}}})
    name = kinds["StatefulSet"]["metadata"]["name"]

    def follows() -> bool:
        spec = crd_bed.api.get(path("podgroups", namespace, name))["spec"]
        return (spec["minMember"], spec["minResources"]["cpu"]) == (2, "2")

    crd_bed.wait_for(follows, "the group to follow its owner's annotation")
    # By this reference Kubernetes deletes the group with its owner.
    for where, kind in ((f"{sets}/store", "StatefulSet"), (f"{jobs}/train", "Job")):
        (reference,) = kinds[kind]["metadata"]["ownerReferences"]
        assert (reference["uid"], reference["controller"]) == (crd_bed.api.get(where)["metadata"]["uid"], True)


def test_a_single_pod_has_a_group_and_a_bad_annotation_is_told(
    crd_bed: Bed, controller: ControllerProcess, namespace: str
) -> None:
    where = f"/api/v1/namespaces/{namespace}/pods"
    crd_bed.api.create(where, pod("alone", schedulerName="baton", annotations={MIN_MEMBER: "some"}))
    crd_bed.api.create(where, pod("stranger"))
    (group,) = until_groups(crd_bed, namespace, 1)
    assert group["metadata"]["name"] == f"podgroup-{crd_bed.pod(namespace, 'alone')['metadata']['uid']}"
    assert group["spec"]["minMember"] == 1
    crd_bed.wait_for(
        lambda: [event["reason"] for event in events(crd_bed, namespace, "alone")] == ["InvalidAnnotation"], "the event"
    )
    assert GROUP not in crd_bed.pod(namespace, "stranger")["metadata"].get("annotations", {})
    crd_bed.api.delete(path("podgroups", namespace, group["metadata"]["name"]))
    crd_bed.wait_for(
        lambda: [one["metadata"]["uid"] for one in groups(crd_bed, namespace)] not in ([], [group["metadata"]["uid"]]),
        "a group that somebody deleted to be made again",
    )


def test_pods_that_came_while_the_controller_was_dead_get_their_group(
    crd_bed: Bed, controller: ControllerProcess, namespace: str
) -> None:
    controller.process.kill()
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    crd_bed.api.create(deployments, workload("late", annotations={MIN_MEMBER: "20"}, replicas=20))
    crd_bed.wait_for(lambda: len(pods(crd_bed, namespace)) == 20, "the pods")
    controller.process.start()
    (group,) = until_groups(crd_bed, namespace, 1)
    assert group["spec"]["minMember"] == 20
    until_named(crd_bed, namespace, 20, group["metadata"]["name"])
