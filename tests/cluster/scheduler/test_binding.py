"""Pods get nodes and cards: single ones, gangs, shares, slots, volumes; and whatever waits says why."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.bed import Bed
from tests.cluster.scheduler.conftest import Field, SchedulerProcess, scheduler_of

pytestmark = pytest.mark.cluster

VGPU: dict[str, Any] = {"volcano.sh/vgpu-number": 20, "volcano.sh/vgpu-memory": 16000, "volcano.sh/vgpu-cores": 200}
REGISTER = "GPU-a{0},10,8000,NVIDIA-T4,true,hami-core:GPU-b{0},10,8000,NVIDIA-T4,true,hami-core:"


@pytest.fixture(scope="module")
def scheduler(scheduler_bed: Bed) -> Iterator[SchedulerProcess]:
    """One scheduler for the tests that do not break it."""
    made = scheduler_of(scheduler_bed, "--no-leader-elect", "--reason-pause=1")
    made.start()
    made.wait_ready()
    yield made
    made.kill()


def test_plain_pods_are_bound_and_those_of_others_are_not(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(2)
    field.pod("stranger", schedulerName="somebody-else")
    names = [field.pod("volcanic"), field.pod("batonic", schedulerName="baton"), field.pod("effortless", cpu="")]
    bound = field.wait_bound(names)
    assert set(bound) == set(names)
    assert set(bound.values()) <= set(field.nodes)
    field.wait_event("volcanic", "Scheduled", saying="Successfully assigned")


def test_pods_of_a_job_and_a_deployment_are_bound(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(1)
    template: dict[str, Any] = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "schedulerName": "volcano",
            "nodeSelector": {"field": field.namespace},
            "containers": [{"name": "main", "image": "none"}],
        },
    }
    once = {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}
    field.bed.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": field.namespace},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "once", "namespace": field.namespace},
            "spec": {"template": once},
        },
    )
    field.bed.wait_for(lambda: len(field.bound()) == 3, "three pods to be bound", 90)


def test_no_member_of_a_gang_is_bound_before_all_can_be(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(1, {"cpu": 3})
    names = field.gang("train", 4)
    field.wait_unschedulable("train-0", "The gang needs 4 pods at once; 0 run already and 3 more could start.")
    field.wait_event("train", "Unschedulable", "FailedScheduling")
    field.bed.wait_for(
        lambda: "Unschedulable" in {item["type"] for item in field.podgroup("train")["status"].get("conditions", [])},
        "the group to be called unschedulable",
    )
    assert field.bound() == {}
    assert field.binds() == []
    field.add_nodes(1, {"cpu": 3})
    field.wait_bound(names)
    field.bed.wait_for(lambda: field.podgroup("train")["status"]["phase"] == "Running", "the group to run")
    second = field.bed.api.get(f"/api/v1/nodes/{field.nodes[1]}")["metadata"]["creationTimestamp"].removesuffix("Z")
    field.bed.wait_for(
        lambda: sorted(record["objectRef"]["name"] for record in field.binds()) == names, "each to be bound once"
    )
    binds = field.binds()
    assert min(record["requestReceivedTimestamp"] for record in binds) >= second


def test_a_group_runs_and_completes(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(1)
    names = field.gang("short", 2)
    field.wait_bound(names)
    field.bed.wait_for(lambda: field.podgroup("short")["status"].get("running") == 2, "both pods to be counted", 90)
    for name in names:
        field.bed.finish_pod(field.namespace, name, "succeed")
    field.bed.wait_for(lambda: field.podgroup("short")["status"]["phase"] == "Completed", "the group to complete", 90)
    assert field.podgroup("short")["status"]["succeeded"] == 2


def test_a_gang_that_lost_a_pod_is_unknown_until_it_is_whole_and_without_any_is_admitted_anew(
    field: Field, scheduler: SchedulerProcess
) -> None:
    def until(phase: str) -> None:
        field.bed.wait_for(lambda: field.podgroup("train")["status"]["phase"] == phase, f"the group to be {phase}", 90)

    def lose(name: str) -> None:
        field.bed.api.delete(f"/api/v1/namespaces/{field.namespace}/pods/{name}", grace_s=0)

    field.add_nodes(1)
    names = field.gang("train", 3)
    field.wait_bound(names)
    field.bed.wait_for(lambda: field.podgroup("train")["status"].get("running") == 3, "all pods to be counted", 90)
    lose(names[0])
    until("Unknown")
    field.wait_event("train", "Unschedulable", saying="2 of 3 pods of the gang exist")
    field.pod(names[0], group="train")
    field.wait_bound(names)
    until("Running")
    for name in names:
        lose(name)
    until("Inqueue")


def test_a_pod_waits_for_its_group(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(1)
    field.pod("early-0", group="early")
    field.bed.wait_for(
        lambda: "PodGroup" in scheduler.ask(f"/why/{field.namespace}/early-0")["paragraph"], "the pod to be known"
    )
    assert field.bound() == {}
    field.group("early", 1)
    field.wait_bound(["early-0"])


def test_a_gang_with_scheduling_gates_says_so_and_starts_without_them(
    field: Field, scheduler: SchedulerProcess
) -> None:
    field.add_nodes(1)
    names = field.gang("gated", 2, schedulingGates=[{"name": "example.com/later"}])
    field.wait_event("gated", "Unschedulable", saying="scheduling gates")
    assert field.condition(names[0])["reason"] == "SchedulingGated"
    for name in names:
        field.bed.api.patch(f"/api/v1/namespaces/{field.namespace}/pods/{name}", {"spec": {"schedulingGates": None}})
    field.wait_bound(names)


def test_shares_are_recorded_with_six_annotations_and_no_card_is_over_committed(
    field: Field, scheduler: SchedulerProcess
) -> None:
    field.add_nodes(1, VGPU, annotations={"volcano.sh/node-vgpu-register": REGISTER.format(1)})
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 30}
    names = [field.pod(f"share-{number}", limits=limits) for number in range(5)]
    field.bed.wait_for(lambda: len(field.bound()) == 4, "four of five shares to be placed", 90)
    left = next(iter(set(names) - field.bound().keys()))
    field.wait_unschedulable(left, "card")
    pods = [field.pods()[name] for name in field.bound()]
    used: dict[str, int] = {}
    for pod in pods:
        said = pod["metadata"]["annotations"]
        assert said["volcano.sh/vgpu-node"] == field.nodes[0]
        assert said["volcano.sh/bind-phase"] == "allocating"
        assert said["volcano.sh/bind-time"] == said["volcano.sh/vgpu-time"]
        assert said["volcano.sh/devices-to-allocate"] == said["volcano.sh/vgpu-ids-new"]
        card, kind, memory, cores = said["volcano.sh/vgpu-ids-new"].removesuffix(":").split(",")
        assert (kind, memory, cores) == ("NVIDIA", "3000", "30")
        used[card] = used.get(card, 0) + int(memory)
    assert used == {"GPU-a1": 6000, "GPU-b1": 6000}
    times = [int(pod["metadata"]["annotations"]["volcano.sh/vgpu-time"]) for pod in pods]
    assert len(set(times)) == len(times)


def test_slots_are_recorded_where_the_agent_named_its_cards(field: Field, scheduler: SchedulerProcess) -> None:
    offered = (
        '[{"id":"GPU-x","resource":"nvshare.com/gpu","slots":2},{"id":"GPU-y","resource":"nvshare.com/gpu","slots":2}]'
    )
    field.add_nodes(1, {"nvshare.com/gpu": 4}, annotations={"baton.dev/node-cards": offered})
    names = [field.pod(f"slot-{number}", limits={"nvshare.com/gpu": 1}) for number in range(4)]
    field.wait_bound(names)
    cards = sorted(field.pods()[name]["metadata"]["annotations"]["baton.dev/cards"] for name in names)
    assert cards == ["main=GPU-x", "main=GPU-x", "main=GPU-y", "main=GPU-y"]


def test_slots_of_a_foreign_device_plugin_are_counted(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(1, {"nvshare.com/gpu": 2})
    names = [field.pod(f"slot-{number}", limits={"nvshare.com/gpu": 1}) for number in range(3)]
    field.bed.wait_for(lambda: len(field.bound()) == 2, "two of three slots to be given", 90)
    field.wait_unschedulable(next(iter(set(names) - field.bound().keys())))


def test_a_volume_that_waits_for_its_consumer_decides_the_node(field: Field, scheduler: SchedulerProcess) -> None:
    """A claim of a class that binds late: the pod goes where a free volume is, and the volume becomes the claim's."""
    field.add_nodes(3)
    wanted, kind = field.nodes[1], f"local-{field.namespace}"
    field.bed.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": kind},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": kind},
            "spec": {
                "capacity": {"storage": "5Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": kind,
                "local": {"path": "/data"},
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [wanted]}
                                ]
                            }
                        ]
                    }
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": field.namespace},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": kind,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    )
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    field.pod("reader", volumes=volumes)
    assert field.wait_bound(["reader"])["reader"] == wanted
    assert field.bed.api.get(f"/api/v1/persistentvolumes/{kind}")["spec"]["claimRef"]["name"] == "data"
    field.pod("second", volumes=volumes)
    assert field.wait_bound(["second"])["second"] == wanted, "now the claim is bound, and its volume decides"


def reader_of_disk(field: Field, name: str, mode: str = "ReadWriteOnce") -> list[dict[str, Any]]:
    """A bound claim of a CSI driver's volume, as the volumes of a pod."""
    volume = f"{field.namespace}-{name}"
    common = {"accessModes": [mode], "storageClassName": ""}
    field.bed.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "csi": {"driver": "csi.example", "volumeHandle": volume},
                "claimRef": {"namespace": field.namespace, "name": name},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": field.namespace},
            "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
        },
    )
    return [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]


def test_a_node_attaches_no_more_volumes_than_its_csi_node_says(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(1)
    (node,) = field.nodes
    driver = {"name": "csi.example", "nodeID": node, "topologyKeys": [], "allocatable": {"count": 1}}
    about = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}}
    field.bed.apply({**about, "spec": {"drivers": [driver]}})
    field.pod("first", volumes=reader_of_disk(field, "one"))
    field.wait_bound(["first"])
    field.pod("second", volumes=reader_of_disk(field, "two"))
    field.wait_unschedulable("second", "had no room for another volume of csi.example (limit 1)")
    field.bed.api.delete(f"/api/v1/namespaces/{field.namespace}/pods/first")
    field.wait_bound(["second"])


def test_a_claim_for_one_pod_lets_the_next_wait(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(2)
    volumes = reader_of_disk(field, "data", "ReadWriteOncePod")
    field.pod("first", volumes=volumes)
    field.wait_bound(["first"])
    field.pod("second", volumes=volumes)
    field.wait_unschedulable("second", f"(ReadWriteOncePod) and used by {field.namespace}/first")
    field.bed.api.delete(f"/api/v1/namespaces/{field.namespace}/pods/first")
    field.wait_bound(["second"])


def test_a_pod_whose_claim_does_not_exist_waits_with_a_reason(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(1)
    field.pod("reader", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "none"}}])
    field.wait_unschedulable("reader", "cannot reach a volume")


def test_the_scheduler_explains_and_shows_its_state(field: Field, scheduler: SchedulerProcess) -> None:
    field.add_nodes(1, {"cpu": 1})
    field.pod("small")
    field.pod("large", cpu="5")
    field.wait_bound(["small"])
    field.wait_unschedulable("large", "insufficient cpu")
    verdict = scheduler.ask(f"/why/{field.namespace}/large")
    assert verdict["cause"] == "nodes"
    assert "insufficient cpu" in verdict["paragraph"]
    state = scheduler.text("/state")
    assert f'"key":"{field.namespace}/large"' in state
    assert scheduler.metric('baton_scheduler_attempts_total{reason="",result="scheduled"}') >= 1
    for stage in ("watched", "assumed", "bound"):
        assert scheduler.metric(f'baton_scheduler_stage_seconds_count{{stage="{stage}"}}') >= 1
    assert scheduler.metric('baton_scheduler_waiting_jobs{cause="nodes"}') >= 1
    assert scheduler.metric('baton_queue_allocated{queue="default",resource="cpu"}') >= 1


def test_a_queue_status_says_what_its_pods_hold(
    field: Field, scheduler: SchedulerProcess, schedulers: Callable[..., SchedulerProcess]
) -> None:
    field.add_nodes(1)
    queue = f"q-{field.namespace}"
    body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": queue}}
    field.bed.api.create("/apis/scheduling.volcano.sh/v1beta1/queues", {**body, "spec": {"weight": 1}})
    field.gang("member", 2, queue=queue)
    field.wait_bound(["member-0", "member-1"])
    path = f"/apis/scheduling.volcano.sh/v1beta1/queues/{queue}"
    field.bed.wait_for(
        lambda: field.bed.api.get(path).get("status", {}).get("allocated", {}).get("cpu") == "2",
        "the queue's status",
        90,
    )
