"""What a container needs to use cards: environment, mounts, device files and CDI names, as plain values.

The names follow the Container Device Interface (CDI), where such a set is called container edits.
"""

import enum
from pathlib import Path

import msgspec


class DeviceList(enum.StrEnum):
    """How a container's cards are made visible to it."""

    ENVIRONMENT = "environment"
    """The vendor's variable, such as NVIDIA_VISIBLE_DEVICES; needs the vendor's container runtime."""
    DEVICE_NODES = "device-nodes"
    """The device files themselves; they survive a re-creation of the container's device cgroup."""
    CDI = "cdi"
    """Names of CDI devices, from a specification that the vendor's toolkit or an operator wrote."""


class Mount(msgspec.Struct, frozen=True):
    """A path of the host in the container."""

    host_path: str
    container_path: str
    read_only: bool = True


class DeviceNode(msgspec.Struct, frozen=True):
    """A device file of the host in the container, under the same path."""

    path: str
    permissions: str = "rw"


class ContainerEdits(msgspec.Struct, frozen=True):
    """Everything that a container gets for its cards."""

    environment: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()

    def merged(self, other: "ContainerEdits") -> "ContainerEdits":
        """Both; where they clash, the environment and mounts of this one win."""
        paths = {mount.container_path for mount in self.mounts}
        nodes = {node.path for node in self.device_nodes}
        return ContainerEdits(
            {**other.environment, **self.environment},
            self.mounts + tuple(mount for mount in other.mounts if mount.container_path not in paths),
            self.device_nodes + tuple(node for node in other.device_nodes if node.path not in nodes),
            self.cdi_devices + tuple(name for name in other.cdi_devices if name not in self.cdi_devices),
        )


class DriverFiles(msgspec.Struct, frozen=True):
    """Files of a driver that containers need besides their cards.

    Libraries are copied to the host once per build, under a path that never changes its content, because kubelet
    replays answers for months.
    """

    libraries: tuple[Path, ...] = ()
    """They appear in one directory of the container, which `library_path` makes the dynamic linker search."""
    library_path: str = ""
    """The environment variable with that directory."""
    mounts: tuple[Mount, ...] = ()
    environment: dict[str, str] = {}
