"""Queues: defaults, limits that must be consistent, and the tree that they form.

`Tree` contains what the checks need to know about the other queues. The caller provides it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from baton.admission.findings import Field, Findings, Rule, show
from baton.admission.patches import Patches
from baton.model.names import DEFAULT_QUEUE, HIERARCHY, HIERARCHY_WEIGHTS, ROOT_QUEUE, QueueState
from baton.model.quantities import QuantityError, amount, text_of
from baton.model.volcano import Queue

MAX_DEPTH = 5
"""The greatest depth of the queue tree, not counting root."""

_WEIGHT = re.compile(r"\d+(\.\d+)?")
_STATES = ("", QueueState.OPEN, QueueState.CLOSED)

WEIGHT = Rule(
    "queue-weight",
    "{field} is {value} and should be greater than or equal to 1: queue weight must be a positive integer, at most "
    "65535",
)
STATE = Rule("queue-state", "{field} is {value}: queue state must be in [Open Closed]")
QUANTITY = Rule("queue-quantity", "{field} is {value}, expected a quantity such as 4, 500m or 16Gi, not negative")
DESERVED_CAPABILITY = Rule(
    "queue-deserved-capability",
    "{field} is {value} but spec.capability has {limit} of {resource}: deserved should less equal than "
    "capability (it must be <= capability); raise capability or lower this value",
)
GUARANTEE_CAPABILITY = Rule(
    "queue-guarantee-capability",
    "{field} is {value} but spec.capability has {limit} of {resource}: guarantee should less equal than "
    "capability (it must be <= capability); raise capability or lower this value",
)
GUARANTEE_DESERVED = Rule(
    "queue-guarantee-deserved",
    "{field} is {value} but spec.deserved has {limit} of {resource}: guarantee should less equal than "
    "deserved (deserved must be >= guarantee); raise deserved or lower this value",
)
HIERARCHY_LENGTH = Rule(
    "queue-hierarchy-length",
    "{field} is {value}: volcano.sh/hierarchy must have the same length with volcano.sh/hierarchy-weights, which is "
    "{weights}; "
    "write one weight per name, as in root/a/b and 1/2/8",
)
HIERARCHY_WEIGHT = Rule(
    "queue-hierarchy-weight",
    "{field} is {value}, in which {weight} is an invalid number: each weight must be larger than 0, as in 1/2/8",
)
HIERARCHY_INSIDE = Rule(
    "queue-hierarchy-inside",
    "{field} is {value}: it is not allowed to be in the sub path of {other} of queue {queue}; only leaf "
    "queues hold jobs",
)
PARENT_MISSING = Rule(
    "queue-parent-missing",
    "{field} is {value}: parent queue {parent} not found; create it first",
)
PARENT_SELF = Rule(
    "queue-parent-cycle",
    "{field} is {value}: the queue would be its own ancestor ({cycle}); choose another parent",
)
PARENT_DEPTH = Rule(
    "queue-parent-depth",
    "{field} is {value}: the queue would be at depth {depth}, and the limit is {limit}; attach it higher up",
)
PARENT_BUSY = Rule(
    "queue-parent-busy",
    "{field} is {value}: queue {parent} cannot be the parent queue of queue {queue} because it has allocated Pods: "
    "{pods}; "
    "wait until they are gone or choose another parent",
)
CHILD_CAPABILITY = Rule(
    "queue-child-capability",
    "{field} is {value}: queue {queue} capability ({own}) exceeds parent queue {parent} capability ({limit}) of "
    "{resource}; lower it or raise the parent's",
)
CHILD_SUM = Rule(
    "queue-child-sum",
    "{field} is {value}: sum of children's {kind} ({sum}) exceeds parent's {kind} limit ({limit}) of {resource} in "
    "queue {parent}; lower one of the children's or raise the parent's",
)
ROOT_LIMITS = Rule(
    "queue-root",
    "{field} is {value}: root represents the whole cluster and has no capability, deserved or guarantee; set "
    "them on the queues below it",
)
DELETE_SYSTEM = Rule(
    "queue-delete-system", "{field} is {value}: `{queue}` queue can not be deleted; the scheduler needs it"
)
DELETE_PARENT = Rule(
    "queue-delete-parent",
    "{field} is {value}: queue {queue} can not be deleted, because it has child queues: {children}; delete them first",
)

Amounts = dict[str, int]


class Tree:
    """The other queues."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self._queues = {queue.metadata.name: queue for queue in queues}

    def get(self, name: str) -> Queue | None:
        return self._queues.get(name)

    def children(self, name: str) -> list[Queue]:
        """The direct children of a queue. Queues without a parent are children of root."""
        return [
            queue
            for queue in self._queues.values()
            if queue.metadata.name != ROOT_QUEUE and (queue.spec.parent or ROOT_QUEUE) == name
        ]

    def path(self, parent: str) -> list[str]:
        """The path from a parent up to root. A cycle ends where it closes."""
        found: list[str] = []
        while parent and parent not in found:
            found.append(parent)
            queue = self.get(parent)
            parent = "" if queue is None or parent == ROOT_QUEUE else queue.spec.parent or ROOT_QUEUE
        return found

    def all(self) -> Iterable[Queue]:
        return self._queues.values()


def default_queue(queue: Mapping[str, Any]) -> Patches:
    """The defaults of a new queue."""
    patches = Patches()
    spec = queue.get("spec")
    if not isinstance(spec, dict):
        patches.set("spec", value={})
        spec = {}
    if spec.get("reclaimable") is None:
        patches.set("spec", "reclaimable", value=True)
    if spec.get("weight") in (None, 0):
        patches.set("spec", "weight", value=1)
    annotations = Field("", queue)["metadata"]["annotations"].mapping(Findings())
    hierarchy, weights = annotations.get(HIERARCHY), annotations.get(HIERARCHY_WEIGHTS)
    if hierarchy and weights and hierarchy != ROOT_QUEUE and not str(hierarchy).startswith(f"{ROOT_QUEUE}/"):
        patches.set("metadata", "annotations", HIERARCHY, value=f"{ROOT_QUEUE}/{hierarchy}")
        patches.set("metadata", "annotations", HIERARCHY_WEIGHTS, value=f"1/{weights}")
    return patches


def check_queue(queue: Mapping[str, Any], findings: Findings) -> None:
    """Check a queue without looking at the others."""
    root = Field("", queue)
    spec = root["spec"]
    spec.mapping(findings)
    weight = spec["weight"].number(findings)
    if weight is not None and not 1 <= weight <= 65535:
        findings.add(WEIGHT, spec["weight"])
    if root["status"]["state"].value not in (None, *_STATES, QueueState.CLOSING, QueueState.UNKNOWN):
        findings.add(STATE, root["status"]["state"])
    capability = _amounts(spec["capability"], findings)
    deserved = _amounts(spec["deserved"], findings)
    guaranteed = spec["guarantee"]["resource"]
    guarantee = _amounts(guaranteed, findings)
    if capability:
        _compare(spec["deserved"], deserved, capability, DESERVED_CAPABILITY, findings)
        _compare(guaranteed, guarantee, capability, GUARANTEE_CAPABILITY, findings)
    _compare(guaranteed, guarantee, deserved, GUARANTEE_DESERVED, findings)
    if root["metadata"]["name"].value == ROOT_QUEUE:
        for field, amounts in ((spec["capability"], capability), (spec["deserved"], deserved), (guaranteed, guarantee)):
            if amounts:
                findings.add(ROOT_LIMITS, field)
    _check_hierarchy(root["metadata"]["annotations"], findings)


def _check_hierarchy(annotations: Field, findings: Findings) -> None:
    path, weights = annotations[HIERARCHY].text(findings), annotations[HIERARCHY_WEIGHTS].text(findings)
    if not path and not weights:
        return
    if not path or not weights or path.count("/") != weights.count("/"):
        findings.add(HIERARCHY_LENGTH, annotations[HIERARCHY], weights=show(weights or None))
    for weight in weights.split("/") if weights else []:
        if not _WEIGHT.fullmatch(weight) or float(weight) <= 0:
            findings.add(HIERARCHY_WEIGHT, annotations[HIERARCHY_WEIGHTS], weight=show(weight))
            break


def queue_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a checked part changed: the specification, or the position given by annotations."""
    old, new = Field("", before)["metadata"]["annotations"], Field("", now)["metadata"]["annotations"]
    return before.get("spec") != now.get("spec") or any(
        old[key].value != new[key].value for key in (HIERARCHY, HIERARCHY_WEIGHTS)
    )


def check_place(
    queue: Mapping[str, Any],
    tree: Tree,
    findings: Findings,
    max_depth: int = MAX_DEPTH,
    before: Mapping[str, Any] | None = None,
) -> None:
    """Check the position of a queue in the tree, and the limits of its parent and children.

    For a queue that existed `before`, only changes are checked: a queue whose position or amounts would now be refused
    can still get another weight.
    """
    root = Field("", queue)
    name = str(root["metadata"]["name"].value)
    annotation = root["metadata"]["annotations"][HIERARCHY]
    for other in tree.all():
        theirs = other.metadata.annotations.get(HIERARCHY, "")
        if annotation and other.metadata.name != name and theirs.startswith(f"{annotation.value}/"):
            findings.add(HIERARCHY_INSIDE, annotation, other=theirs, queue=other.metadata.name)
    if name == ROOT_QUEUE:
        return
    spec, old = root["spec"], Field("", before)["spec"]
    parent_name = str(spec["parent"].value or ROOT_QUEUE)
    moved = not before or str(old["parent"].value or ROOT_QUEUE) != parent_name
    if moved and not _check_parent(spec["parent"], name, tree, findings, max_depth):
        return
    if moved or any(old[kind].value != spec[kind].value for kind in ("capability", "deserved", "guarantee")):
        _check_limits(spec, name, parent_name, tree, findings)


def _check_parent(field: Field, name: str, tree: Tree, findings: Findings, max_depth: int) -> bool:
    """Check whether a queue may be below another. False when that position cannot exist."""
    parent_name = str(field.value or ROOT_QUEUE)
    parent = tree.get(parent_name)
    if parent is None and parent_name != ROOT_QUEUE:
        findings.add(PARENT_MISSING, field, parent=parent_name)
        return False
    above = tree.path(parent_name)
    if name in above:
        findings.add(PARENT_SELF, field, cycle=" → ".join([name, *above[: above.index(name) + 1]]))
        return False
    depth = len([one for one in above if one != ROOT_QUEUE]) + 1
    if depth > max_depth:
        findings.add(PARENT_DEPTH, field, depth=depth, limit=max_depth)
    # A parent's pods are those of its children. The pods of a leaf are its own, and would be left in an inner queue.
    pods = parent.status.allocated.get("pods", 0) if parent is not None else 0
    if parent_name != ROOT_QUEUE and not tree.children(parent_name) and amount("pods", pods) > 0:
        findings.add(PARENT_BUSY, field, parent=parent_name, queue=name, pods=pods)
    return True


def _check_limits(spec: Field, name: str, parent_name: str, tree: Tree, findings: Findings) -> None:
    """Compare the limits of a queue with those of its parent, and those of its children with its own."""
    children = tree.children(name)
    if (parent := tree.get(parent_name)) is not None:
        limits = _known(parent.spec.capability)
        for resource, own in _amounts(spec["capability"], Findings()).items():
            _check_capability(spec["capability"][resource], name, own, parent_name, limits, resource, findings)
    limits = _amounts(spec["capability"], Findings())
    for child in children:
        for resource, own in _known(child.spec.capability).items():
            _check_capability(spec["capability"][resource], child.metadata.name, own, name, limits, resource, findings)
    siblings = [one for one in tree.children(parent_name) if one.metadata.name != name]
    for kind, field in (("deserved", spec["deserved"]), ("guarantee", spec["guarantee"]["resource"])):
        own_amounts = _amounts(field, Findings())
        if parent is not None:
            sums = {resource: own + _promised(kind, siblings, resource) for resource, own in own_amounts.items()}
            _check_sums(field, kind, sums, parent_name, _known(_promise(kind, parent)), findings)
        sums = {resource: _promised(kind, children, resource) for resource in own_amounts}
        _check_sums(field, kind, sums, name, own_amounts, findings)


def _check_capability(
    field: Field, child: str, own: int, parent: str, limits: Amounts, resource: str, findings: Findings
) -> None:
    if resource in limits and own > limits[resource]:
        findings.add(
            CHILD_CAPABILITY,
            field,
            queue=child,
            own=text_of(resource, own),
            parent=parent,
            limit=text_of(resource, limits[resource]),
            resource=resource,
        )


def _check_sums(field: Field, kind: str, sums: Amounts, parent: str, limits: Amounts, findings: Findings) -> None:
    for resource, total in sums.items():
        if resource in limits and total > limits[resource]:
            findings.add(
                CHILD_SUM,
                field[resource],
                kind=kind,
                sum=text_of(resource, total),
                limit=text_of(resource, limits[resource]),
                resource=resource,
                parent=parent,
            )


def _promise(kind: str, queue: Queue) -> Mapping[str, Any]:
    return queue.spec.deserved if kind == "deserved" else queue.spec.guarantee.resource


def _promised(kind: str, queues: Iterable[Queue], resource: str) -> int:
    return sum(_known(_promise(kind, queue)).get(resource, 0) for queue in queues)


def check_queue_deletion(name: str, tree: Tree, findings: Findings) -> None:
    """Check whether a queue may be deleted."""
    field = Field("metadata.name", name)
    if name in (DEFAULT_QUEUE, ROOT_QUEUE):
        findings.add(DELETE_SYSTEM, field, queue=name)
    elif children := tree.children(name):
        findings.add(DELETE_PARENT, field, queue=name, children=", ".join(one.metadata.name for one in children))


def _amounts(field: Field, findings: Findings) -> Amounts:
    found: Amounts = {}
    for name, value in field.fields(findings):
        try:
            found[name] = amount(name, value.value)
        except (QuantityError, TypeError):
            found[name] = -1
        if found[name] < 0:
            findings.add(QUANTITY, value)
            del found[name]
    return found


def _known(quantities: Mapping[str, Any]) -> Amounts:
    return _amounts(Field("", dict(quantities)), Findings())


def _compare(field: Field, amounts: Amounts, limits: Amounts, rule: Rule, findings: Findings) -> None:
    """Compare every amount with a limit. A missing limit is zero."""
    for resource, own in amounts.items():
        if own > limits.get(resource, 0):
            findings.add(rule, field[resource], limit=text_of(resource, limits.get(resource, 0)), resource=resource)
