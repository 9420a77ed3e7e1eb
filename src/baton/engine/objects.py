"""The engine's input objects: nodes, cards, pods, groups, queues, quotas and budgets.

These are our own frozen values, not Kubernetes JSON: an adapter translates once, and the engine, the simulator and test
literals share one vocabulary. They contain no cycles, so the garbage collector does not need to track them. Collections
are tuples, so that a `PodSpec` can be hashed and equal specs of thousands of pods are stored once. Units: `cpu` in
milli-cores, `memory` in bytes, every other resource in pieces; card memory in MiB; a card's computing power in
thousandths (`share_milli`, 1000 = the whole card).
"""

import re
from enum import StrEnum

import msgspec

from baton.engine.verdicts import Cause
from baton.model.ids import CardId, GroupKey, NodeName, PodKey, QueueName
from baton.model.names import DEFAULT_QUEUE, PodGroupPhase, PodPhase, QueueState
from baton.model.quantities import Amounts

WHOLE_CARD_MILLI = 1000

_INTEGER = re.compile(r"[+-]?[0-9]+")
"""The syntax of a number in a label, which is stricter than Python's `int`."""

Pairs = tuple[tuple[str, str], ...]


class CardKind(StrEnum):
    """How a container requests a card; a card serves the kinds that its node advertises."""

    SLOT = "slot"
    VGPU = "vgpu"
    MEMORY = "gpu-memory"
    WHOLE = "whole"
    FRACTION = "fraction"


ALL_KINDS = tuple(CardKind)
KIND_BIT = {kind: 1 << position for position, kind in enumerate(CardKind)}


class Card(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One physical card, or one MIG instance (`fixed`: it is always granted as a whole)."""

    id: CardId
    memory_mib: int
    share_milli: int = WHOLE_CARD_MILLI
    slots: int = 1
    model: str = ""
    mode: str = ""
    compute_capability: int = 0
    """The major version times ten plus the minor version: 8.6 is 86."""
    healthy: bool = True
    serves: tuple[CardKind, ...] = ALL_KINDS
    fixed: bool = False
    parent: CardId | None = None
    numa: int = -1
    links: tuple[tuple[CardId, int], ...] = ()
    """Bandwidth class to other cards of the node; higher is closer."""
    utilisation_percent: float = 0.0
    memory_used_percent: float = 0.0
    temperature_c: float = 0.0
    power_percent: float = 0.0


class Taint(msgspec.Struct, frozen=True, gc=False):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Toleration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


class Requirement(msgspec.Struct, frozen=True, gc=False):
    """One match expression: In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeTerm(msgspec.Struct, frozen=True, gc=False):
    """Matches if all expressions hold; `names` and `not_names` are the metadata.name field selectors In and NotIn."""

    expressions: tuple[Requirement, ...] = ()
    names: tuple[str, ...] = ()
    not_names: tuple[str, ...] = ()


class PreferredNodeTerm(msgspec.Struct, frozen=True, gc=False):
    weight: int
    term: NodeTerm


class LabelSelector(msgspec.Struct, frozen=True, gc=False):
    """Selects every object if it is empty, as in Kubernetes."""

    labels: Pairs = ()
    expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        if any(labels.get(key) != value for key, value in self.labels):
            return False
        return all(requirement_holds(item, labels.get(item.key)) for item in self.expressions)

    def keys(self) -> tuple[str, ...]:
        return (*(key for key, _ in self.labels), *(item.key for item in self.expressions))


class AffinityTerm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Near, or away from, the pods that `selector` selects. Without any namespaces it applies to the pod's own."""

    selector: LabelSelector
    topology_key: str
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None


class PreferredAffinityTerm(msgspec.Struct, frozen=True, gc=False):
    weight: int
    term: AffinityTerm


class SpreadConstraint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    selector: LabelSelector
    topology_key: str
    max_skew: int = 1
    required: bool = True
    min_domains: int = 1
    honour_node_affinity: bool = True
    """Count only nodes that the pod's selector and node affinity allow (nodeAffinityPolicy)."""
    honour_taints: bool = False
    """Count only nodes whose taints the pod tolerates (nodeTaintsPolicy)."""


class CardRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A container's request to each of `count` distinct cards.

    If memory and percentage are both zero, the request is for all memory of a `vgpu` card, and for no memory of any
    other kind. `share_milli` is the share of the computing power (`vgpu-cores` times ten, or the milli-GPU of a trace).
    """

    kind: CardKind
    count: int = 1
    memory_mib: int = 0
    memory_percent: int = 0
    share_milli: int = 0


class ContainerRole(StrEnum):
    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"
    """An init container that keeps running: restartPolicy Always."""


class Container(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str = "main"
    requests: Amounts = ()
    cards: tuple[CardRequest, ...] = ()
    role: ContainerRole = ContainerRole.APP


class CardRules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which cards a pod may use, and which pods it may share them with."""

    models: tuple[str, ...] = ()
    """Case-insensitive parts of the model name; if given, `not_models` is ignored."""
    not_models: tuple[str, ...] = ()
    ids: tuple[CardId, ...] = ()
    not_ids: tuple[CardId, ...] = ()
    mode: str = ""
    min_memory_mib: int = 0
    min_compute_capability: int = 0
    with_pods: tuple[LabelSelector, ...] = ()
    """Card affinity: only on a card that already holds a pod with such labels."""
    without_pods: tuple[LabelSelector, ...] = ()
    """Card anti-affinity: never on a card that holds a pod with such labels."""
    spread_group: bool = False
    """Two pods of one group never share a card."""


class PodSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that decides where a pod may go; equal specs are stored once."""

    containers: tuple[Container, ...] = ()
    overhead: Amounts = ()
    node_selector: Pairs = ()
    node_terms: tuple[NodeTerm, ...] = ()
    """Required node affinity: one of these terms holds."""
    preferred_node_terms: tuple[PreferredNodeTerm, ...] = ()
    volume_terms: tuple[tuple[NodeTerm, ...], ...] = ()
    """Node affinity of each bound volume: for each volume, one of its terms holds."""
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[AffinityTerm, ...] = ()
    """As in Kubernetes, a placed pod counts for any of these only if all of them select it."""
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred_affinity: tuple[PreferredAffinityTerm, ...] = ()
    preferred_anti_affinity: tuple[PreferredAffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    host_ports: tuple[tuple[str, str, int], ...] = ()
    """(host address, protocol, port)."""
    attachments: Pairs = ()
    """(CSI driver, volume): the volumes that a node attaches for the pod, for drivers with a limit."""
    sole_claims: tuple[str, ...] = ()
    """Volume claims, as `namespace/name`, that only one pod may use (ReadWriteOncePod)."""
    images: tuple[str, ...] = ()
    card_rules: CardRules = CardRules()
    revocable_zone: str = ""
    device_claims: bool = False
    """Whether the pod requests devices through ResourceClaims, which must be allocated before it can start."""


class CardGrant(msgspec.Struct, frozen=True, gc=False):
    """One card of one container, with the amounts charged for it."""

    container: str
    card: CardId
    kind: CardKind
    memory_mib: int
    share_milli: int


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Why an adapter keeps a pod from being placed for now, in the words of a verdict."""

    cause: Cause
    detail: str
    would_help: tuple[str, ...] = ()


class Pod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod as the cluster reports it. `key` is `namespace/name`."""

    key: PodKey
    spec: PodSpec
    uid: str = ""
    labels: Pairs = ()
    group: GroupKey | None = None
    role: str = ""
    """The task of the job that this pod is a replica of; minTaskMember counts replicas by task."""
    index: int = 0
    queue: QueueName | None = None
    """Only read for a pod without a group."""
    priority: int = 0
    preemptable: bool = True
    can_preempt: bool = True
    """False for preemptionPolicy Never."""
    phase: PodPhase = PodPhase.PENDING
    node: NodeName | None = None
    cards: tuple[CardGrant, ...] = ()
    nominated: NodeName | None = None
    """The node on which the pod waits for evicted pods to leave, from an earlier plan."""
    deleting: bool = False
    gated: bool = False
    """It may not be placed: it has scheduling gates, or an adapter holds it back."""
    held: Hold | None = None
    """Why an adapter holds it back; None when it does not."""
    ours: bool = True
    """False for another scheduler's pod: it takes room, and we never place or evict it."""
    critical: bool = False
    """Whether the priority class is system-cluster-critical or system-node-critical."""
    created_s: float = 0.0
    started_s: float | None = None
    cooldown_s: float = 0.0

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        return self.key.partition("/")[2]


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: NodeName
    allocatable: Amounts
    cards: tuple[Card, ...] = ()
    labels: Pairs = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    images: tuple[tuple[str, int], ...] = ()
    """(image, bytes)."""
    volume_limits: Amounts = ()
    """(CSI driver, number of its volumes that the node can attach); drivers that are not listed have no limit."""
    cpu_used_percent: float = 0.0
    memory_used_percent: float = 0.0


class HyperNodeMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One entry of a hyper node's list: nodes or hyper nodes, by name, by pattern or (nodes only) by labels."""

    nodes: bool = True
    """False if the entry lists other hyper nodes."""
    name: str = ""
    pattern: str = ""
    """A regular expression that may match anywhere in the name."""
    selector: LabelSelector | None = None


class HyperNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Nodes that are close to each other in the network: a host's links, a rack, a row. A lower tier is closer."""

    name: str
    tier: int = 0
    tier_name: str = ""
    members: tuple[HyperNodeMember, ...] = ()


class Closeness(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How close together pods must be (hard), or should be (soft): in one hyper node of this tier or a lower one."""

    hard: bool = True
    highest_tier: int | None = None
    highest_tier_name: str = ""
    """The tier by the name that hyper nodes give it; without a number or a name, any tier is allowed."""


class Parts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A gang's sub-groups of one kind: selected pods with the same values of `keys` are one part.

    A part starts with all its `size` pods or not at all; the gang needs `minimum` such parts. `closeness` applies to
    the pods of one part.
    """

    name: str = ""
    selector: LabelSelector = LabelSelector()
    keys: tuple[str, ...] = ()
    size: int = 1
    minimum: int = 0
    closeness: Closeness | None = None


class PodGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job from the scheduler's point of view: the pods that start together."""

    key: GroupKey
    queue: QueueName = DEFAULT_QUEUE
    min_member: int = 1
    min_role_members: tuple[tuple[str, int], ...] = ()
    parts: tuple[Parts, ...] = ()
    min_resources: Amounts | None = None
    priority: int = 0
    phase: PodGroupPhase = PodGroupPhase.PENDING
    created_s: float = 0.0
    uid: str = ""
    sla_waiting_s: float | None = None
    expected_duration_s: float | None = None
    attained_gpu_s: float = 0.0
    """Service already received (for least-attained-service order)."""
    budget_min_available: str = ""
    """Job disruption budget for the tdm plugin: a number or a percentage, empty for none."""
    budget_max_unavailable: str = ""
    topology_affinity: tuple[tuple[str, ...], ...] = ()
    topology_anti_affinity: tuple[tuple[str, ...], ...] = ()
    topology_order: tuple[str, ...] = ()
    closeness: Closeness | None = None

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]

    @property
    def close(self) -> bool:
        """Whether the job has rules about the network between its pods."""
        if self.closeness is None and not self.parts:
            return False
        return self.closeness is not None or any(parts.closeness is not None for parts in self.parts)


class Queue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: QueueName
    weight: int = 1
    capability: Amounts = ()
    deserved: Amounts = ()
    guarantee: Amounts = ()
    parent: QueueName | None = None
    reclaimable: bool = True
    priority: int = 0
    state: QueueState = QueueState.OPEN
    dequeue_strategy: str = "traverse"
    """`fifo`: a job that does not fit holds back every later job of the queue."""
    created_s: float = 0.0
    node_groups: tuple[str, ...] = ()
    preferred_node_groups: tuple[str, ...] = ()
    excluded_node_groups: tuple[str, ...] = ()
    avoided_node_groups: tuple[str, ...] = ()
    hierarchy: str = ""
    """The volcano.sh/hierarchy annotation, `root/a/b`."""
    hierarchy_weights: str = ""


class Quota(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A namespace's ResourceQuota: hard limits and usage, by resource name as in requests."""

    namespace: str
    name: str
    hard: Amounts
    used: Amounts = ()


class Budget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A PodDisruptionBudget, with the number of disruptions that it still allows."""

    namespace: str
    name: str
    selector: LabelSelector
    disruptions_allowed: int


class Namespace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str
    labels: Pairs = ()
    weight: int = 1


def requirement_holds(requirement: Requirement, value: str | None) -> bool:
    """Evaluate one match expression for one label value (None: the label is absent)."""
    operator = requirement.operator
    if operator == "In":
        return value is not None and value in requirement.values
    if operator == "NotIn":
        return value is None or value not in requirement.values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator in ("Gt", "Lt") and value is not None and requirement.values:
        bound = requirement.values[0]
        if not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(bound)):
            return False
        return int(value) > int(bound) if operator == "Gt" else int(value) < int(bound)
    return False
