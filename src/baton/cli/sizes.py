"""Sizes and durations as people write and read them."""

from baton.errors import UsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_size(text: str, field: str) -> int:
    """A size in bytes such as 16Gi."""
    digits = text.rstrip("KMGTi")
    unit = text[len(digits) :]
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    if unit not in _UNITS or not 0 <= number < 1e18:
        raise UsageError(f"{field} is {text!r}, expected a size such as 8Gi or 512Mi")
    return int(number * _UNITS[unit])


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
