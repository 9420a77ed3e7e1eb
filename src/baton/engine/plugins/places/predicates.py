"""kube-scheduler's filters: readiness, name, selectors, affinity, taints, ports, volumes, pod affinity and spread.

Nodes are compared by value numbers of labels and by numbered taint sets, so each predicate is an array lookup. Filters
that depend on pods elsewhere are in `world_filters`.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from baton.engine.framework import (
    FUTURE,
    WITHHELD,
    Array,
    Bools,
    Check,
    NodeTable,
    NodeView,
    PlacedPods,
    Plugin,
    SessionView,
    SpreadConstraint,
    Status,
    Taint,
    Task,
    Toleration,
    terms_hold,
)
from baton.model.ids import PodKey

BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
_Port = tuple[str, str, int]
_NO_CLAIMS = "cannot give the pod its resourceClaims, which only default-scheduler allocates"


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
    """Accepted for compatibility: masks are always cached and updated."""


class PredicatesPlugin(Plugin[PredicatesArguments]):
    name = "predicates"
    arguments_type = PredicatesArguments

    def open(self, session: SessionView) -> None:
        self._session = session
        self._placed: PlacedPods = session.state.placed
        self._ports = session.state.ports
        self._attachments = session.state.attachments

    def filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        spec, arguments = task.needs.spec, self.arguments
        if nodes.column(nodes.table.withheld).any():
            yield Check("not ready or unschedulable", _not_withheld(spec.tolerations, nodes), resolvable=False)
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
        if arguments.dra and spec.device_claims:
            # A pod bound without them would hold its place and never start.
            yield Check(_NO_CLAIMS, ~nodes.true(), resolvable=False)
        if arguments.node_ports and spec.host_ports:
            yield Check("had no free host port", self._ports_free(task, nodes))
        if arguments.volume_limits and spec.attachments:
            for driver, ok, limits in self._attachments.room(spec.attachments, nodes):
                yield Check(_no_attachment(driver, limits[~ok]), ok)

    def world_filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        spec, arguments = task.needs.spec, self.arguments
        if arguments.pod_affinity:
            yield from self._affinity(task, nodes)
        if arguments.spread:
            required = [constraint for constraint in spec.spread if constraint.required]
            if required:
                yield from self._spread(task, required, nodes)
        for claim in spec.sole_claims:
            user = self._session.state.sole_claims.user(claim, task, foreseen=self._session.foreseeing)
            if user is not None:
                yield Check(_in_use(claim, user), ~nodes.true())

    def _affinity(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        spec, placed = task.needs.spec, self._placed
        namespace, labels = task.pod.namespace, placed.label_class(task)
        keys = placed.joint_keys(spec.affinity, namespace)
        counts = [placed.matching(key) for key in keys]
        alone = bool(keys) and not any(count.total for count in counts) and placed.selects(keys[0], *labels)
        for key, count in zip(keys, counts, strict=True):
            domains = nodes.label(key.topology_key)
            near = (domains > 0) if alone else (count.at(domains) > 0)
            yield Check("did not match the pod affinity", near)
        for term in spec.anti_affinity:
            key = placed.term_key(term, namespace)
            away = placed.matching(key).at(nodes.label(key.topology_key)) == 0
            yield Check("did not match the pod anti-affinity", away)
        for key, count in placed.owning("anti", labels):
            yield Check("held pods whose anti-affinity excludes this one", count.at(nodes.label(key.topology_key)) == 0)

    def _spread(self, task: Task, constraints: Sequence[SpreadConstraint], nodes: NodeView) -> Iterator[Check]:
        """A domain may not exceed the emptiest domain that the pod could use by more than `max_skew`.

        Only nodes count that have the labels of all constraints and that the pod could use by the policies of the
        constraint.
        """
        everywhere = nodes.table.view()
        labelled = everywhere.column(nodes.table.present).copy()
        for constraint in constraints:
            labelled &= everywhere.label(constraint.topology_key) > 0
        for constraint in constraints:
            here = nodes.label(constraint.topology_key)
            yield Check(f"lacked the topology spread label {constraint.topology_key}", here > 0, resolvable=False)
            counted = labelled & self._counted(task, constraint, everywhere)
            existing = np.unique(everywhere.label(constraint.topology_key)[counted])
            crowds = self._placed.by_domain(constraint.selector, task.pod.namespace, constraint.topology_key, counted)
            fewest = crowds[existing].min() if len(existing) >= max(constraint.min_domains, 1) else 0
            own = constraint.selector.matches(dict(task.pod.labels))
            yield Check("would violate the topology spread", crowds[here] + own - fewest <= constraint.max_skew)

    @staticmethod
    def _counted(task: Task, constraint: SpreadConstraint, nodes: NodeView) -> Bools:
        """Nodes whose pods count, by the policies of the constraint."""
        spec, ok = task.needs.spec, nodes.true()
        if constraint.honour_node_affinity:
            for label, value in spec.node_selector:
                ok &= nodes.label(label) == nodes.table.label_values(label).get(value, -1)
            if spec.node_terms:
                ok &= terms_hold(spec.node_terms, nodes)
        if constraint.honour_taints:
            ok &= _tolerated(spec.tolerations, nodes.table)[nodes.column(nodes.table.taint_set)]
            ok &= _not_withheld(spec.tolerations, nodes)
        return ok

    def _ports_free(self, task: Task, nodes: NodeView) -> Bools:
        wanted = task.needs.spec.host_ports
        ok = nodes.true()
        rows = range(nodes.table.count) if nodes.rows is None else nodes.rows.tolist()
        for at, row in enumerate(rows):
            taken: Iterable[_Port] | None = self._ports.get(row)
            if taken and nodes.plane == FUTURE and nodes.table.unsettled[row]:
                taken = [port for item in _staying(row, nodes) for port in item.needs.spec.host_ports]
            if taken and any(_ports_clash(port, other) for port in wanted for other in taken):
                ok[at] = False
        return ok


def _no_attachment(driver: str, limits: Array) -> str:
    """The reason for nodes with these limits."""
    least, most = (int(limits.min()), int(limits.max())) if len(limits) else (0, 0)
    limit = f"limit {least}" if least == most else f"limits {least} to {most}"
    return f"had no room for another volume of {driver} ({limit})"


def _in_use(claim: str, user: PodKey) -> str:
    return f"cannot give the pod the claim {claim}, which is for one pod (ReadWriteOncePod) and used by {user}"


def _staying(row: int, nodes: NodeView) -> Iterator[Task]:
    """The tasks of the row that are not being evicted."""
    return (task for task in nodes.table.tasks[row].values() if task.status is not Status.RELEASING)


def _not_withheld(tolerations: tuple[Toleration, ...], nodes: NodeView) -> Bools:
    borne = [
        all(_bears(tolerations, taint) for place, taint in enumerate(WITHHELD) if bits >> place & 1)
        for bits in range(1 << len(WITHHELD))
    ]
    result: Bools = np.array(borne, dtype=np.bool_)[nodes.column(nodes.table.withheld)]
    return result


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


def _ports_clash(one: _Port, other: _Port) -> bool:
    anywhere = ("", "0.0.0.0")
    same_address = one[0] == other[0] or one[0] in anywhere or other[0] in anywhere
    return one[1:] == other[1:] and same_address
