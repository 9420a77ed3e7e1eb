"""What Baton needs to know about a maker of cards, besides the cards themselves.

A vendor is one module with a class like `baton.gpu.nvidia.Nvidia`, and one line in `baton.gpu.vendors`. Its properties
are static and cost nothing to ask; only `open` loads a driver.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from baton.gpu.cards import Card, GpuSource, VendorName
from baton.gpu.containers import ContainerEdits, DeviceList


class GpuVendor(ABC):
    """How to reach a vendor's driver, and how a container gets the vendor's cards."""

    name: ClassVar[VendorName]
    title: ClassVar[str]
    """The name as the vendor writes it."""
    domain: ClassVar[str]
    """The vendor's prefix of resources, node labels and CDI kinds, such as `nvidia.com`."""
    variables: ClassVar[tuple[str, ...]]
    """Environment variables that decide which cards a container sees. A pod that sets one overrides the agent."""
    runs_hook: ClassVar[bool] = False
    """Whether Baton's hook works with the vendor's driver: turns on shared cards and limits need it."""

    @abstractmethod
    def open(self) -> GpuSource:
        """Open the driver: `NoDriverError` if it is not installed, `UnavailableError` if it does not work."""

    @abstractmethod
    def container_edits(self, cards: Sequence[Card], device_list: DeviceList, cdi_kind: str) -> ContainerEdits:
        """What makes exactly these cards usable in a container. `cdi_kind` is the vendor and class of CDI names."""

    @property
    def cdi_kind(self) -> str:
        """The vendor and class of the CDI names that the vendor's own toolkit writes."""
        return f"{self.domain}/gpu"
