"""batch.volcano.sh/v1alpha1: Job and CronJob, and the job specification that templates and flows also contain.

Pod templates are preserved as given: Kubernetes' own schema for them is two hundred kilobytes and changes with every
release, and the webhook lets the API server itself check them. The schema covers only the fields that users most often
get wrong, so that mistakes in them are refused even without the webhook.
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
from baton.model.names import DEFAULT_QUEUE

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
"""The events that a policy may name; the webhook refuses those that only the controller raises."""

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
    """The specification of a job. A patch has no defaults: they would overwrite fields that it does not name."""
    queue: Schema = {"default": DEFAULT_QUEUE} if defaults else {}
    retry: Schema = {"default": 3} if defaults else {}
    return mapping(
        "Specification of the job.",
        {
            "schedulerName": text("Scheduler that places the pods.", maxLength=63),
            "minAvailable": number("Number of pods that must be able to run together before any of them starts."),
            "volumes": series("Volumes that are mounted into every pod.", _volume()),
            "tasks": series("Groups of identical pods.", _task()),
            "policies": series("Actions to take on events of the job.", _policy()),
            "plugins": table("Job plugins and their arguments, by name.", series("", text())),
            "runningEstimate": text("Expected duration of the job, such as 90m."),
            "queue": text("Queue in which the job waits.", maxLength=253, pattern=NAME_PATTERN, **queue),
            "maxRetry": number("Number of restarts before the job fails.", **retry),
            "ttlSecondsAfterFinished": number("Seconds after which a finished job is deleted."),
            "priorityClassName": text("PriorityClass of the job.", maxLength=253, pattern=NAME_PATTERN),
            "minSuccess": number("Number of pods that must succeed for the job to complete.", 1),
            "networkTopology": network_topology(),
        },
    )


def _volume() -> Schema:
    return mapping(
        "",
        {
            "mountPath": text("Path of the volume in the containers.", pattern="^[^:]+$"),
            "volumeClaimName": text(
                "Name of an existing PersistentVolumeClaim or of the one to create.", maxLength=253
            ),
            "volumeClaim": anything("PersistentVolumeClaim to create."),
        },
        required=("mountPath",),
    )


def _policy() -> Schema:
    return mapping(
        "",
        {
            "action": text("Action to take, such as RestartJob."),
            "event": text("Event that triggers the action.", choices=EVENTS),
            "events": series("Events that trigger the action.", text(choices=EVENTS)),
            "exitCode": number("Non-zero exit code of a container that triggers the action.", None),
            "timeout": text("How long the event must last before the action is taken, such as 10m."),
        },
    )


def _task() -> Schema:
    partition = mapping(
        "Splits the task into groups that are placed together.",
        {
            "totalPartitions": number("Number of groups.", 1),
            "partitionSize": number("Number of pods in a group.", 1),
            "minPartitions": number("Number of groups that must be able to run together.", default=0),
            "networkTopology": network_topology(),
        },
        required=("totalPartitions", "partitionSize"),
    )
    return mapping(
        "",
        {
            "name": text("Name of the task, which is part of its pods' names.", maxLength=63, pattern=LABEL_PATTERN),
            "replicas": number("Number of pods."),
            "minAvailable": number("Number of pods of this task that must be able to run together."),
            "template": _pod_template(),
            "policies": series("Actions to take on events of the task; they override those of the job.", _policy()),
            "topologyPolicy": text(
                "How strictly pods must fit NUMA nodes.",
                choices=("none", "best-effort", "restricted", "single-numa-node"),
            ),
            "maxRetry": number("Number of restarts of a pod before the task fails."),
            "dependsOn": mapping(
                "Tasks that must have started or ended before this task starts.",
                {
                    "name": series("Names of tasks of this job.", text()),
                    "iteration": text("Whether one of the tasks is enough (any) or all are required (all)."),
                },
            ),
            "partitionPolicy": partition,
        },
    )


def _pod_template() -> Schema:
    container = anything(
        "A container, as in a Pod.",
        {
            "name": text("Name of the container."),
            "image": text("Image of the container."),
            "command": series("The program and its first arguments, as list items.", text()),
            "args": series("Further arguments, as list items.", text()),
        },
    )
    spec = anything(
        "Specification of the pods, as in a Pod.",
        {
            "containers": series("Containers of each pod.", container),
            "initContainers": series("Containers that run before the others.", container),
        },
    )
    return anything(
        "Template of the task's pods, as in a PodTemplate.",
        {"metadata": anything("Metadata such as labels."), "spec": spec},
    )


def _status() -> Schema:
    counts = table("Number of pods per task and phase.", mapping("", {"phase": table("", number("", None))}))
    state = mapping(
        "State of the job.",
        {
            "phase": text("Phase of the job.", choices=PHASES),
            "reason": text("Reason in one word."),
            "message": text("Reason in a sentence."),
            "lastTransitionTime": moment("Time of the last change."),
        },
    )
    condition = mapping(
        "",
        {"status": text("Phase of the job."), "lastTransitionTime": moment("Time of the last change.")},
        required=("status",),
    )
    return mapping(
        "Status of the job.",
        {
            "state": state,
            "minAvailable": number("Number of pods that must be able to run together."),
            "taskStatusCount": counts,
            "pending": number("Pending pods."),
            "running": number("Running pods."),
            "succeeded": number("Succeeded pods."),
            "failed": number("Failed pods."),
            "terminating": number("Terminating pods."),
            "unknown": number("Pods whose phase is unknown."),
            "version": number("Version of the pods; raised when all of them are replaced."),
            "retryCount": number("Number of restarts of the job."),
            "runningDuration": text("How long the job has run."),
            "controlledResources": table("Objects that the job's plugins have created.", text()),
            "conditions": series("The phases that the job has passed through.", condition),
        },
    )


def job() -> Schema:
    """A set of pods that run together."""
    return definition(
        GROUP,
        VERSION,
        "Job",
        description="A group of pods that are scheduled together and share policies.",
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
    """A job that runs on a schedule."""
    reference = mapping(
        "",
        {key: text() for key in ("apiVersion", "kind", "namespace", "name", "uid", "resourceVersion", "fieldPath")},
        atomic=True,
    )
    spec = mapping(
        "Schedule and template of the jobs.",
        {
            "schedule": text("Schedule in cron's five fields, or a name such as @daily."),
            "timeZone": text("Time zone of the schedule, such as Europe/Berlin. Defaults to that of the controller."),
            "startingDeadlineSeconds": number("Deadline in seconds for starting a missed job.", format="int64"),
            "concurrencyPolicy": text(
                "Behaviour when the previous job still runs.",
                choices=("Allow", "Forbid", "Replace"),
                default="Allow",
            ),
            "suspend": switch("Whether to stop creating jobs.", default=False),
            "jobTemplate": mapping(
                "Template of the jobs.", {"metadata": anything("Metadata such as labels."), "spec": job_spec()}
            ),
            "successfulJobsHistoryLimit": number("Number of completed jobs to keep.", default=3),
            "failedJobsHistoryLimit": number("Number of failed jobs to keep.", default=1),
        },
        required=("schedule", "jobTemplate"),
    )
    status = mapping(
        "Status of the cron job.",
        {
            "active": series("Jobs that have not finished.", reference, atomic=True),
            "lastScheduleTime": moment("Time of the last scheduled job."),
            "lastSuccessfulTime": moment("Time at which a job last completed."),
        },
    )
    return definition(
        GROUP,
        VERSION,
        "CronJob",
        description="Creates jobs on a schedule.",
        properties={"spec": spec, "status": status},
        short_names=("cronvcjob", "cronvj"),
    )
