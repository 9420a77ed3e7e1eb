"""`baton agent`: check a file, ask a running agent, and one sentence for each error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton.gpu import profiles, simulated

pytestmark = pytest.mark.process


def baton(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "baton.cli.main", "agent", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
    )


def test_check_reports_every_mistake_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("resources: [{name: gpu, replicas: 0}]\nlokc: {}\n")
    done = baton("--check", str(path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"baton: {path} has 3 mistakes:")
    assert "Traceback" not in done.stderr


def test_check_compares_with_the_cards_of_the_node(tmp_path: Path) -> None:
    machine = tmp_path / "m"
    simulated.start([profiles.find("t4")] * 2, machine)
    path = tmp_path / "agent.yaml"
    path.write_text("resources: [{name: nvshare.com/gpu, replicas: 3}]\n")
    try:
        done = baton("--check", str(path), environment=simulated.environment(machine))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("nvshare.com/gpu: 6 (GPU-")
        path.write_text("resources: [{name: a.b/c}, {name: a.b/d}]\n")
        done = baton("--check", str(path), environment=simulated.environment(machine))
        assert done.returncode == 1
        assert done.stderr.count("is offered as a.b/c and as a.b/d") == 2
    finally:
        simulated.stop(machine, force=True)


def test_status_without_an_agent_is_one_sentence(tmp_path: Path) -> None:
    done = baton("status", "--socket", str(tmp_path / "missing.sock"))
    assert done.returncode == 3
    assert done.stderr.startswith(f"baton: no agent answers on {tmp_path}/missing.sock")
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_file_gives_one_sentence(tmp_path: Path) -> None:
    done = baton("--config", str(tmp_path / "absent.yaml"))
    assert done.returncode == 1
    assert done.stderr == f"baton: {tmp_path}/absent.yaml cannot be read: No such file or directory\n"
