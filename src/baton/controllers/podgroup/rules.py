"""The PodGroup of a plain workload: pure rules from pods and their owner to a group.

All pods of one owner share one group, named after the owner's uid. A pod without an owner has a group to itself. So a
Deployment has a group for each revision, and the old group goes once its ReplicaSet has no more pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from baton.controllers.podgroup.quota_usage import quota_usage, same_usage
from baton.engine.cards.demands import effective_amounts
from baton.mapping.pods import PodWords
from baton.model.core import Pod
from baton.model.ids import Key
from baton.model.meta import OwnerReference
from baton.model.names import (
    ANNOTATION_PREFIX,
    BARE_GROUP_PREFIX,
    COOLDOWN_TIME,
    DEFAULT_QUEUE,
    ENDED_PHASES,
    GROUP_MIN_MEMBER,
    GROUP_NAME,
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    PREEMPTABLE,
    QUEUE_OF_POD,
    REVOCABLE_ZONE,
    VOLCANO_GROUP_NAME,
    PodGroupPhase,
)
from baton.model.numerals import whole_number
from baton.model.quantities import QuantityError, amount
from baton.model.volcano import POD_GROUP_KIND, SCHEDULING, NetworkTopology, PodGroup, PodGroupSpec, Quantities

TOPOLOGY_MODE = "volcano.sh/network-topology-mode"
TOPOLOGY_TIER = "volcano.sh/network-topology-highest-tier"
_WORDS = PodWords()
_INT32_MOST = 2**31 - 1


class Wanted(NamedTuple):
    """The wanted group. Fields that the workload does not ask for are left to admission, the scheduler and the user."""

    spec: PodGroupSpec
    names_queue: bool
    annotations: dict[str, str]
    labels: dict[str, str]
    complaints: tuple[str, ...] = ()
    """Sentences about invalid annotations."""


def group_name(pod: Pod) -> str:
    owner = pod.metadata.controller()
    return BARE_GROUP_PREFIX + (owner.uid if owner is not None else pod.metadata.uid)


def bare_group(pod: Pod, scheduler_names: Sequence[str]) -> list[Key]:
    """The group that this controller keeps for the pod. None for pods of other schedulers or with a group."""
    if pod.spec.scheduler_name not in scheduler_names:
        return []
    name = group_name(pod)
    annotations = pod.metadata.annotations
    named = annotations.get(GROUP_NAME) or annotations.get(VOLCANO_GROUP_NAME) or name
    return [Key(f"{pod.metadata.namespace}/{name}")] if named == name else []


def is_alive(pod: Pod) -> bool:
    return not pod.metadata.deletion_timestamp and pod.status.phase not in ENDED_PHASES


def example(pods: Iterable[Pod]) -> Pod | None:
    """The pod that the group is derived from: the youngest, because it shows a changed template first."""
    alive = [pod for pod in pods if is_alive(pod)]
    return max(alive, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name), default=None)


def unnamed(pods: Iterable[Pod]) -> list[Pod]:
    """The pods that do not have the name of their group yet."""
    return [pod for pod in pods if is_alive(pod) and not pod.metadata.annotations.get(GROUP_NAME)]


def is_abandoned(pods: Sequence[Pod], owner_replicas: int | None) -> bool:
    """Whether the group may go: its owner wants no pods and none is left, not even a terminating one."""
    return not pods and owner_replicas == 0


def wanted(pod: Pod, inherited: Mapping[str, str]) -> Wanted:
    """The group for this pod. `inherited` are the annotations of its owner; those of the pod take precedence."""
    own = pod.metadata.annotations
    complaints: list[str] = []
    members = _min_member(own, inherited, complaints)
    queue = own.get(QUEUE_OF_POD) or inherited.get(QUEUE_OF_POD) or ""
    annotations = {key: value for key, value in inherited.items() if key.startswith(ANNOTATION_PREFIX)}
    annotations.update({key: own[key] for key in (PREEMPTABLE, COOLDOWN_TIME, REVOCABLE_ZONE) if key in own})
    budget = next((key for key in (JDB_MIN_AVAILABLE, JDB_MAX_UNAVAILABLE) if key in own), None)
    if budget is not None:
        annotations[budget] = own[budget]
    spec = PodGroupSpec(
        min_member=members,
        queue=queue or DEFAULT_QUEUE,
        priority_class_name=pod.spec.priority_class_name,
        min_resources=_min_resources(pod, members, complaints),
        network_topology=_topology(own, complaints),
    )
    labels = {key: pod.metadata.labels[key] for key in (PREEMPTABLE, COOLDOWN_TIME) if key in pod.metadata.labels}
    return Wanted(spec, bool(queue), annotations, labels, tuple(complaints))


def body(pod: Pod, want: Wanted) -> dict[str, Any]:
    """The group to create."""
    owner = pod.metadata.controller() or OwnerReference(
        "v1", "Pod", pod.metadata.name, pod.metadata.uid, controller=True
    )
    return {
        "apiVersion": SCHEDULING,
        "kind": POD_GROUP_KIND,
        "metadata": {
            "name": group_name(pod),
            "namespace": pod.metadata.namespace,
            "annotations": want.annotations,
            "labels": want.labels,
            "ownerReferences": [owner],
        },
        "spec": want.spec,
        "status": {"phase": PodGroupPhase.PENDING},
    }


def changes(have: PodGroup, want: Wanted) -> dict[str, Any]:
    """A merge patch from the present group to the wanted one; empty when nothing has to change."""
    spec: dict[str, Any] = {}
    if have.spec.min_member != want.spec.min_member:
        spec["minMember"] = want.spec.min_member
    if have.spec.priority_class_name != want.spec.priority_class_name:
        spec["priorityClassName"] = want.spec.priority_class_name
    if want.names_queue and have.spec.queue != want.spec.queue:
        spec["queue"] = want.spec.queue
    if not same_usage(have.spec.min_resources, want.spec.min_resources):
        before, after = have.spec.min_resources or {}, want.spec.min_resources or {}
        spec["minResources"] = {**{name: None for name in before if name not in after}, **after}
    if want.spec.network_topology is not None and have.spec.network_topology != want.spec.network_topology:
        spec["networkTopology"] = msgspec.to_builtins(want.spec.network_topology)
    metadata: dict[str, Any] = {}
    for field, wants in (("annotations", want.annotations), ("labels", want.labels)):
        found: Mapping[str, str] = getattr(have.metadata, field)
        different = {key: value for key, value in wants.items() if found.get(key) != value}
        if different:
            metadata[field] = different
    return {name: change for name, change in (("spec", spec), ("metadata", metadata)) if change}


def _min_member(own: Mapping[str, str], inherited: Mapping[str, str], complaints: list[str]) -> int:
    text = own.get(GROUP_MIN_MEMBER) or inherited.get(GROUP_MIN_MEMBER)
    if text is None:
        return 1
    members = whole_number(text.strip(), _INT32_MOST)
    if members is not None:
        return members
    complaints.append(f"the annotation {GROUP_MIN_MEMBER} is {text!r}, expected a whole number of pods; 1 is used")
    return 1


def _min_resources(pod: Pod, members: int, complaints: list[str]) -> Quantities:
    try:
        requests = effective_amounts(_WORDS.spec(pod))
        limits: dict[str, int] = {}
        for container in pod.spec.containers:
            for name, quantity in container.resources.limits.items():
                limits[name] = limits.get(name, 0) + amount(name, quantity) * members
    except QuantityError as error:
        complaints.append(f"the requests of pod {pod.metadata.name} cannot be summed up: {error}")
        return {}
    return quota_usage(members, {name: asked * members for name, asked in requests.items()}, limits)


def _topology(own: Mapping[str, str], complaints: list[str]) -> NetworkTopology | None:
    mode, tier = own.get(TOPOLOGY_MODE), own.get(TOPOLOGY_TIER)
    if mode is None and tier is None:
        return None
    word = (mode or "hard").lower()
    if word not in ("hard", "soft"):
        complaints.append(f"the annotation {TOPOLOGY_MODE} is {mode!r}, expected hard or soft; hard is used")
        word = "hard"
    highest = whole_number(tier.strip(), _INT32_MOST) if tier is not None else None
    if tier is not None and highest is None:
        complaints.append(f"the annotation {TOPOLOGY_TIER} is {tier!r}, expected a whole number; it is ignored")
    return NetworkTopology(mode=word, highest_tier_allowed=highest)
