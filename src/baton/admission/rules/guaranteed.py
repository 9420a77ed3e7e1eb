"""Tasks with a NUMA topology policy: their pods need exclusive whole CPUs."""

from baton.admission.findings import Field, Findings, Rule
from baton.model.quantities import QuantityError, scaled

POLICIES = ("", "none", "best-effort", "restricted", "single-numa-node")

TOPOLOGY_POLICY = Rule(
    "topology-policy", "{field} is {value}, expected none, best-effort, restricted or single-numa-node"
)
NOT_GUARANTEED = Rule(
    "not-guaranteed",
    "{field} has topologyPolicy {value} but container {container} isn't Guaranteed: set limits for cpu and "
    "memory, with requests equal to them or omitted",
)
CPU_NOT_WHOLE = Rule(
    "cpu-not-whole",
    "{field} is {value} in a task with topologyPolicy {policy}: the cpu request isn't  an integer; whole CPUs are "
    "needed",
)


def check_topology_policy(task: Field, findings: Findings) -> None:
    """Check a task. Without a policy there is nothing to check."""
    policy = task["topologyPolicy"].text(findings)
    if policy not in POLICIES:
        findings.add(TOPOLOGY_POLICY, task["topologyPolicy"])
        return
    if policy in ("", "none"):
        return
    ignored = Findings()
    spec = task["template"]["spec"]
    for container in (*spec["containers"].items(ignored), *spec["initContainers"].items(ignored)):
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        if not all(_equal(limits[name], requests[name]) for name in ("cpu", "memory")):
            findings.add(NOT_GUARANTEED, Field(task.path, policy), container=container["name"].value)
        elif (_milli(limits["cpu"]) or 0) % 1000:
            findings.add(CPU_NOT_WHOLE, limits["cpu"], policy=policy)


def _equal(limit: Field, request: Field) -> bool:
    """Whether there is a limit, and a request, if set, equals it."""
    most = _milli(limit)
    return bool(most) and (not request or _milli(request) == most)


def _milli(quantity: Field) -> int | None:
    value = quantity.value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return scaled(value, 1000)
    except QuantityError:
        return None
