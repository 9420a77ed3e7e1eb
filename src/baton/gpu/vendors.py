"""The vendors whose cards Baton knows. A new vendor is a module like `baton.gpu.nvidia` and a line in `VENDORS`."""

from collections.abc import Sequence

from baton.errors import UnavailableError
from baton.gpu.cards import GpuSource, VendorName
from baton.gpu.nvidia import NVIDIA
from baton.gpu.vendor import GpuVendor

VENDORS: tuple[GpuVendor, ...] = (NVIDIA,)
"""In the order in which they are asked for cards. The first is the default of a resource."""


def named(name: VendorName) -> GpuVendor:
    """The vendor of a card."""
    return next(vendor for vendor in VENDORS if vendor.name == name)


def names() -> tuple[VendorName, ...]:
    """Every vendor's name, in order."""
    return tuple(vendor.name for vendor in VENDORS)


def open_drivers(vendors: Sequence[GpuVendor]) -> tuple[list[GpuSource], list[UnavailableError]]:
    """Every driver that works, and why the others do not."""
    sources: list[GpuSource] = []
    errors: list[UnavailableError] = []
    for vendor in vendors:
        try:
            sources.append(vendor.open())
        except UnavailableError as error:
            errors.append(error)
    return sources, errors
