"""`deploy/agent` as it is shipped: the DaemonSet with its rights, on a real kubelet, from an image of this checkout."""

import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.gpu import simulated
from testbed.images import PRODUCT, WORKLOAD, product_archive
from tests.cluster.agent.conftest import MACHINE, REPOSITORY, GpuNode
from tests.cluster.agent.test_sharing import PROGRAM, result

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

DEPLOY = REPOSITORY / "deploy" / "agent"
NAMESPACE = "baton-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def daemonset(node: GpuNode) -> dict[str, Any]:
    """The manifest; changed are the image's name, the driver, and the API server's address, as the bed has no proxy."""
    (found,) = documents("daemonset.yaml")
    server = urllib.parse.urlsplit(node.bed.api.server)
    for container in found["spec"]["template"]["spec"]["containers"]:
        container |= {"image": PRODUCT, "imagePullPolicy": "Never"}
        container["env"] += [
            {"name": simulated.LIBRARY_PATH_VARIABLE, "value": "/opt/python/baton/_native/simgpu"},
            {"name": simulated.DIRECTORY_VARIABLE, "value": MACHINE},
            {"name": "KUBERNETES_SERVICE_HOST", "value": server.hostname},
            {"name": "KUBERNETES_SERVICE_PORT", "value": str(server.port)},
        ]
    return found


@pytest.fixture
def deployed(node: GpuNode, tmp_path: Path) -> Iterator[GpuNode]:
    """The node with the DaemonSet's pod on it."""
    node.node.load_image(product_archive(tmp_path))
    if daemon := node.lock_view().pid:
        node.node.run(["sh", "-c", f"kill {daemon}"])
        node.bed.wait_for(lambda: not node.lock_view().pid, "the lock daemon of earlier tests to end")
    configuration = {"config.yaml": (DEPLOY / "config.yaml").read_text()}
    node.bed.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *documents("rbac.yaml"),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "baton-agent", "namespace": NAMESPACE},
            "data": configuration,
        },
        daemonset(node),
    )
    yield node
    node.bed.kubectl("delete", "daemonset", "-n", NAMESPACE, "baton-agent")
    node.bed.wait_for(lambda: not node.bed.api.get(PODS)["items"], "the agent's pod to be gone", 120.0)


def ready_pods(node: GpuNode) -> list[str]:
    """The agent's pods with all containers ready."""
    return [
        pod["metadata"]["uid"]
        for pod in node.bed.api.get(PODS)["items"]
        if pod["status"].get("containerStatuses")
        and all(one["ready"] for one in pod["status"]["containerStatuses"])
        and "deletionTimestamp" not in pod["metadata"]
    ]


def test_the_daemonset_serves_gpu_programs_and_a_roll_out_leaves_them_alone(deployed: GpuNode) -> None:
    node = deployed
    node.bed.wait_for(lambda: len(ready_pods(node)) == 1, "the agent's pod to be ready", 120.0)
    node.until_allocatable(20)
    where = f"/api/v1/nodes/{node.node.name}"
    node.bed.wait_for(
        lambda: node.bed.api.get(where)["metadata"]["labels"]["baton.dev/gpu.product"] == "Tesla-T4",
        "the labels: its rights suffice for what it tells of the node",
    )
    node.create("program", image=WORKLOAD, command=("python3", "-c", PROGRAM))
    (report,) = result(node, "program")
    assert report["codes"] == [0]
    node.create("steady", image=WORKLOAD, command=("python3", "-c", PROGRAM, "0", "3600"))
    node.running("steady")
    before, (old,) = node.slots("steady"), ready_pods(node)
    node.bed.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/baton-agent")
    node.bed.wait_for(lambda: ready_pods(node) not in ([], [old]), "the new agent to be ready", 120.0)
    node.create("next", image=WORKLOAD, command=("python3", "-c", PROGRAM))
    (report,) = result(node, "next")
    assert report["codes"] == [0]
    node.until_slots("steady", before)
    assert node.pod("steady")["status"]["containerStatuses"][0]["restartCount"] == 0
    node.audit()
