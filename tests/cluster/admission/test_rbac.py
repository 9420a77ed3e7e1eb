"""The shipped manifests on a real API server: they install, and the programs live with exactly the rights they give.

The API server's audit log is the witness: nothing a program asked for was forbidden, and everything it may do it did in
the course of a few jobs, or there is a reason why not.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.install.apply import manifests
from testbed.bed import Bed, BedOptions
from testbed.errors import BedError
from testbed.kwok import OUTCOME
from testbed.processes import Component
from tests.admission.cases import cron_job, hyper_node, job_flow, member, queue
from tests.cluster.admission.webhooks import NAMESPACE, Replica, called, free_port, install_webhooks, remove_webhooks
from tests.volcano_jobs import Object, container, manifest, task

pytestmark = pytest.mark.cluster

Right = tuple[str, str, str]
"""API group, resource, verb."""

OUTAGE = "only when an answer was lost or a store is behind"
TAKEN = "a name that is taken"
UNUSED: dict[str, dict[Right, str]] = {
    "baton-scheduler": {
        ("", "pods", "get"): OUTAGE,
        ("", "nodes", "get"): "node lock, off by default",
        ("", "nodes", "patch"): "node lock, off by default",
        ("", "persistentvolumes", "patch"): "volumes that wait for their first consumer",
        ("", "persistentvolumeclaims", "patch"): "volumes that wait for their first consumer",
        ("", "events", "patch"): "an event that comes again",
        ("", "pods/eviction", "create"): "preemption",
        ("", "pods/status", "patch"): "pods that cannot be placed",
        ("", "events", "create"): "pods that cannot be placed",
        ("scheduling.volcano.sh", "queues", "create"): "the controller may be faster",
    },
    "baton-controller": {
        ("batch.volcano.sh", "jobs", "get"): OUTAGE,
        ("batch.volcano.sh", "jobs", "patch"): "the name of a claim that was made",
        ("batch.volcano.sh", "jobs/finalizers", "update"): "clusters that check owner references",
        ("batch.volcano.sh", "cronjobs/finalizers", "update"): "clusters that check owner references",
        ("flow.volcano.sh", "jobflows/finalizers", "update"): "clusters that check owner references",
        ("scheduling.volcano.sh", "queues", "get"): OUTAGE,
        ("scheduling.volcano.sh", "queues", "create"): "the scheduler may be faster",
        ("scheduling.volcano.sh", "podgroups", "patch"): "a job that grows",
        ("", "events", "patch"): "an event that comes again",
        ("", "persistentvolumeclaims", "get"): "jobs with volumes",
        ("", "persistentvolumeclaims", "create"): "jobs with volumes",
        ("", "configmaps", "patch"): "a job that grows",
        ("", "configmaps", "get"): TAKEN,
        ("", "services", "get"): TAKEN,
        ("", "secrets", "get"): TAKEN,
        ("networking.k8s.io", "networkpolicies", "get"): TAKEN,
        ("apps", "replicasets", "get"): OUTAGE,
        ("apps", "statefulsets", "get"): OUTAGE,
        ("apps", "daemonsets", "get"): OUTAGE,
        ("batch", "jobs", "get"): OUTAGE,
    },
    "baton-admission": {
        ("", "namespaces", "get"): OUTAGE,
        ("scheduling.volcano.sh", "queues", "get"): OUTAGE,
        ("", "secrets", "update"): "certificates that are due",
    },
}
"""What the jobs of this test do not call for, and what does."""


def baton(bed: Bed, *words: str) -> list[str]:
    command = [sys.executable, "-m", "baton.cli.main", *words, "--kubeconfig", str(bed.kubeconfig), "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def as_account(bed: Bed, account: str, folder: Path) -> Path:
    """A kubeconfig with a token of a service account."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    token = bed.api.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    config = yaml.safe_load(bed.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = NAMESPACE
    made = folder / f"{account}.kubeconfig"
    made.write_text(yaml.safe_dump(config))
    return made


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed(BedOptions(kwok_nodes=3, controller_manager=True)) as made:
        yield made


@pytest.fixture(scope="module")
def installed(bed: Bed) -> list[str]:
    """What `baton install` said the first time."""
    return baton(bed, "install")


def test_an_installation_is_created_then_unchanged_and_kubectl_agrees(bed: Bed, installed: list[str]) -> None:
    assert all(line.endswith(" created") for line in installed)
    again = baton(bed, "install")
    assert [line.removesuffix(" unchanged") for line in again] == [line.removesuffix(" created") for line in installed]
    for folder in ("deploy/crds", "deploy"):
        bed.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", folder)
    assert all(line.endswith(" unchanged (dry run)") for line in baton(bed, "install", "--dry-run"))


@pytest.fixture(scope="module")
def programs(bed: Bed, installed: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Scheduler, controller and webhooks, each as its own service account, with the arguments of its Deployment."""
    folder = tmp_path_factory.mktemp("programs")
    host = bed.record.loopback_address
    replica = Replica(
        bed, free_port(), free_port(), folder / "admission.log", kubeconfig=as_account(bed, "baton-admission", folder)
    )
    remove_webhooks(bed)  # they name a service, and these programs run outside of the cluster
    install_webhooks(bed, replica.port)
    running = []
    for name in ("scheduler", "controller"):
        (deployment,) = (
            each for each in manifests() if each["kind"] == "Deployment" and each["metadata"]["name"] == f"baton-{name}"
        )
        arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        words = [word.replace("--listen=:", f"--listen={host}:") for word in arguments]
        program = Component(
            f"baton-{name}",
            [sys.executable, "-m", "baton.cli.main", *words],
            bed.id,
            folder / f"{name}.log",
            is_ready=lambda: True,
            environment={"KUBECONFIG": str(as_account(bed, f"baton-{name}", folder))},
        )
        running.append(program)
    try:
        replica.start()
        replica.wait_ready()
        bed.wait_for(lambda: called(bed), "the API server to call the webhooks")
        for program in running:
            program.start()
        yield
    finally:
        remove_webhooks(bed)
        replica.kill()
        for program in running:
            program.kill()


def requests_of(bed: Bed, account: str) -> list[dict[str, Any]]:
    name = f"system:serviceaccount:{NAMESPACE}:{account}"
    return [entry for entry in bed.plane.audited(name) if entry["user"]["username"] == name and entry.get("objectRef")]


def right_of(entry: dict[str, Any]) -> Right:
    about = entry["objectRef"]
    resource = about["resource"] + (f"/{about['subresource']}" if about.get("subresource") else "")
    return about.get("apiGroup", ""), resource, entry["verb"]


def rights_given(account: str) -> set[Right]:
    return {
        (group, resource, verb)
        for each in manifests()
        if each["kind"] in ("ClusterRole", "Role") and each["metadata"]["name"] == account
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


SUCCEEDS = {"metadata": {"annotations": {OUTCOME: "succeed"}}, "spec": {"containers": [container()]}}


def live(bed: Bed, namespace: str) -> None:
    """A few jobs of every kind, from their beginning to their end."""
    collection = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs"

    def apply(*objects: Object) -> None:
        bed.kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(objects))

    def phase(path: str) -> str:
        return str(bed.api.get(path).get("status", {}).get("state", {}).get("phase", ""))

    plugins: Object = {"svc": [], "ssh": [], "env": []}
    apply(queue("team"), manifest(task(template=SUCCEEDS), queue="team", plugins=plugins, ttlSecondsAfterFinished=2))
    template = {**manifest(task(template=SUCCEEDS), name="step"), "apiVersion": "flow.volcano.sh/v1alpha1"}
    apply({**template, "kind": "JobTemplate"}, job_flow({"name": "step"}, jobRetainPolicy="delete"))
    apply(cron_job(schedule="@every 1s", jobTemplate={"spec": {"tasks": [task(template=SUCCEEDS)]}}))
    pods = {"labels": {"app": "web"}, "annotations": {}}
    bare = {"metadata": pods, "spec": {"schedulerName": "volcano", "containers": [container()]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": bare}
    apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
    apply(hyper_node(member(regexMatch={"pattern": ".*"}), name=f"{namespace}-all"))
    apply(manifest(name="stays"))
    bed.wait_for(lambda: phase(f"{collection}/stays") == "Running", "a job to run", 120)
    bed.wait_for(lambda: not bed.api.exists(f"{collection}/train"), "a job to complete and go", 120)
    owner = bed.api.get(f"{collection}/stays")["metadata"]
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "stays", "uid": owner["uid"]}
    command = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": {"name": "stop"}}
    apply({**command, "action": "AbortJob", "target": target})
    bed.wait_for(lambda: phase(f"{collection}/stays") == "Aborted", "a job to be stopped", 120)
    flows = f"/apis/flow.volcano.sh/v1alpha1/namespaces/{namespace}/jobflows/pipeline"
    bed.wait_for(lambda: phase(flows) == "Succeed", "a flow to succeed", 120)
    cron = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/cronjobs/nightly"
    bed.wait_for(lambda: bool(bed.api.get(cron).get("status", {}).get("lastScheduleTime")), "a cron job to act", 120)
    bed.api.delete(cron)
    web = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3Dweb"
    bed.wait_for(
        lambda: [pod["spec"].get("nodeName", "") != "" for pod in bed.api.get(web)["items"]] == [True],
        "a bare pod to be placed",
        120,
    )
    bed.kubectl("delete", "deployment", "web", "-n", namespace)
    held = f"/apis/topology.volcano.sh/v1alpha1/hypernodes/{namespace}-all"
    bed.wait_for(lambda: bed.api.get(held).get("status", {}).get("nodeCount") == 3, "the nodes to be counted", 120)
    bed.api.delete(held)


def unused_rights(bed: Bed) -> dict[str, set[Right]]:
    """What each account could do and has not done, without what it is excused from."""
    return {
        account: rights_given(account) - {right_of(entry) for entry in requests_of(bed, account)} - set(excused)
        for account, excused in UNUSED.items()
    }


@pytest.mark.timeout(900)
def test_the_programs_live_with_exactly_their_rights(bed: Bed, programs: None) -> None:
    for account, excused in UNUSED.items():
        assert set(excused) <= rights_given(account), f"{account} is excused from rights that it does not have"
    with bed.namespace() as namespace:
        live(bed, namespace)
        # Counts and marks are written a moment after what they tell of, and the log a moment after that.
        with contextlib.suppress(BedError):
            bed.wait_for(lambda: not any(unused_rights(bed).values()), "every right to be used", 90, poll_s=1)
        # In a namespace that is being deleted everything is forbidden, so this is asked while it is there.
        for account in UNUSED:
            made = requests_of(bed, account)
            forbidden = {right_of(entry) for entry in made if entry.get("responseStatus", {}).get("code") == 403}
            assert forbidden == set(), f"{account} needs more rights"
    assert unused_rights(bed) == {account: set() for account in UNUSED}
