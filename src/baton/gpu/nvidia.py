"""NVIDIA's cards: the driver through NVML, and what NVIDIA's container runtime or a bare container needs."""

from collections.abc import Sequence

from baton.gpu.cards import Card, GpuSource, VendorName
from baton.gpu.containers import ContainerEdits, DeviceList, DeviceNode
from baton.gpu.vendor import GpuVendor

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class Nvidia(GpuVendor):
    """Real cards and simulated ones alike: the simulated driver answers the same calls."""

    name = VendorName("nvidia")
    title = "NVIDIA"
    domain = "nvidia.com"
    variables = (_VISIBLE,)
    runs_hook = True

    def open(self) -> GpuSource:
        from baton.gpu.nvml import NvmlSource

        return NvmlSource()

    def container_edits(self, cards: Sequence[Card], device_list: DeviceList, cdi_kind: str) -> ContainerEdits:
        visible = {_VISIBLE: ",".join(card.id for card in cards)}
        match device_list:
            case DeviceList.ENVIRONMENT:
                return ContainerEdits(visible)
            case DeviceList.DEVICE_NODES:
                nodes = [*(node for card in cards for node in card.device_nodes), *_CONTROL_NODES]
                return ContainerEdits(visible, device_nodes=tuple(map(DeviceNode, nodes)))
            case DeviceList.CDI:
                # With CDI names, NVIDIA's runtime must not add the cards a second time.
                return ContainerEdits({_VISIBLE: "void"}, cdi_devices=tuple(f"{cdi_kind}={card.id}" for card in cards))


NVIDIA = Nvidia()
