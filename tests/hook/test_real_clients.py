"""NVIDIA's own bindings on the simulated driver: same results with and without the hook, also while turns change."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton import native
from baton.gpu import profiles, simulated
from baton.lock.config import Config
from baton.lock.core.events import Mode
from baton.lock.core.settings import Settings
from tests.hook.conftest import ROOT, finish
from tests.hook.daemon import PATIENCE_S
from tests.lock import daemons

CLIENTS = ["allocation", "copies", "launches", "graphs", "inventory"]
MIB = 1 << 20


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two simulated cards with accelerated time."""
    directory = tmp_path_factory.mktemp("machine")
    simulated.start([profiles.find("t4")] * 2, directory, time_scale=1000)
    yield directory
    simulated.stop(directory, force=True)


@pytest.fixture(scope="module")
def sockets(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The real daemon, passing the cards around in short turns."""
    settings = Settings(mode=Mode.SERIAL, quantum_s=0.01, min_quantum_s=0.005, idle_s=0.05)
    cards = [(card.uuid, card.memory_bytes) for card in simulated.status(machine).cards]
    with daemons.running(tmp_path_factory.mktemp("daemon"), Config(settings=settings), cards) as nursery:
        yield nursery.sockets


def environment(machine: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **simulated.environment(machine), **more}


def hooked(machine: Path, sockets: Path, **more: str) -> dict[str, str]:
    hook = {"LD_PRELOAD": str(native.library("libbaton.so")), "BATON_SOCKET_DIR": str(sockets)}
    return environment(machine, **hook, BATON_ON_DAEMON_LOSS="fail", BATON_DAEMON_TIMEOUT="1m", **more)


def start(client: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.hook.clients.{client}"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def seen_by(client: str, variables: dict[str, str]) -> str:
    return finished(start(client, variables))


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, f"{out}\n{err}"
    assert err == ""
    return out


@pytest.mark.parametrize("flavour", ["legacy", "per_thread"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sees_the_same_with_and_without_the_hook(
    client: str, flavour: str, machine: Path, sockets: Path
) -> None:
    default_stream = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": "1" if flavour == "per_thread" else "0"}
    bare = seen_by(client, environment(machine, **default_stream))
    assert bare
    assert seen_by(client, hooked(machine, sockets, **default_stream)) == bare


@pytest.mark.parametrize("client", ["launches", "graphs", "copies"])
def test_a_client_sees_the_same_in_turns_with_others(client: str, machine: Path, sockets: Path) -> None:
    bare = seen_by(client, environment(machine))
    together = [start(client, hooked(machine, sockets)) for _ in range(3)]
    assert [finished(process) for process in together] == [bare] * 3


def test_every_path_stops_at_the_limit(machine: Path, sockets: Path) -> None:
    out = seen_by("limit", hooked(machine, sockets, BATON_MEMORY_LIMIT="64Mi"))
    lines = dict(line.split(": ") for line in out.splitlines())
    refused = {name: lines[name] for name in lines if name.startswith("beyond")}
    assert len(refused) == 9
    assert set(refused.values()) == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert lines["left at the end"] == str(64 * MIB)
    assert lines["total"] == lines["device"] == lines["nvml"] == lines["nvml v2"] == str(64 * MIB)


def test_without_a_limit_nvml_is_untouched(machine: Path, sockets: Path) -> None:
    bare = seen_by("inventory", environment(machine))
    assert seen_by("inventory", hooked(machine, sockets, BATON_MEMORY_LIMIT="1Ti")) == bare


def test_workloads_outlive_a_daemon_that_is_killed_again_and_again(machine: Path, tmp_path: Path) -> None:
    settings = Settings(mode=Mode.SERIAL, quantum_s=0.02, min_quantum_s=0.005)
    cards = [(card.uuid, card.memory_bytes) for card in simulated.status(machine).cards]
    with daemons.running(tmp_path, Config(settings=settings), cards) as nursery:
        variables = hooked(machine, nursery.sockets)
        works = [start("steady", variables) for _ in range(3)]
        for work in works:
            assert work.stdout is not None
            assert work.stdout.readline() == "working\n"
        for _ in range(15):
            nursery.end()
            nursery.start(Config(settings=settings), cards)
            time.sleep(0.05)
        assert [finish(work) for work in works] == ["right\n"] * 3
