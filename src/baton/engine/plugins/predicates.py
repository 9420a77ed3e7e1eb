"""kube-scheduler's filters: readiness, name, selectors, affinity, taints, ports, volumes, pod affinity and spread.

Nodes are told apart by value numbers of labels and by numbered taint sets, so each predicate is an array lookup.
What depends on pods elsewhere is in `world_filters`.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from baton.engine.affinity import PlacedPods
from baton.engine.columns import Bools
from baton.engine.jobs import Task
from baton.engine.nodes import NodeTable, NodeView
from baton.engine.objects import SpreadConstraint, Taint, Toleration
from baton.engine.plugin import Check, Plugin
from baton.engine.selectors import terms_hold
from baton.engine.session import Session

BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


class PredicatesArguments(msgspec.Struct, frozen=True):
    node_affinity: bool = msgspec.field(default=True, name="predicate.NodeAffinityEnable")
    node_ports: bool = msgspec.field(default=True, name="predicate.NodePortsEnable")
    taints: bool = msgspec.field(default=True, name="predicate.TaintTolerationEnable")
    pod_affinity: bool = msgspec.field(default=True, name="predicate.PodAffinityEnable")
    volume_limits: bool = msgspec.field(default=True, name="predicate.NodeVolumeLimitsEnable")
    volume_zone: bool = msgspec.field(default=True, name="predicate.VolumeZoneEnable")
    spread: bool = msgspec.field(default=True, name="predicate.PodTopologySpreadEnable")
    volume_binding: bool = msgspec.field(default=True, name="predicate.VolumeBindingEnable")
    dra: bool = msgspec.field(default=True, name="predicate.DynamicResourceAllocationEnable")
    cache: bool = msgspec.field(default=False, name="predicate.CacheEnable")
    """Accepted for compatibility: masks are always kept and corrected."""


class PredicatesPlugin(Plugin[PredicatesArguments]):
    name = "predicates"
    arguments_type = PredicatesArguments

    def open(self, session: Session) -> None:
        self._placed: PlacedPods = session.state.placed
        self._ports = session.state.ports

    def filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        spec, arguments = task.needs.spec, self.arguments
        yield Check("not ready or unschedulable", nodes.column(nodes.table.schedulable), resolvable=False)
        if arguments.node_affinity:
            for key, value in spec.node_selector:
                wanted = nodes.table.label_values(key).get(value, -1)
                yield Check("did not match the node selector", nodes.label(key) == wanted, resolvable=False)
            if spec.node_terms:
                yield Check("did not match the node affinity", terms_hold(spec.node_terms, nodes), resolvable=False)
        if arguments.taints and len(nodes.table.taint_sets) > 1:
            tolerated = _tolerated(spec.tolerations, nodes.table)
            yield Check(
                "had a taint that is not tolerated", tolerated[nodes.column(nodes.table.taint_set)], resolvable=False
            )
        if arguments.volume_binding:
            for terms in spec.volume_terms:
                yield Check("cannot reach a volume of the pod", terms_hold(terms, nodes), resolvable=False)
        if arguments.node_ports and spec.host_ports:
            yield Check("had no free host port", self._ports_free(task, nodes))

    def world_filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        spec, arguments = task.needs.spec, self.arguments
        if arguments.pod_affinity:
            yield from self._affinity(task, nodes)
        if arguments.spread:
            for constraint in spec.spread:
                if constraint.required:
                    yield Check("would break the topology spread", self._spread(task, constraint, nodes))

    def _affinity(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        spec, placed = task.needs.spec, self._placed
        namespace, labels = task.pod.namespace, placed.label_class(task)
        keys = [placed.term_key(term, namespace) for term in spec.affinity]
        counts = [placed.matching(key) for key in keys]
        alone = not any(count.total for count in counts) and all(placed.selects(key, *labels) for key in keys)
        for key, count in zip(keys, counts, strict=True):
            domains = nodes.label(key[3])
            near = (domains > 0) if alone else (count.at(domains) > 0)
            yield Check("did not match the pod affinity", near)
        for term in spec.anti_affinity:
            key = placed.term_key(term, namespace)
            yield Check("did not match the pod anti-affinity", placed.matching(key).at(nodes.label(key[3])) == 0)
        for key, count in placed.owning("anti", placed.label_class(task)):
            yield Check("held pods whose anti-affinity excludes this one", count.at(nodes.label(key[3])) == 0)

    def _spread(self, task: Task, constraint: SpreadConstraint, nodes: NodeView) -> Bools:
        """A domain may not get more than `max_skew` above the emptiest one that the pod could use."""
        key = (constraint.selector, (task.pod.namespace,), None, constraint.topology_key)
        domains = nodes.label(constraint.topology_key)
        counts = self._placed.matching(key).at(domains)
        all_nodes = nodes.table.view()
        usable = all_nodes.label(constraint.topology_key) > 0
        usable &= all_nodes.column(nodes.table.present)
        for label, value in task.needs.spec.node_selector:
            usable &= all_nodes.label(label) == nodes.table.label_values(label).get(value, -1)
        if task.needs.spec.node_terms:
            usable &= terms_hold(task.needs.spec.node_terms, all_nodes)
        existing = all_nodes.label(constraint.topology_key)[usable]
        if not len(existing):
            return np.zeros(nodes.size, dtype=np.bool_)
        fewest = int(self._placed.matching(key).at(existing).min())
        if len(np.unique(existing)) < constraint.min_domains:
            fewest = 0
        own = int(constraint.selector.matches(dict(task.pod.labels)))
        ok: Bools = (domains > 0) & (counts + own - fewest <= constraint.max_skew)
        return ok

    def _ports_free(self, task: Task, nodes: NodeView) -> Bools:
        wanted = task.needs.spec.host_ports
        ok = nodes.true()
        rows = range(nodes.table.count) if nodes.rows is None else nodes.rows.tolist()
        for at, row in enumerate(rows):
            taken = self._ports.get(row)
            if taken and any(_ports_clash(port, other) for port in wanted for other in taken):
                ok[at] = False
        return ok


def _tolerated(tolerations: tuple[Toleration, ...], table: NodeTable) -> Bools:
    return np.array(
        [
            all(_bears(tolerations, taint) for taint in taints if taint.effect in BLOCKING_EFFECTS)
            for taints in table.taint_sets
        ],
        dtype=np.bool_,
    )


def _bears(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)


def _ports_clash(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    anywhere = ("", "0.0.0.0")
    same_address = one[0] == other[0] or one[0] in anywhere or other[0] in anywhere
    return one[1:] == other[1:] and same_address
