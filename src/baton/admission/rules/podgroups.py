"""Pod groups, and the queues that jobs and pod groups may wait in."""

from collections.abc import Mapping
from typing import Any

from baton.admission.findings import Field, Findings, Rule
from baton.admission.patches import Patches
from baton.admission.rules.jobs import check_topology
from baton.model.names import DEFAULT_QUEUE, QUEUE_OF_POD, ROOT_QUEUE, QueueState
from baton.model.volcano import Queue

MIN_MEMBER = Rule("min-member", "{field} is {value} and should be greater than or equal to 0")
QUEUE_MISSING = Rule(
    "queue-missing",
    "{field} is {value}: unable to find {what} queue: no queue has this name; create it, or use one of "
    "`kubectl get queues`",
)
QUEUE_CLOSED = Rule(
    "queue-closed",
    "{field} is {value}: can only submit {what} to queue with state `Open`, queue `{queue}` status is `{state}`; "
    "open it with "
    "`baton queue operate {queue} --action open` or use another",
)
QUEUE_ROOT = Rule("queue-is-root", "{field} is {value}: can not submit job to root queue; use a queue below it")
QUEUE_NOT_LEAF = Rule(
    "queue-not-leaf",
    "{field} is {value}: can only submit job to leaf queue, queue `{queue}` has {count} child queues; use one of "
    "{children}",
)


def default_pod_group(group: Mapping[str, Any], namespace_annotations: Mapping[str, str]) -> Patches:
    """Move a group in the default queue to the queue of its namespace, if the namespace names one."""
    patches = Patches()
    queue = Field("", group)["spec"]["queue"].value or DEFAULT_QUEUE
    chosen = namespace_annotations.get(QUEUE_OF_POD)
    if queue == DEFAULT_QUEUE and chosen and chosen != DEFAULT_QUEUE:
        if not isinstance(group.get("spec"), dict):
            patches.set("spec", value={})
        patches.set("spec", "queue", value=chosen)
    return patches


def check_pod_group(group: Mapping[str, Any], findings: Findings) -> None:
    """Check a group without looking at the queues."""
    spec = Field("", group)["spec"]
    spec.mapping(findings)
    minimum = spec["minMember"].number(findings)
    if minimum is not None and minimum < 0:
        findings.add(MIN_MEMBER, spec["minMember"])
    check_topology(spec["networkTopology"], findings)
    for policy in spec["subGroupPolicy"].items(findings):
        check_topology(policy["networkTopology"], findings)


def check_queue_choice(
    field: Field, queue: Queue | None, children: list[str], findings: Findings, *, what: str = "job"
) -> None:
    """Check whether a job or group may wait in a queue.

    The default queue may be missing, because the scheduler creates it when it starts. A queue without a state is new
    and counts as open: users apply a queue and its first job in one file.
    """
    name = field.value or DEFAULT_QUEUE
    if name == ROOT_QUEUE and what == "job":
        findings.add(QUEUE_ROOT, field)
    elif queue is None:
        if name != DEFAULT_QUEUE:
            findings.add(QUEUE_MISSING, field, what=what)
    elif queue.status.state not in ("", QueueState.OPEN):
        findings.add(QUEUE_CLOSED, field, what=what, queue=name, state=queue.status.state)
    elif children and what == "job":
        findings.add(QUEUE_NOT_LEAF, field, queue=name, count=len(children), children=", ".join(children))
