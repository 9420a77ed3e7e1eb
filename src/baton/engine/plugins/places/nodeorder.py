"""kube-scheduler's scores, weighted: free room, balance, affinity, taints, images, spread.

Scores are from 0 to 100 times the weight. Where kube-scheduler normalises a score over the nodes that happen to be
feasible (node affinity, taints), this plugin normalises it over the pod's request, so that a node's score does not
depend on other nodes and can be cached until the node changes.
"""

import msgspec
import numpy as np

from baton.engine.framework import (
    CPU,
    MAX_SCORE,
    MEMORY,
    Floats,
    NodeView,
    PlacedPods,
    Plugin,
    PodSpec,
    SessionView,
    Task,
    term_holds,
)

IMAGE_FLOOR_BYTES = 23 << 20
IMAGE_CEILING_BYTES = 1000 << 20


class NodeOrderArguments(msgspec.Struct, frozen=True):
    least_requested: int = msgspec.field(default=1, name="leastrequested.weight")
    most_requested: int = msgspec.field(default=0, name="mostrequested.weight")
    node_affinity: int = msgspec.field(default=2, name="nodeaffinity.weight")
    pod_affinity: int = msgspec.field(default=2, name="podaffinity.weight")
    balanced: int = msgspec.field(default=1, name="balancedresource.weight")
    taints: int = msgspec.field(default=3, name="tainttoleration.weight")
    images: int = msgspec.field(default=1, name="imagelocality.weight")
    spread: int = msgspec.field(default=2, name="podtopologyspread.weight")


class NodeOrderPlugin(Plugin[NodeOrderArguments]):
    name = "nodeorder"
    arguments_type = NodeOrderArguments

    def open(self, session: SessionView) -> None:
        self._placed: PlacedPods = session.state.placed

    def scores(self, task: Task, nodes: NodeView) -> Floats | None:
        arguments, spec = self.arguments, task.needs.spec
        total = np.zeros(nodes.size)
        if arguments.least_requested or arguments.most_requested or arguments.balanced:
            total += self._room(task, nodes)
        if arguments.node_affinity and spec.preferred_node_terms:
            total += arguments.node_affinity * _preferred(spec, nodes)
        if arguments.taints and len(nodes.table.taint_sets) > 1:
            total += arguments.taints * _untolerated(spec, nodes)
        if arguments.images and spec.images and len(nodes.table.image_sets) > 1:
            total += arguments.images * _images(spec, nodes)
        return total

    def _room(self, task: Task, nodes: NodeView) -> Floats:
        arguments = self.arguments
        request = task.needs.request
        fractions = [
            np.minimum((nodes.used(place) + request[place]) / np.maximum(nodes.allocatable(place), 1), 1.0)
            for place in (CPU, MEMORY)
        ]
        score = np.zeros(nodes.size)
        if arguments.least_requested or arguments.most_requested:
            used = (fractions[0] + fractions[1]) / 2
            score += arguments.least_requested * (1.0 - used) + arguments.most_requested * used
        if arguments.balanced:
            score += arguments.balanced * (1.0 - np.abs(fractions[0] - fractions[1]) / 2)
        return score * MAX_SCORE

    def world_scores(self, task: Task, nodes: NodeView) -> Floats | None:
        total = np.zeros(nodes.size)
        if self.arguments.pod_affinity:
            total += self.arguments.pod_affinity * _stretched(self._affinity(task, nodes))
        if self.arguments.spread:
            crowding = self._crowding(task, nodes)
            if crowding is not None:
                total += self.arguments.spread * _stretched(-crowding)
        return total

    def _affinity(self, task: Task, nodes: NodeView) -> Floats:
        """The pod's own preferences, and those of placed pods towards it."""
        spec, placed, namespace = task.needs.spec, self._placed, task.pod.namespace
        total = np.zeros(nodes.size)
        for sign, preferences in ((1, spec.preferred_affinity), (-1, spec.preferred_anti_affinity)):
            for preference in preferences:
                key = placed.term_key(preference.term, namespace)
                total += sign * preference.weight * placed.matching(key).at(nodes.label(key.topology_key))
        labels = placed.label_class(task)
        for role, sign in (("affinity", 1), ("prefer", 1), ("avoid", -1)):
            for key, counts in placed.owning(role, labels):
                total += sign * counts.at(nodes.label(key.topology_key))
        return total

    def _crowding(self, task: Task, nodes: NodeView) -> Floats | None:
        wishes = [constraint for constraint in task.needs.spec.spread if not constraint.required]
        if not wishes:
            return None
        total = np.zeros(nodes.size)
        for constraint in wishes:
            key = constraint.topology_key
            present = nodes.table.view().column(nodes.table.present)
            crowds = self._placed.by_domain(constraint.selector, task.pod.namespace, key, present)
            crowds[0] = crowds.max()  # a node without the label is no better than the most crowded domain
            total += crowds[nodes.label(key)]
        return total


def _stretched(raw: Floats) -> Floats:
    """Scale to 0..100 over the given nodes; 0 if all are equal."""
    low, high = float(raw.min(initial=0.0)), float(raw.max(initial=0.0))
    if high == low:
        return np.zeros(len(raw))
    return (raw - low) * (MAX_SCORE / (high - low))


def _preferred(spec: PodSpec, nodes: NodeView) -> Floats:
    weights = sum(item.weight for item in spec.preferred_node_terms)
    total = np.zeros(nodes.size)
    for item in spec.preferred_node_terms:
        total += item.weight * term_holds(item.term, nodes)
    return total * (MAX_SCORE / max(weights, 1))


def _untolerated(spec: PodSpec, nodes: NodeView) -> Floats:
    """Scores nodes with fewer untolerated PreferNoSchedule taints higher."""
    by_set = np.array(
        [
            MAX_SCORE
            / (
                1
                + sum(
                    taint.effect == "PreferNoSchedule" and not any(item.tolerates(taint) for item in spec.tolerations)
                    for taint in taints
                )
            )
            for taints in nodes.table.taint_sets
        ]
    )
    result: Floats = by_set[nodes.column(nodes.table.taint_set)]
    return result


def _images(spec: PodSpec, nodes: NodeView) -> Floats:
    ceiling = IMAGE_CEILING_BYTES * max(len(spec.images), 1)
    by_set = []
    for images in nodes.table.image_sets:
        present = sum(images.get(image, 0) for image in spec.images)
        clipped = min(max(present, IMAGE_FLOOR_BYTES), ceiling)
        by_set.append(MAX_SCORE * (clipped - IMAGE_FLOOR_BYTES) / (ceiling - IMAGE_FLOOR_BYTES))
    result: Floats = np.array(by_set)[nodes.column(nodes.table.image_set)]
    return result
