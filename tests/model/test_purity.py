"""The pure rooms load no module for I/O: no network, no files, no event loop, no processes.

The import contracts in pyproject.toml check our own import statements. This test also covers what third-party packages
and calls at import time load. Modules that the allowed packages load anyway do not count.
"""

import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

pytestmark = pytest.mark.process

ALLOWED = ("numpy", "numpy.typing", "msgspec", "re2", "yaml")
"""Third-party packages that the pure rooms use."""
FORBIDDEN = (
    *("aiohttp", "grpc", "prometheus_client", "rich", "structlog", "typer", "uvloop"),
    *("asyncio", "concurrent", "http", "multiprocessing", "select", "selectors", "signal", "socket", "sqlite3", "ssl"),
    *("subprocess", "tempfile", "urllib.request"),
    *("baton.agent", "baton.cli", "baton.controllers", "baton.gpu", "baton.kube", "baton.observe", "baton.scheduler"),
    *("baton.local", "baton.lock.daemon", "baton.native", "baton.admission", "baton.install", "baton.sim"),
)


def modules(room: str) -> list[str]:
    """The room's own modules, all of them."""
    package = import_module(room)
    return [room, *(found.name for found in pkgutil.walk_packages(package.__path__, f"{room}."))]


def loaded(*names: str) -> set[str]:
    """What a fresh interpreter has loaded after importing these."""
    imports = "\n".join(f"import {name}" for name in names)
    code = f"import sys\n{imports}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def anyway() -> set[str]:
    return loaded(*ALLOWED)


@pytest.mark.parametrize("room", ["baton.model", "baton.engine", "baton.mapping", "baton.lock.core"])
def test_a_pure_room_loads_nothing_that_does_io(room: str, anyway: set[str]) -> None:
    news = loaded(*modules(room)) - anyway
    assert {name for name in news if any(name == bad or name.startswith(f"{bad}.") for bad in FORBIDDEN)} == set()
