"""Changed jobs: only size and priority may change, because pods were already created from the rest."""

import copy
import re
from collections.abc import Mapping
from typing import Any

from baton.admission.findings import Field, Findings, Rule, show
from baton.admission.rules.jobs import check_job, defaulted
from baton.model.durations import parse_duration_s
from baton.model.quantities import QuantityError, scaled

_QUANTITY = re.compile(r"\.(limits|requests|overhead)\.[^\[\]]+$|\.(sizeLimit|divisor)$")
_DURATION = re.compile(r"\.(timeout|runningEstimate)$")
_NANO = 10**9
"""The smallest unit of a Kubernetes quantity."""

UPDATE_TASKS = Rule(
    "update-tasks",
    "{field} had {before} tasks and has {now}: job updates may not add or remove tasks; create a new job",
)
UPDATE_FIELDS = Rule(
    "update-fields",
    "{field} changed from {before} to {value}: job updates may not change fields other than `minAvailable`, "
    "`tasks[*].replicas under spec` and `PriorityClassName`; create a new job",
)


def check_job_update(old: Mapping[str, Any], new: Mapping[str, Any], findings: Findings) -> None:
    """Check a changed job: only its size and priority may change."""
    before, now = Field("", old)["spec"], Field("", new)["spec"]
    if before.value == now.value:
        return
    found, known = Findings(), Findings()
    check_job(_as_made(new), found)
    check_job(_as_made(old), known)
    found.forgive(known)
    findings.refusals += found.refusals
    findings.warnings += found.warnings
    tasks_before, tasks_now = before["tasks"].items(Findings()), now["tasks"].items(Findings())
    if len(tasks_before) != len(tasks_now):
        findings.add(UPDATE_TASKS, now["tasks"], before=len(tasks_before), now=len(tasks_now))
        return
    for path, was, value in _changes("spec", _fixed(before), _fixed(now)):
        findings.add(UPDATE_FIELDS, Field(path, value), before=show(was))


def _as_made(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The job before the controller named the claims that it creates. Only the controller may set both."""
    made = copy.deepcopy(dict(job))
    _forget_names(made.get("spec"))
    return made


def _forget_names(spec: Any) -> None:
    for volume in _mappings(Field("", spec)["volumes"].value):
        if volume.get("volumeClaim"):
            volume.pop("volumeClaimName", None)


def _fixed(spec: Field) -> Any:
    """The part of a specification that may not change, with defaults filled in.

    kubectl replaces the list of tasks by the manifest's, which has no defaults: applying a file again with more
    replicas must not count as another change.
    """
    fixed = defaulted(spec.value) if isinstance(spec.value, dict) else spec.value
    _forget_names(fixed)
    for parts, keys in (
        ([fixed], ("minAvailable", "priorityClassName")),
        (Field("", fixed)["tasks"].value, ("replicas", "minAvailable")),
    ):
        for part in _mappings(parts):
            for key in keys:
                part.pop(key, None)
    return fixed


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _changes(path: str, before: Any, now: Any) -> list[tuple[str, Any, Any]]:
    """Changed paths with their old and new values. A missing value equals an empty one."""
    if isinstance(before, dict | None) and isinstance(now, dict | None):
        found = []
        for key in dict.fromkeys((*(before or ()), *(now or ()))):
            found += _changes(f"{path}.{key}", (before or {}).get(key), (now or {}).get(key))
        return found
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        found = []
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            found += _changes(f"{path}[{place}]", one, other)
        return found
    if before == now or (not before and not now) or _equal(path, before, now):
        return []
    return [(path, before, now)]


def _equal(path: str, before: Any, now: Any) -> bool:
    """Whether two texts are the same amount or duration: programs write `1000m` as 1 and `90m` as 1h30m0s."""
    if before is None or now is None:
        return False
    if _DURATION.search(path):
        return parse_duration_s(str(before)) == parse_duration_s(str(now)) is not None
    try:
        return bool(_QUANTITY.search(path)) and scaled(str(before), _NANO) == scaled(str(now), _NANO)
    except QuantityError:
        return False
