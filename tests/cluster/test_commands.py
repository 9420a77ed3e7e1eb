"""The commands for a cluster, against one where Baton runs."""

import json
from pathlib import Path

import pytest
import yaml

from testbed.bed import Bed
from tests.cluster.conftest import GPUS
from tests.cluster.installation import install_crds
from tests.cluster.programs import WITHOUT_SHARES, BatonPrograms, command

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

GPU_JOB = ("--image", "busybox:1", "--requests", "cpu=500m", "--limits", "nvidia.com/gpu=1")


def test_a_job_is_run_looked_at_suspended_resumed_and_deleted(
    baton_cluster: BatonPrograms, baton_namespace: str
) -> None:
    where = ("-n", baton_namespace)
    made = json.loads(
        baton_cluster.baton("job", "run", "train", "-r", "2", *GPU_JOB, *where, "-o", "json", "--", "train.sh", "-x")
    )
    assert made["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"] == ["train.sh", "-x"]
    assert made["spec"]["minAvailable"] == 2, "all of its pods start together"
    baton_cluster.until_phase(baton_namespace, "train", "Running")
    baton_cluster.until_pods(baton_namespace, "train", 2, "Running")
    (row,) = baton_cluster.baton("job", "list", *where).splitlines()[1:]
    assert row.split()[:6] == ["train", "default", "Running", "Batch", "2", "2"]
    seen = baton_cluster.baton("job", "view", "train", *where)
    assert "starts with: 2 of 2 pods" in seen
    assert "nvidia.com/gpu=1" in seen
    pods = baton_cluster.baton("pod", "list", "--job", "train", *where).splitlines()[1:]
    assert [line.split()[2] for line in pods] == ["Running", "Running"]
    baton_cluster.baton("job", "suspend", "train", *where)
    baton_cluster.until_phase(baton_namespace, "train", "Aborted")
    assert "is suspended" in baton_cluster.baton("why", "train", *where)
    baton_cluster.baton("job", "resume", "train", *where)
    baton_cluster.until_phase(baton_namespace, "train", "Running")
    baton_cluster.baton("job", "delete", "train", *where)
    assert json.loads(baton_cluster.baton("job", "list", *where, "-o", "json")) == []


def test_vcctl_says_the_same_in_volcanos_columns(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    where = ("-n", baton_namespace)
    assert baton_cluster.vcctl("job", "list", *where) == "No resources found\n"
    assert (
        baton_cluster.vcctl("job", "run", "-N", "plain", "-r", "2", "-m", "2", *where) == "run job plain successfully\n"
    )
    baton_cluster.until_pods(baton_namespace, "plain", 2, "Running")
    job = baton_cluster.until_phase(baton_namespace, "plain", "Running")
    baton_cluster.bed.wait_for(
        lambda: baton_cluster.job(baton_namespace, "plain")["status"].get("running") == 2, "two pods to be counted"
    )
    day = job["metadata"]["creationTimestamp"].partition("T")[0]
    assert baton_cluster.vcctl("job", "list", *where) == (
        "Name    Creation       Phase       JobType     Replicas    Min   Pending   Running   Succeeded   Failed    "
        "Unknown     RetryCount\n"
        f"plain   {day}     Running     Batch       2           2     0         2         0           0         "
        "0           0         \n"
    )
    assert baton_cluster.vcctl("job", "view", "-N", "plain", *where).startswith(
        f"Name:       \tplain\nNamespace:  \t{baton_namespace}\n"
    )
    assert baton_cluster.vcctl("pod", "list", "-j", "plain", *where).splitlines()[0].split() == [
        "Name", "Ready", "Status", "Restart", "Age",
    ]  # fmt: skip
    baton_cluster.vcctl("job", "suspend", "-N", "plain", *where)
    baton_cluster.until_phase(baton_namespace, "plain", "Aborted")
    baton_cluster.vcctl("job", "resume", "-N", "plain", *where)
    baton_cluster.until_phase(baton_namespace, "plain", "Running")
    assert baton_cluster.vcctl("job", "delete", "-N", "plain", *where) == "delete job plain successfully\n"
    assert "vcctl" not in baton_cluster.bed.kubectl("get", "vcjob", *where)


def test_a_queue_is_made_closed_opened_and_deleted(baton_cluster: BatonPrograms) -> None:
    baton_cluster.baton("queue", "create", "cli-queue", "--weight", "3", "--capability", "nvidia.com/gpu=4")

    def state() -> str:
        queue = json.loads(baton_cluster.baton("queue", "get", "cli-queue", "-o", "json"))
        return str(queue.get("status", {}).get("state", ""))

    baton_cluster.bed.wait_for(lambda: state() == "Open", "the queue to be open", poll_s=0.5)
    rows = {line.split()[0]: line.split() for line in baton_cluster.baton("queue", "list").splitlines()[1:]}
    assert rows["cli-queue"][1:3] == ["3", "Open"]
    assert rows["cli-queue"][-1] == "nvidia.com/gpu=4"
    baton_cluster.baton("queue", "operate", "cli-queue", "--action", "close")
    baton_cluster.bed.wait_for(lambda: state() == "Closed", "the queue to be closed", poll_s=0.5)
    baton_cluster.baton("queue", "operate", "cli-queue", "--action", "update", "--weight", "5")
    assert baton_cluster.vcctl("queue", "get", "-n", "cli-queue").splitlines()[1].split()[:3] == [
        "cli-queue", "5", "Closed",
    ]  # fmt: skip
    baton_cluster.baton("queue", "delete", "cli-queue")


@pytest.fixture
def waiting_job(baton_cluster: BatonPrograms, baton_namespace: str) -> str:
    """A gang of one GPU more than there are: admitted, because nothing here counts shares, and waiting for nodes."""
    baton_cluster.configure(WITHOUT_SHARES)
    baton_cluster.baton("job", "run", "wide", "-r", str(GPUS + 1), *GPU_JOB, "-n", baton_namespace)
    pods = baton_cluster.until_pods(baton_namespace, "wide", GPUS + 1, "Pending")
    why = f"/why/{baton_namespace}/{pods[0]['metadata']['name']}"
    baton_cluster.bed.wait_for(
        lambda: f"{GPUS} more could start" in json.loads(baton_cluster.ask("scheduler", why))["paragraph"],
        "the scheduler to know all of its pods",
    )
    return "wide"


def test_why_gives_the_sentence_the_nodes_and_what_would_help(
    baton_cluster: BatonPrograms, baton_namespace: str, waiting_job: str
) -> None:
    asked = ("why", waiting_job, "-n", baton_namespace)
    url = ("--scheduler", f"http://{baton_cluster.address('scheduler')}")
    told = json.loads(baton_cluster.baton(*asked, *url, "-o", "json"))
    assert (told["source"], told["waits"]) == ("scheduler", True)
    assert told["verdict"]["min_member"] == GPUS + 1
    text = baton_cluster.baton(*asked, *url)
    assert text.startswith(f"{baton_namespace}/{waiting_job} waits in queue default: ")
    assert f"The gang needs {GPUS + 1} pods at once; 0 run already and {GPUS} more could start." in text
    assert "OF 2 NODES" in text
    here = json.loads(baton_cluster.baton(*asked, "-o", "json"))
    assert here["source"] == "here", "no pod holds the lease, so the engine was built from the API server"
    for field in ("cause", "queue", "min_member", "nodes"):
        assert here["verdict"][field] == told["verdict"][field]


def test_why_knows_bare_pods_and_those_that_do_not_wait(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    def pod(name: str, scheduler: str, gpus: int) -> None:
        container = {"name": "main", "image": "busybox:1", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
        baton_cluster.bed.api.create(
            f"/api/v1/namespaces/{baton_namespace}/pods",
            {"metadata": {"name": name}, "spec": {"schedulerName": scheduler, "containers": [container]}},
        )

    where = ("-n", baton_namespace, "--scheduler", baton_cluster.address("scheduler"))
    pod("small", "baton", 1)
    baton_cluster.bed.wait_for_pod(baton_namespace, "small", "Running")
    assert baton_cluster.baton("why", "small", *where).startswith(f"{baton_namespace}/small runs on kwok-")
    pod("large", "baton", GPUS)
    baton_cluster.bed.wait_for(
        lambda: b"no node can take" in baton_cluster.ask("scheduler", f"/why/{baton_namespace}/large"),
        "the scheduler to have looked at the pod and its group",
    )
    told = baton_cluster.baton("why", "pod/large", *where)
    assert told.startswith(f"{baton_namespace}/large waits in queue default: no node can take")
    pod("foreign", "somebody-else", 1)
    assert "belongs to the scheduler 'somebody-else'" in baton_cluster.baton("why", "foreign", *where)


def test_a_dumped_state_is_decided_again_elsewhere(
    baton_cluster: BatonPrograms, baton_namespace: str, waiting_job: str, tmp_path: Path
) -> None:
    file = tmp_path / "state.jsonl"
    baton_cluster.baton("state", "dump", str(file), "--scheduler", baton_cluster.address("scheduler"))
    plan = json.loads(baton_cluster.baton("state", "replay", str(file), "-o", "json"))
    assert plan["bindings"] == []
    (verdict,) = [item for item in plan["verdicts"] if item["group"].startswith(f"{baton_namespace}/{waiting_job}-")]
    assert verdict["min_member"] == GPUS + 1
    assert "0 pods would be bound" in baton_cluster.baton("state", "replay", str(file))
    listed = tmp_path / "listed.jsonl"
    baton_cluster.baton("state", "dump", str(listed))
    assert json.loads(baton_cluster.baton("state", "replay", str(listed), "-o", "json"))["bindings"] == []
    without_gangs = tmp_path / "other.conf"
    without_gangs.write_text(
        'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - name: predicates\n  - name: nodeorder\n'
    )
    other = json.loads(baton_cluster.baton("state", "replay", str(file), "--config", str(without_gangs), "-o", "json"))
    assert len(other["bindings"]) == GPUS, "without gangs the pods that fit would be bound"


def test_what_is_not_there_is_a_sentence(kwok_bed: Bed, kwok_namespace: str, tmp_path: Path) -> None:
    install_crds(kwok_bed)
    for words, sentence in (
        (("job", "view", "nope"), f"baton: there is no job nope in namespace {kwok_namespace}\n"),
        (("why", "nope"), f"baton: there is no pod or job nope in namespace {kwok_namespace}\n"),
        (("job", "delete", "nope"), f"baton: there is no job nope in namespace {kwok_namespace}\n"),
    ):
        done = command(kwok_bed, "baton", *words, "-n", kwok_namespace)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
    done = command(kwok_bed, "baton", "job", "list", "-n", kwok_namespace)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"no jobs found in namespace {kwok_namespace}; use -A to search all namespaces\n"
    done = command(kwok_bed, "baton", "queue", "get", "nope")
    assert (done.returncode, done.stderr) == (1, "baton: there is no queue nope\n")
    done = command(kwok_bed, "vcctl", "job", "view", "-N", "nope", "-n", kwok_namespace)
    assert (done.returncode, done.stdout) == (255, 'Failed to view job: jobs.batch.volcano.sh "nope" not found\n')
    stopped = tmp_path / "kubeconfig"
    config = yaml.safe_load(kwok_bed.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    stopped.write_text(yaml.safe_dump(config))
    done = command(kwok_bed, "baton", "job", "list", "--kubeconfig", str(stopped))
    assert done.returncode == 3
    assert done.stderr.startswith("baton: the API server https://127.0.0.1:1 does not answer: ")
    assert done.stderr.count("\n") == 1
