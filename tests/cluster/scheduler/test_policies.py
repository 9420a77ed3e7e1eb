"""Who goes first and who has to go: queues by weight, priority, budgets, reclaim; and a configuration that changes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.api import ApiError
from testbed.bed import Bed
from tests.cluster.scheduler.conftest import SCHEDULING, Field, SchedulerProcess, scheduler_of

pytestmark = pytest.mark.cluster

FAIR = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: proportion}, {name: nodeorder}]
"""
PREEMPT = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""
RECLAIM = """
actions: "enqueue, allocate, reclaim, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}, {name: predicates}, {name: proportion}]
"""
LOCKING = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - {name: gang}
  - {name: predicates}
  - name: deviceshare
    arguments: {deviceshare.VGPUEnable: true, deviceshare.NodeLockEnable: true}
"""
MAP = "/api/v1/namespaces/kube-system/configmaps"


class Reloading:
    """A scheduler that reads its configuration from a ConfigMap, and the ConfigMap."""

    def __init__(self, bed: Bed, process: SchedulerProcess, name: str) -> None:
        self.bed = bed
        self.process = process
        self.name = name

    def write(self, text: str) -> None:
        self.bed.api.patch(f"{MAP}/{self.name}", {"data": {"volcano-scheduler.conf": text}})

    def reloads(self, result: str) -> float:
        return self.process.metric(f'baton_scheduler_configuration_reloads_total{{result="{result}"}}')

    def use(self, text: str) -> None:
        """Write it and wait until it is in force."""
        before = self.reloads("accepted")
        self.write(f"# {before}\n{text}")
        self.bed.wait_for(lambda: self.reloads("accepted") > before, "the configuration to be in force")


@pytest.fixture(scope="module")
def reloading(scheduler_bed: Bed) -> Iterator[Reloading]:
    name = "scheduler-configuration"
    scheduler_bed.api.create(MAP, {"metadata": {"name": name}, "data": {"volcano-scheduler.conf": FAIR}})
    options = ("--no-leader-elect", f"--config-map=kube-system/{name}", "--evict-retry=1", "--reason-pause=1")
    process = scheduler_of(scheduler_bed, *options, name="reloading-scheduler")
    process.start()
    process.wait_ready()
    yield Reloading(scheduler_bed, process, name)
    process.kill()
    scheduler_bed.api.delete(f"{MAP}/{name}")


@pytest.fixture
def queues(scheduler_bed: Bed, field: Field) -> Iterator[list[str]]:
    """Two queues of the test's own, weights 3 and 1."""
    names = [f"{field.namespace}-three", f"{field.namespace}-one"]
    for name, weight in zip(names, (3, 1), strict=True):
        body: dict[str, Any] = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
        body |= {"metadata": {"name": name}, "spec": {"weight": weight, "reclaimable": True}}
        scheduler_bed.api.create(f"{SCHEDULING}/queues", body)
    yield names
    for name in names:
        with contextlib.suppress(ApiError):
            scheduler_bed.api.delete(f"{SCHEDULING}/queues/{name}")


@pytest.fixture
def classes(scheduler_bed: Bed, field: Field) -> Iterator[tuple[str, str, str]]:
    """A low, a high, and a highest priority class that may not preempt."""
    names = (f"{field.namespace}-low", f"{field.namespace}-high", f"{field.namespace}-never")
    where = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, value in zip(names, (10, 1000, 2000), strict=True):
        policy = {"preemptionPolicy": "Never"} if name.endswith("never") else {}
        scheduler_bed.api.create(where, {"metadata": {"name": name}, "value": value, **policy})
    yield names
    for name in names:
        scheduler_bed.api.delete(f"{where}/{name}")


def test_queues_get_the_cluster_in_proportion_to_their_weights(
    field: Field, reloading: Reloading, queues: list[str]
) -> None:
    """The scheduler is away while the pods come, so that it sees all of them at once."""
    reloading.use(FAIR)
    reloading.process.kill()
    field.add_nodes(2, {"cpu": 4})
    for queue in queues:
        for number in range(8):
            name = f"{queue.rpartition('-')[2]}-{number}"
            field.group(name, 1, queue=queue, minResources={"cpu": "1"})
            field.pod(name, group=name)
    reloading.process.start()
    reloading.process.wait_ready()
    field.bed.wait_for(lambda: len(field.bound()) == 8, "the field's eight cores to be in use", 90)
    counts = [sum(name.startswith(prefix) for name in field.bound()) for prefix in ("three", "one")]
    assert counts == [6, 2]


def test_a_more_important_pod_takes_the_place_of_a_less_important_one(
    field: Field, reloading: Reloading, classes: tuple[str, str, str]
) -> None:
    reloading.use(PREEMPT)
    low, high, _ = classes
    field.add_nodes(1, {"cpu": 2})
    field.wait_bound([field.pod(f"low-{number}", priorityClassName=low) for number in range(2)])
    field.pod("high", priorityClassName=high)
    bound = field.wait_bound(["high"])
    assert len(bound) == 2, "one of the two had to go, and only one"
    assert reloading.process.metric('baton_scheduler_evictions_total{action="preempted",result="evicted"}') >= 1


def test_a_pod_that_may_not_preempt_waits(field: Field, reloading: Reloading, classes: tuple[str, str, str]) -> None:
    reloading.use(PREEMPT)
    low, _, never = classes
    field.add_nodes(1, {"cpu": 1})
    field.wait_bound([field.pod("low", priorityClassName=low)])
    field.pod("polite", priorityClassName=never)
    field.wait_unschedulable("polite", "insufficient cpu")
    assert set(field.bound()) == {"low"}


def test_a_disruption_budget_protects_its_pods(
    field: Field, reloading: Reloading, classes: tuple[str, str, str]
) -> None:
    reloading.use(PREEMPT)
    low, high, _ = classes
    field.add_nodes(1, {"cpu": 1})
    field.wait_bound([field.pod("guarded", priorityClassName=low, labels={"app": "guarded"})])
    field.bed.wait_for_pod(field.namespace, "guarded", "Running")
    budgets = f"/apis/policy/v1/namespaces/{field.namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    field.bed.api.create(budgets, {"metadata": {"name": "guard"}, "spec": spec})
    field.bed.wait_for(
        lambda: field.bed.api.get(f"{budgets}/guard")["status"].get("currentHealthy") == 1, "the budget to be counted"
    )
    refused = 'baton_scheduler_evictions_total{action="preempted",result="refused"}'
    before = reloading.process.metric(refused)
    field.pod("high", priorityClassName=high)
    field.bed.wait_for(lambda: reloading.process.metric(refused) > before, "the eviction to be refused", 90)
    field.bed.wait_for(
        lambda: field.bed.pod(field.namespace, "high")["status"].get("nominatedNodeName") == field.nodes[0],
        "the pod to be nominated",
        90,
    )
    assert set(field.bound()) == {"guarded"}
    field.bed.api.delete(f"{budgets}/guard")
    field.wait_bound(["high"])


def test_a_queue_takes_back_what_it_deserves(field: Field, reloading: Reloading, queues: list[str]) -> None:
    """The queue of weight 1 fills the cluster; then the one of weight 3 comes, and gets its three quarters."""
    reloading.use(RECLAIM)
    field.add_nodes(1, {"cpu": 4})
    three, one = queues
    for number in range(4):
        field.group(f"one-{number}", 1, queue=one)
        field.pod(f"one-{number}", group=f"one-{number}")
    field.wait_bound([f"one-{number}" for number in range(4)])
    for number in range(4):
        field.bed.wait_for_pod(field.namespace, f"one-{number}", "Running")
    for number in range(3):
        field.group(f"three-{number}", 1, queue=three)
        field.pod(f"three-{number}", group=f"three-{number}")
    field.wait_bound([f"three-{number}" for number in range(3)])
    assert sum(name.startswith("one") for name in field.bound()) == 1


def test_with_the_node_lock_shares_are_bound_one_at_a_time(field: Field, reloading: Reloading) -> None:
    """The second pod waits until the device plugin has served the first; the lock always says whose it is."""
    reloading.use(LOCKING)
    counts = {"volcano.sh/vgpu-number": 10, "volcano.sh/vgpu-memory": 8000, "volcano.sh/vgpu-cores": 100}
    register = f"{field.namespace},10,8000,T4,true,hami-core:"
    (node,) = field.add_nodes(1, counts, annotations={"volcano.sh/node-vgpu-register": register})
    names = [field.pod(f"share-{number}", limits={"volcano.sh/vgpu-memory": 1000}) for number in range(2)]
    field.bed.wait_for(lambda: len(field.bound()) == 1, "one share to be bound", 90)
    (first,) = field.bound()
    (second,) = set(names) - {first}

    def owner() -> str:
        annotations = field.bed.api.get(f"/api/v1/nodes/{node}")["metadata"]["annotations"]
        assert annotations.get("hamivgpu"), "the node is locked"
        return str(annotations["baton.dev/node-lock-owner"])

    assert owner().endswith(f"{field.namespace}/{first}")
    served = {"metadata": {"annotations": {"volcano.sh/bind-phase": "success"}}}
    field.bed.api.patch(f"/api/v1/namespaces/{field.namespace}/pods/{first}", served)
    field.wait_bound(names)
    assert owner().endswith(f"{field.namespace}/{second}")


def test_a_wrong_configuration_is_refused_and_the_one_before_stays(field: Field, reloading: Reloading) -> None:
    reloading.use(FAIR)
    field.add_nodes(1)
    before = reloading.reloads("refused")
    reloading.write('actions: "enqueue, alocate"\ntiers: []\n')
    field.bed.wait_for(lambda: reloading.reloads("refused") > before, "the configuration to be refused")
    events = f"/api/v1/namespaces/kube-system/events?fieldSelector=involvedObject.name%3D{reloading.name}"

    def said() -> bool:
        messages = [item["message"] for item in field.bed.api.get(events)["items"]]
        return any("'alocate' is not an action (did you mean 'allocate'?)" in message for message in messages)

    field.bed.wait_for(said, "an event that names the mistake", 90)
    field.wait_bound([field.pod("still")])


def test_a_configuration_file_is_followed(scheduler_bed: Bed, tmp_path: Path) -> None:
    path = tmp_path / "volcano-scheduler.conf"
    path.write_text(FAIR)
    process = scheduler_of(scheduler_bed, "--no-leader-elect", f"--config={path}", "--scheduler-name=nobody")
    process.start()
    try:
        process.wait_ready()
        path.write_text(PREEMPT)
        metric = 'baton_scheduler_configuration_reloads_total{result="accepted"}'
        scheduler_bed.wait_for(lambda: process.metric(metric) >= 1, "the file to be read again")
    finally:
        process.kill()
