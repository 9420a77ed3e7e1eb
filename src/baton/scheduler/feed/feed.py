"""From watches to the engine: stores of all relevant objects, and the engine's events for their changes.

The feed holds back a pod that names a PodGroup until the group is known, because without it the pod would be a gang of
one. It also holds back a pod that will get a PodGroup: the annotation for the gang's size is on the pod or on its
owner, so a pod waits until its owner is known. A pod whose binding has just failed is held back for a pause. Pods of
other schedulers matter once they have a node.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
import structlog

from baton.engine import events as happened
from baton.engine.events import Event
from baton.engine.objects import Hold, PodSpec, Queue
from baton.engine.verdicts import Cause
from baton.kube.client import Client
from baton.kube.reflector import Reflector
from baton.kube.store import Delta, Store
from baton.mapping import cluster
from baton.mapping.cards import CardWords
from baton.mapping.pods import PodWords, expects_group
from baton.model import core, volcano
from baton.model.ids import GroupKey, Key, NodeName, PodKey, QueueName
from baton.model.meta import OwnerReference
from baton.model.names import BUILT_IN_QUEUES, ENDED_PHASES
from baton.model.quantities import QuantityError
from baton.model.resource import Resource
from baton.model.workloads import WORKLOADS, Workload
from baton.scheduler.feed.volumes import ClaimKey, VolumeBook, claims_of

_LOG = structlog.get_logger("baton.scheduler")

_GROUP_TO_COME = Hold(
    Cause.NO_GROUP,
    "its PodGroup has not been created yet",
    ("check that `baton controller` runs, which creates the PodGroup",),
)

S = TypeVar("S", bound=Any)


class Feed:
    """Stores, reflectors, and the events that the engine has not taken yet."""

    def __init__(
        self,
        client: Client,
        scheduler_names: Iterable[str],
        slot_resources: Iterable[str],
        wake: Callable[[], None],
    ) -> None:
        self._client = client
        self._wake = wake
        self.pods: Store[core.Pod] = Store({"group": _group_index, "owner": _owner_index, "claim": _claim_index})
        self.nodes: Store[core.Node] = Store()
        self.groups: Store[volcano.PodGroup] = Store()
        self.queues: Store[volcano.Queue] = Store()
        self.classes: Store[core.PriorityClass] = Store()
        self.budgets: Store[core.Budget] = Store()
        self.quotas: Store[core.Quota] = Store()
        self.namespaces: Store[core.Namespace] = Store()
        self.owners: dict[tuple[str, str], Store[Workload]] = {kind: Store() for kind in WORKLOADS}
        self.hyper_nodes: Store[volcano.HyperNode] = Store()
        self.volumes = VolumeBook(self._volumes_moved, self._limits_moved)
        self.cards = CardWords(tuple(slot_resources))
        self.words = PodWords(scheduler_names, self.cards, self.volumes)
        self.with_load = False
        """Whether the configuration uses the load of cards; if not, changes of the load cause no events."""
        self.pod_seen: Callable[[core.Pod], None] = lambda _pod: None
        """Called with every new waiting pod of this scheduler."""
        self.pod_gone: Callable[[PodKey], None] = lambda _key: None
        """Called with every pod that is removed."""
        self.groups_moved: Callable[[GroupKey], None] = lambda _key: None
        """Called when a pod of a group changes its phase, or the group itself changes."""
        self._events: list[Event] = []
        self._specs: dict[PodKey, PodSpec] = {}
        self._held: dict[PodKey, tuple[str, Hold]] = {}
        self.without_group: dict[PodKey, None] = {}
        """Pods that waited for a PodGroup at their last check, see `waits_for_group`."""
        self._claims_moved: dict[ClaimKey, None] = {}
        self._any_claim_moved = False
        self._told_priority: dict[GroupKey, int] = {}
        self.reflectors: list[Reflector[Any]] = []
        self._follow(core.NODES, self.nodes, self._node)
        self._follow(core.PRIORITY_CLASSES, self.classes, self._class)
        self._follow(core.NAMESPACES, self.namespaces, self._namespace)
        self._follow(core.QUOTAS, self.quotas, self._quota)
        self._follow(core.BUDGETS, self.budgets, self._budget)
        for resource, store in self.volumes.stores():
            self.reflectors.append(Reflector(client, resource, store, optional=resource is core.CSI_NODES))
        for kind, workloads in self.owners.items():
            self._follow(WORKLOADS[kind], workloads, self._owner)
        self._follow(volcano.QUEUES, self.queues, self._queue, optional=True)
        self._follow(volcano.HYPER_NODES, self.hyper_nodes, self._hyper_node, optional=True)
        self._groups_reflector = self._follow(volcano.POD_GROUPS, self.groups, self._group, optional=True)
        self._follow(core.PODS, self.pods, self._pod)
        for name in BUILT_IN_QUEUES:
            self._events.append(happened.QueueChanged(Queue(name=name)))

    def _follow(
        self,
        resource: Resource[S],
        store: Store[S],
        subscriber: Callable[[Delta[S]], None],
        *,
        optional: bool = False,
    ) -> Reflector[S]:
        store.subscribe(subscriber)
        reflector = Reflector(self._client, resource, store, optional=optional)
        self.reflectors.append(reflector)
        return reflector

    @property
    def groups_version(self) -> str:
        """The newest known version of a PodGroup."""
        return self._groups_reflector.version

    async def synced(self) -> None:
        """Wait until everything is listed once."""
        await asyncio.gather(*(reflector.synced.wait() for reflector in self.reflectors))

    def take(self) -> list[Event]:
        """The events since the last call."""
        if self._any_claim_moved or self._claims_moved:
            self._look_at_volumes()
        taken, self._events = self._events, []
        return taken

    def tell(self, event: Event) -> None:
        """Add an event that does not come from a watch: a failed bind or a failed eviction."""
        self._events.append(event)
        self._wake()

    def hold(self, key: PodKey, uid: str, problem: str) -> None:
        """Leave the pod alone until `release`, because of a problem with its binding."""
        self._held[key] = uid, Hold(Cause.BIND_FAILED, problem)
        self._again(key)

    def release(self, key: PodKey) -> None:
        if self._held.pop(key, None) is not None:
            self._again(key)

    def retranslate_nodes(self) -> None:
        """Translate all nodes again after `with_load` changed."""
        for node in self.nodes:
            self._tell_node(node)
        self._wake()

    def waits_for_group(self, pod: core.Pod) -> Hold | None:
        """Why the pod waits for a PodGroup; None when it does not."""
        group = pod.group
        if group is not None and self.groups.get(Key(group)) is None:
            remedy = "create the PodGroup, or start the controller that creates it"
            return Hold(Cause.NO_GROUP, f"its PodGroup {group} does not exist", (remedy,))
        if expects_group(pod.metadata):
            return _GROUP_TO_COME
        reference = _workload_of(pod) if group is None else None
        if reference is None:
            return None
        owner = self.owners[reference.api_version, reference.kind].get(
            Key(f"{pod.metadata.namespace}/{reference.name}")
        )
        if owner is None or owner.metadata.uid != reference.uid:
            return Hold(Cause.NO_GROUP, f"its {reference.kind} {reference.name} is not known yet")
        return _GROUP_TO_COME if expects_group(owner.metadata) else None

    def _again(self, key: PodKey) -> None:
        pod = self.pods.get(Key(key))
        if pod is not None:
            self._pod(Delta(Key(key), pod, pod))

    def _pod(self, delta: Delta[core.Pod]) -> None:
        old, pod = delta.old, delta.new
        key = PodKey(delta.key)
        if pod is None:
            if old is not None and (group := old.group) is not None:
                self.groups_moved(group)
            self._forget(key)
            return
        ours = self.words.is_ours(pod)
        group = pod.group if ours else None
        ended = pod.status.phase in ENDED_PHASES
        if (not ours and not pod.spec.node_name) or (ended and group is None):
            if key in self._specs:
                self._forget(key)
            return
        spec = self._specs.get(key)
        if spec is None or (old is not None and not self.words.same_spec(old, pod)):
            if spec is None and ours and not pod.spec.node_name:
                self.pod_seen(pod)
            spec = self._specs[key] = self.words.spec(pod)
        if old is not None and key in self._held and self._held[key][0] != pod.metadata.uid:
            del self._held[key]
        held = self._hold_on(key, pod) if ours and not pod.spec.node_name else None
        self._events.append(happened.PodChanged(self.words.translate(pod, spec=spec, held=held)))
        if group is not None:
            if old is None or old.status.phase != pod.status.phase or old.spec.node_name != pod.spec.node_name:
                self.groups_moved(group)
            told = self._told_priority.get(group, 0)
            if pod.spec.priority > told or (
                old is None and pod.spec.priority < 0
            ):  # a group without pods has priority 0
                self._told_priority[group] = max(told, pod.spec.priority)
                self._group_again(group)
        self._wake()

    def _hold_on(self, key: PodKey, pod: core.Pod) -> Hold | None:
        hold = self.waits_for_group(pod)
        if hold is not None:
            self.without_group[key] = None
            return hold
        self.without_group.pop(key, None)
        return self._held[key][1] if key in self._held else None

    def _forget(self, key: PodKey) -> None:
        self._held.pop(key, None)
        self.without_group.pop(key, None)
        if self._specs.pop(key, None) is not None:
            self._events.append(happened.PodRemoved(key))
            self.pod_gone(key)
            self._wake()

    def _volumes_moved(self, keys: Iterable[ClaimKey]) -> None:
        """Handle changed claims or, without keys, a change that may concern any claim."""
        named = list(keys)
        self._claims_moved.update(dict.fromkeys(named))
        self._any_claim_moved |= not named
        self._wake()

    def _look_at_volumes(self) -> None:
        """Translate the pods of changed claims again: waiting pods may fit elsewhere now, and pods on nodes may have
        another volume there. One pass covers all changes since the last."""
        claims, everything = self._claims_moved, self._any_claim_moved
        self._claims_moved, self._any_claim_moved = {}, False
        if everything:
            concerned = [pod for pod in self.pods if claims_of(pod)]
        else:
            concerned = [pod for claim in claims for pod in self.pods.by_index("claim", "/".join(claim))]
        for pod in concerned:
            key = pod.key
            spec = self._specs.get(key)
            if spec is not None and not (pod.spec.node_name and self._has_same_volumes(pod, spec)):
                del self._specs[key]
                self._again(key)

    def _has_same_volumes(self, pod: core.Pod, spec: PodSpec) -> bool:
        """Whether a pod on a node has the same volumes; from where they can be reached no longer matters."""
        volumes = self.volumes
        return spec.attachments == volumes.attachments(pod) and spec.sole_claims == volumes.sole_claims(pod)

    def _limits_moved(self, name: str) -> None:
        """Handle a changed limit of volumes on a node."""
        node = self.nodes.get(Key(name))
        if node is not None:
            self._tell_node(node)
            self._wake()

    def _node(self, delta: Delta[core.Node]) -> None:
        node = delta.new
        if node is None:
            self._events.append(happened.NodeRemoved(NodeName(delta.key)))
        else:
            self._tell_node(node)
        self._wake()

    def _tell_node(self, node: core.Node) -> None:
        limits = self.volumes.limits.on(node.metadata.name)
        told = cluster.node_of(node, self.cards, with_load=self.with_load, volume_limits=limits)
        self._events.append(happened.NodeChanged(told))

    def _owner(self, delta: Delta[Workload]) -> None:
        """Check the pods of a new owner, or of one that begins or stops asking for a group; ignore its other
        changes."""
        old, new = delta.old, delta.new
        if new is None or (
            old is not None
            and old.metadata.uid == new.metadata.uid
            and expects_group(old.metadata) == expects_group(new.metadata)
        ):
            return
        for pod in self.pods.by_index("owner", new.metadata.uid):
            self._again(pod.key)

    def _group(self, delta: Delta[volcano.PodGroup]) -> None:
        key = GroupKey(delta.key)
        if delta.new is None:
            self._told_priority.pop(key, None)
            self._events.append(happened.GroupRemoved(key))
        else:
            self._tell_group(delta.new)
        if delta.new is None or delta.old is None:
            for pod in self.pods.by_index("group", key):
                self._again(pod.key)
        self.groups_moved(key)
        self._wake()

    def _group_again(self, key: GroupKey) -> None:
        group = self.groups.get(Key(key))
        if group is not None:
            self._tell_group(group)

    def _tell_group(self, group: volcano.PodGroup) -> None:
        priority = self._priority(group)
        key = cluster.group_key(group)
        self._told_priority[key] = max(priority, self._told_priority.get(key, 0))
        try:
            told = cluster.group_of(group, priority)
        except QuantityError as error:  # the schema accepts `1e1.5`; a gang is defined by minMember
            _LOG.error("minResources left out", group=key, error=str(error))
            spec = msgspec.structs.replace(group.spec, min_resources=None)
            told = cluster.group_of(msgspec.structs.replace(group, spec=spec), priority)
        self._events.append(happened.GroupChanged(told))

    def _priority(self, group: volcano.PodGroup) -> int:
        """The priority of the group's class; without a class, the highest priority of its pods."""
        named = group.spec.priority_class_name
        if named and (found := self.classes.get(Key(named))) is not None:
            return found.value
        pods = self.pods.by_index("group", cluster.group_key(group))
        return max((pod.spec.priority for pod in pods), default=0)

    def _class(self, delta: Delta[core.PriorityClass]) -> None:
        for group in self.groups:
            if group.spec.priority_class_name == delta.key:
                self._tell_group(group)
        self._wake()

    def _queue(self, delta: Delta[volcano.Queue]) -> None:
        if delta.new is not None:
            try:
                self._events.append(happened.QueueChanged(cluster.queue_of(delta.new)))
            except QuantityError as error:  # rather an old queue, or none, than a queue without its limits
                _LOG.error("queue left out", queue=delta.key, error=str(error))
        elif QueueName(delta.key) in BUILT_IN_QUEUES:
            self._events.append(happened.QueueChanged(Queue(name=QueueName(delta.key))))
        else:
            self._events.append(happened.QueueRemoved(QueueName(delta.key)))
        self._wake()

    def _quota(self, delta: Delta[core.Quota]) -> None:
        if delta.new is not None:
            self._events.append(happened.QuotaChanged(cluster.quota_of(delta.new)))
        elif delta.old is not None:
            metadata = delta.old.metadata
            self._events.append(happened.QuotaRemoved(metadata.namespace, metadata.name))
        self._wake()

    def _budget(self, delta: Delta[core.Budget]) -> None:
        if delta.new is not None:
            self._events.append(happened.BudgetChanged(cluster.budget_of(delta.new)))
        elif delta.old is not None:
            metadata = delta.old.metadata
            self._events.append(happened.BudgetRemoved(metadata.namespace, metadata.name))

    def _hyper_node(self, delta: Delta[volcano.HyperNode]) -> None:
        if delta.new is None:
            self._events.append(happened.HyperNodeRemoved(delta.key))
        elif delta.old is None or delta.old.spec != delta.new.spec:
            self._events.append(happened.HyperNodeChanged(cluster.hyper_node_of(delta.new)))
        self._wake()

    def _namespace(self, delta: Delta[core.Namespace]) -> None:
        if delta.new is not None:
            self._events.append(happened.NamespaceChanged(cluster.namespace_of(delta.new)))
        else:
            self._events.append(happened.NamespaceRemoved(delta.key))


def _group_index(pod: core.Pod) -> Iterable[str]:
    group = pod.group
    return (group,) if group is not None else ()


def _claim_index(pod: core.Pod) -> Iterable[str]:
    return ("/".join(claim) for claim in claims_of(pod))


def _owner_index(pod: core.Pod) -> Iterable[str]:
    owner = None if pod.spec.node_name else _workload_of(pod)
    return (owner.uid,) if owner is not None else ()


def _workload_of(pod: core.Pod) -> OwnerReference | None:
    """The owner that controls the pod, if it is a Kubernetes workload."""
    owner = pod.metadata.controller()
    return owner if owner is not None and (owner.api_version, owner.kind) in WORKLOADS else None
