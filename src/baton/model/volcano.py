"""Volcano's objects, typed: Job, CronJob, PodGroup, Queue, Command, JobTemplate, JobFlow, HyperNode.

Objects are read from the API server and sent back, so the structs have every field of spec and status, and encoding
leaves out default values: an object that is read and written again is unchanged. This has two consequences. Objects
that only pass through, such as pod templates and volume claims, stay plain dicts. A status is written whole (PUT on the
status subresource, or a merge patch with explicit nulls), never as a merge patch of an encoded struct, because a count
that fell to zero would be missing there and keep its old value.

Phases, events and actions are plain strings in the structs, so that an unknown value in another program's object does
not stop a watch; `baton.model.names` has the known ones.
"""

from typing import Any

import msgspec

from baton.model.meta import Metadata, ObjectReference, OwnerReference
from baton.model.names import DEFAULT_QUEUE
from baton.model.resource import Resource

Template = dict[str, Any]
"""A PodTemplateSpec or another object that is passed on unchanged."""
Quantities = dict[str, str | int | float]
"""Resource names to quantities, as written by the user: `"500m"`, `"8Gi"`, `4`."""

BATCH = "batch.volcano.sh/v1alpha1"
SCHEDULING = "scheduling.volcano.sh/v1beta1"
BUS = "bus.volcano.sh/v1alpha1"
FLOW = "flow.volcano.sh/v1alpha1"
TOPOLOGY = "topology.volcano.sh/v1alpha1"
JOB_KIND, CRON_JOB_KIND, POD_GROUP_KIND = "Job", "CronJob", "PodGroup"
QUEUE_KIND, COMMAND_KIND, JOB_TEMPLATE_KIND, JOB_FLOW_KIND = "Queue", "Command", "JobTemplate", "JobFlow"
HYPER_NODE_KIND = "HyperNode"


class _Written(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object that is read and written with the field names of the API; default values are left out."""


class NetworkTopology(_Written, frozen=True):
    """How close together the nodes must be."""

    mode: str = "hard"
    highest_tier_allowed: int | None = None
    highest_tier_name: str = ""


class LifecyclePolicy(_Written, frozen=True):
    """An action on the job for one or several events, or for an exit code."""

    action: str = ""
    event: str = ""
    events: tuple[str, ...] = ()
    exit_code: int | None = None
    timeout: str | None = None
    """A Go duration, `"10m"`: how long after the event."""


class DependsOn(_Written, frozen=True):
    """Tasks that must have started (or, without pods, be ready) before the pods of this task are created."""

    name: tuple[str, ...] = ()
    iteration: str = "all"
    """`any` one of them, or `all`."""


class PartitionPolicy(_Written, frozen=True):
    """A task's replicas in groups that belong together."""

    total_partitions: int = 0
    partition_size: int = 0
    min_partitions: int = 0
    network_topology: NetworkTopology | None = None


class TaskSpec(_Written, frozen=True):
    """One role of a job: a number of replicas of one pod."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None
    template: Template = {}
    policies: tuple[LifecyclePolicy, ...] = ()
    topology_policy: str = ""
    max_retry: int = 0
    depends_on: DependsOn | None = None
    partition_policy: PartitionPolicy | None = None

    @property
    def minimum(self) -> int:
        """How many replicas the gang needs; all of them by default."""
        return self.replicas if self.min_available is None else self.min_available


class VolumeSpec(_Written, frozen=True):
    """A volume that every container of the job sees."""

    mount_path: str = ""
    volume_claim_name: str = ""
    volume_claim: Template | None = None


class JobSpec(_Written, frozen=True):
    """What to run. `min_available` 0 means that it is not set."""

    scheduler_name: str = ""
    min_available: int = 0
    volumes: tuple[VolumeSpec, ...] = ()
    tasks: tuple[TaskSpec, ...] = ()
    policies: tuple[LifecyclePolicy, ...] = ()
    plugins: dict[str, tuple[str, ...]] = {}
    running_estimate: str | None = None
    queue: str = DEFAULT_QUEUE
    max_retry: int = 3
    ttl_seconds_after_finished: int | None = None
    priority_class_name: str = ""
    min_success: int | None = None
    network_topology: NetworkTopology | None = None

    @property
    def total(self) -> int:
        """All replicas of all tasks."""
        return sum(task.replicas for task in self.tasks)

    @property
    def tasks_minimum(self) -> int:
        """The sum of the minima of the tasks."""
        return sum(task.minimum for task in self.tasks)

    @property
    def minimum(self) -> int:
        """How many pods the gang needs."""
        return self.min_available or self.tasks_minimum


class JobState(_Written, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class TaskState(_Written, frozen=True):
    """How many pods of one task are in which pod phase."""

    phase: dict[str, int] = {}


class JobCondition(_Written, frozen=True):
    """When the job entered a phase (`status` is the phase)."""

    status: str
    last_transition_time: str | None = None


class JobStatus(_Written, frozen=True):
    state: JobState = JobState()
    min_available: int = 0
    task_status_count: dict[str, TaskState] = {}
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0
    unknown: int = 0
    version: int = 0
    retry_count: int = 0
    running_duration: str | None = None
    controlled_resources: dict[str, str] = {}
    conditions: tuple[JobCondition, ...] = ()


class Job(_Written, frozen=True):
    """batch.volcano.sh/v1alpha1 Job."""

    metadata: Metadata
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class JobTemplateSpec(_Written, frozen=True):
    """The job that a CronJob creates: metadata (labels, annotations) and spec."""

    metadata: Template = {}
    spec: JobSpec = JobSpec()


class CronJobSpec(_Written, frozen=True):
    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = "Allow"
    suspend: bool = False
    job_template: JobTemplateSpec = JobTemplateSpec()
    successful_jobs_history_limit: int = 3
    failed_jobs_history_limit: int = 1


class CronJobStatus(_Written, frozen=True):
    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(_Written, frozen=True):
    """batch.volcano.sh/v1alpha1 CronJob."""

    metadata: Metadata
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()


class SubGroupPolicy(_Written, frozen=True):
    """Pods of a group that belong together: by labels, in groups of a size."""

    name: str = ""
    network_topology: NetworkTopology | None = None
    sub_group_size: int | None = None
    min_sub_groups: int | None = None
    label_selector: Template | None = None
    match_label_keys: tuple[str, ...] = ()


class PodGroupSpec(_Written, frozen=True):
    min_member: int = 0
    min_task_member: dict[str, int] = {}
    queue: str = DEFAULT_QUEUE
    priority_class_name: str = ""
    min_resources: Quantities | None = None
    network_topology: NetworkTopology | None = None
    sub_group_policy: tuple[SubGroupPolicy, ...] = ()


class PodGroupCondition(_Written, frozen=True):
    """`Unschedulable` or `Scheduled`, with the reason; `transition_id` names the cycle that set it."""

    type: str = ""
    status: str = ""
    transition_id: str = msgspec.field(name="transitionID", default="")
    last_transition_time: str | None = None
    reason: str = ""
    message: str = ""


class PodGroupStatus(_Written, frozen=True):
    phase: str = ""
    conditions: tuple[PodGroupCondition, ...] = ()
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class PodGroup(_Written, frozen=True):
    """scheduling.volcano.sh/v1beta1 PodGroup. It has no status subresource: status is written with the object."""

    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class Guarantee(_Written, frozen=True):
    resource: Quantities = {}


class NodeGroupTerms(_Written, frozen=True):
    required: tuple[str, ...] = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=())
    preferred: tuple[str, ...] = msgspec.field(name="preferredDuringSchedulingIgnoredDuringExecution", default=())


class QueueAffinity(_Written, frozen=True):
    node_group_affinity: NodeGroupTerms | None = None
    node_group_anti_affinity: NodeGroupTerms | None = None


class QueueSpec(_Written, frozen=True):
    weight: int = 1
    capability: Quantities = {}
    reclaimable: bool | None = None
    extend_clusters: tuple[Template, ...] = ()
    guarantee: Guarantee = Guarantee()
    affinity: QueueAffinity | None = None
    type: str = ""
    parent: str = ""
    deserved: Quantities = {}
    priority: int = 0
    dequeue_strategy: str = "traverse"


class QueueCredit(_Written, frozen=True):
    """Resources that may enter the queue without asking the scheduler, in addition to the PodGroups that it knew."""

    as_of: str = ""
    """The newest version of a PodGroup that the scheduler knew."""
    amounts: Quantities = {}


class QueueStatus(_Written, frozen=True):
    state: str = ""
    unknown: int = 0
    pending: int = 0
    running: int = 0
    inqueue: int = 0
    completed: int = 0
    reservation: Template = {}
    allocated: Quantities = {}
    credit: QueueCredit = QueueCredit()


class Queue(_Written, frozen=True):
    """scheduling.volcano.sh/v1beta1 Queue, without a namespace."""

    metadata: Metadata
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


class Command(_Written, frozen=True):
    """bus.volcano.sh/v1alpha1 Command: an action on a job or a queue, carried out once and then deleted."""

    metadata: Metadata
    action: str = ""
    target: OwnerReference | None = None
    reason: str = ""
    message: str = ""


class JobTemplate(_Written, frozen=True):
    """flow.volcano.sh/v1alpha1 JobTemplate: a job's spec that flows refer to."""

    metadata: Metadata
    spec: JobSpec = JobSpec()
    status: Template = {}


class FlowDependsOn(_Written, frozen=True):
    targets: tuple[str, ...] = ()
    probe: Template | None = None


class FlowPatch(_Written, frozen=True):
    """The changes of one flow to its template, as a merge patch of the job's spec."""

    job_spec: Template = {}


class Flow(_Written, frozen=True):
    name: str = ""
    depends_on: FlowDependsOn | None = None
    patch: FlowPatch | None = None


class JobFlowSpec(_Written, frozen=True):
    flows: tuple[Flow, ...] = ()
    job_retain_policy: str = ""


class JobRunningHistory(_Written, frozen=True):
    start_timestamp: str | None = None
    end_timestamp: str | None = None
    state: str = ""


class FlowJobStatus(_Written, frozen=True):
    name: str = ""
    state: str = ""
    start_timestamp: str | None = None
    end_timestamp: str | None = None
    restart_count: int = 0
    running_histories: tuple[JobRunningHistory, ...] = ()


class FlowState(_Written, frozen=True):
    phase: str = ""


class JobFlowStatus(_Written, frozen=True):
    pending_jobs: tuple[str, ...] = ()
    running_jobs: tuple[str, ...] = ()
    failed_jobs: tuple[str, ...] = ()
    completed_jobs: tuple[str, ...] = ()
    terminated_jobs: tuple[str, ...] = ()
    un_know_jobs: tuple[str, ...] = ()
    job_status_list: tuple[FlowJobStatus, ...] = ()
    conditions: dict[str, Template] = {}
    state: FlowState = FlowState()


class JobFlow(_Written, frozen=True):
    """flow.volcano.sh/v1alpha1 JobFlow."""

    metadata: Metadata
    spec: JobFlowSpec = JobFlowSpec()
    status: JobFlowStatus = JobFlowStatus()


class ExactMatch(_Written, frozen=True):
    name: str = ""


class RegexMatch(_Written, frozen=True):
    pattern: str = ""


class MemberSelector(_Written, frozen=True):
    """One of the three."""

    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: Template | None = None


class HyperNodeMember(_Written, frozen=True):
    type: str = "Node"
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(_Written, frozen=True):
    tier: int = 0
    tier_name: str = ""
    members: tuple[HyperNodeMember, ...] = ()


class HyperNodeCondition(_Written, frozen=True):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None
    reason: str = ""
    message: str = ""


class HyperNodeStatus(_Written, frozen=True):
    conditions: tuple[HyperNodeCondition, ...] = ()
    node_count: int | None = None


class HyperNode(_Written, frozen=True):
    """topology.volcano.sh/v1alpha1 HyperNode, without a namespace: nodes that are close to each other."""

    metadata: Metadata
    spec: HyperNodeSpec = HyperNodeSpec()
    status: HyperNodeStatus = HyperNodeStatus()


JOBS: Resource[Job] = Resource("batch.volcano.sh", "v1alpha1", "jobs", Job)
CRON_JOBS: Resource[CronJob] = Resource("batch.volcano.sh", "v1alpha1", "cronjobs", CronJob)
POD_GROUPS: Resource[PodGroup] = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", PodGroup)
QUEUES: Resource[Queue] = Resource("scheduling.volcano.sh", "v1beta1", "queues", Queue, namespaced=False)
COMMANDS: Resource[Command] = Resource("bus.volcano.sh", "v1alpha1", "commands", Command)
JOB_TEMPLATES: Resource[JobTemplate] = Resource("flow.volcano.sh", "v1alpha1", "jobtemplates", JobTemplate)
JOB_FLOWS: Resource[JobFlow] = Resource("flow.volcano.sh", "v1alpha1", "jobflows", JobFlow)
HYPER_NODES: Resource[HyperNode] = Resource(
    "topology.volcano.sh", "v1alpha1", "hypernodes", HyperNode, namespaced=False
)
