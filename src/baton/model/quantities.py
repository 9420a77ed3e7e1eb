"""Kubernetes quantities (`500m`, `8Gi`, `1e3`, `4`) as integers, and back.

The engine counts `cpu` in thousandths and everything else in whole units, rounded up as kube-scheduler does.
"""

import functools
import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation

from baton.errors import BatonError

Quantity = str | int | float
Amounts = tuple[tuple[str, int], ...]
"""Amounts of resources in the engine's units, in the order of their names."""

_SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_LARGEST = Decimal(2**63 - 1)
"""Kubernetes replaces larger numbers by this one."""
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([a-zA-Z]*)")


class QuantityError(BatonError):
    """A text that is not a quantity."""


def is_quantity(text: str) -> bool:
    """Whether the API server would accept the text as a quantity."""
    try:
        scaled(text)
    except QuantityError:
        return False
    return True


@functools.lru_cache(maxsize=8192)
def scaled(quantity: Quantity, factor: int = 1) -> int:
    """The quantity times `factor`, rounded up to a whole number."""
    if isinstance(quantity, int):
        return quantity * factor
    match = _FORM.fullmatch(str(quantity).strip())
    if match is None or match[2] not in _SUFFIXES:
        raise QuantityError(f"{quantity!r} is not a quantity such as 2, 500m or 8Gi")
    try:
        number = max(-_LARGEST, min(_LARGEST, Decimal(match[1])))
    except InvalidOperation:
        raise QuantityError(f"{quantity!r} is not a quantity such as 2, 500m or 8Gi") from None
    value = max(-_LARGEST, min(_LARGEST, number * _SUFFIXES[match[2]]))
    return int((value * factor).to_integral_value(ROUND_CEILING))


def amount(name: str, quantity: Quantity) -> int:
    """A quantity in the engine's unit for that resource."""
    return scaled(quantity, 1000) if name == "cpu" else scaled(quantity)


def amounts(quantities: Mapping[str, Quantity]) -> Amounts:
    """All amounts, in the order of their names."""
    return tuple((name, amount(name, quantities[name])) for name in sorted(quantities))


def text_of(name: str, value: int) -> str:
    """The engine's integer as a readable quantity that the API server accepts."""
    if name == "cpu":
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    if name == "memory":
        for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
            if value and value % 1024**power == 0:
                return f"{value // 1024**power}{letter}i"
    return str(value)
