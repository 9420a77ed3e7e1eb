"""What the agent puts on the host for containers: the hook, and the driver files that no container runtime brings.

Everything lies under paths that never change their content (see `hook_versions`), because kubelet replays the answer
that names them.
"""

from collections.abc import Mapping
from pathlib import Path

import structlog

from baton.agent.config import AgentConfig
from baton.agent.kubelet.answers import HostFiles
from baton.agent.node import hook_versions
from baton.errors import UnavailableError
from baton.gpu.cards import VendorName
from baton.gpu.containers import ContainerEdits, DriverFiles, Mount
from baton.native import library

_log = structlog.get_logger("baton.agent")


def prepare(config: AgentConfig, drivers: Mapping[VendorName, DriverFiles]) -> HostFiles:
    """Install what containers will mount. Without the hook, workloads run unshared; that is logged, not fatal."""
    directory = Path(config.hook.directory)
    hook_path = ""
    if config.hook.enabled:
        try:
            hook_path = str(hook_versions.install(library("libbaton.so"), directory))
        except UnavailableError as error:
            _log.error("workloads will run without the hook and will not take turns", reason=str(error))
    return HostFiles(hook_path, {vendor: _installed(config, directory, files) for vendor, files in drivers.items()})


def _installed(config: AgentConfig, directory: Path, files: DriverFiles) -> ContainerEdits:
    inside = f"{config.hook.container_directory}/simgpu"
    libraries = tuple(
        Mount(str(hook_versions.install(path, directory)), f"{inside}/{path.name}") for path in files.libraries
    )
    search = {files.library_path: inside} if libraries else {}
    return ContainerEdits({**search, **files.environment}, libraries + files.mounts)
