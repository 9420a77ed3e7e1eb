"""scheduling.volcano.sh/v1beta1: Queue and PodGroup; bus.volcano.sh/v1alpha1: Command."""

from baton.install.crds.schemas import (
    NAME_PATTERN,
    Schema,
    column,
    definition,
    label_selector,
    mapping,
    moment,
    network_topology,
    number,
    quantities,
    series,
    switch,
    table,
    text,
)
from baton.model.names import DEFAULT_QUEUE, PodGroupPhase, QueueState

GROUP = "scheduling.volcano.sh"
VERSION = "v1beta1"


def _node_groups(description: str) -> Schema:
    return mapping(
        description,
        {
            "requiredDuringSchedulingIgnoredDuringExecution": series("Must.", text()),
            "preferredDuringSchedulingIgnoredDuringExecution": series("Should.", text()),
        },
    )


def queue() -> Schema:
    """A share of the cluster."""
    cluster = mapping(
        "",
        {
            "name": text("Name of the cluster."),
            "weight": number("Weight of the cluster.", None),
            "capacity": quantities("Capacity of the cluster."),
        },
    )
    spec = mapping(
        "Specification of the queue.",
        {
            "weight": number("Share of the cluster relative to other queues.", 1, maximum=65535, default=1),
            "capability": quantities("Upper limit of what the queue may use."),
            "deserved": quantities("Resources that the queue may reclaim from other queues."),
            "guarantee": mapping(
                "Reserved resources.", {"resource": quantities("Amounts that only this queue may use.")}
            ),
            "reclaimable": switch("Whether other queues may reclaim what this queue uses beyond its share."),
            "parent": text("Parent queue. Defaults to root.", maxLength=253, pattern=NAME_PATTERN),
            "priority": number("Queues with higher priority are served first."),
            "dequeueStrategy": text(
                "Whether a job that does not fit blocks the jobs behind it (fifo) or is skipped (traverse).",
                choices=("fifo", "traverse"),
                default="traverse",
            ),
            "type": text("A label for people.", maxLength=253),
            "affinity": mapping(
                "Groups of nodes that the queue's pods use or avoid.",
                {
                    "nodeGroupAffinity": _node_groups("Groups to use."),
                    "nodeGroupAntiAffinity": _node_groups("Groups to avoid."),
                },
            ),
            "extendClusters": series("Other clusters to which jobs may be sent.", cluster),
        },
    )
    status = mapping(
        "Status of the queue.",
        {
            "state": text(
                "Whether the queue takes new jobs; a closing queue waits until its last job has ended.",
                choices=tuple(map(str, QueueState)),
            ),
            "allocated": quantities("Resources that the queue's pods use."),
            "credit": mapping(
                "Resources that may be admitted without asking the scheduler.",
                {
                    "asOf": text("Newest resource version of a pod group that is already counted."),
                    "amounts": quantities("Total amounts for newer pod groups."),
                },
            ),
            "reservation": mapping(
                "Nodes that are reserved for the queue.",
                {
                    "nodes": series("Names of the nodes.", text()),
                    "resource": quantities("Idle resources on these nodes."),
                },
            ),
            "pending": number("Pod groups that wait to be admitted."),
            "inqueue": number("Pod groups that are admitted and wait for room."),
            "running": number("Running pod groups."),
            "unknown": number("Pod groups that run only in part."),
            "completed": number("Completed pod groups."),
        },
    )
    return definition(
        GROUP,
        VERSION,
        "Queue",
        description="A queue of jobs with a share of the cluster.",
        properties={"spec": spec, "status": status},
        short_names=("q", "queue-v1beta1"),
        columns=(column("PARENT", ".spec.parent"),),
        namespaced=False,
    )


def pod_group() -> Schema:
    """Pods that start together or not at all. The status has no subresource and is written with the object."""
    sub_group = mapping(
        "",
        {
            "name": text("Name of this kind of subgroup.", maxLength=253),
            "subGroupSize": number("Number of pods in a subgroup.", 1, default=1),
            "minSubGroups": number("Number of subgroups that must be able to run together.", default=0),
            "labelSelector": label_selector("Pods that belong to the subgroups."),
            "matchLabelKeys": series("Pods with equal values of these labels form a subgroup.", text(), atomic=True),
            "networkTopology": network_topology(),
        },
    )
    spec = mapping(
        "Specification of the pod group.",
        {
            "minMember": number("Number of pods that must be able to run together before any of them starts."),
            "minTaskMember": table("The same number for each task, by name.", number("", None)),
            "queue": text(
                "Queue in which the group waits.", maxLength=253, pattern=NAME_PATTERN, default=DEFAULT_QUEUE
            ),
            "priorityClassName": text("PriorityClass of the group.", maxLength=253),
            "minResources": quantities("Total resources of those pods."),
            "networkTopology": network_topology(),
            "subGroupPolicy": series("Subgroups of pods that are placed together.", sub_group),
        },
    )
    condition = mapping(
        "",
        {
            "type": text("Unschedulable or Scheduled."),
            "status": text("True or False."),
            "transitionID": text("Scheduling cycle that set the condition."),
            "lastTransitionTime": moment("Time of the last change."),
            "reason": text("Reason in one word."),
            "message": text("Reason in a sentence."),
        },
    )
    status = mapping(
        "Status of the pod group.",
        {
            "phase": text("Phase of the group.", choices=tuple(map(str, PodGroupPhase))),
            "conditions": series("Conditions that the scheduler has set.", condition),
            "running": number("Running pods."),
            "succeeded": number("Succeeded pods."),
            "failed": number("Failed pods."),
        },
    )
    return definition(
        GROUP,
        VERSION,
        "PodGroup",
        description="Pods that start together or not at all.",
        properties={"spec": spec, "status": status},
        short_names=("pg", "podgroup-v1beta1"),
        columns=(
            column("STATUS", ".status.phase"),
            column("minMember", ".spec.minMember", "integer"),
            column("RUNNINGS", ".status.running", "integer"),
            column("AGE", ".metadata.creationTimestamp", "date"),
            column("QUEUE", ".spec.queue", wide=True),
        ),
        status_subresource=False,
    )


def command() -> Schema:
    """A command for a controller, which deletes it after carrying it out."""
    target = mapping(
        "Object to act on.",
        {
            "apiVersion": text("API version of the object."),
            "kind": text("Kind of the object."),
            "name": text("Name of the object."),
            "uid": text("UID of the object."),
            "controller": switch("As in an owner reference."),
            "blockOwnerDeletion": switch("As in an owner reference."),
        },
        required=("apiVersion", "kind", "name", "uid"),
        atomic=True,
    )
    return definition(
        "bus.volcano.sh",
        "v1alpha1",
        "Command",
        description="A command for a controller, which deletes it after carrying it out.",
        properties={
            "action": text("Action to take, such as AbortJob or CloseQueue."),
            "target": target,
            "reason": text("Reason in one word."),
            "message": text("Reason in a sentence."),
        },
        status_subresource=False,
    )
