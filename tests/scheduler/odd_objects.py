"""Objects as anybody may have written them: every field that the scheduler reads, with odd but possible values.

Most of an object is as usual, else nothing would ever be placed. A shape is a tuple of alternatives, a dict of fields
that are mostly absent, `Whole` for those that are there, `Some` of a shape, a `Map` from keys to values, or a value.
"""

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from baton.model import core, volcano
from baton.model.workloads import Workload

_PRESENT = 0.15


class Some(NamedTuple):
    """A list of up to `most`."""

    shape: Any
    most: int = 2


class Map(NamedTuple):
    """A few of the keys, each with a value."""

    keys: tuple[str, ...]
    shape: Any
    most: int = 4


class Whole(NamedTuple):
    """A dict that has all of its fields, and rarely some others, also in their stead."""

    fields: dict[str, Any]
    rarely: Mapping[str, Any] = MappingProxyType({})


def made(shape: Any, chance: random.Random) -> Any:
    """One value of the shape."""
    match shape:
        case Some(inner, most):
            return [made(inner, chance) for _ in range(chance.randint(0, most))]
        case Map(keys, inner, most):
            chosen = chance.sample(keys, chance.randint(0, min(most, len(keys))))
            return {key: made(inner, chance) for key in chosen}
        case Whole(fields, rarely):
            return {name: made(inner, chance) for name, inner in fields.items()} | made(rarely, chance)
        case tuple():
            return made(chance.choice(shape), chance)
        case dict() | MappingProxyType():
            return {name: made(inner, chance) for name, inner in shape.items() if chance.random() < _PRESENT}
        case list():
            return [made(inner, chance) for inner in shape]
        case _:
            return shape


NAME = ("a", "b", "c")
QUANTITY = (
    *("1", "2", "1", "2") * 10,
    *("0", "1", "2", "100m", "1k", "1Gi", "0.5", "8E", "1e3", "9223372036854775807", "1n", "-1", "+1", ".5", "1e-9"),
    *(1, 3),
)
WORD = (
    *("", "a", "b", "1", "2", "-1", "²", "9" * 40, "1/2", "root/a/b", "true", "nan", "1e400", "10%", "5m", "[1]", "{}"),
    *("a,b;c:d", "GPU-1", '[{"uuid": "GPU-1"}]', "hard", "soft", "fifo", "spread"),
)
COUNT = (1, 2, 1, 2, -(2**31), -1, 0, 1, 2, 2**31 - 1)
TIME = ("", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
VGPU = (
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-memory-percentage",
    "volcano.sh/vgpu-cores",
)
RESOURCES = Map(
    (
        *("cpu", "memory", "pods", "ephemeral-storage", "hugepages-2Mi", "x/y", "nvidia.com/gpu", "nvshare.com/gpu"),
        *("volcano.sh/gpu-memory", "volcano.sh/gpu-number", *VGPU),
    ),
    QUANTITY,
)
LABELS = Map(
    (
        *("app", "zone", "kubernetes.io/hostname", "volcano.sh/preemptable", "volcano.sh/task-index"),
        *("volcano.sh/nodegroup-name", "volcano.sh/revocable-zone", "volcano.sh/cooldown-time"),
    ),
    WORD,
)
SHARES = ("GPU-1,NVIDIA,1000,50:", "GPU-1,NVIDIA,²,:;", "GPU-9,NVIDIA,99999999,900:", "GPU-1[a-3],NVIDIA,5,0:;;")
NOTES = Map(
    (
        *("scheduling.k8s.io/group-name", "scheduling.volcano.sh/queue-name", "scheduling.volcano.sh/group-min-member"),
        *("volcano.sh/task-spec", "volcano.sh/task-index", "volcano.sh/preemptable", "volcano.sh/vgpu-ids-new"),
        *("volcano.sh/vgpu-node", "volcano.sh/vgpu-time", "volcano.sh/gpu-index", "volcano.sh/predicate-time"),
        *("volcano.sh/bind-phase", "volcano.sh/vgpu-mode", "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
        *("volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-podgroup-policy", "baton.dev/cards", "baton.dev/cards-given"),
        *("volcano.sh/revocable-zone", "volcano.sh/cooldown-time", "volcano.sh/jdb-min-available"),
        *("volcano.sh/jdb-max-unavailable", "volcano.sh/sla-waiting-time", "sla-waiting-time", "volcano.sh/queue-name"),
        *("volcano.sh/task-topology-affinity", "volcano.sh/task-topology-anti-affinity", "baton.dev/run-time"),
        *("volcano.sh/task-topology-task-order", "volcano.sh/network-topology-mode", "volcano.sh/job-version"),
    ),
    (*WORD, *SHARES),
    5,
)
REQUIREMENT = {
    "key": ("app", "zone", "kubernetes.io/hostname", "metadata.name"),
    "operator": ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "New"),
    "values": Some(WORD),
}
SELECTOR = (None, {"matchLabels": LABELS, "matchExpressions": Some(REQUIREMENT)})
NODE_TERM = {"matchExpressions": Some(REQUIREMENT), "matchFields": Some(REQUIREMENT, 1)}
NODE_SELECTOR = {"nodeSelectorTerms": Some(NODE_TERM)}
DOMAIN = ("zone", "kubernetes.io/hostname", "none")
POD_TERM = {
    "topologyKey": DOMAIN,
    "labelSelector": SELECTOR,
    "namespaceSelector": SELECTOR,
    "namespaces": Some(NAME, 1),
    "matchLabelKeys": Some("app", 1),
    "mismatchLabelKeys": Some("app", 1),
}
REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
POD_AFFINITY = {
    REQUIRED: Some(POD_TERM),
    PREFERRED: Some({"weight": (0, 1, 100), "podAffinityTerm": POD_TERM}),
}
AFFINITY = {
    "nodeAffinity": {
        REQUIRED: (None, NODE_SELECTOR),
        PREFERRED: Some({"weight": (0, 1, 100), "preference": NODE_TERM}),
    },
    "podAffinity": POD_AFFINITY,
    "podAntiAffinity": POD_AFFINITY,
}
REQUIREMENTS = {"requests": RESOURCES, "limits": RESOURCES}
CONTAINER = {
    "name": NAME,
    "image": WORD,
    "resources": REQUIREMENTS,
    "restartPolicy": ("", "Always"),
    "ports": Some({"hostPort": (0, 80, 65535), "protocol": ("TCP", "UDP", "X"), "hostIP": ("", "0.0.0.0", "::1")}),
}
SPREAD = {
    "topologyKey": DOMAIN,
    "maxSkew": (1, 2, 2**31 - 1),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
    "labelSelector": SELECTOR,
    "minDomains": (None, 1, 5),
    "matchLabelKeys": Some("app", 1),
    "nodeAffinityPolicy": ("Honor", "Ignore"),
    "nodeTaintsPolicy": ("Honor", "Ignore"),
}
IDENTITY = {"name": NAME, "namespace": NAME, "uid": NAME}
CLUSTERED = {"name": NAME, "uid": NAME}
OWNER = {
    "apiVersion": ("apps/v1", "batch/v1", ""),
    "kind": ("ReplicaSet", "Job", "X"),
    **CLUSTERED,
    "controller": (True, False),
}
MARKS = {"labels": LABELS, "annotations": NOTES, "creationTimestamp": TIME}
POD_METADATA = {**MARKS, "ownerReferences": Some(Whole(OWNER)), "deletionTimestamp": TIME}
SHARE = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}
USUALLY: tuple[dict[str, Any], ...] = (
    {"cpu": "1"},
    {"cpu": "5"},
    SHARE,
    {**SHARE, "volcano.sh/vgpu-cores": "60"},
    {"nvidia.com/gpu": 1},
)
ASKED = (*map(Whole, USUALLY), RESOURCES)
USUAL = {
    "schedulerName": "volcano",
    "containers": ([Whole({"resources": Whole({"limits": ASKED, "requests": ASKED})})],),
    "priority": (0, 0, 1000),
    "nodeName": ("", "", "a", "b"),
}
ODD = {
    "containers": Some(CONTAINER),
    "initContainers": Some(CONTAINER),
    "nodeName": ("a", "b", "gone"),
    "priority": COUNT,
    "preemptionPolicy": ("Never", "PreemptLowerPriority"),
    "nodeSelector": LABELS,
    "affinity": AFFINITY,
    "tolerations": Some(
        {
            "key": ("", "t"),
            "operator": ("", "Exists", "Equal", "Gt", "Lt"),
            "value": WORD,
            "effect": ("", "NoSchedule", "NoExecute"),
        }
    ),
    "topologySpreadConstraints": Some(SPREAD),
    "volumes": Some({"name": NAME, "persistentVolumeClaim": (None, {"claimName": NAME}), "ephemeral": (None, {})}),
    "schedulingGates": Some({"name": WORD}),
    "overhead": RESOURCES,
    "resources": (None, REQUIREMENTS),
}
POD = Whole(
    {
        "metadata": Whole({**IDENTITY, "creationTimestamp": TIME}, POD_METADATA),
        "spec": Whole(USUAL, ODD),
        "status": {
            "phase": ("", "Pending", "Running", "Succeeded", "Failed", "Unknown"),
            "nominatedNodeName": ("", "a", "gone"),
            "conditions": Some({"type": ("PodScheduled", "Ready", "PodResizePending"), "status": WORD, "reason": WORD}),
            "containerStatuses": Some(
                {"name": NAME, "allocatedResources": RESOURCES, "resources": (None, REQUIREMENTS)}
            ),
        },
    }
)
CARDS = "GPU-1,10,8000,T4,true,hami-core:GPU-2,10,8000,T4,false,hami-core:"
REGISTERED = (
    *("GPU-1,1,0,,,:", "GPU-1,10,8000,T4,true,mig:", ":::"),
    "GPU-1,10,8000,T4,true,hami-core:GPU-1,10,8000,T4,true,hami-core:",
)
ROOM = Whole({"cpu": "8", "memory": "16Gi", "pods": "10", "nvidia.com/gpu": "2", **dict.fromkeys(VGPU, "16000")})
NODE = Whole(
    {
        "metadata": Whole(
            {
                **CLUSTERED,
                "labels": LABELS,
                "annotations": Whole(
                    {"volcano.sh/node-vgpu-register": (*[CARDS] * 9, *REGISTERED, WORD)},
                    {
                        "baton.dev/node-cards": WORD,
                        "baton.dev/node-load": WORD,
                        "volcano.sh/gpu-unhealthy-ids": WORD,
                    },
                ),
            }
        ),
        "spec": {
            "unschedulable": (True, False),
            "taints": Some({"key": "t", "value": WORD, "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute", "")}),
        },
        "status": Whole(
            {
                "allocatable": (ROOM, ROOM, ROOM, ROOM, RESOURCES),
                "conditions": (*[[Whole({"type": "Ready", "status": "True"})]] * 9, []),
                "images": Some({"names": Some(WORD), "sizeBytes": (0, -1, 2**62)}),
            }
        ),
    }
)
TOPOLOGY = (None, {"mode": WORD, "highestTierAllowed": (None, COUNT), "highestTierName": WORD})
GROUP = Whole(
    {
        "metadata": Whole({**IDENTITY, **MARKS}),
        "spec": Whole(
            {"minMember": COUNT},
            {
                "queue": (*NAME, "", "default", "root", "gone"),
                "minTaskMember": Map(WORD, COUNT, 2),
                "minResources": (None, RESOURCES),
                "priorityClassName": (*NAME, "gone"),
                "networkTopology": TOPOLOGY,
                "subGroupPolicy": Some(
                    {
                        "name": WORD,
                        "subGroupSize": (None, COUNT),
                        "minSubGroups": (None, COUNT),
                        "labelSelector": SELECTOR,
                        "matchLabelKeys": Some("app", 1),
                        "networkTopology": TOPOLOGY,
                    }
                ),
            },
        ),
        "status": {"phase": ("Pending", "Inqueue", "Running", "Unknown", "Completed", "X")},
    }
)
GROUP_TERMS = {"requiredDuringSchedulingIgnoredDuringExecution": Some(WORD), PREFERRED: Some(WORD)}
QUEUE = Whole(
    {
        "metadata": Whole(
            {
                "name": (*NAME, "default", "root"),
                "uid": NAME,
                "annotations": {
                    "volcano.sh/hierarchy": (*WORD, "root/a/c", "root/a"),
                    "volcano.sh/hierarchy-weights": (*WORD, "1/2/0", "1/-1/nan", "1/2"),
                },
            }
        ),
        "spec": {
            "weight": (-1, 0, 1, 65535),
            "priority": COUNT,
            "capability": RESOURCES,
            "deserved": RESOURCES,
            "guarantee": {"resource": RESOURCES},
            "parent": (*NAME, "", "root", "gone"),
            "reclaimable": (None, True, False),
            "dequeueStrategy": WORD,
            "affinity": (None, {"nodeGroupAffinity": GROUP_TERMS, "nodeGroupAntiAffinity": GROUP_TERMS}),
        },
        "status": {"state": ("Open", "Closed", "Closing", "Unknown", "X")},
    }
)
MEMBER = {
    "type": ("Node", "HyperNode", "X"),
    "selector": {
        "exactMatch": {"name": NAME},
        "regexMatch": {"pattern": (".*", "(", "a|b", "(?=x)")},
        "labelMatch": {"matchLabels": LABELS, "matchExpressions": Some(REQUIREMENT)},
    },
}
HYPER_NODE = Whole({"metadata": Whole(CLUSTERED), "spec": {"tier": COUNT, "tierName": WORD, "members": Some(MEMBER)}})
CLAIM = Whole(
    {
        "metadata": Whole(IDENTITY),
        "spec": {
            "volumeName": (*NAME, "", "gone"),
            "storageClassName": (*NAME, "", "gone"),
            "accessModes": Some((*WORD, "ReadWriteOncePod"), 1),
            "resources": {"requests": Map(("storage",), QUANTITY)},
            "selector": SELECTOR,
        },
        "status": {"phase": ("", "Bound", "Lost")},
    }
)
VOLUME = Whole(
    {
        "metadata": Whole({**CLUSTERED, "labels": LABELS}),
        "spec": {
            "capacity": Map(("storage",), QUANTITY),
            "storageClassName": ("", "a"),
            "nodeAffinity": (None, {"required": (None, NODE_SELECTOR)}),
            "csi": (None, {"driver": WORD, "volumeHandle": WORD}),
            "awsElasticBlockStore": (None, {"volumeID": WORD}),
            "claimRef": (None, IDENTITY),
        },
    }
)
STORAGE_CLASS = Whole(
    {
        "metadata": Whole(CLUSTERED),
        "provisioner": WORD,
        "volumeBindingMode": ("Immediate", "WaitForFirstConsumer"),
        "allowedTopologies": Some({"matchLabelExpressions": Some({"key": "zone", "values": Some(WORD)})}),
    }
)
CSI_NODE = Whole(
    {
        "metadata": Whole(CLUSTERED),
        "spec": {"drivers": Some({"name": WORD, "allocatable": (None, {"count": (None, *COUNT)})})},
    }
)

SHAPES: dict[Any, Any] = {
    core.Pod: POD,
    core.Node: NODE,
    volcano.PodGroup: GROUP,
    volcano.Queue: QUEUE,
    volcano.HyperNode: HYPER_NODE,
    core.Claim: CLAIM,
    core.PersistentVolume: VOLUME,
    core.StorageClass: STORAGE_CLASS,
    core.CsiNode: CSI_NODE,
    core.Budget: Whole(
        {"metadata": Whole(IDENTITY), "spec": {"selector": SELECTOR}, "status": {"disruptionsAllowed": COUNT}}
    ),
    core.Quota: Whole({"metadata": Whole(IDENTITY), "status": {"hard": RESOURCES, "used": RESOURCES}}),
    core.Namespace: Whole(
        {"metadata": Whole({**CLUSTERED, "labels": LABELS, "annotations": {"volcano.sh/namespace.weight": WORD}})}
    ),
    core.PriorityClass: Whole({"metadata": Whole(CLUSTERED), "value": COUNT}),
    Workload: Whole({"metadata": Whole({**IDENTITY, "annotations": NOTES})}),
}
