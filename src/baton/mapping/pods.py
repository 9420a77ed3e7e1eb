"""Pods.

Most of a pod never changes, and most pods of a cluster come from few templates. So the part of a pod that decides where
it may go is translated once per pod, kept while the pod's fields for it stay the same, and shared between equal pods.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from baton.engine.cards.demands import effective_amounts
from baton.engine.objects import Container, ContainerRole, Hold, NodeTerm, Pairs, Pod, PodSpec
from baton.mapping import selectors
from baton.mapping.cards import CardWords, rules
from baton.model import core, times
from baton.model.durations import parse_duration_s
from baton.model.ids import NodeName, QueueName
from baton.model.meta import Metadata
from baton.model.names import (
    COOLDOWN_TIME,
    GROUP_MIN_MEMBER,
    GROUP_NAME,
    PREEMPTABLE,
    QUEUE_NAME,
    QUEUE_OF_POD,
    REVOCABLE_ZONE,
    SCHEDULER_NAMES,
    TASK_INDEX,
    TASK_SPEC,
    VOLCANO_GROUP_NAME,
    PodPhase,
)
from baton.model.numerals import whole_number
from baton.model.quantities import Amounts, Quantity, amounts

CRITICAL_CLASSES = ("system-cluster-critical", "system-node-critical")
_REMEMBERED_SPECS = 20_000
_RESIZABLE = ("cpu", "memory")
"""The resources that can be resized in a running container."""


class Volumes(Protocol):
    """What a pod's volumes require of its node, see `baton.scheduler.feed.volumes`."""

    def terms(self, pod: core.Pod) -> tuple[tuple[NodeTerm, ...], ...]: ...

    def attachments(self, pod: core.Pod) -> Pairs: ...

    def sole_claims(self, pod: core.Pod) -> tuple[str, ...]: ...


class PodWords:
    """Translates pods for the schedulers of the given names."""

    def __init__(
        self,
        scheduler_names: Iterable[str] = SCHEDULER_NAMES,
        cards: CardWords | None = None,
        volumes: Volumes | None = None,
    ) -> None:
        self.scheduler_names = frozenset(scheduler_names)
        self._cards = cards or CardWords()
        self._volumes = volumes
        self._specs: dict[PodSpec, PodSpec] = {}

    def is_ours(self, pod: core.Pod) -> bool:
        return pod.spec.scheduler_name in self.scheduler_names

    def translate(self, pod: core.Pod, *, spec: PodSpec | None = None, held: Hold | None = None) -> Pod:
        """The engine's pod. `spec` is the result of an earlier call for the same pod; `held` prevents its placement."""
        metadata, status = pod.metadata, pod.status
        annotations = metadata.annotations
        bound = bool(pod.spec.node_name)
        priority_class = pod.spec.priority_class_name
        return Pod(
            key=pod.key,
            spec=spec or self.spec(pod),
            uid=metadata.uid,
            labels=selectors.pairs(metadata.labels),
            group=pod.group,
            role=annotations.get(TASK_SPEC, ""),
            index=whole_number(annotations.get(TASK_INDEX, "") or metadata.labels.get(TASK_INDEX, "")) or 0,
            queue=_queue(annotations),
            priority=pod.spec.priority,
            preemptable=_preemptable(annotations, metadata.labels),
            can_preempt=pod.spec.preemption_policy != "Never",
            phase=_PHASES.get(status.phase, PodPhase.UNKNOWN),
            node=NodeName(pod.spec.node_name) if bound else None,
            cards=self._cards.grants(pod) if bound else (),
            nominated=NodeName(status.nominated_node_name) if status.nominated_node_name and not bound else None,
            deleting=bool(metadata.deletion_timestamp),
            gated=held is not None or bool(pod.spec.scheduling_gates),
            held=held,
            ours=self.is_ours(pod),
            critical=priority_class in CRITICAL_CLASSES,
            created_s=times.seconds(metadata.creation_timestamp) or 0.0,
            started_s=times.seconds(status.start_time),
            cooldown_s=_cooldown_s(annotations, metadata.labels),
        )

    def spec(self, pod: core.Pod) -> PodSpec:
        """The part of the pod that decides where it may go; equal parts are the same object."""
        spec = self._spec(pod)
        known = self._specs.get(spec)
        if known is not None:
            return known
        if len(self._specs) >= _REMEMBERED_SPECS:
            self._specs.clear()
        self._specs[spec] = spec
        return spec

    def same_spec(self, old: core.Pod, new: core.Pod) -> bool:
        """Whether the engine's spec of the old pod is also that of the new one."""
        before, after = old.spec, new.spec
        if before is after:
            return True
        return (
            before.containers == after.containers
            and before.init_containers == after.init_containers
            and before.tolerations == after.tolerations
            and before.node_selector == after.node_selector
            and before.affinity == after.affinity
            and before.topology_spread_constraints == after.topology_spread_constraints
            and before.resources == after.resources
            and _resizes(old) == _resizes(new)
            and old.metadata.labels == new.metadata.labels
            and (old.metadata.annotations == new.metadata.annotations or not self._ruled(old, new))
        )

    def _ruled(self, old: core.Pod, new: core.Pod) -> bool:
        return rules(old.metadata.annotations) != rules(new.metadata.annotations)

    def _spec(self, pod: core.Pod) -> PodSpec:
        spec, labels = pod.spec, pod.metadata.labels
        affinity = spec.affinity
        node_affinity = affinity.node_affinity if affinity is not None else None
        near = affinity.pod_affinity if affinity is not None else None
        away = affinity.pod_anti_affinity if affinity is not None else None
        containers = tuple(self._containers(pod))
        annotations = pod.metadata.annotations
        volumes = self._volumes if spec.volumes else None
        return PodSpec(
            containers=containers,
            overhead=_overhead(spec, containers),
            node_selector=selectors.pairs(spec.node_selector),
            node_terms=selectors.node_terms(node_affinity.required) if node_affinity is not None else (),
            preferred_node_terms=selectors.preferred_nodes(node_affinity),
            volume_terms=volumes.terms(pod) if volumes is not None else (),
            tolerations=tuple(selectors.toleration(item) for item in spec.tolerations),
            affinity=selectors.required_terms(near, labels),
            anti_affinity=selectors.required_terms(away, labels),
            preferred_affinity=selectors.preferred_terms(near, labels),
            preferred_anti_affinity=selectors.preferred_terms(away, labels),
            spread=tuple(selectors.spread(item, labels) for item in spec.topology_spread_constraints),
            host_ports=tuple(
                (port.host_ip, port.protocol, port.host_port)
                for container in (*spec.containers, *(item for item in spec.init_containers if _is_sidecar(item)))
                for port in container.ports
                if port.host_port
            ),
            attachments=volumes.attachments(pod) if volumes is not None else (),
            sole_claims=volumes.sole_claims(pod) if volumes is not None else (),
            images=tuple(container.image for container in spec.containers),
            card_rules=rules(annotations) if self._cards.wants_cards(spec.containers) else _NO_RULES,
            revocable_zone=annotations.get(REVOCABLE_ZONE, ""),
            device_claims=bool(spec.resource_claims),
        )

    def _containers(self, pod: core.Pod) -> Iterable[Container]:
        resizes = _resizes(pod)

        def requests(container: core.Container) -> Amounts:
            return resizes[container.name] if container.name in resizes else _requests(container.resources)

        for container in pod.spec.init_containers:
            yield Container(
                name=container.name,
                requests=requests(container),
                role=ContainerRole.SIDECAR if _is_sidecar(container) else ContainerRole.INIT,
            )
        for container in pod.spec.containers:
            yield Container(
                name=container.name,
                requests=requests(container),
                cards=self._cards.requests(container),
            )


def _is_sidecar(container: core.Container) -> bool:
    """Whether an init container keeps running beside the others."""
    return container.restart_policy == "Always"


def expects_group(metadata: Metadata) -> bool:
    """Whether a controller will create a PodGroup for this pod or owner, which no pod may start without."""
    annotations = metadata.annotations
    return GROUP_MIN_MEMBER in annotations and GROUP_NAME not in annotations and VOLCANO_GROUP_NAME not in annotations


def _requests(resources: core.Requirements) -> Amounts:
    """Requests; limits stand in for missing ones, as the API server defaults them."""
    if not resources.limits:
        return amounts(resources.requests)
    both: Mapping[str, Quantity] = {**resources.limits, **resources.requests}
    return amounts(both)


def _resizes(pod: core.Pod) -> dict[str, Amounts]:
    """Containers that hold other amounts than their spec requests, and the amounts that kube-scheduler would count.

    During a resize, the largest of the requested, allocated and used amounts counts; a request that kubelet calls
    infeasible does not. All other containers count with their spec.
    """
    spec, status = pod.spec, pod.status
    statuses = {item.name: item for item in (*status.container_statuses, *status.init_container_statuses)}
    if not statuses or all(item.resources is None for item in statuses.values()):
        return {}
    found: dict[str, Amounts] = {}
    infeasible = any(item.type == "PodResizePending" and item.reason == "Infeasible" for item in status.conditions)
    for container in (*spec.containers, *(item for item in spec.init_containers if _is_sidecar(item))):
        told = statuses.get(container.name)
        if told is None or told.resources is None:
            continue
        wanted = _requests(container.resources)
        counted = {name: amount for name, amount in wanted if not (infeasible and name in _RESIZABLE)}
        for quantities in (told.resources.requests, told.allocated_resources):
            for name, amount in amounts(quantities):
                counted[name] = max(amount, counted.get(name, 0))
        if counted != dict(wanted):
            found[container.name] = tuple(sorted(counted.items()))
    return found


def _overhead(spec: core.PodSpec, containers: tuple[Container, ...]) -> Amounts:
    """The runtime's overhead, plus the excess of pod-level requests over what the containers need."""
    if spec.resources is None:
        return amounts(spec.overhead) if spec.overhead else ()
    needed = effective_amounts(PodSpec(containers=containers))
    beyond = {name: amount - needed.get(name, 0) for name, amount in _requests(spec.resources)}
    total = {name: amount for name, amount in beyond.items() if amount > 0}
    for name, amount in amounts(spec.overhead):
        total[name] = total.get(name, 0) + amount
    return tuple(sorted(total.items()))


def _queue(annotations: Mapping[str, str]) -> QueueName | None:
    name = annotations.get(QUEUE_OF_POD) or annotations.get(QUEUE_NAME)
    return QueueName(name) if name else None


def _preemptable(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return (annotations.get(PREEMPTABLE) or labels.get(PREEMPTABLE) or "true").lower() != "false"


def _cooldown_s(annotations: Mapping[str, str], labels: Mapping[str, str]) -> float:
    text = annotations.get(COOLDOWN_TIME) or labels.get(COOLDOWN_TIME)
    return (parse_duration_s(text) or 0.0) if text else 0.0


_NO_RULES = rules({})
_PHASES = {phase.value: phase for phase in PodPhase}
