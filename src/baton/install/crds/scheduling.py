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
            "name": text("The cluster."),
            "weight": number("Its weight.", None),
            "capacity": quantities("What it has."),
        },
    )
    spec = mapping(
        "What the queue may have.",
        {
            "weight": number("Its share of the cluster in proportion to other queues.", 1, maximum=65535, default=1),
            "capability": quantities("The most it may use."),
            "deserved": quantities("What it may take back from others when it needs it."),
            "guarantee": mapping("What is kept for it.", {"resource": quantities("Amounts that nobody else may use.")}),
            "reclaimable": switch("Whether other queues may take back what this one uses beyond its share."),
            "parent": text("The queue above this one; root when not set.", maxLength=253, pattern=NAME_PATTERN),
            "priority": number("Queues of higher priority are served first."),
            "dequeueStrategy": text(
                "Whether a job that does not fit holds up those behind it (fifo) or is passed over (traverse).",
                choices=("fifo", "traverse"),
                default="traverse",
            ),
            "type": text("A label for people.", maxLength=253),
            "affinity": mapping(
                "Groups of nodes that the queue's pods go to, or keep away from.",
                {
                    "nodeGroupAffinity": _node_groups("Groups to go to."),
                    "nodeGroupAntiAffinity": _node_groups("Groups to keep away from."),
                },
            ),
            "extendClusters": series("Other clusters that jobs may be sent to.", cluster),
        },
    )
    status = mapping(
        "What the queue has.",
        {
            "state": text(
                "Whether it takes new jobs; a closing queue waits for its last job to end.",
                choices=("Open", "Closed", "Closing", "Unknown"),
            ),
            "allocated": quantities("What its pods use."),
            "credit": mapping(
                "What may be let in without asking the scheduler.",
                {
                    "asOf": text("The newest version of a pod group that is counted already."),
                    "amounts": quantities("How much, together, of pod groups that are newer."),
                },
            ),
            "reservation": mapping(
                "Nodes kept for it.",
                {"nodes": series("Their names.", text()), "resource": quantities("What is idle on them.")},
            ),
            "pending": number("Pod groups that wait to be let in."),
            "inqueue": number("Pod groups that were let in and wait for room."),
            "running": number("Pod groups that run."),
            "unknown": number("Pod groups that run in part."),
            "completed": number("Pod groups that have ended."),
        },
    )
    return definition(
        GROUP,
        VERSION,
        "Queue",
        description="A line of jobs with a share of the cluster.",
        properties={"spec": spec, "status": status},
        short_names=("q", "queue-v1beta1"),
        columns=(column("PARENT", ".spec.parent"),),
        namespaced=False,
    )


def pod_group() -> Schema:
    """Pods that start together or not at all. Its status has no subresource: it is written with the object."""
    sub_group = mapping(
        "",
        {
            "name": text("The name of the kind of groups.", maxLength=253),
            "subGroupSize": number("Pods in a group.", 1, default=1),
            "minSubGroups": number("Groups that must be able to run together.", default=0),
            "labelSelector": label_selector("The pods it is about."),
            "matchLabelKeys": series("Pods with equal values of these labels form a group.", text(), atomic=True),
            "networkTopology": network_topology(),
        },
    )
    spec = mapping(
        "What the group needs.",
        {
            "minMember": number("Pods that must be able to run together before any of them starts."),
            "minTaskMember": table("The same for each task by name.", number("", None)),
            "queue": text("The queue the group waits in.", maxLength=253, pattern=NAME_PATTERN, default="default"),
            "priorityClassName": text("The PriorityClass of the group.", maxLength=253),
            "minResources": quantities("What those pods need in all."),
            "networkTopology": network_topology(),
            "subGroupPolicy": series("Groups within the group that are placed together.", sub_group),
        },
    )
    condition = mapping(
        "",
        {
            "type": text("Unschedulable or Scheduled."),
            "status": text("True or False."),
            "transitionID": text("The scheduling cycle that said so."),
            "lastTransitionTime": moment("Since when."),
            "reason": text("Why, in one word."),
            "message": text("Why, in a sentence."),
        },
    )
    status = mapping(
        "Where the group is.",
        {
            "phase": text("The phase.", choices=("Pending", "Inqueue", "Running", "Unknown", "Completed")),
            "conditions": series("What the scheduler has to say.", condition),
            "running": number("Pods that run."),
            "succeeded": number("Pods that ended well."),
            "failed": number("Pods that ended badly."),
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
    """An order to a controller, which deletes it when it has been carried out."""
    target = mapping(
        "The object to act on.",
        {
            "apiVersion": text("Its group and version."),
            "kind": text("Its kind."),
            "name": text("Its name."),
            "uid": text("Its uid."),
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
        description="An order to a controller; it is deleted when it has been carried out.",
        properties={
            "action": text("What to do, such as AbortJob or CloseQueue."),
            "target": target,
            "reason": text("Why, in one word."),
            "message": text("Why, in a sentence."),
        },
        status_subresource=False,
    )
