"""batch.volcano.sh/v1alpha1: Job and CronJob, and the job specification that templates and flows carry too.

Pod templates are kept as they are: Kubernetes' own schema of them is two hundred kilobytes and changes with every
release, and the webhook has the API server itself check them. Only what people most often get wrong is spelled out,
so that it is refused even where no webhook is installed.
"""

from baton.install.crds.schemas import (
    LABEL_PATTERN,
    NAME_PATTERN,
    Schema,
    anything,
    column,
    definition,
    mapping,
    moment,
    network_topology,
    number,
    series,
    switch,
    table,
    text,
)

GROUP = "batch.volcano.sh"
VERSION = "v1alpha1"

EVENTS = (
    "*",
    "PodPending",
    "PodRunning",
    "PodFailed",
    "PodEvicted",
    "Unknown",
    "TaskCompleted",
    "OutOfSync",
    "CommandIssued",
    "JobUpdated",
    "TaskFailed",
)
"""What the API accepts in a policy; the webhook refuses those that only the controller itself raises."""

PHASES = (
    "Pending",
    "Aborting",
    "Aborted",
    "Running",
    "Restarting",
    "Completing",
    "Completed",
    "Terminating",
    "Terminated",
    "Failed",
)


def job_spec(*, defaults: bool = True) -> Schema:
    """What a job is to do. A patch of a job has no defaults: they would overwrite what the patch leaves alone."""
    queue: Schema = {"default": "default"} if defaults else {}
    retry: Schema = {"default": 3} if defaults else {}
    return mapping(
        "What the job is to do.",
        {
            "schedulerName": text("The scheduler that places the pods.", maxLength=63),
            "minAvailable": number("Pods that must be able to run together before any of them starts."),
            "volumes": series("Volumes mounted into every pod.", _volume()),
            "tasks": series("Groups of equal pods.", _task()),
            "policies": series("What to do when something happens to the job.", _policy()),
            "plugins": table("Job plugins by name, with their arguments.", series("", text())),
            "runningEstimate": text("How long the job is expected to run, such as 90m."),
            "queue": text("The queue the job waits in.", maxLength=253, pattern=NAME_PATTERN, **queue),
            "maxRetry": number("How often the job is restarted before it has failed.", **retry),
            "ttlSecondsAfterFinished": number("Seconds after its end when the job is deleted."),
            "priorityClassName": text("The PriorityClass of the job.", maxLength=253, pattern=NAME_PATTERN),
            "minSuccess": number("Pods that must succeed for the job to be complete.", 1),
            "networkTopology": network_topology(),
        },
    )


def _volume() -> Schema:
    return mapping(
        "",
        {
            "mountPath": text("Where the pods see the volume.", pattern="^[^:]+$"),
            "volumeClaimName": text("An existing PersistentVolumeClaim, or the name for the new one.", maxLength=253),
            "volumeClaim": anything("The PersistentVolumeClaim to make."),
        },
        required=("mountPath",),
    )


def _policy() -> Schema:
    return mapping(
        "",
        {
            "action": text("What to do, such as RestartJob."),
            "event": text("When to do it.", choices=EVENTS),
            "events": series("When to do it, several events.", text(choices=EVENTS)),
            "exitCode": number("Do it when a container ends with this code; not 0.", None),
            "timeout": text("How long the event must last first, such as 10m."),
        },
    )


def _task() -> Schema:
    partition = mapping(
        "Splits the task into groups that are placed together.",
        {
            "totalPartitions": number("How many groups.", 1),
            "partitionSize": number("Pods in a group.", 1),
            "minPartitions": number("Groups that must be able to run together.", default=0),
            "networkTopology": network_topology(),
        },
        required=("totalPartitions", "partitionSize"),
    )
    return mapping(
        "",
        {
            "name": text("The task's name, part of its pods' names.", maxLength=63, pattern=LABEL_PATTERN),
            "replicas": number("How many pods."),
            "minAvailable": number("Pods of this task that must be able to run together."),
            "template": _pod_template(),
            "policies": series("What to do when something happens to the task; overrides the job's.", _policy()),
            "topologyPolicy": text(
                "How strictly NUMA nodes are respected.",
                choices=("none", "best-effort", "restricted", "single-numa-node"),
            ),
            "maxRetry": number("How often a pod of the task is restarted before the task has failed."),
            "dependsOn": mapping(
                "Tasks that must have started or ended before this one starts.",
                {
                    "name": series("Names of tasks of this job.", text()),
                    "iteration": text("Whether one of them is enough (any) or all are needed (all)."),
                },
            ),
            "partitionPolicy": partition,
        },
    )


def _pod_template() -> Schema:
    container = anything(
        "A container, as in a Pod.",
        {
            "name": text("The container's name."),
            "image": text("The image to run."),
            "command": series("The program and its first arguments, one list item each.", text()),
            "args": series("Arguments, one list item each.", text()),
        },
    )
    spec = anything(
        "The pods' specification, as in a Pod.",
        {
            "containers": series("The containers of each pod.", container),
            "initContainers": series("Containers that run first.", container),
        },
    )
    return anything("The pods of this task, as in a PodTemplate.", {"metadata": anything("Labels etc."), "spec": spec})


def _status() -> Schema:
    counts = table("Pods of each task by phase.", mapping("", {"phase": table("", number("", None))}))
    state = mapping(
        "Where the job is in its life.",
        {
            "phase": text("The phase.", choices=PHASES),
            "reason": text("Why, in one word."),
            "message": text("Why, in a sentence."),
            "lastTransitionTime": moment("Since when."),
        },
    )
    condition = mapping(
        "", {"status": text("The phase."), "lastTransitionTime": moment("Since when.")}, required=("status",)
    )
    return mapping(
        "What has become of the job.",
        {
            "state": state,
            "minAvailable": number("Pods that must be able to run together."),
            "taskStatusCount": counts,
            "pending": number("Pods that wait."),
            "running": number("Pods that run."),
            "succeeded": number("Pods that ended well."),
            "failed": number("Pods that ended badly."),
            "terminating": number("Pods that are being deleted."),
            "unknown": number("Pods that nobody hears of."),
            "version": number("Raised whenever all pods are replaced."),
            "retryCount": number("How often the job was restarted."),
            "runningDuration": text("How long the job ran."),
            "controlledResources": table("What the job's plugins made.", text()),
            "conditions": series("The phases so far.", condition),
        },
    )


def job() -> Schema:
    """A set of pods that run together."""
    return definition(
        GROUP,
        VERSION,
        "Job",
        description="A set of pods that are placed together and live by common rules.",
        properties={"spec": job_spec(), "status": _status()},
        short_names=("vcjob", "vj"),
        columns=(
            column("STATUS", ".status.state.phase"),
            column("minAvailable", ".status.minAvailable", "integer"),
            column("RUNNINGS", ".status.running", "integer"),
            column("AGE", ".metadata.creationTimestamp", "date"),
            column("QUEUE", ".spec.queue", wide=True),
        ),
    )


def cron_job() -> Schema:
    """A job at certain times."""
    reference = mapping(
        "",
        {key: text() for key in ("apiVersion", "kind", "namespace", "name", "uid", "resourceVersion", "fieldPath")},
        atomic=True,
    )
    spec = mapping(
        "When to run what.",
        {
            "schedule": text("When, in the five fields of cron or as @daily and the like."),
            "timeZone": text("The time zone of the schedule, such as Europe/Berlin; the controller's own else."),
            "startingDeadlineSeconds": number("How late a missed job may still start.", format="int64"),
            "concurrencyPolicy": text(
                "What happens when the previous job still runs.",
                choices=("Allow", "Forbid", "Replace"),
                default="Allow",
            ),
            "suspend": switch("True stops new jobs.", default=False),
            "jobTemplate": mapping("The job to make.", {"metadata": anything("Labels etc."), "spec": job_spec()}),
            "successfulJobsHistoryLimit": number("Completed jobs to keep.", default=3),
            "failedJobsHistoryLimit": number("Failed jobs to keep.", default=1),
        },
        required=("schedule", "jobTemplate"),
    )
    status = mapping(
        "What has become of it.",
        {
            "active": series("Jobs that are not finished.", reference, atomic=True),
            "lastScheduleTime": moment("When a job was last made."),
            "lastSuccessfulTime": moment("When a job last completed."),
        },
    )
    return definition(
        GROUP,
        VERSION,
        "CronJob",
        description="Makes a job at certain times.",
        properties={"spec": spec, "status": status},
        short_names=("cronvcjob", "cronvj"),
    )
