"""Every daemon as a real process: it answers probes, ends on a signal, and survives a log that cannot be written."""

import contextlib
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until

pytestmark = pytest.mark.process

PATIENCE_S = 60.0
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere}}]
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:9"}}]
"""
AGENT = """
kubelet: {{directory: {0}, plugin-directory: {0}/device-plugins, own-directory: {0}/own}}
hook: {{directory: {0}/hook}}
lock: {{socket-directory: {0}/lock, supervise: false}}
api: {{enabled: false}}
serving: {{status-socket: {0}/agent.sock, metrics-address: "127.0.0.1:{1}"}}
"""
PROGRAMS = ("scheduler", "controller", "agent", "lockd")


def arguments(program: str, folder: Path, port: int) -> list[str]:
    """A command line that serves on the port, without a GPU, a kubelet or an API server."""
    kubeconfig, agent = folder / "kubeconfig", folder / "agent.yaml"
    kubeconfig.write_text(KUBECONFIG)
    agent.write_text(AGENT.format(folder, port))
    return {
        "scheduler": ["scheduler", f"--kubeconfig={kubeconfig}", f"--listen=127.0.0.1:{port}"],
        "controller": ["controller", f"--kubeconfig={kubeconfig}", f"--listen=127.0.0.1:{port}"],
        "agent": ["agent", f"--config={agent}", "--node=here"],
        "lockd": ["lockd", f"--socket-dir={folder}/lock", f"--metrics-port={port}"],
    }[program]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(program: str, folder: Path, log: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """The process and its address, once it answers."""
    port = free_port()
    command = [sys.executable, "-m", "baton.cli.main", *arguments(program, folder, port), "--log-json"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    with log.open("wb") as output, subprocess.Popen(command, stderr=output, env=environment) as process:
        try:
            until(lambda: process.poll() is not None or get(f"http://127.0.0.1:{port}/healthz") == "ok\n")
            assert process.poll() is None, log.read_text()
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            text: bytes = answer.read()
        return text.decode()
    except OSError:
        return ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_answers_probes_and_ends_gracefully_on_sigterm(program: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(program, tmp_path, log) as (process, url):
        assert "# TYPE baton_" in get(f"{url}/metrics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    assert '"event": "stopped"' in log.read_text().splitlines()[-1]
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("program", ["controller", "lockd"])
def test_ctrl_c_ends_a_program_like_sigterm(program: str, tmp_path: Path) -> None:
    with started(program, tmp_path, tmp_path / "log") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_full_disk_under_the_log_disturbs_no_program(program: str, tmp_path: Path) -> None:
    with started(program, tmp_path, Path("/dev/full")) as (process, url):
        assert "# TYPE baton_" in get(f"{url}/metrics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("program", "option"), [("scheduler", "--listen"), ("controller", "--listen"), ("lockd", "--metrics-port")]
)
def test_a_port_that_is_taken_is_one_sentence(program: str, option: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "baton.cli.main", *arguments(program, tmp_path, port)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == (
        f"baton: cannot listen on 127.0.0.1:{port}: Address already in use; choose another address with {option}"
    )
    assert "Traceback" not in done.stderr


_HANGING = """
import asyncio, os, signal, sys, time
from baton.observe import logs
from baton.observe.program import Program, execute

async def work():
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        await asyncio.Event().wait()
    finally:
        {cleanup}

logs.set_up(sys.stderr)
execute(lambda: Program(stop_limit_s=1.0).run(work), fast_loop=False)
"""


@pytest.mark.parametrize(
    ("cleanup", "evidence"),
    [
        ("await asyncio.Event().wait()", "does not stop and is about to be ended by force"),
        ("await asyncio.to_thread(time.sleep, 600)", "to_thread"),
        ("time.sleep(600)", "in work"),
    ],
)
def test_a_program_that_cannot_clean_up_ends_at_its_limit_and_shows_where_it_hangs(cleanup: str, evidence: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HANGING.format(cleanup=cleanup)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert evidence in done.stderr or "thread.py" in done.stderr
