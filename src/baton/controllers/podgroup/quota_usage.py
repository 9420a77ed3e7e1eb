"""What pods count for, under the names of resources and under those of quotas.

A gang's `minResources` is held against nodes, queues and the ResourceQuotas of its namespace, so it has the name that
each of them uses: `cpu` and `requests.cpu`, `limits.cpu`, `pods` and `count/pods`. These are the names under which
Kubernetes itself counts a pod in a quota.
"""

from collections.abc import Mapping

from baton.model.quantities import QuantityError, amount, text_of
from baton.model.volcano import Quantities

_LIMITED = ("cpu", "memory", "ephemeral-storage")
"""Quotas know limits of nothing else."""
_REQUESTS, _LIMITS = "requests.", "limits."


def quota_usage(pods: int, requests: Mapping[str, int], limits: Mapping[str, int]) -> Quantities:
    """What so many pods count for that ask for this together."""
    found: Quantities = {}
    for name, asked in requests.items():
        if asked:
            found[name] = found[f"{_REQUESTS}{name}"] = text_of(name, asked)
    found.update({f"{_LIMITS}{name}": text_of(name, limits[name]) for name in _LIMITED if limits.get(name)})
    if pods:
        found["pods"] = found["count/pods"] = str(pods)
    return found


def same_usage(one: Quantities | None, other: Quantities | None) -> bool:
    """Whether both say the same, however it is written; what cannot be read is like nothing else."""
    try:
        return _amounts(one) == _amounts(other)
    except QuantityError:
        return False


def _amounts(quantities: Quantities | None) -> dict[str, int]:
    return {
        name: amount(name.removeprefix(_REQUESTS).removeprefix(_LIMITS), quantity)
        for name, quantity in (quantities or {}).items()
    }
