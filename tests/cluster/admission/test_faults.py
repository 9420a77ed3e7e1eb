"""Admission when things go wrong: outages, rotation, several replicas."""

import base64
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from testbed.bed import Bed
from testbed.errors import BedError
from tests.admission.cases import pod as gpu_pod
from tests.admission.cases import pod_group, queue, task_of
from tests.cluster.admission.webhooks import (
    NAMESPACE,
    Kubectl,
    Replica,
    called,
    free_port,
    install_webhooks,
    running,
    trusted_bundles,
)
from tests.cluster.installation import install_crds
from tests.cluster.manifests import pod
from tests.volcano_jobs import container, manifest

pytestmark = pytest.mark.cluster

EAGER = ("--certificate-check", "0.5")
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/baton-admission-tls"


@pytest.fixture(scope="module")
def crds(kwok_bed: Bed) -> None:
    install_crds(kwok_bed)


@pytest.fixture
def admission(crds: None, kwok_bed: Bed, tmp_path: Path) -> Iterator[Replica]:
    with running(kwok_bed, tmp_path) as replica:
        yield replica


def test_an_outage_stops_what_is_ours_and_nobody_else(admission: Replica, kwok_bed: Bed, kwok_namespace: str) -> None:
    kubectl = Kubectl(kwok_bed, kwok_namespace)
    assert kubectl.apply(manifest(name="earlier"), queue("earlier"))[0] == 0
    admission.kill()
    api = kwok_bed.api
    queues = "/apis/scheduling.volcano.sh/v1beta1/queues"

    def status_of(path: str, body: dict[str, Any]) -> int:
        return api.request("POST", path, body)[0]

    pods = f"/api/v1/namespaces/{kwok_namespace}/pods"
    assert status_of(pods, pod("foreign")) == 201
    whole = container(resources={"limits": {"nvidia.com/gpu": 1}})
    assert status_of(pods, {**gpu_pod(whole), "metadata": {"name": "whole-card"}}) == 201
    assert status_of(pods, {**gpu_pod(), "metadata": {"name": "ours-without-gpu"}}) == 201
    shared = {"limits": {"nvshare.com/gpu": 1}}
    assert status_of("/api/v1/namespaces/kube-system/pods?dryRun=All", gpu_pod(container(resources=shared))) == 201
    groups = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{kwok_namespace}/podgroups"
    assert status_of(groups, pod_group(minMember=1)) == 201

    jobs = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{kwok_namespace}/jobs"
    assert status_of(jobs, manifest(name="later")) == 500
    assert api.request("DELETE", f"{queues}/earlier")[0] == 500, "others may be below it"
    assert status_of(pods, {**gpu_pod(container(resources=shared)), "metadata": {"name": "shared"}}) == 500

    api.patch(f"{jobs}/earlier", {"metadata": {"labels": {"touched": "yes"}, "finalizers": ["baton.dev/test"]}})
    api.delete(f"{jobs}/earlier")
    api.patch(f"{jobs}/earlier", {"metadata": {"finalizers": None}})
    kwok_bed.wait_for(lambda: not api.exists(f"{jobs}/earlier"), "a job to be deletable without us")

    admission.start()
    admission.wait_ready()
    kwok_bed.wait_for(lambda: status_of(jobs, manifest(name="later")) == 201, "jobs to be accepted again")
    api.delete(f"{queues}/earlier")


def test_pods_of_our_controller_are_made_without_us(admission: Replica, kwok_bed: Bed, kwok_namespace: str) -> None:
    admission.kill()
    controller = f"system:serviceaccount:{NAMESPACE}:baton-controller"
    made = gpu_pod(container(resources={"limits": {"nvshare.com/gpu": 1}}))
    path = f"/api/v1/namespaces/{kwok_namespace}/pods"
    assert kwok_bed.api.request("POST", path, made)[0] == 500
    kwok_bed.kubectl("create", "clusterrolebinding", "test-pods", "--clusterrole=edit", f"--user={controller}")
    try:

        def created() -> bool:
            words = ("create", "-n", kwok_namespace, "-f", "-", f"--as={controller}")
            try:
                return "created" in kwok_bed.kubectl(*words, stdin=yaml.safe_dump(made))
            except BedError as error:
                if "is forbidden: User" not in str(error):
                    raise
                return False

        kwok_bed.wait_for(created, "the API server to know the controller's right, and to make the pod")
    finally:
        kwok_bed.kubectl("delete", "clusterrolebinding", "test-pods")


def serving_certificate(replica: Replica) -> x509.Certificate:
    """What a replica shows to somebody who trusts what the API server is told to trust."""
    bundle = base64.b64decode(trusted_bundles(replica.bed)[0]).decode()
    context = ssl.create_default_context(cadata=bundle)
    with (
        socket.create_connection(("127.0.0.1", replica.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def test_certificates_change_while_requests_flow_and_none_fails(
    crds: None, kwok_bed: Bed, kwok_namespace: str, tmp_path: Path
) -> None:
    """Two more replicas want other names in the certificate and make it anew all the time; ours serves what is there.

    That certificates are renewed before they end is shown in virtual time, in tests/admission.
    """
    others = [
        Replica(kwok_bed, free_port(), free_port(), tmp_path / f"{name}.log", ("--host", name, *EAGER))
        for name in ("one", "two")
    ]
    with contextlib.ExitStack() as stack:
        replica = stack.enter_context(running(kwok_bed, tmp_path, *EAGER))
        failures: list[str] = []
        answered = 0
        stop = threading.Event()
        path = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{kwok_namespace}/jobs?dryRun=All"

        def ask() -> None:
            nonlocal answered
            while not stop.is_set():
                status, answer = kwok_bed.api.request("POST", path, manifest(task_of(container(command="train.sh"))))
                if status != 422 or b"expected a list" not in answer:
                    failures.append(f"{status} {answer[:300]!r}")
                answered += 1

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        seen = set()

        def renewed() -> bool:
            seen.add(serving_certificate(replica).serial_number)
            return len(seen) > 3

        try:
            for other in others:
                stack.callback(other.kill)
                other.start()
            kwok_bed.wait_for(renewed, "three renewals", 120)
        finally:
            stop.set()
            for thread in asking:
                thread.join()
        assert answered > 20
        assert failures == []
        assert replica.process is not None
        assert replica.process.poll() is None, "nothing was restarted"


def test_a_spoilt_secret_is_made_anew_and_trusted(admission: Replica, kwok_bed: Bed, tmp_path: Path) -> None:
    before = trusted_bundles(kwok_bed)[0]
    spoilt = {key: base64.b64encode(b"nonsense").decode() for key in ("tls.crt", "tls.key", "keyring.json")}
    admission.kill()
    kwok_bed.api.patch(SECRET, {"data": spoilt})
    admission.start()
    admission.wait_ready()
    kwok_bed.wait_for(lambda: called(kwok_bed), "the API server to trust the new authority")
    assert set(trusted_bundles(kwok_bed)) != {before}
    assert len(set(trusted_bundles(kwok_bed))) == 1


def test_replicas_share_one_keyring_and_either_answers(admission: Replica, kwok_bed: Bed, tmp_path: Path) -> None:
    second = Replica(kwok_bed, free_port(), free_port(), tmp_path / "second.log")
    second.start()
    try:
        second.wait_ready()
        assert serving_certificate(second) == serving_certificate(admission)
        install_webhooks(kwok_bed, second.port)
        assert admission.terminate() == 0
        kwok_bed.wait_for(lambda: called(kwok_bed), "the second replica to be called")
    finally:
        second.kill()


def test_a_replica_that_is_told_to_stop_answers_until_it_is_gone(
    crds: None, kwok_bed: Bed, kwok_namespace: str, tmp_path: Path
) -> None:
    with running(kwok_bed, tmp_path, "--drain", "8") as replica:
        path = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{kwok_namespace}/jobs?dryRun=All"
        ended: list[int] = []
        ender = threading.Thread(target=lambda: ended.append(replica.terminate()))
        ender.start()
        kwok_bed.wait_for(lambda: not replica.ready(), "the replica to say that it is leaving")
        assert kwok_bed.api.request("POST", path, manifest())[0] == 201
        ender.join()
        assert ended == [0]
