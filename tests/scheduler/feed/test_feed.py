"""From watches to the engine's events: which pods are held back or dropped, and which priority counts."""

from typing import Any

import msgspec
import pytest

from baton.engine.engine import Engine
from baton.engine.events import BindFailed, PodRemoved
from baton.engine.objects import Closeness, NodeTerm
from baton.engine.presets import configured
from baton.engine.state.jobs import Status
from baton.kube.client import Client
from baton.kube.kubeconfig import Access
from baton.model import core, volcano
from baton.model.ids import GroupKey, Key, PodKey, QueueName
from baton.model.workloads import Workload
from baton.scheduler.feed.feed import Feed

READY = {"type": "Ready", "status": "True"}


class World:
    """A feed and the engine behind it, without an API server."""

    def __init__(self) -> None:
        self.woken = 0
        self.feed = Feed(
            Client(Access(server="http://nowhere", context="none")), ("volcano",), ("nvshare.com/gpu",), self._wake
        )
        self.engine = Engine(configured("simple"))
        self._version = 0

    def _wake(self) -> None:
        self.woken += 1

    def made(self, kind: Any, body: dict[str, Any]) -> Any:
        self._version += 1
        metadata = {"uid": body["metadata"]["name"], **body["metadata"], "resourceVersion": str(self._version)}
        return msgspec.convert({**body, "metadata": metadata}, kind)

    def node(self, name: str = "n", **spec: Any) -> None:
        status = {"allocatable": {"cpu": "4", "pods": "10"}, "conditions": [READY]}
        self.feed.nodes.put(self.made(core.Node, {"metadata": {"name": name}, "spec": spec, "status": status}))

    def pod(self, name: str, *, group: str = "", phase: str = "Pending", uid: str = "", **spec: Any) -> None:
        metadata: dict[str, Any] = {"name": name, "namespace": "team", "uid": uid or name}
        if group:
            metadata["annotations"] = {"scheduling.k8s.io/group-name": group}
        containers = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
        body = {"metadata": metadata, "spec": {"schedulerName": "volcano", "containers": containers, **spec}}
        self.feed.pods.put(self.made(core.Pod, {**body, "status": {"phase": phase}}))

    def owned(self, name: str, owner: str, **annotations: str) -> None:
        """A pod of a ReplicaSet."""
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
        metadata = {"name": name, "namespace": "team", "ownerReferences": [reference], "annotations": annotations}
        containers = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
        body = {"metadata": metadata, "spec": {"schedulerName": "volcano", "containers": containers}}
        self.feed.pods.put(self.made(core.Pod, body))

    def replica_set(self, name: str, uid: str = "", **annotations: str) -> None:
        metadata = {"name": name, "namespace": "team", "uid": uid or name, "annotations": annotations}
        self.feed.owners["apps/v1", "ReplicaSet"].put(self.made(Workload, {"metadata": metadata}))

    def group(self, name: str, minimum: int, **spec: Any) -> None:
        body = {"metadata": {"name": name, "namespace": "team"}, "spec": {"minMember": minimum, **spec}}
        self.feed.groups.put(self.made(volcano.PodGroup, body))

    def plan(self) -> set[str]:
        self.engine.apply(self.feed.take())
        return {binding.pod.partition("/")[2] for binding in self.engine.schedule(0.0).bindings}


@pytest.fixture
def world() -> World:
    made = World()
    made.node()
    return made


def test_a_pod_that_names_a_group_waits_for_it(world: World) -> None:
    world.pod("a", group="g")
    world.pod("b", group="g")
    assert world.plan() == set()
    world.group("g", 2)
    assert world.plan() == {"a", "b"}


SIZE = {"scheduling.volcano.sh/group-min-member": "2"}


def test_a_pod_waits_until_its_owner_is_known(world: World) -> None:
    world.owned("a", "web")
    assert world.plan() == set()
    hold = world.feed.waits_for_group(next(iter(world.feed.pods)))
    assert hold is not None
    assert hold.detail == "its ReplicaSet web is not known yet"
    world.replica_set("web", uid="one-before")
    assert world.plan() == set()
    world.replica_set("web")
    assert world.plan() == {"a"}


def test_a_pod_whose_owner_asks_for_a_gang_waits_for_the_group(world: World) -> None:
    world.replica_set("web", **SIZE)
    world.owned("a", "web")
    world.owned("b", "web")
    assert world.plan() == set()
    world.group("g", 2)
    world.owned("a", "web", **{"scheduling.k8s.io/group-name": "g"})
    assert world.plan() == set()
    world.owned("b", "web", **{"scheduling.k8s.io/group-name": "g"})
    assert world.plan() == {"a", "b"}


def test_an_owner_that_no_longer_asks_for_a_gang_frees_its_pods(world: World) -> None:
    world.replica_set("web", **SIZE)
    world.owned("a", "web")
    assert world.plan() == set()
    world.replica_set("web")
    assert world.plan() == {"a"}


def test_other_changes_of_an_owner_cause_no_cycle(world: World) -> None:
    world.replica_set("web", **SIZE)
    world.owned("a", "web")
    world.plan()
    woken = world.woken
    world.replica_set("web", note="new", **SIZE)
    assert (world.woken, world.feed.take()) == (woken, [])


def test_pods_of_a_group_that_is_deleted_wait_again(world: World) -> None:
    world.group("g", 2)
    world.pod("a", group="g")
    world.feed.groups.remove(Key("team/g"))
    world.pod("b", group="g")
    assert world.plan() == set()


def test_a_pod_of_another_scheduler_takes_room_once_it_is_bound(world: World) -> None:
    world.pod("theirs", schedulerName="default-scheduler")
    world.pod("ours")
    assert world.plan() == {"ours"}
    assert world.engine.state.tasks.keys() == {"team/ours"}
    world.pod("theirs", schedulerName="default-scheduler", nodeName="n")
    world.plan()
    assert world.engine.state.tasks[PodKey("team/theirs")].status is Status.BOUND


def test_a_finished_pod_gives_its_room_back(world: World) -> None:
    world.pod("long", nodeName="n", phase="Running")
    world.plan()
    world.pod("long", nodeName="n", phase="Succeeded")
    assert world.feed.take() == [PodRemoved(PodKey("team/long"))]


def test_a_held_pod_is_placed_when_it_is_released(world: World) -> None:
    world.pod("a")
    assert world.plan() == {"a"}
    world.feed.tell(BindFailed(PodKey("team/a")))
    world.feed.hold(PodKey("team/a"), "a", "refused")
    assert world.plan() == set()
    world.feed.release(PodKey("team/a"))
    assert world.plan() == {"a"}


def test_a_namesake_of_a_held_pod_is_not_held(world: World) -> None:
    world.pod("a")
    world.feed.hold(PodKey("team/a"), "a", "refused")
    assert world.plan() == set()
    world.pod("a", uid="another")
    assert world.plan() == {"a"}


def test_a_groups_priority_is_that_of_its_class_or_of_its_pods(world: World) -> None:
    world.feed.classes.put(world.made(core.PriorityClass, {"metadata": {"name": "high"}, "value": 100}))
    world.group("named", 1, priorityClassName="high")
    world.group("plain", 1)
    world.group("low", 1)
    world.pod("p", group="plain", priority=7)
    for name, priority in (("l1", -9), ("l2", -5)):
        world.pod(name, group="low", priority=priority)
    world.plan()
    jobs = world.engine.state.jobs
    assert [jobs[GroupKey(f"team/{name}")].priority for name in ("named", "plain", "low")] == [100, 7, -5]


def test_a_claim_that_becomes_bound_lets_its_pod_go(world: World) -> None:
    world.pod("reader", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    assert world.plan() == set()
    stores = {resource.plural: store for resource, store in world.feed.volumes.stores()}
    body: dict[str, Any] = {"metadata": {"name": "pv"}, "spec": {"claimRef": {"namespace": "team", "name": "data"}}}
    stores["persistentvolumes"].put(world.made(core.PersistentVolume, body))
    metadata = {"name": "data", "namespace": "team", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    claim = {"metadata": metadata, "spec": {"volumeName": "pv"}}
    stores["persistentvolumeclaims"].put(world.made(core.Claim, claim))
    assert world.plan() == {"reader"}


def test_a_bindings_own_change_of_a_claim_does_not_plan_the_pod_again(world: World) -> None:
    """The binding writes where the claim is wanted before the pod is bound; the room is the pod's meanwhile."""
    stores = {resource.plural: store for resource, store in world.feed.volumes.stores()}
    kind = {"metadata": {"name": "k"}, "provisioner": "csi.example", "volumeBindingMode": "WaitForFirstConsumer"}
    stores["storageclasses"].put(world.made(core.StorageClass, kind))

    def claim(**annotations: str) -> None:
        metadata = {"name": "data", "namespace": "team", "annotations": annotations}
        body = {"metadata": metadata, "spec": {"storageClassName": "k"}}
        stores["persistentvolumeclaims"].put(world.made(core.Claim, body))

    claim()
    world.pod("reader", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    assert world.plan() == {"reader"}
    claim(**{"volume.kubernetes.io/selected-node": "n"})
    assert world.plan() == set()
    assert world.engine.state.tasks[PodKey("team/reader")].status is Status.BINDING
    world.feed.tell(BindFailed(PodKey("team/reader")))
    world.feed.hold(PodKey("team/reader"), "reader", "refused")
    world.plan()
    world.feed.release(PodKey("team/reader"))
    assert world.plan() == {"reader"}
    volume_terms = world.engine.state.tasks[PodKey("team/reader")].pod.spec.volume_terms
    assert volume_terms == ((NodeTerm(names=("n",)),),)


def test_a_pod_that_changes_while_it_is_being_bound_keeps_its_place(world: World) -> None:
    world.pod("a")
    assert world.plan() == {"a"}
    tolerations = [{"key": "dedicated", "operator": "Exists"}]
    world.pod("a", tolerations=tolerations)
    assert world.plan() == set()
    world.pod("a", tolerations=tolerations, nodeName="n")
    assert world.plan() == set()
    task = world.engine.state.tasks[PodKey("team/a")]
    assert (task.status, len(task.pod.spec.tolerations)) == (Status.BOUND, 1)


class Disks:
    """Claims, volumes and CSINodes of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stores = {resource.kind: store for resource, store in world.feed.volumes.stores()}
        kind = {"provisioner": "csi.example", "volumeBindingMode": "WaitForFirstConsumer"}
        self._put(core.StorageClass, {"name": "k"}, **kind)

    def _put(self, kind: Any, metadata: dict[str, Any], **body: Any) -> None:
        self._stores[kind].put(self._world.made(kind, {"metadata": metadata, **body}))

    def limit(self, node: str, count: int) -> None:
        drivers = [{"name": "csi.example", "allocatable": {"count": count}}]
        self._put(core.CsiNode, {"name": node}, spec={"drivers": drivers})

    def claim(self, name: str, *modes: str) -> None:
        spec = {"storageClassName": "k", "accessModes": modes}
        self._put(core.Claim, {"name": name, "namespace": "team"}, spec=spec)

    def bind(self, name: str) -> None:
        source = {"driver": "csi.example", "volumeHandle": f"vol-{name}"}
        about = {"namespace": "team", "name": name}
        self._put(core.PersistentVolume, {"name": f"pv-{name}"}, spec={"csi": source, "claimRef": about})
        annotations = {"pv.kubernetes.io/bind-completed": "yes"}
        metadata = {"name": name, "namespace": "team", "annotations": annotations}
        self._put(core.Claim, metadata, spec={"storageClassName": "k", "volumeName": f"pv-{name}"})

    def pod(self, name: str, claim: str = "", **spec: Any) -> None:
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim or name}}]
        self._world.pod(name, volumes=volumes, **spec)

    def counted(self) -> dict[str, tuple[tuple[str, str], ...]]:
        tasks = self._world.engine.state.tasks.values()
        return {task.pod.name: task.pod.spec.attachments for task in tasks if task.pod.spec.attachments}


def test_pods_wait_for_a_node_that_can_attach_their_volumes(world: World) -> None:
    disks = Disks(world)
    disks.limit("n", 2)
    for name in ("a", "b", "c"):
        disks.claim(name)
        disks.pod(name)
    placed = world.plan()
    assert len(placed) == 2
    for name in placed:
        disks.bind(name)
        disks.pod(name, nodeName="n", phase="Running")
    assert world.plan() == set()
    assert disks.counted().keys() == {"a", "b", "c"}
    assert {disks.counted()[name] for name in placed} == {(("csi.example", f"vol-{name}"),) for name in placed}
    disks.limit("n", 3)
    assert world.plan() == {"a", "b", "c"} - placed


def test_what_runs_already_counts_when_claims_and_limits_are_heard_of_later(world: World) -> None:
    disks = Disks(world)
    disks.pod("default", nodeName="n", phase="Running", schedulerName="default-scheduler")
    disks.pod("own", nodeName="n", phase="Running")
    world.plan()
    assert disks.counted() == {}
    disks.bind("default")
    disks.bind("own")
    world.plan()
    assert disks.counted() == {}
    disks.limit("n", 2)
    world.plan()
    assert disks.counted() == {name: (("csi.example", f"vol-{name}"),) for name in ("default", "own")}
    disks.claim("late")
    disks.pod("late")
    assert world.plan() == set()
    disks.pod("default", nodeName="n", phase="Succeeded", schedulerName="default-scheduler")
    assert world.plan() == {"late"}


def test_limits_may_come_before_their_node(world: World) -> None:
    disks = Disks(world)
    disks.limit("m", 0)
    world.feed.nodes.remove(Key("n"))
    world.node("m")
    disks.claim("a")
    disks.pod("a")
    assert world.plan() == set()
    disks.limit("m", 1)
    assert world.plan() == {"a"}


def test_a_claim_for_one_pod_lets_the_second_wait(world: World) -> None:
    disks = Disks(world)
    disks.pod("a", "data", nodeName="n", phase="Running")
    world.plan()
    disks.claim("data", "ReadWriteOncePod")
    disks.pod("b", "data")
    assert world.plan() == set()
    disks.pod("a", "data", nodeName="n", phase="Succeeded")
    assert world.plan() == {"b"}


def test_a_change_of_a_claim_is_no_news_of_pods_that_have_their_place(world: World) -> None:
    disks = Disks(world)
    disks.claim("a")
    disks.pod("a", nodeName="n", phase="Running")
    world.plan()
    disks.bind("a")
    assert world.feed.take() == [], "no driver has a limit"


LONG = "9" * 5000


@pytest.mark.parametrize(
    "number", ["²", LONG, "9" * 30, "3000000000", "-1"], ids=["superscript", "long", "large", "32 bits", "minus"]
)
def test_malformed_numbers_do_not_stop_the_scheduler(world: World, number: str) -> None:
    """The annotations of a pod are its owner's, also those that programs write on it."""
    register = {"volcano.sh/node-vgpu-register": "GPU-1,10,8000,T4,true,hami-core:"}
    counts = {"cpu": "4", "pods": "9"} | dict.fromkeys(("volcano.sh/vgpu-number", "volcano.sh/vgpu-cores"), "10")
    status = {"allocatable": {**counts, "volcano.sh/vgpu-memory": "8000"}, "conditions": [READY]}
    world.feed.nodes.put(world.made(core.Node, {"metadata": {"name": "g", "annotations": register}, "status": status}))
    world.feed.namespaces.put(
        world.made(
            core.Namespace, {"metadata": {"name": "team", "annotations": {"volcano.sh/namespace.weight": number}}}
        )
    )
    said = {"volcano.sh/task-index": number, "volcano.sh/vgpu-ids-new": f"GPU-1,NVIDIA,{number},{number}:"}
    limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1000"}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    for name, node_name in (("liar", "g"), ("honest", "")):
        metadata = {"name": name, "namespace": "team", "annotations": said}
        spec = {"schedulerName": "volcano", "nodeName": node_name, "containers": containers}
        world.feed.pods.put(world.made(core.Pod, {"metadata": metadata, "spec": spec}))
    assert world.plan() == {"honest"}


def test_an_invalid_quantity_that_the_schema_accepts_does_not_stop_the_scheduler(world: World) -> None:
    """A gang is one without its minResources; a queue is none without its limits."""
    odd = {"cpu": "1e1.5"}
    world.feed.queues.put(world.made(volcano.Queue, {"metadata": {"name": "odd"}, "spec": {"capability": odd}}))
    world.group("g", 2, minResources=odd)
    world.group("other", 1, queue="odd")
    world.pod("a", group="g")
    world.pod("c", group="other")
    assert world.plan() == set()
    world.pod("b", group="g")
    assert world.plan() == {"a", "b"}
    world.feed.queues.put(
        world.made(volcano.Queue, {"metadata": {"name": "odd"}, "spec": {"capability": {"cpu": "1"}}})
    )
    assert world.plan() == {"c"}


def test_the_shared_spec_is_kept_while_the_pod_says_the_same(world: World) -> None:
    world.pod("a")
    world.plan()
    before = world.engine.state.tasks[PodKey("team/a")].pod.spec
    world.pod("a", nodeName="n", phase="Running")
    world.plan()
    task = world.engine.state.tasks[PodKey("team/a")]
    assert task.status is Status.RUNNING
    assert task.pod.spec is before


def test_hyper_nodes_and_the_rules_of_groups_reach_the_engine(world: World) -> None:
    """Two nodes of four CPUs in two racks: a gang of six that must be in one rack waits, in a row it starts."""
    world.node("m")
    for name, tier, kind, selector in (
        ("rack-n", 1, "Node", {"exactMatch": {"name": "n"}}),
        ("rack-m", 1, "Node", {"regexMatch": {"pattern": "^m$"}}),
        ("row", 2, "HyperNode", {"regexMatch": {"pattern": "^rack-"}}),
    ):
        spec = {"tier": tier, "tierName": "row" * (tier == 2), "members": [{"type": kind, "selector": selector}]}
        world.feed.hyper_nodes.put(world.made(volcano.HyperNode, {"metadata": {"name": name}, "spec": spec}))
    for at in range(6):
        world.pod(f"p{at}", group="g")
    world.group("g", 6, networkTopology={"mode": "hard", "highestTierAllowed": 1})
    assert world.plan() == set()
    world.group("g", 6, networkTopology={"mode": "hard", "highestTierName": "row"})
    assert len(world.plan()) == 6
    world.feed.hyper_nodes.remove(Key("row"))
    world.plan()
    assert set(world.engine.state.forest.counts) == {"rack-n", "rack-m"}


def test_sub_groups_and_rules_without_a_tier_are_translated(world: World) -> None:
    world.group(
        "g",
        2,
        networkTopology={"mode": "hard"},
        subGroupPolicy=[{"name": "p", "networkTopology": {"mode": "soft", "highestTierAllowed": 1}}],
    )
    world.plan()
    group = world.engine.state.jobs[GroupKey("team/g")].group
    assert group.closeness == Closeness(hard=False), "a rule that names no tier is a wish"
    assert group.parts[0].closeness == Closeness(hard=False, highest_tier=1)


@pytest.mark.parametrize(
    "asked",
    [
        {"cpu": "9223372036854775807"},
        {"memory": "1e30"},
        {"example.com/x": "8E"},
        {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "8Gi"},
        {"volcano.sh/vgpu-number": "8E", "volcano.sh/vgpu-memory": "8E"},
    ],
    ids=str,
)
def test_a_pod_with_an_uncountable_request_waits_and_does_not_stop_the_scheduler(
    world: World, asked: dict[str, str]
) -> None:
    """The API server takes any number; `8Gi` for what is counted in MiB is soon written."""
    greedy = [{"name": name, "resources": {"requests": asked, "limits": asked}} for name in ("one", "two")]
    for number in range(200):
        world.pod(f"greedy-{number}", containers=greedy)
    world.pod("modest")
    assert world.plan() == {"modest"}
    assert world.engine.explain(PodKey("team/greedy-0"), 0.0).paragraph()
    world.feed.queues.put(world.made(volcano.Queue, {"metadata": {"name": "q"}, "spec": {"capability": asked}}))
    world.group("g", 1, minResources=asked, queue="q")
    world.pod("member", group="g")
    world.plan()
    assert min(world.engine.state.queues[QueueName("default")].requested) >= 0
