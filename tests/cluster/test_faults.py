"""The fault levers: any program may be killed, frozen or restarted and the wire cut, and the bed recovers."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.bed import Bed, BedOptions
from testbed.errors import BedError
from testbed.images import BUSYBOX
from testbed.kwok import OUTCOME
from tests.cluster.manifests import pod

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def whole_bed(needs_kubelets: None) -> Iterator[Bed]:
    """Every kind of component that a bed can have."""
    options = BedOptions(kubelets=1, kwok_nodes=1, controller_manager=True, scheduler=True, images=(BUSYBOX,))
    with Bed(options) as bed:
        yield bed


def run_job(bed: Bed, namespace: str, node: str, annotations: dict[str, str]) -> None:
    """A job on one node, from its creation to its end."""
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    spec = pod("unused", ["true"], nodeSelector={"kubernetes.io/hostname": node})["spec"]
    template = {"metadata": {"annotations": annotations}, "spec": spec}
    job = {"metadata": {"name": f"on-{node}"}, "spec": {"template": template}}
    bed.wait_for(lambda: bool(bed.api.create(jobs, job)), f"the job on {node} to be accepted")
    bed.wait_for(
        lambda: bed.api.get(f"{jobs}/on-{node}")["status"].get("succeeded") == 1, f"the job on {node} to finish", 120
    )


@pytest.mark.parametrize(
    "name",
    [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
        "node-1 kubelet",
        "node-1 containerd",
    ],
)
def test_a_killed_component_is_restarted_and_the_bed_recovers(whole_bed: Bed, name: str) -> None:
    component = whole_bed.component(name)
    component.kill()
    assert not component.is_running
    with pytest.raises(BedError, match="is not running"):
        component.stop()
    component.start()
    component.wait_ready()
    with whole_bed.namespace() as namespace:
        run_job(whole_bed, namespace, "node-1", {})
        run_job(whole_bed, namespace, "kwok-0", {OUTCOME: "succeed"})


def test_a_frozen_scheduler_schedules_nothing_until_it_goes_on(whole_bed: Bed) -> None:
    with whole_bed.namespace() as namespace:
        whole_bed.scheduler.stop()
        try:
            whole_bed.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("patient", nodeSelector={"type": "kwok"}))
            # A scheduler that is alive binds within this request's time; the frozen one cannot, ever.
            whole_bed.kubectl("get", "nodes")
            assert "nodeName" not in whole_bed.pod(namespace, "patient")["spec"]
        finally:
            whole_bed.scheduler.resume()
        whole_bed.wait_for_pod(namespace, "patient", "Running")


def get_version(bed: Bed, kubeconfig: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    words = [
        str(bed.kubectl_program),
        f"--kubeconfig={kubeconfig}",
        f"--request-timeout={timeout_s}s",
        "get",
        "--raw",
        "/version",
    ]
    return subprocess.run(words, capture_output=True, text=True)


def test_the_wire_to_the_api_server_can_be_cut_muted_and_healed(whole_bed: Bed) -> None:
    proxy, kubeconfig = whole_bed.proxy()
    assert get_version(whole_bed, kubeconfig, 30).returncode == 0
    proxy.cut()
    assert "refused" in get_version(whole_bed, kubeconfig, 30).stderr
    proxy.heal()
    assert get_version(whole_bed, kubeconfig, 30).returncode == 0
    proxy.mute()
    muted = get_version(whole_bed, kubeconfig, 1)
    assert "Timeout" in muted.stderr or "timeout" in muted.stderr or "deadline" in muted.stderr
    proxy.heal()
    assert get_version(whole_bed, kubeconfig, 30).returncode == 0
