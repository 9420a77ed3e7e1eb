"""Nodes, hyper nodes, groups, queues, quotas, budgets and namespaces."""

from collections.abc import Mapping

import msgspec

from baton.engine.objects import (
    Budget,
    Closeness,
    HyperNode,
    HyperNodeMember,
    LabelSelector,
    Namespace,
    Node,
    Parts,
    PodGroup,
    Queue,
    Quota,
    Taint,
)
from baton.mapping import selectors
from baton.mapping.cards import CardWords
from baton.model import core, times, volcano
from baton.model.durations import parse_duration_s
from baton.model.ids import GroupKey, NodeName, QueueName
from baton.model.names import (
    DEFAULT_QUEUE,
    HIERARCHY,
    HIERARCHY_WEIGHTS,
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    ROOT_QUEUE,
    SLA_WAITING_TIME,
    PodGroupPhase,
    QueueState,
)
from baton.model.numerals import whole_number
from baton.model.quantities import Amounts, Quantity, amount, amounts

TOPOLOGY_AFFINITY = "volcano.sh/task-topology-affinity"
TOPOLOGY_ANTI_AFFINITY = "volcano.sh/task-topology-anti-affinity"
TOPOLOGY_ORDER = "volcano.sh/task-topology-task-order"
EXPECTED_DURATION = "baton.dev/expected-duration"
NAMESPACE_WEIGHT = "volcano.sh/namespace.weight"


def node_of(node: core.Node, cards: CardWords, *, with_load: bool = False, volume_limits: Amounts = ()) -> Node:
    """The engine's node. A node without a Ready condition has a kubelet that has not reported yet."""
    ready = next((item.status for item in node.status.conditions if item.type == "Ready"), "Unknown")
    return Node(
        name=NodeName(node.metadata.name),
        allocatable=amounts(node.status.allocatable),
        cards=cards.node_cards(node, with_load=with_load),
        labels=selectors.pairs(node.metadata.labels),
        taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in node.spec.taints),
        unschedulable=node.spec.unschedulable,
        ready=ready == "True",
        images=tuple((name, image.size_bytes) for image in node.status.images for name in image.names),
        volume_limits=volume_limits,
    )


def min_resources(spec: volcano.PodGroupSpec) -> Amounts | None:
    """The resources that the gang's pods need from nodes, without the quota names (`count/pods`, `requests.cpu`) that
    Volcano writes beside them."""
    if spec.min_resources is None:
        return None
    quotas = ("count/", "requests.", "limits.")
    return amounts({name: quantity for name, quantity in spec.min_resources.items() if not name.startswith(quotas)})


def group_queue(group: volcano.PodGroup) -> QueueName:
    return QueueName(group.spec.queue or DEFAULT_QUEUE)


def group_of(group: volcano.PodGroup, priority: int) -> PodGroup:
    """The engine's group; `priority` is the value of its priority class."""
    spec, annotations = group.spec, group.metadata.annotations
    return PodGroup(
        key=group_key(group),
        queue=group_queue(group),
        min_member=spec.min_member,
        min_role_members=tuple(sorted(spec.min_task_member.items())),
        parts=tuple(_parts(policy) for policy in spec.sub_group_policy),
        min_resources=min_resources(spec),
        priority=priority,
        phase=_GROUP_PHASES.get(group.status.phase, PodGroupPhase.PENDING),
        created_s=times.seconds(group.metadata.creation_timestamp) or 0.0,
        uid=group.metadata.uid,
        sla_waiting_s=_duration_s(annotations, SLA_WAITING_TIME, "sla-waiting-time"),
        expected_duration_s=_duration_s(annotations, EXPECTED_DURATION),
        budget_min_available=annotations.get(JDB_MIN_AVAILABLE, ""),
        budget_max_unavailable=annotations.get(JDB_MAX_UNAVAILABLE, ""),
        topology_affinity=_sets(annotations.get(TOPOLOGY_AFFINITY, "")),
        topology_anti_affinity=_sets(annotations.get(TOPOLOGY_ANTI_AFFINITY, "")),
        topology_order=tuple(part.strip() for part in annotations.get(TOPOLOGY_ORDER, "").split(",") if part.strip()),
        closeness=_closeness(spec.network_topology),
    )


def _closeness(topology: volcano.NetworkTopology | None) -> Closeness | None:
    """A rule that names no tier is soft: there is no limit, and closer is better."""
    if topology is None:
        return None
    limited = topology.highest_tier_allowed is not None or bool(topology.highest_tier_name)
    return Closeness(
        hard=topology.mode == "hard" and limited,
        highest_tier=topology.highest_tier_allowed,
        highest_tier_name=topology.highest_tier_name,
    )


def _parts(policy: volcano.SubGroupPolicy) -> Parts:
    """A policy without a selector applies to all pods of the group."""
    selector = LabelSelector()
    if policy.label_selector is not None:
        selector = selectors.label_selector(msgspec.convert(policy.label_selector, core.LabelSelector))
    return Parts(
        name=policy.name,
        selector=selector,
        keys=policy.match_label_keys,
        size=policy.sub_group_size or 1,
        minimum=policy.min_sub_groups or 0,
        closeness=_closeness(policy.network_topology),
    )


def hyper_node_of(hyper_node: volcano.HyperNode) -> HyperNode:
    spec = hyper_node.spec
    return HyperNode(
        name=hyper_node.metadata.name,
        tier=spec.tier,
        tier_name=spec.tier_name,
        members=tuple(_member(member) for member in spec.members),
    )


def _member(member: volcano.HyperNodeMember) -> HyperNodeMember:
    exact, regex, labels = member.selector.exact_match, member.selector.regex_match, member.selector.label_match
    return HyperNodeMember(
        nodes=member.type == "Node",
        name=exact.name if exact is not None else "",
        pattern=regex.pattern if regex is not None else "",
        selector=None if labels is None else selectors.label_selector(msgspec.convert(labels, core.LabelSelector)),
    )


def group_key(group: volcano.PodGroup) -> GroupKey:
    return GroupKey(f"{group.metadata.namespace}/{group.metadata.name}")


def queue_of(queue: volcano.Queue) -> Queue:
    """The engine's queue. A queue without a state counts as open."""
    spec, annotations = queue.spec, queue.metadata.annotations
    affinity = spec.affinity or volcano.QueueAffinity()
    wanted, unwanted = affinity.node_group_affinity, affinity.node_group_anti_affinity
    name = queue.metadata.name
    return Queue(
        name=QueueName(name),
        weight=max(1, spec.weight),
        capability=amounts(spec.capability),
        deserved=amounts(spec.deserved),
        guarantee=amounts(spec.guarantee.resource),
        parent=QueueName(spec.parent) if spec.parent and name != ROOT_QUEUE else None,
        reclaimable=spec.reclaimable is not False,
        priority=spec.priority,
        state=_QUEUE_STATES.get(queue.status.state, QueueState.OPEN),
        dequeue_strategy=spec.dequeue_strategy or "traverse",
        created_s=times.seconds(queue.metadata.creation_timestamp) or 0.0,
        node_groups=wanted.required if wanted is not None else (),
        preferred_node_groups=wanted.preferred if wanted is not None else (),
        excluded_node_groups=unwanted.required if unwanted is not None else (),
        avoided_node_groups=unwanted.preferred if unwanted is not None else (),
        hierarchy=annotations.get(HIERARCHY, ""),
        hierarchy_weights=annotations.get(HIERARCHY_WEIGHTS, ""),
    )


def quota_of(quota: core.Quota) -> Quota:
    """Quotas on requests, by plain resource name; the scheduler ignores quotas on limits and object counts."""
    return Quota(
        namespace=quota.metadata.namespace,
        name=quota.metadata.name,
        hard=_requested(quota.status.hard),
        used=_requested(quota.status.used),
    )


def budget_of(budget: core.Budget) -> Budget:
    return Budget(
        namespace=budget.metadata.namespace,
        name=budget.metadata.name,
        selector=selectors.label_selector(budget.spec.selector),
        disruptions_allowed=budget.status.disruptions_allowed,
    )


def namespace_of(namespace: core.Namespace) -> Namespace:
    return Namespace(
        name=namespace.metadata.name,
        labels=selectors.pairs(namespace.metadata.labels),
        weight=whole_number(namespace.metadata.annotations.get(NAMESPACE_WEIGHT, "")) or 1,
    )


def _requested(quantities: Mapping[str, Quantity]) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for name, quantity in sorted(quantities.items()):
        plain = name.removeprefix("requests.")
        if plain in ("cpu", "memory", "pods") or name.startswith("requests."):
            found.setdefault(plain, amount(plain, quantity))
    return tuple(found.items())


def _duration_s(annotations: Mapping[str, str], *keys: str) -> float | None:
    text = next((annotations[key] for key in keys if key in annotations), "")
    return parse_duration_s(text) if text else None


def _sets(text: str) -> tuple[tuple[str, ...], ...]:
    """`a,b;c,d` as sets of roles."""
    return tuple(
        tuple(part.strip() for part in one.split(",") if part.strip()) for one in text.split(";") if one.strip()
    )


_GROUP_PHASES = {phase.value: phase for phase in PodGroupPhase}
_QUEUE_STATES = {state.value: state for state in QueueState}
