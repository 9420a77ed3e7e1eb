"""Events of the cluster, as values.

An adapter converts watch events into these; `Engine.apply` accepts them in any order (a pod may arrive before its node
or its group) and any number of times: applying the same event twice changes nothing.
"""

import msgspec

from baton.engine.objects import Budget, HyperNode, Namespace, Node, Pod, PodGroup, Queue, Quota
from baton.model.ids import GroupKey, NodeName, PodKey, QueueName


class NodeChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A node was added or changed."""

    node: Node


class NodeRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    name: NodeName


class PodChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod was added or changed."""

    pod: Pod


class PodRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    key: PodKey


class GroupChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    group: PodGroup


class GroupRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    key: GroupKey


class QueueChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    queue: Queue


class QueueRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    name: QueueName


class QuotaChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    quota: Quota


class QuotaRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    namespace: str
    name: str


class BudgetChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    budget: Budget


class BudgetRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    namespace: str
    name: str


class NamespaceChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    namespace: Namespace


class NamespaceRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    name: str


class HyperNodeChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    hyper_node: HyperNode


class HyperNodeRemoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    name: str


class BindFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A binding of an earlier plan was refused; the pod is pending again and its room is free."""

    key: PodKey


class EvictFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """An eviction of an earlier plan was refused; the pod keeps running and is not evicted before `until_s`."""

    key: PodKey
    until_s: float = 0.0


Event = (
    NodeChanged
    | NodeRemoved
    | PodChanged
    | PodRemoved
    | GroupChanged
    | GroupRemoved
    | QueueChanged
    | QueueRemoved
    | QuotaChanged
    | QuotaRemoved
    | BudgetChanged
    | BudgetRemoved
    | NamespaceChanged
    | NamespaceRemoved
    | HyperNodeChanged
    | HyperNodeRemoved
    | BindFailed
    | EvictFailed
)
