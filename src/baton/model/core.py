"""Kubernetes' own objects, typed: the fields that decide where a pod goes, and no others.

Tens of thousands of them live as long as the scheduler; they contain no cycles and are not tracked by the garbage
collector. Fields that the API server leaves out have their default value here.
"""

import msgspec

from baton.model.ids import GroupKey, PodKey
from baton.model.meta import Metadata
from baton.model.names import GROUP_NAME, VOLCANO_GROUP_NAME
from baton.model.quantities import Quantity
from baton.model.resource import Resource


class _Read(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A read-only object with the field names of the API."""


class Requirements(_Read, frozen=True, gc=False):
    """The requests and limits of a container."""

    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class ContainerPort(_Read, frozen=True, gc=False):
    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(name="hostIP", default="")


class Container(_Read, frozen=True, gc=False):
    name: str = ""
    image: str = ""
    resources: Requirements = Requirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


class MatchExpression(_Read, frozen=True, gc=False):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(_Read, frozen=True, gc=False):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[MatchExpression, ...] = ()


class NodeSelectorTerm(_Read, frozen=True, gc=False):
    match_expressions: tuple[MatchExpression, ...] = ()
    match_fields: tuple[MatchExpression, ...] = ()


class NodeSelector(_Read, frozen=True, gc=False):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredNode(_Read, frozen=True, gc=False):
    weight: int = 1
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(_Read, frozen=True, gc=False):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: tuple[PreferredNode, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class PodAffinityTerm(_Read, frozen=True, gc=False):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class PreferredPod(_Read, frozen=True, gc=False):
    weight: int = 1
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(_Read, frozen=True, gc=False):
    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )
    preferred: tuple[PreferredPod, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(_Read, frozen=True, gc=False):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(_Read, frozen=True, gc=False):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class SpreadConstraint(_Read, frozen=True, gc=False):
    topology_key: str = ""
    max_skew: int = 1
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    match_label_keys: tuple[str, ...] = ()
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"


class ClaimSource(_Read, frozen=True, gc=False):
    claim_name: str = ""


class Volume(_Read, frozen=True, gc=False):
    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, object] | None = None
    """Kubernetes creates a claim named `<pod>-<volume>` for it."""


class DeviceClaim(_Read, frozen=True, gc=False):
    """An entry of `resourceClaims`: devices that a scheduler allocates beforehand."""

    name: str = ""


class SchedulingGate(_Read, frozen=True, gc=False):
    name: str = ""


class PodSpec(_Read, frozen=True, gc=False):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()
    volumes: tuple[Volume, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    resource_claims: tuple[DeviceClaim, ...] = ()
    overhead: dict[str, Quantity] = {}
    resources: Requirements | None = None
    """Requests of the pod as a whole, beside those of its containers."""


class PodCondition(_Read, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Terminated(_Read, frozen=True, gc=False):
    exit_code: int = 0
    finished_at: str | None = None


class Waiting(_Read, frozen=True, gc=False):
    reason: str = ""
    message: str = ""


class ContainerState(_Read, frozen=True, gc=False):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Read, frozen=True, gc=False):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    resources: Requirements | None = None
    """The resources in use, which differ from the spec during a resize."""
    allocated_resources: dict[str, Quantity] = {}
    """The resources that kubelet has set aside for it."""


class PodStatus(_Read, frozen=True, gc=False):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    nominated_node_name: str = ""
    start_time: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")


class Pod(_Read, frozen=True, gc=False):
    """v1 Pod."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> PodKey:
        return PodKey(f"{self.metadata.namespace}/{self.metadata.name}")

    @property
    def group(self) -> GroupKey | None:
        """The PodGroup that the pod names."""
        annotations = self.metadata.annotations
        name = annotations.get(GROUP_NAME) or annotations.get(VOLCANO_GROUP_NAME)
        return GroupKey(f"{self.metadata.namespace}/{name}") if name else None


class Taint(_Read, frozen=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(_Read, frozen=True, gc=False):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeCondition(_Read, frozen=True, gc=False):
    type: str = ""
    status: str = ""


class Image(_Read, frozen=True, gc=False):
    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(_Read, frozen=True, gc=False):
    allocatable: dict[str, Quantity] = {}
    conditions: tuple[NodeCondition, ...] = ()
    images: tuple[Image, ...] = ()


class Node(_Read, frozen=True, gc=False):
    """v1 Node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ClaimResources(_Read, frozen=True, gc=False):
    requests: dict[str, Quantity] = {}


class ClaimSpec(_Read, frozen=True, gc=False):
    volume_name: str = ""
    storage_class_name: str = ""
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    resources: ClaimResources = ClaimResources()
    selector: LabelSelector | None = None


class ClaimStatus(_Read, frozen=True, gc=False):
    phase: str = ""


class Claim(_Read, frozen=True, gc=False):
    """v1 PersistentVolumeClaim."""

    metadata: Metadata
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class ClaimReference(_Read, frozen=True, gc=False):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeNodeAffinity(_Read, frozen=True, gc=False):
    required: NodeSelector | None = None


class CsiSource(_Read, frozen=True, gc=False):
    driver: str = ""
    volume_handle: str = ""


class AwsDisk(_Read, frozen=True, gc=False):
    volume_id: str = msgspec.field(name="volumeID", default="")


class GceDisk(_Read, frozen=True, gc=False):
    pd_name: str = ""


class AzureDisk(_Read, frozen=True, gc=False):
    disk_name: str = ""


class PersistentVolumeSpec(_Read, frozen=True, gc=False):
    capacity: dict[str, Quantity] = {}
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    storage_class_name: str = ""
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiSource | None = None
    aws_elastic_block_store: AwsDisk | None = None
    gce_persistent_disk: GceDisk | None = None
    azure_disk: AzureDisk | None = None


class PersistentVolume(_Read, frozen=True, gc=False):
    """v1 PersistentVolume."""

    metadata: Metadata
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: ClaimStatus = ClaimStatus()


class TopologyTerm(_Read, frozen=True, gc=False):
    match_label_expressions: tuple[MatchExpression, ...] = ()


class StorageClass(_Read, frozen=True, gc=False):
    """storage.k8s.io/v1 StorageClass."""

    metadata: Metadata
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class VolumeCount(_Read, frozen=True, gc=False):
    count: int | None = None
    """None means no limit."""


class CsiNodeDriver(_Read, frozen=True, gc=False):
    name: str = ""
    allocatable: VolumeCount | None = None


class CsiNodeSpec(_Read, frozen=True, gc=False):
    drivers: tuple[CsiNodeDriver, ...] = ()


class CsiNode(_Read, frozen=True, gc=False):
    """storage.k8s.io/v1 CSINode: the CSI drivers of the node of the same name."""

    metadata: Metadata
    spec: CsiNodeSpec = CsiNodeSpec()


class PriorityClass(_Read, frozen=True, gc=False):
    """scheduling.k8s.io/v1 PriorityClass."""

    metadata: Metadata
    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


class BudgetSpec(_Read, frozen=True, gc=False):
    selector: LabelSelector | None = None


class BudgetStatus(_Read, frozen=True, gc=False):
    disruptions_allowed: int = 0


class Budget(_Read, frozen=True, gc=False):
    """policy/v1 PodDisruptionBudget."""

    metadata: Metadata
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class QuotaStatus(_Read, frozen=True, gc=False):
    hard: dict[str, Quantity] = {}
    used: dict[str, Quantity] = {}


class Quota(_Read, frozen=True, gc=False):
    """v1 ResourceQuota."""

    metadata: Metadata
    status: QuotaStatus = QuotaStatus()


class Namespace(_Read, frozen=True, gc=False):
    """v1 Namespace."""

    metadata: Metadata


class ConfigMap(_Read, frozen=True, gc=False):
    """v1 ConfigMap."""

    metadata: Metadata
    data: dict[str, str] = {}


PODS: Resource[Pod] = Resource("", "v1", "pods", Pod)
NODES: Resource[Node] = Resource("", "v1", "nodes", Node, namespaced=False)
CLAIMS: Resource[Claim] = Resource("", "v1", "persistentvolumeclaims", Claim)
VOLUMES: Resource[PersistentVolume] = Resource("", "v1", "persistentvolumes", PersistentVolume, namespaced=False)
STORAGE_CLASSES: Resource[StorageClass] = Resource(
    "storage.k8s.io", "v1", "storageclasses", StorageClass, namespaced=False
)
CSI_NODES: Resource[CsiNode] = Resource("storage.k8s.io", "v1", "csinodes", CsiNode, namespaced=False)
PRIORITY_CLASSES: Resource[PriorityClass] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", PriorityClass, namespaced=False
)
BUDGETS: Resource[Budget] = Resource("policy", "v1", "poddisruptionbudgets", Budget)
QUOTAS: Resource[Quota] = Resource("", "v1", "resourcequotas", Quota)
NAMESPACES: Resource[Namespace] = Resource("", "v1", "namespaces", Namespace, namespaced=False)
CONFIG_MAPS: Resource[ConfigMap] = Resource("", "v1", "configmaps", ConfigMap)
