"""The rules that a job can break."""

from baton.admission.findings import Rule

NO_TASKS = Rule(
    "no-tasks",
    "{field} is {value}: No task specified in job spec; it should have at least 1 items, each with a name, replicas "
    "and a template",
)
MIN_AVAILABLE = Rule(
    "min-available", "{field} is {value} and should be greater than or equal to 0: job 'minAvailable' must be >= 0"
)
MAX_RETRY = Rule(
    "max-retry", "{field} is {value} and should be greater than or equal to 0: 'maxRetry' cannot be less than zero"
)
TTL = Rule(
    "ttl",
    "{field} is {value} and should be greater than or equal to 0: 'ttlSecondsAfterFinished' cannot be less than zero",
)
MIN_SUCCESS = Rule(
    "min-success",
    "{field} is {value} and should be greater than or equal to 1; remove it to require all pods",
)
TOTAL = Rule(
    "min-available-total",
    "{field} is {value} but the tasks have {total} replicas in total: job 'minAvailable' should not be "
    "greater than total replicas in tasks (it must not be greater than total replicas)",
)
TASK_NAME = Rule(
    "task-name",
    "{field} is {value}: it becomes part of pod names and should match their pattern: lower-case letters, "
    "digits and inner dashes, at most 63 characters, as in worker-1",
)
TASK_TWICE = Rule(
    "task-name-twice",
    "{field} is {value}, which another task already has: duplicated task name {value}; rename one",
)
TASK_REPLICAS = Rule(
    "task-replicas",
    "{field} is {value} and should be greater than or equal to 0: 'replicas' < 0 in task: {task}",
)
TASK_MIN = Rule(
    "task-min-available",
    "{field} is {value} and should be greater than or equal to 0: 'minAvailable' < 0 in task: {task}",
)
TASK_MIN_REPLICAS = Rule(
    "task-min-available-replicas",
    "{field} is {value} but the task has {replicas} replicas: 'minAvailable' is greater than 'replicas' in task: "
    "{task} "
    "('minAvailable' must be <= 'replicas')",
)
TASK_MAX_RETRY = Rule("task-max-retry", "{field} is {value} and should be greater than or equal to 0")
POD_NAME = Rule(
    "pod-name",
    "{field} is {value}: the last pod would be named {pod} with {length} characters, and at most 63 are "
    "allowed; shorten the name of the job or the task",
)
JOB_NAME = Rule(
    "job-name",
    "{field} is {value} with {length} characters; a job's name may have at most 63",
)
PLUGIN = Rule(
    "plugin",
    "{field} is not known: unable to find job plugin: {plugin}; the plugins are {plugins}{hint}",
)
MPI_TASK = Rule(
    "mpi-task",
    "{field} names {role} task {task}, which does not exist: The specified mpi {role} task was not found; the"
    " tasks are {tasks}",
)
MOUNT_PATH = Rule("volume-mount-path", "{field} is {value}: mountPath should be at least 1 chars long, as in /data")
MOUNT_TWICE = Rule(
    "volume-mount-path-twice",
    "{field} is {value}, which another volume already has: duplicated mountPath; use a different path for each",
)
VOLUME_CLAIM = Rule(
    "volume-claim",
    "{field} has no claim: either VolumeClaim or VolumeClaimName must be specified",
)
VOLUME_BOTH = Rule(
    "volume-claim-both",
    "{field} has volumeClaimName {value} and a volumeClaim: set the name to use an existing claim, or the "
    "claim to create one",
)
VOLUME_CLAIM_NAME = Rule(
    "volume-claim-name",
    "{field} is {value}: invalid VolumeClaimName; a claim's name has lower-case letters, digits, inner dashes and "
    "dots, at most 253 characters, as in data-1",
)
DEPENDENCY = Rule(
    "depends-on",
    "{field} is {value}, which is not a task of this job ({tasks}): job has dependencies between tasks, but doesn't "
    "form a "
    "directed acyclic graph(DAG); name one of its tasks",
)
DEPENDENCY_CYCLE = Rule(
    "depends-on-cycle",
    "{field} waits for itself ({cycle}): job has dependencies between tasks, but doesn't form a directed "
    "acyclic graph(DAG); remove one of these names from dependsOn",
)
ITERATION = Rule("depends-on-iteration", "{field} is {value}, expected any or all")
PARTITIONS = Rule(
    "partitions",
    "{field} has {total} partitions of {size} pods, but the task has {replicas} replicas; totalPartitions "
    "times partitionSize must equal replicas",
)
MIN_PARTITIONS = Rule("min-partitions", "{field} is {value}, more than totalPartitions {total}; expected 0 to {total}")
TOPOLOGY_BOTH = Rule(
    "topology-both",
    "{field} has highestTierAllowed {value} and highestTierName: must not specify 'highestTierAllowed' and "
    "'highestTierName' in networkTopology simultaneously; keep one",
)
