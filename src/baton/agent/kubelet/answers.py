"""What a container gets: the answer to kubelet's Allocate, as a pure function of the slots.

Kubelet stores the answer and replays it whenever the container starts again, after any restart or upgrade of ours, for
as long as the pod lives. So it holds nothing that may move: the hook under a path that contains its own digest and is
never overwritten, the directory of the lock's sockets and not a socket (a mounted socket file would still point at
the daemon of yesterday), cards by UUID and not by index.

Two kinds of environment are deliberate. `NVIDIA_VISIBLE_DEVICES` is for NVIDIA's container runtime; a pod can set it
itself and then wins over us, which the admission webhook prevents. `BATON_CARDS` and `BATON_SLOTS` say what kubelet
really gave, so that such a pod can be found out.
"""

from collections.abc import Sequence

import msgspec

from baton.agent.config import AgentConfig, DeviceList
from baton.agent.offers.offers import Offer, Role
from baton.agent.offers.slots import SlotId
from baton.gpu.cards import Card


class Mount(msgspec.Struct, frozen=True):
    """A path of the host in the container."""

    host_path: str
    container_path: str
    read_only: bool = True


class DeviceNode(msgspec.Struct, frozen=True):
    """A device file of the host in the container, under the same path."""

    path: str
    permissions: str = "rw"


class Answer(msgspec.Struct, frozen=True):
    """Everything that a container gets from one offer."""

    environment: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()

    def merged(self, other: "Answer") -> "Answer":
        """Both; in a clash this one's environment and mounts stay."""
        paths = {mount.container_path for mount in self.mounts}
        nodes = {node.path for node in self.device_nodes}
        return Answer(
            {**other.environment, **self.environment},
            self.mounts + tuple(mount for mount in other.mounts if mount.container_path not in paths),
            self.device_nodes + tuple(node for node in other.device_nodes if node.path not in nodes),
            self.cdi_devices + tuple(name for name in other.cdi_devices if name not in self.cdi_devices),
        )


class Kit(msgspec.Struct, frozen=True):
    """What every container of a sharing resource gets, whatever its cards."""

    hook_path: str = ""
    """The installed, immutable hook on the host; empty when workloads are to run without it."""
    driver: Answer = Answer()
    """What the driver needs beside the cards: nothing with NVIDIA's runtime, libraries and a directory if simulated."""


_NVIDIA_CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def answer(config: AgentConfig, kit: Kit, offer: Offer, slots: Sequence[str]) -> Answer:
    """What the container gets for `slots`, which exist."""
    if offer.role is Role.COUNT:
        return Answer()
    known = offer.pool.slots
    cards = {known[SlotId(slot)].card: offer.terms[known[SlotId(slot)].card].card for slot in slots}
    ordered = sorted(cards.values(), key=lambda card: (card.index, card.id))
    # Sorted, because kubelet hands the slots over in random order and equal slots must mean equal answers.
    ours = Answer(
        {"BATON_CARDS": ",".join(card.id for card in ordered), "BATON_SLOTS": ",".join(sorted(slots))}
    ).merged(_visibility(config, ordered))
    if config.hook.enabled and kit.hook_path:
        ours = ours.merged(_sharing(config, kit.hook_path))
    return ours.merged(kit.driver)


def _visibility(config: AgentConfig, cards: Sequence[Card]) -> Answer:
    visible = {"NVIDIA_VISIBLE_DEVICES": ",".join(card.id for card in cards)}
    match config.device_list:
        case DeviceList.ENVIRONMENT:
            return Answer(visible)
        case DeviceList.DEVICE_NODES:
            minors = (card.minor if card.minor is not None else card.index for card in cards)
            nodes = [f"/dev/nvidia{minor}" for minor in minors]
            return Answer(visible, device_nodes=tuple(DeviceNode(path) for path in (*nodes, *_NVIDIA_CONTROL_NODES)))
        case DeviceList.CDI:
            # With CDI names NVIDIA's runtime must not add the cards a second time.
            return Answer(
                {"NVIDIA_VISIBLE_DEVICES": "void"},
                cdi_devices=tuple(f"{config.cdi_kind}={card.id}" for card in cards),
            )


def _sharing(config: AgentConfig, hook_path: str) -> Answer:
    library = f"{config.hook.container_directory}/libbaton.so"
    return Answer(
        {"LD_PRELOAD": library, "BATON_SOCKET_DIR": config.lock.container_directory},
        (
            Mount(hook_path, library),
            # Read-only does not keep anybody from connecting; it keeps a workload from removing the sockets.
            Mount(config.lock.socket_directory, config.lock.container_directory),
        ),
    )


def overridden(given: Sequence[str], visible: str | None) -> str:
    """A sentence when a pod makes itself see other cards than kubelet gave it."""
    if visible is None or set(visible.split(",")) <= {*given, "void", "none", ""}:
        return ""
    return (
        f"the pod sets NVIDIA_VISIBLE_DEVICES={visible} itself, but kubelet gave it {','.join(given)}; "
        "remove the variable from the pod, or let Baton's admission webhook refuse it"
    )
