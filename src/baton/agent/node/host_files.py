"""What the agent puts on the host for containers: the hook, and with simulated GPUs their driver.

Everything lies under paths that never change their content (see `hookstore`), because kubelet replays the answer that
names them. A container finds the simulated driver as it would find NVIDIA's: by the dynamic linker, without knowing.
"""

from pathlib import Path

import structlog

from baton.agent.config import AgentConfig
from baton.agent.kubelet.answers import Answer, Kit, Mount
from baton.agent.node import hook_versions
from baton.errors import UnavailableError
from baton.native import library

_log = structlog.get_logger(__name__)

_SIMULATED_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_SIMULATED_MACHINE = "/run/baton/simgpu"


def prepare(config: AgentConfig, *, simulated: bool) -> Kit:
    """Install what containers will mount. Without a hook workloads run unshared; that is said, not fatal."""
    directory = Path(config.hook.directory)
    hook_path = ""
    if config.hook.enabled:
        try:
            hook_path = str(hook_versions.install(library("libbaton.so"), directory))
        except UnavailableError as error:
            _log.error("workloads will run without the hook and will not take turns", reason=str(error))
    return Kit(hook_path, _simulated_driver(config, directory) if simulated else Answer())


def _simulated_driver(config: AgentConfig, directory: Path) -> Answer:
    from baton.gpu import simulated

    inside = f"{config.hook.container_directory}/simgpu"
    mounts = [
        Mount(str(hook_versions.install(library(f"simgpu/{name}"), directory)), f"{inside}/{name}")
        for name in _SIMULATED_LIBRARIES
    ]
    machine = Mount(str(simulated.default_directory()), _SIMULATED_MACHINE, read_only=False)
    return Answer(
        {simulated.LIBRARY_PATH_VARIABLE: inside, simulated.DIRECTORY_VARIABLE: _SIMULATED_MACHINE},
        (*mounts, machine),
    )
