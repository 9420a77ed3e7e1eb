"""`deploy` as it is shipped: all of it as pods on a real kubelet, from an image of this checkout, applied with kubectl.

An overlay says what every installation says of itself: the name of the image; and of this node that its driver is the
simulated one. Nothing else is changed. The API server reaches the webhooks through their Service.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.agent.kubelet.endpoint import socket_name
from baton.gpu import simulated
from testbed.bed import Bed
from testbed.errors import BedError
from testbed.images import BUSYBOX, PRODUCT, WORKLOAD, product_archive
from tests.cluster.agent.conftest import MACHINE, REPOSITORY, GpuNode
from tests.cluster.agent.test_sharing import result
from tests.cluster.manifests import pod
from tests.cluster.programs import EXAMPLES, JOBS, command
from tests.cluster.workloads import REPORT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(480)]

DEPLOY = REPOSITORY / "deploy"
NAMESPACE = "baton-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/baton-scheduler"
DEPLOYMENTS = ("scheduler", "controller", "admission")


def overlay(folder: Path) -> Path:
    """Where the image is, and where the driver of this node is."""
    driver = [
        {"name": simulated.LIBRARY_PATH_VARIABLE, "value": "/opt/python/baton/_native/simgpu"},
        {"name": simulated.DIRECTORY_VARIABLE, "value": MACHINE},
    ]
    containers = [{"name": name, "env": driver} for name in ("agent", "lockd")]
    patch = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "baton-agent", "namespace": NAMESPACE},
        "spec": {"template": {"spec": {"containers": containers}}},
    }
    name, tag = PRODUCT.split(":")
    kustomization = {
        "resources": [os.path.relpath(DEPLOY, folder.resolve())],
        "images": [{"name": "baton", "newName": name, "newTag": tag}],
        "patches": [{"patch": yaml.safe_dump(patch)}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


def through_the_registry(folder: Path) -> Path:
    """The same with agents that kubelet finds in its plugin registry."""
    overlay(folder)
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    config = yaml.safe_load((DEPLOY / "agent" / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "kubelet": {"registration": "registry"}}))
    # Of another name, since kubelet may still have the former content of the old one at hand.
    volume = {"name": "config", "configMap": {"name": "baton-agent-registry"}}
    patch = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "baton-agent", "namespace": NAMESPACE},
        "spec": {"template": {"spec": {"volumes": [volume]}}},
    }
    kustomization |= {
        "components": [os.path.relpath(DEPLOY / "agent" / "registry", folder.resolve())],
        "configMapGenerator": [{"name": "baton-agent-registry", "namespace": NAMESPACE, "files": ["config.yaml"]}],
        "generatorOptions": {"disableNameSuffixHash": True},
        "patches": [*kustomization["patches"], {"patch": yaml.safe_dump(patch)}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


@pytest.fixture(scope="module")
def installed(agent_bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The bed with Baton in it, installed and removed as docs/operators/install.md says."""
    bed, node = agent_bed, GpuNode(agent_bed, agent_bed.nodes["node-1"])
    node.node.load_image(product_archive(tmp_path_factory.mktemp("image")))
    if daemon := node.lock_view().pid:
        node.node.run(["sh", "-c", f"kill {daemon}"])
        bed.wait_for(lambda: not node.lock_view().pid, "the lock daemon of earlier tests to end")
    everything = str(overlay(tmp_path_factory.mktemp("overlay")))
    bed.kubectl("apply", "--server-side", "-k", str(DEPLOY / "crds"))
    bed.kubectl("apply", "--server-side", "-k", everything)
    try:
        for name in DEPLOYMENTS:
            until_ready(bed, f"deployment/baton-{name}")
        until_ready(bed, "daemonset/baton-agent")
        yield bed
    finally:
        bed.kubectl("delete", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "baton-admission")
        bed.kubectl("delete", "-k", everything, "--ignore-not-found", "--wait=false")
        bed.wait_for(lambda: not bed.api.get(PODS)["items"], "Baton's pods to be gone", 120.0)
        bed.wait_for(lambda: not bed.api.exists(f"/api/v1/namespaces/{NAMESPACE}"), "the namespace to be gone", 60.0)


def until_ready(bed: Bed, what: str) -> None:
    """Wait for a roll-out, and tell what a person would look at when there is none."""
    try:
        bed.kubectl("rollout", "status", "-n", NAMESPACE, what, "--timeout=180s", timeout_s=200)
    except BedError as error:
        for words in (("get", "pods"), ("get", "events"), ("logs", what, "--tail=20", "--all-containers")):
            error.add_note(bed.kubectl("-n", NAMESPACE, *words))
        raise


@pytest.fixture
def namespace(installed: Bed) -> Iterator[str]:
    with installed.namespace("deploy") as name:
        yield name


def ready_pods(bed: Bed, name: str) -> set[str]:
    """The names of a program's pods with all containers ready."""
    return {
        pod["metadata"]["name"]
        for pod in bed.api.get(f"{PODS}?labelSelector=app.kubernetes.io/name=baton-{name}")["items"]
        if pod["status"].get("containerStatuses")
        and all(one["ready"] for one in pod["status"]["containerStatuses"])
        and "deletionTimestamp" not in pod["metadata"]
    }


def quick_example(name: str, **spec: Any) -> dict[str, Any]:
    """An example that comes to its end at once, with an image that this node has."""
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / "shared-gpus.yaml").read_text())
    found["metadata"]["name"] = name
    (container,) = found["spec"]["tasks"][0]["template"]["spec"]["containers"]
    container |= {"image": BUSYBOX, "imagePullPolicy": "Never", "command": ["env"], **spec}
    return found


def apply(bed: Bed, namespace: str, *objects: dict[str, Any]) -> None:
    bed.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(objects))


def until_accepted(bed: Bed, namespace: str, wanted: dict[str, Any]) -> None:
    """Apply an object; the API server hears of webhooks and of the pods behind them a moment after they are ready."""

    def accepted() -> bool:
        with contextlib.suppress(BedError):
            apply(bed, namespace, wanted)
            return True
        return False

    bed.wait_for(accepted, f"{wanted['metadata']['name']} to be accepted", 60.0, poll_s=1.0)


def until_completed(bed: Bed, namespace: str, name: str) -> None:
    path = f"{JOBS.format(namespace)}/{name}"
    try:
        bed.wait_for(
            lambda: bed.api.get(path)["status"]["state"]["phase"] == "Completed", f"job {name} to complete", 120.0
        )
    except BedError as error:
        error.add_note(bed.kubectl("-n", namespace, "get", "vcjob,podgroup,pods,events"))
        raise


def leader(bed: Bed) -> str:
    """The pod that leads the schedulers."""
    return str(bed.api.get(LEASE)["spec"]["holderIdentity"]).rpartition("_")[0]


def requests(bed: Bed, program: str) -> list[dict[str, Any]]:
    """What a program's pods asked of the API server."""
    name = f"system:serviceaccount:{NAMESPACE}:baton-{program}"
    return [entry for entry in bed.plane.audited(name) if entry["user"]["username"] == name]


def bound(bed: Bed, namespace: str) -> list[str]:
    """The pods of a namespace that our scheduler's pods have bound, as far as the audit log is written."""
    return sorted(
        entry["objectRef"]["name"]
        for entry in requests(bed, "scheduler")
        if entry.get("objectRef", {}).get("subresource") == "binding" and entry["objectRef"]["namespace"] == namespace
    )


def test_a_job_is_admitted_placed_and_completed_by_pods(installed: Bed, namespace: str) -> None:
    bed = installed
    until_accepted(bed, namespace, quick_example("train"))
    until_completed(bed, namespace, "train")
    members = [f"train-worker-{number}" for number in range(4)]
    bed.wait_for(lambda: bound(bed, namespace) == members, "the scheduler's pods to have bound each member once")
    with pytest.raises(BedError, match=r"expected a list: write `command: \[\"train.sh\"\]`"):
        apply(bed, namespace, quick_example("wrong", command="train.sh"))
    apply(bed, namespace, quick_example("huge", resources={"limits": {"nvshare.com/gpu": "1000"}}))
    bed.wait_for(
        lambda: "the job is not admitted" in command(bed, "baton", "why", "huge", "-n", namespace).stdout,
        "the verdict on huge",
    )
    asked = f"/api/v1/namespaces/{NAMESPACE}/pods/{leader(bed)}:11251/proxy/why/{namespace}/huge"
    bed.wait_for(lambda: bool(bed.plane.audited(asked)), "the leader's pod to have been asked")
    for program in (*DEPLOYMENTS, "agent"):
        forbidden = [
            entry["requestURI"]
            for entry in requests(bed, program)
            if entry.get("responseStatus", {}).get("code") == 403
        ]
        assert forbidden == [], f"{program} needs more rights"


def test_another_scheduler_takes_over_when_the_leaders_pod_is_gone(installed: Bed, namespace: str) -> None:
    bed = installed
    bed.wait_for(lambda: leader(bed) in ready_pods(bed, "scheduler"), "a scheduler to lead")
    old = leader(bed)
    bed.kubectl("delete", "pod", "-n", NAMESPACE, old, "--grace-period=0", "--force")
    bed.wait_for(lambda: leader(bed) not in ("", old), "another scheduler to lead", 120.0)
    until_accepted(bed, namespace, quick_example("next"))
    until_completed(bed, namespace, "next")


def test_without_admission_foreign_pods_are_created_and_ours_are_refused(installed: Bed, namespace: str) -> None:
    bed = installed
    bed.kubectl("scale", "-n", NAMESPACE, "deployment/baton-admission", "--replicas=0")
    path = f"{PODS}?labelSelector=app.kubernetes.io/name=baton-admission"
    bed.wait_for(lambda: not bed.api.get(path)["items"], "admission to be away", 90.0)
    apply(bed, namespace, pod("foreign", ["true"]))
    bed.wait_for_pod(namespace, "foreign", "Succeeded")
    with pytest.raises(BedError, match="failed calling webhook"):
        apply(bed, namespace, quick_example("unchecked"))
    bed.kubectl("scale", "-n", NAMESPACE, "deployment/baton-admission", "--replicas=2")
    until_ready(bed, "deployment/baton-admission")
    until_accepted(bed, namespace, quick_example("checked"))
    until_completed(bed, namespace, "checked")


def test_the_agent_serves_gpu_programs_and_a_roll_out_leaves_them_alone(installed: Bed, node: GpuNode) -> None:
    node.until_allocatable(20)
    where = f"/api/v1/nodes/{node.node.name}"
    node.bed.wait_for(
        lambda: node.bed.api.get(where)["metadata"]["labels"]["baton.dev/gpu.product"] == "Tesla-T4",
        "the labels: its rights suffice for what it tells of the node",
    )
    node.create("program", image=WORKLOAD, command=("python3", "-c", REPORT))
    (report,) = result(node, "program")
    assert report["codes"] == [0]
    node.create("steady", image=WORKLOAD, command=("python3", "-c", REPORT, "0", "3600"))
    node.running("steady")
    before, old = node.slots("steady"), ready_pods(node.bed, "agent")
    node.bed.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/baton-agent")
    node.bed.wait_for(lambda: ready_pods(node.bed, "agent") not in (set(), old), "the new agent to be ready", 120.0)
    node.create("next", image=WORKLOAD, command=("python3", "-c", REPORT))
    (report,) = result(node, "next")
    assert report["codes"] == [0]
    node.until_slots("steady", before)
    assert node.pod("steady")["status"]["containerStatuses"][0]["restartCount"] == 0
    node.audit()


def test_the_agent_registers_through_kubelets_registry_and_is_found_again_after_its_restart(
    installed: Bed, node: GpuNode, tmp_path: Path
) -> None:
    old = ready_pods(installed, "agent")
    installed.kubectl("apply", "--server-side", "-k", str(through_the_registry(tmp_path)))
    try:
        node.bed.wait_for(lambda: ready_pods(node.bed, "agent") not in (set(), old), "the new agent to be ready", 120.0)
        announced = [path.name for path in node.node.path("/var/lib/kubelet/plugins_registry").iterdir()]
        assert announced == [socket_name("nvshare.com/gpu").replace(".sock", "-reg.sock")]
        node.create("steady", image=WORKLOAD, command=("python3", "-c", REPORT, "0", "3600"))
        node.running("steady")
        before = node.slots("steady")
        node.restart_kubelet()
        node.until_admitted(1)
        node.until_slots("steady", before)
        assert node.pod("steady")["status"]["containerStatuses"][0]["restartCount"] == 0
        node.audit()
    finally:
        installed.kubectl("rollout", "undo", "-n", NAMESPACE, "daemonset/baton-agent")
        until_ready(installed, "daemonset/baton-agent")
