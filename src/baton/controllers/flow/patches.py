"""A job's spec with the changes of one flow applied.

A merge patch, except that lists with named elements (tasks, containers, environment variables, ...) are merged by the
name. So a flow writes only its changes: for example another image for one container of one task.
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
"""Lists that are merged, and the field that identifies their elements."""
_WHOLE = frozenset(
    {"affinity", "securityContext", "networkTopology", "livenessProbe", "readinessProbe", "startupProbe"}
)
"""Mappings that are replaced as a whole: a mixture of two has no meaning."""


def patched(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The target with the patch applied. A null removes a field."""
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
