"""The usage of pods under the names of resources and of quotas.

The `minResources` of a gang is compared with nodes, queues and the ResourceQuotas of its namespace, so it contains the
names that each of them uses: `cpu` and `requests.cpu`, `limits.cpu`, `pods` and `count/pods`. Kubernetes counts a pod
in a quota under the same names.
"""

from collections.abc import Mapping

from baton.model.quantities import QuantityError, amount, text_of
from baton.model.volcano import Quantities

_LIMITED = ("cpu", "memory", "ephemeral-storage")
"""Quotas have limits of these resources only."""
_REQUESTS, _LIMITS = "requests.", "limits."


def quota_usage(pods: int, requests: Mapping[str, int], limits: Mapping[str, int]) -> Quantities:
    """The usage of a number of pods with these total requests and limits."""
    found: Quantities = {}
    for name, asked in requests.items():
        if asked:
            found[name] = found[f"{_REQUESTS}{name}"] = text_of(name, asked)
    found.update({f"{_LIMITS}{name}": text_of(name, limits[name]) for name in _LIMITED if limits.get(name)})
    if pods:
        found["pods"] = found["count/pods"] = str(pods)
    return found


def same_usage(one: Quantities | None, other: Quantities | None) -> bool:
    """Whether both are equal, regardless of notation. An invalid quantity equals nothing."""
    try:
        return _amounts(one) == _amounts(other)
    except QuantityError:
        return False


def _amounts(quantities: Quantities | None) -> dict[str, int]:
    return {
        name: amount(name.removeprefix(_REQUESTS).removeprefix(_LIMITS), quantity)
        for name, quantity in (quantities or {}).items()
    }
