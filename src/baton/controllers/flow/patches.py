"""A job's spec with one flow's changes laid over it.

A merge patch, with the difference that lists whose elements have a name are merged by it (tasks, containers,
environment variables, ...), so that a flow says only what it changes: another image for one container of one task.
"""

from typing import Any, TypeGuard

_BY = {
    "tasks": "name",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "tolerations": "key",
    "hostAliases": "ip",
}
"""Lists that are merged, and what their elements are known by."""
_WHOLE = frozenset(
    {"affinity", "securityContext", "networkTopology", "livenessProbe", "readinessProbe", "startupProbe"}
)
"""Mappings that are replaced: half of one and half of another would mean neither."""


def patched(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The target with the patch laid over it; a null takes a field away."""
    result = dict(target)
    for field, value in patch.items():
        before = result.get(field)
        if value is None:
            result.pop(field, None)
        elif isinstance(value, dict) and isinstance(before, dict) and field not in _WHOLE:
            result[field] = patched(before, value)
        elif field in _BY and _named(value, _BY[field]) and _named(before, _BY[field]):
            result[field] = _merged(before, value, _BY[field])
        else:
            result[field] = value
    return result


def _named(value: Any, key: str) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get(key), str | int) for item in value
    )


def _merged(before: list[dict[str, Any]], changes: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Elements keep their order; new ones come last."""
    found = {item[key]: item for item in before}
    for change in changes:
        found[change[key]] = patched(found[change[key]], change) if change[key] in found else change
    return list(found.values())
