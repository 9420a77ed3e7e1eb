"""The manifests of examples/, applied with kubectl on a cluster where Baton runs: scheduled as they say, and completed.

Pods are on KWOK nodes: they run as soon as they are bound and end when the test says so. What a scheduler did, and
when, is read from the API server's audit log.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from testbed.errors import BedError
from tests.cluster.conftest import GPUS
from tests.cluster.programs import EXAMPLES, WITHOUT_SHARES, BatonPrograms

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

DEFAULT = (EXAMPLES / "scheduler" / "training.conf").read_text()


@pytest.fixture(autouse=True)
def configuration(baton_cluster: BatonPrograms) -> None:
    """Every test starts from the tutorials' configuration."""
    baton_cluster.configure(DEFAULT)


@pytest.fixture
def queues(baton_cluster: BatonPrograms, baton_namespace: str) -> Iterator[list[str]]:
    """The queues that a test makes, deleted when their jobs are gone."""
    made: list[str] = []
    yield made
    baton_cluster.empty(baton_namespace)
    for name in made:
        baton_cluster.bed.api.delete(f"/apis/scheduling.volcano.sh/v1beta1/queues/{name}")


def completed(cluster: BatonPrograms, namespace: str, job: str) -> None:
    """Let all pods of a job succeed, as they come to run, until it is complete."""

    def over() -> bool:
        cluster.finish(namespace, job)
        return cluster.phase(namespace, job) == "Completed"

    cluster.bed.wait_for(over, f"job {job} to be Completed", 120.0)


def environment(pod: dict[str, object]) -> dict[str, str]:
    container = pod["spec"]["containers"][0]  # type: ignore[index]  # a manifest is an object of objects
    return {item["name"]: item.get("value", "") for item in container.get("env", [])}


def test_a_gang_starts_together_or_not_at_all(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    baton_cluster.apply(baton_namespace, EXAMPLES / "gang.yaml")
    baton_cluster.until_phase(baton_namespace, "gang", "Running")
    baton_cluster.until_pods(baton_namespace, "gang", 4, "Running")
    created = [
        r.at
        for r in baton_cluster.requests(baton_namespace)
        if (r.verb, r.resource, r.subresource) == ("create", "pods", "")
    ]
    bound = baton_cluster.bindings(baton_namespace)
    assert len(created) == len(bound) == 4
    assert max(created) < min(request.at for request in bound)
    completed(baton_cluster, baton_namespace, "gang")


def test_no_member_of_a_gang_is_bound_before_all_of_them_can_be(
    baton_cluster: BatonPrograms, baton_namespace: str
) -> None:
    """Two GPUs are free and the gang needs four: nothing is bound until the others are given back, then all at once."""
    baton_cluster.configure(WITHOUT_SHARES)
    baton_cluster.apply(baton_namespace, yaml.safe_dump(_gang("filler", GPUS - 2)))
    baton_cluster.until_pods(baton_namespace, "filler", GPUS - 2, "Running")
    baton_cluster.apply(baton_namespace, yaml.safe_dump(_gang("whole", 4)))
    baton_cluster.until_pods(baton_namespace, "whole", 4, "Pending")

    def told() -> bool:
        conditions = baton_cluster.group(baton_namespace, "whole").get("status", {}).get("conditions") or []
        return any(item["type"] == "Unschedulable" for item in conditions)

    baton_cluster.bed.wait_for(told, "the group to say that it cannot be placed")
    assert baton_cluster.bindings(baton_namespace, "whole-") == []
    baton_cluster.finish(baton_namespace, "filler")
    baton_cluster.until_pods(baton_namespace, "whole", 4, "Running")
    bound = baton_cluster.bindings(baton_namespace, "whole-")
    assert len(bound) == 4
    assert bound[0].at > ends(baton_cluster, baton_namespace, "filler-")[1], "two more GPUs had to be free first"
    completed(baton_cluster, baton_namespace, "whole")


def ends(cluster: BatonPrograms, namespace: str, prefix: str) -> list[str]:
    """When each pod ended: KWOK's last word on it."""
    told: dict[str, str] = {}
    for request in cluster.requests(namespace):
        if request.subresource == "status" and request.name.startswith(prefix) and request.agent.startswith("kwok"):
            told[request.name] = request.at
    return sorted(told.values())


def _gang(name: str, pods: int) -> dict[str, object]:
    """A job of whole GPUs whose pods start together."""
    job: dict[str, object] = yaml.safe_load((EXAMPLES / "gang.yaml").read_text())
    job["metadata"] = {"name": name}
    spec = job["spec"]
    assert isinstance(spec, dict)
    spec["minAvailable"] = spec["tasks"][0]["replicas"] = pods
    spec["tasks"][0]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    return job


def running_by_job(cluster: BatonPrograms, namespace: str) -> Counter[str]:
    pods = cluster.bed.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return Counter(
        pod["metadata"]["labels"]["volcano.sh/job-name"] for pod in pods if pod["status"].get("phase") == "Running"
    )


def pending(cluster: BatonPrograms, namespace: str, count: int) -> None:
    """Wait until so many pods of a namespace wait."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.bed.wait_for(lambda: len(cluster.bed.api.get(path)["items"]) == count, f"{count} pods to be there", 90.0)


GAUGES = ("requested", "deserved", "allocated")


def queue_gauges(cluster: BatonPrograms) -> dict[tuple[str, str, str], float]:
    """What the scheduler tells Prometheus of queues, by metric, queue and resource."""
    families = text_string_to_metric_families(cluster.ask("scheduler", "/metrics").decode())
    return {
        (sample.name, sample.labels["queue"], sample.labels.get("resource", "")): sample.value
        for family in families
        for sample in family.samples
        if "queue" in sample.labels
    }


def test_queues_share_by_weight(baton_cluster: BatonPrograms, baton_namespace: str, queues: list[str]) -> None:
    """Three to one of eight GPUs, when both have had their say before the first pod is placed."""
    queues += ["research", "service"]
    with baton_cluster.cordoned():
        baton_cluster.apply(baton_namespace, EXAMPLES / "queues.yaml")
        pending(baton_cluster, baton_namespace, 16)
    baton_cluster.bed.wait_for(
        lambda: running_by_job(baton_cluster, baton_namespace) == {"research-sweep": 6, "service-batch": 2},
        "six pods of research and two of service to run",
        90.0,
    )
    gauges = queue_gauges(baton_cluster)
    gpus = [gauges[f"baton_queue_{what}", queue, "nvidia.com/gpu"] for queue in queues for what in GAUGES]
    assert gpus == [8, 6, 6, 8, 2, 2]
    assert [gauges["baton_queue_share", queue, ""] for queue in queues] == [1, 1]
    completed(baton_cluster, baton_namespace, "research-sweep")
    completed(baton_cluster, baton_namespace, "service-batch")


def test_jobs_of_one_queue_grow_side_by_side(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    with baton_cluster.cordoned():
        baton_cluster.apply(baton_namespace, EXAMPLES / "drf.yaml")
        pending(baton_cluster, baton_namespace, 16)
    baton_cluster.bed.wait_for(
        lambda: running_by_job(baton_cluster, baton_namespace) == {"drf-first": 4, "drf-second": 4},
        "four pods of each job to run",
        90.0,
    )
    completed(baton_cluster, baton_namespace, "drf-first")
    completed(baton_cluster, baton_namespace, "drf-second")


def test_an_urgent_job_preempts_no_more_than_it_needs(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    baton_cluster.configure((EXAMPLES / "scheduler" / "preemption.conf").read_text())
    baton_cluster.apply(baton_namespace, EXAMPLES / "preemption.yaml")
    before = {pod["metadata"]["uid"] for pod in baton_cluster.until_pods(baton_namespace, "patient", GPUS, "Running")}
    baton_cluster.apply(baton_namespace, EXAMPLES / "preemption-urgent.yaml")
    baton_cluster.until_pods(baton_namespace, "urgent", 2, "Running")
    after = {pod["metadata"]["uid"] for pod in baton_cluster.pods(baton_namespace, "patient")}
    assert len(before & after) == GPUS - 2, "two pods made room and no other was touched"
    completed(baton_cluster, baton_namespace, "urgent")
    completed(baton_cluster, baton_namespace, "patient")


def test_a_queue_takes_back_what_it_deserves(
    baton_cluster: BatonPrograms, baton_namespace: str, queues: list[str]
) -> None:
    queues += ["borrower", "owner"]
    baton_cluster.configure((EXAMPLES / "scheduler" / "reclaim.conf").read_text())
    baton_cluster.apply(baton_namespace, EXAMPLES / "reclaim.yaml")
    baton_cluster.until_pods(baton_namespace, "borrowing", GPUS, "Running")
    baton_cluster.apply(baton_namespace, EXAMPLES / "reclaim-owner.yaml")
    baton_cluster.until_pods(baton_namespace, "owning", 4, "Running")
    assert running_by_job(baton_cluster, baton_namespace)["borrowing"] == GPUS - 4
    completed(baton_cluster, baton_namespace, "owning")
    completed(baton_cluster, baton_namespace, "borrowing")


def test_policies_decide_what_becomes_of_the_whole(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    baton_cluster.apply(baton_namespace, EXAMPLES / "policies.yaml")
    first = baton_cluster.until_pods(baton_namespace, "policies", 3, "Running")
    baton_cluster.finish(baton_namespace, "policies", "fail", task="data")

    def restarted() -> bool:
        pods = baton_cluster.pods(baton_namespace, "policies")
        fresh = {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") == "Running"}
        return len(fresh) == 3 and not fresh & {pod["metadata"]["uid"] for pod in first}

    baton_cluster.bed.wait_for(restarted, "all three pods to be others", 90.0)
    assert baton_cluster.job(baton_namespace, "policies")["status"]["retryCount"] == 1
    baton_cluster.finish(baton_namespace, "policies", task="train")
    baton_cluster.until_phase(baton_namespace, "policies", "Completed")


def test_a_task_waits_for_the_one_it_depends_on(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    baton_cluster.apply(baton_namespace, EXAMPLES / "depends-on.yaml")
    baton_cluster.until_pods(baton_namespace, "depends-on", 3, "Running")
    requests = baton_cluster.requests(baton_namespace)
    bound = {request.name: request.at for request in baton_cluster.bindings(baton_namespace)}
    created = {
        r.name: r.at for r in requests if (r.verb, r.resource, r.subresource) == ("create", "pods", "") and r.name
    }
    workers = [at for name, at in created.items() if "-worker-" in name]
    assert len(workers) == 2
    assert min(workers) > bound["depends-on-coordinator-0"]
    completed(baton_cluster, baton_namespace, "depends-on")


def test_pytorch_pods_know_their_master_and_rank(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    baton_cluster.apply(baton_namespace, EXAMPLES / "pytorch.yaml")
    pods = baton_cluster.until_pods(baton_namespace, "pytorch", 3, "Running")
    known = {pod["metadata"]["name"]: environment(pod) for pod in pods}
    assert {name: each["RANK"] for name, each in known.items()} == {
        "pytorch-master-0": "0",
        "pytorch-worker-0": "1",
        "pytorch-worker-1": "2",
    }
    for each in known.values():
        assert each["MASTER_ADDR"].startswith("pytorch-master-0")
        assert (each["MASTER_PORT"], each["WORLD_SIZE"]) == ("23456", "3")
    baton_cluster.finish(baton_namespace, "pytorch", task="master")
    baton_cluster.until_phase(baton_namespace, "pytorch", "Completed")


def test_tensorflow_pods_know_the_cluster_and_their_task(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    baton_cluster.apply(baton_namespace, EXAMPLES / "tensorflow.yaml")
    pods = baton_cluster.until_pods(baton_namespace, "tensorflow", 3, "Running")
    for pod in pods:
        told = yaml.safe_load(environment(pod)["TF_CONFIG"])
        assert [len(told["cluster"][role]) for role in ("ps", "worker")] == [1, 2]
        role, index = pod["metadata"]["name"].split("-")[1:]
        assert told["task"] == {"type": role, "index": int(index)}
    baton_cluster.finish(baton_namespace, "tensorflow", task="worker")
    baton_cluster.until_phase(baton_namespace, "tensorflow", "Completed")


def test_an_mpi_master_knows_its_workers_and_can_reach_them(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    baton_cluster.apply(baton_namespace, EXAMPLES / "mpi.yaml")
    pods = baton_cluster.until_pods(baton_namespace, "mpi", 3, "Running")
    (master,) = [pod for pod in pods if pod["metadata"]["name"] == "mpi-master-0"]
    hosts = environment(master)["MPI_HOST"].split(",")
    assert [host.partition(".")[0] for host in hosts] == ["mpi-worker-0", "mpi-worker-1"]
    where = f"/api/v1/namespaces/{baton_namespace}"
    assert baton_cluster.bed.api.exists(f"{where}/services/mpi")
    assert baton_cluster.bed.api.exists(f"{where}/secrets/mpi-ssh")
    mounted = {mount["mountPath"] for mount in master["spec"]["containers"][0]["volumeMounts"]}
    assert "/root/.ssh" in mounted
    baton_cluster.finish(baton_namespace, "mpi", task="master")
    baton_cluster.until_phase(baton_namespace, "mpi", "Completed")


def test_ray_workers_join_a_head_and_the_driver_ends_it_all(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    baton_cluster.apply(baton_namespace, EXAMPLES / "ray.yaml")
    pods = baton_cluster.until_pods(baton_namespace, "ray", 4, "Running")
    commands = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["command"][-1] for pod in pods}
    assert commands["ray-head-0"].startswith("ray start --head --block ")
    joins = "ray start --block --address=ray-head-0.ray:6379"
    assert (commands["ray-worker-0"], commands["ray-worker-1"]) == (joins, joins)
    assert commands["ray-driver-0"] == "train.py"
    service = baton_cluster.bed.api.get(f"/api/v1/namespaces/{baton_namespace}/services/ray-head-svc")
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {
        "gcs": 6379,
        "dashboard": 8265,
        "client-server": 10001,
    }
    baton_cluster.finish(baton_namespace, "ray", task="driver")
    baton_cluster.until_phase(baton_namespace, "ray", "Completed")


def test_a_training_job_as_tutorials_have_it(baton_cluster: BatonPrograms, baton_namespace: str) -> None:
    baton_cluster.apply(baton_namespace, EXAMPLES / "training.yaml")
    pods = baton_cluster.until_pods(baton_namespace, "training", 2, "Running")
    for index, pod in enumerate(pods):
        known = environment(pod)
        assert (known["VC_TASK_INDEX"], known["VK_TASK_INDEX"]) == (str(index), str(index))
        assert pod["spec"]["priority"] == 1_000_000
        assert pod["spec"]["subdomain"] == "training"
    completed(baton_cluster, baton_namespace, "training")


def test_a_command_as_a_string_is_refused_with_the_right_form(
    baton_cluster: BatonPrograms, baton_namespace: str
) -> None:
    text = (EXAMPLES / "training.yaml").read_text()
    wrong = text.replace('command: ["train.sh"]', "command: train.sh")
    assert wrong != text
    with pytest.raises(BedError) as refused:
        baton_cluster.apply(baton_namespace, wrong)
    said = str(refused.value)
    assert "command" in said
    assert '["train.sh"]' in said, "the sentence shows the right form"
    jobs = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{baton_namespace}/jobs"
    assert baton_cluster.bed.api.get(jobs)["items"] == []


def test_every_example_is_applied_somewhere() -> None:
    """A manifest that no test applies may rot."""
    tests = Path(__file__).read_text() + (Path(__file__).parents[1] / "test_one_pod.py").read_text()
    assert [path.name for path in sorted(EXAMPLES.glob("*.yaml")) if f'"{path.name}"' not in tests] == []


@pytest.fixture
def racks(baton_cluster: BatonPrograms) -> Iterator[dict[str, str]]:
    """Each node in a rack of its own, by label; hyper nodes are deleted and labels taken away afterwards."""
    api = baton_cluster.bed.api
    rack_of = dict(zip(sorted(baton_cluster.bed.ready_nodes()), "ab", strict=True))
    for node, rack in rack_of.items():
        api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"example.com/rack": rack}}})
    yield rack_of
    api.delete(HYPER_NODES)
    for node in rack_of:
        api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"example.com/rack": None}}})


HYPER_NODES = "/apis/topology.volcano.sh/v1alpha1/hypernodes"


def test_gangs_and_their_partitions_stay_within_racks(
    baton_cluster: BatonPrograms, baton_namespace: str, racks: dict[str, str]
) -> None:
    """Four GPUs in each rack: the gang takes one rack whole, the two groups of the other job are in the other."""
    baton_cluster.apply(baton_namespace, EXAMPLES / "network-topology.yaml")

    def racks_of(job: str) -> list[str]:
        return [racks[pod["spec"]["nodeName"]] for pod in baton_cluster.until_pods(baton_namespace, job, 4, "Running")]

    near, groups = racks_of("near"), racks_of("groups")
    assert len(set(near)) == 1
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]

    def counted() -> bool:
        items = baton_cluster.bed.api.get(HYPER_NODES)["items"]
        counts = {item["metadata"]["name"]: item.get("status", {}).get("nodeCount") for item in items}
        return counts == {"rack-a": 1, "rack-b": 1, "row-1": 2}

    baton_cluster.bed.wait_for(counted, "the nodes of the hyper nodes to be counted")
    completed(baton_cluster, baton_namespace, "near")
    completed(baton_cluster, baton_namespace, "groups")
