"""Labels, annotations, names and states that users, Volcano's tools and Baton's programs share.

They are an interface, so each is defined once, here.
"""

from enum import StrEnum

from baton.model.ids import QueueName

TASK_SPEC = "volcano.sh/task-spec"
TASK_INDEX = "volcano.sh/task-index"
JOB_NAME = "volcano.sh/job-name"
JOB_NAMESPACE = "volcano.sh/job-namespace"
JOB_VERSION = "volcano.sh/job-version"
JOB_RETRY_COUNT = "volcano.sh/job-retry-count"
JOB_TYPE = "volcano.sh/job-type"
QUEUE_NAME = "volcano.sh/queue-name"
PARTITION_ID = "volcano.sh/partition-id"
TEMPLATE_UID = "volcano.sh/template-uid"
OUT_OF_SYNC = "volcano.sh/controller-out-of-sync"
"""On a pod that the job controller is about to delete; its end does not count as an eviction."""

GROUP_NAME = "scheduling.k8s.io/group-name"
VOLCANO_GROUP_NAME = "scheduling.volcano.sh/group-name"
"""Either of the two names a pod's PodGroup."""
GROUP_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
GROUP_MIN_RESOURCES = "scheduling.volcano.sh/group-min-resources"
QUEUE_OF_POD = "scheduling.volcano.sh/queue-name"
"""On a plain pod, its owner or a namespace: the queue."""
QUEUE_ALLOCATION_GATE = "scheduling.volcano.sh/queue-allocation-gate"

PREEMPTABLE = "volcano.sh/preemptable"
COOLDOWN_TIME = "volcano.sh/cooldown-time"
REVOCABLE_ZONE = "volcano.sh/revocable-zone"
JDB_MIN_AVAILABLE = "volcano.sh/jdb-min-available"
JDB_MAX_UNAVAILABLE = "volcano.sh/jdb-max-unavailable"
NUMA_POLICY = "volcano.sh/numa-topology-policy"
SLA_WAITING_TIME = "volcano.sh/sla-waiting-time"
HIERARCHY = "volcano.sh/hierarchy"
HIERARCHY_WEIGHTS = "volcano.sh/hierarchy-weights"
CLOSED_BY_PARENT = "volcano.sh/closed-by-parent"
CRONJOB_SCHEDULED = "volcano.sh/cronjob-scheduled-timestamp"

ANNOTATION_PREFIX = "volcano.sh/"
"""A PodGroup for a plain workload takes over annotations with this prefix."""
BARE_GROUP_PREFIX = "podgroup-"
"""The PodGroup of a plain workload is named with this prefix and the owner's uid."""
DEFAULT_QUEUE = QueueName("default")
ROOT_QUEUE = QueueName("root")
BUILT_IN_QUEUES = (ROOT_QUEUE, DEFAULT_QUEUE)
"""Queues that every installation has."""
DEFAULT_SCHEDULER = "volcano"
SCHEDULER_NAMES = (DEFAULT_SCHEDULER, "baton")
"""Baton handles pods with one of these in `spec.schedulerName`, unless a program gets other names."""


class PodPhase(StrEnum):
    """status.phase of a Pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


ENDED_PHASES = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED})
"""A pod in one of these has ended; it holds no resources."""


class JobPhase(StrEnum):
    """status.state.phase of a Job."""

    PENDING = "Pending"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    ABORTING = "Aborting"
    ABORTED = "Aborted"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        """Whether no policy or command can change the job any more."""
        return self in FINAL_PHASES


FINAL_PHASES = frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED})


class JobEvent(StrEnum):
    """Events that a policy can react to, and events for the controller itself."""

    ANY = "*"
    POD_FAILED = "PodFailed"
    POD_EVICTED = "PodEvicted"
    POD_PENDING = "PodPending"
    POD_RUNNING = "PodRunning"
    UNKNOWN = "Unknown"
    TASK_COMPLETED = "TaskCompleted"
    TASK_FAILED = "TaskFailed"
    JOB_UPDATED = "JobUpdated"
    OUT_OF_SYNC = "OutOfSync"
    COMMAND_ISSUED = "CommandIssued"


class BusAction(StrEnum):
    """Actions that a policy or a Command can request."""

    ABORT_JOB = "AbortJob"
    RESTART_JOB = "RestartJob"
    RESTART_TASK = "RestartTask"
    RESTART_POD = "RestartPod"
    RESTART_PARTITION = "RestartPartition"
    TERMINATE_JOB = "TerminateJob"
    COMPLETE_JOB = "CompleteJob"
    RESUME_JOB = "ResumeJob"
    SYNC_JOB = "SyncJob"
    ENQUEUE_JOB = "EnqueueJob"
    SYNC_QUEUE = "SyncQueue"
    OPEN_QUEUE = "OpenQueue"
    CLOSE_QUEUE = "CloseQueue"


class PodGroupPhase(StrEnum):
    """status.phase of a PodGroup."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"


class QueueState(StrEnum):
    """status.state of a Queue."""

    OPEN = "Open"
    CLOSED = "Closed"
    CLOSING = "Closing"
    UNKNOWN = "Unknown"


class FlowPhase(StrEnum):
    """status.state.phase of a JobFlow."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEED = "Succeed"
    FAILED = "Failed"
    TERMINATING = "Terminating"
