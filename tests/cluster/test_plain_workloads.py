"""Gangs of Kubernetes' own workloads: only the owner says how many start together; no pod starts before its group."""

from typing import Any

import pytest

from tests.cluster.manifests import pod
from tests.cluster.programs import BatonPrograms

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MEMBERS = 3
OWNERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deployments": ("apps/v1", "Deployment", {"replicas": MEMBERS}),
    "statefulsets": ("apps/v1", "StatefulSet", {"replicas": MEMBERS, "podManagementPolicy": "Parallel"}),
    "jobs": ("batch/v1", "Job", {"parallelism": MEMBERS, "completions": MEMBERS}),
}


def workload(plural: str) -> dict[str, Any]:
    """One whose pods know nothing of a gang; its annotation is the only word of it."""
    api_version, kind, spec = OWNERS[plural]
    labels = {"app": plural}
    inner = pod("unused", schedulerName="volcano", limits={"cpu": "100m"})["spec"]
    inner["restartPolicy"] = "Never" if kind == "Job" else "Always"
    selector = {} if kind == "Job" else {"selector": {"matchLabels": labels}}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": plural, "annotations": {"scheduling.volcano.sh/group-min-member": str(MEMBERS)}},
        "spec": {**spec, **selector, "template": {"metadata": {"labels": labels}, "spec": inner}},
    }


def test_no_pod_is_bound_before_the_group_that_its_owner_asks_for(
    baton_cluster: BatonPrograms, baton_namespace: str
) -> None:
    baton, bed = baton_cluster, baton_cluster.bed
    path = f"/api/v1/namespaces/{baton_namespace}/pods"
    count = MEMBERS * len(OWNERS)

    def waits(name: str) -> bool:
        return b"its PodGroup has not been created yet" in baton.ask("scheduler", f"/why/{baton_namespace}/{name}")

    baton.controller.stop()
    try:
        for plural, (api_version, _, _) in OWNERS.items():
            bed.api.create(f"/apis/{api_version}/namespaces/{baton_namespace}/{plural}", workload(plural))
        bed.wait_for(lambda: len(bed.api.get(path)["items"]) == count, "the pods to be made")
        names = [item["metadata"]["name"] for item in bed.api.get(path)["items"]]
        bed.wait_for(lambda: all(map(waits, names)), "every pod to wait for its group")
        assert baton.bindings(baton_namespace) == []
    finally:
        baton.controller.resume()
    bed.wait_for(lambda: len(baton.bindings(baton_namespace)) == count, "all pods to be bound")
    bound = {request.name: request.at for request in baton.bindings(baton_namespace)}

    def named() -> dict[str, str]:
        """When each pod was first written to after it was made: that is its group's name."""
        done = reversed(baton.requests(baton_namespace))
        return {r.name: r.at for r in done if (r.verb, r.resource, r.subresource) == ("patch", "pods", "")}

    bed.wait_for(lambda: named().keys() >= bound.keys(), "the log to tell when pods were told their groups")
    told = named()
    assert all(told[name] < at for name, at in bound.items()), "each was told its group before it was bound"
    for plural, (api_version, _, _) in OWNERS.items():
        bed.api.delete(f"/apis/{api_version}/namespaces/{baton_namespace}/{plural}/{plural}")
