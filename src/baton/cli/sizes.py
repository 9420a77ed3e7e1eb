"""Sizes and durations as people write and read them."""

from baton.errors import UsageError
from baton.model.quantities import QuantityError, scaled

_MOST = 10**18


def parse_size(text: str, field: str) -> int:
    """A size in bytes such as 16Gi: a Kubernetes quantity without the suffixes below one. `K` means `k`."""
    try:
        value = -1 if text.endswith(("n", "u", "m")) else scaled(f"{text[:-1]}k" if text.endswith("K") else text)
    except QuantityError:
        value = -1
    if not 0 <= value < _MOST:
        raise UsageError(f"{field} is {text!r}, expected a size such as 8Gi or 512Mi")
    return value


def size(value: int | None) -> str:
    """A size for people."""
    if value is None:
        return "?"
    return f"{value / 2**30:.1f}Gi" if value >= 2**30 else f"{value / 2**20:.0f}Mi"


def seconds(value: float) -> str:
    """A duration for people."""
    if value >= 600:
        return f"{value / 60:.0f}m"
    if value >= 10:
        return f"{value:.0f}s"
    return f"{value:.2f}s" if value >= 0.1 else f"{value * 1000:.1f}ms"
