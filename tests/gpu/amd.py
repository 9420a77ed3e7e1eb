"""A second vendor, as a test sees it: what one module has to bring, with cards in memory in place of a driver.

The details follow AMD: ROCm's variables choose cards, a container needs `/dev/kfd` and the render node of each card,
and the hook does not work with the driver.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from baton.gpu.cards import Card, CardEvent, CardHealth, GpuSource, Sample, Severity, VendorName
from baton.gpu.containers import ContainerEdits, DeviceList, DeviceNode, DriverFiles
from baton.gpu.vendor import GpuVendor
from baton.model.ids import CardId

AMD = VendorName("amd")


def card(index: int) -> Card:
    return Card(
        id=CardId(f"GPU-amd-{index}"),
        index=index,
        vendor=AMD,
        model="AMD Instinct MI210",
        memory_mib=65536,
        compute_capability=None,
        pci_id=f"0000:{index + 0x81:02x}:00.0",
        numa_node=1,
        device_nodes=(f"/dev/dri/renderD{128 + index}",),
        family="cdna2",
    )


class AmdSource:
    """Cards that fail on command."""

    description = "amdgpu 6.12"
    driver_files = DriverFiles()
    silent_cards = 0

    def __init__(self, inventory: Iterable[Card]) -> None:
        self.inventory = tuple(inventory)
        self.reasons: dict[CardId, str] = {}
        self.happened: list[CardEvent] = []

    def cards(self) -> tuple[Card, ...]:
        return self.inventory

    def telemetry(self) -> tuple[Sample, ...]:
        return tuple(
            Sample(one.id, 25, 2048, one.memory_mib, 45, 90.0, 300.0, 1700, None, None) for one in self.inventory
        )

    def health(self) -> tuple[CardHealth, ...]:
        return tuple(
            CardHealth(one.id, one.id not in self.reasons, self.reasons.get(one.id, "")) for one in self.inventory
        )

    def fail(self, failed: CardId, reason: str) -> None:
        """A fault that the driver reports at once and remembers."""
        self.reasons[failed] = reason
        self.happened.append(CardEvent(failed, Severity.FATAL, reason))

    def events(self, timeout_s: float) -> tuple[CardEvent, ...]:
        time.sleep(min(timeout_s, 0.02))
        return tuple(self.happened.pop(0) for _ in range(len(self.happened)))

    def close(self) -> None:
        pass


class Amd(GpuVendor):
    name = AMD
    title = "AMD"
    domain = "amd.com"
    variables = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

    def __init__(self, open_driver: Callable[[], GpuSource]) -> None:
        self.open_driver = open_driver

    def open(self) -> GpuSource:
        return self.open_driver()

    def container_edits(self, cards: Sequence[Card], device_list: DeviceList, cdi_kind: str) -> ContainerEdits:
        if device_list is DeviceList.CDI:
            return ContainerEdits(cdi_devices=tuple(f"{cdi_kind}={one.id}" for one in cards))
        # HIP counts among the cards that ROCR leaves.
        numbers = ",".join(str(number) for number in range(len(cards)))
        return ContainerEdits(
            {"ROCR_VISIBLE_DEVICES": ",".join(one.id for one in cards), "HIP_VISIBLE_DEVICES": numbers},
            device_nodes=(DeviceNode("/dev/kfd"), *(DeviceNode(node) for one in cards for node in one.device_nodes)),
        )
