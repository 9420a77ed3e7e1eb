"""`baton run`, as a user sees it."""

import contextlib
import getpass
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from baton.local import launch
from tests.local.conftest import PATIENCE_S, Machine

pytestmark = pytest.mark.process


def test_a_program_that_needs_no_gpu_just_runs(machine: Machine) -> None:
    ran = machine.baton("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert ran.returncode == 7
    assert ran.stdout == "out\n"
    assert "err\n" in ran.stderr
    assert "did not use a GPU" in ran.stderr


def test_the_daemon_is_started_once_and_stays(machine: Machine) -> None:
    first = machine.baton("run", "--", "true")
    assert "started the lock daemon" in first.stderr
    pid = machine.control.status().pid
    assert "started the lock daemon" not in machine.baton("run", "--", "true").stderr
    assert machine.control.status().pid == pid


def daemons(machine: Machine) -> list[int]:
    """The lock daemons of this machine, ready or not."""
    words = [str(machine.folder / "run" / "lock").encode(), b"lockd"]
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = file.read_bytes().split(b"\0")
            if all(word in arguments for word in words):
                found.append(int(file.parent.name))
    return found


def test_two_runs_that_both_find_no_daemon_agree_on_one(machine: Machine) -> None:
    runs = [machine.start("run", "--", "true") for _ in range(4)]
    errors = [run.communicate(timeout=PATIENCE_S)[1] for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, errors
    assert daemons(machine) == [machine.control.status().pid], (
        "the daemons that lost have exited and are not about to start"
    )


def test_the_socket_directory_may_be_relative(machine: Machine) -> None:
    work = [sys.executable, "-c", "import os; print(os.environ['BATON_SOCKET_DIR'])"]
    done = subprocess.run(
        [sys.executable, "-m", "baton.cli.main", "run", "-q", "--", *work],
        env={**machine.environment, "BATON_SOCKET_DIR": "run/lock"},
        cwd=machine.folder,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{machine.folder}/run/lock\n", done.stderr


def test_the_summary_says_what_the_program_received(machine: Machine) -> None:
    ran = machine.baton("run", "--tenant", "ann", "--", *machine.trainer("--gpu-seconds", "6", "--cpu-seconds", "0"))
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line)["step"] for line in ran.stdout.splitlines()] == [0, 1, 2, 3]
    (summary,) = [line for line in ran.stderr.splitlines() if "of GPU time" in line]
    assert "turn" in summary
    tenant = next(tenant for tenant in machine.control.status().tenants if tenant.tenant == "ann")
    assert tenant.account.received_s >= 3 * 6 / 60


def test_a_memory_limit_holds(machine: Machine) -> None:
    assert machine.baton("run", "--memory", "12Gi", "--", *machine.trainer()).returncode == 0
    ran = machine.baton("run", "--memory", "8Gi", "--", *machine.trainer())
    assert ran.returncode == 1
    assert "CUDA_ERROR_OUT_OF_MEMORY" in ran.stderr


def test_the_requested_terms_apply(machine: Machine) -> None:
    asked = ("--cores", "30", "--weight", "2", "--priority", "high", "--memory", "12Gi", "--tenant", "ann")
    machine.baton("run", "-q", "--", "true")  # starts the daemon
    run = machine.start("run", "-q", *asked, "--", *machine.trainer("--gpu-seconds", "60", steps=100_000))
    for status in machine.control.follow(50):
        if status.clients and status.clients[0].account.grants:
            break
    (client,) = status.clients
    assert (client.cores_percent, client.weight, client.priority, client.tenant) == (30, 2, "high", "ann")
    assert client.memory_limit_bytes == 12 << 30
    run.terminate()
    run.communicate(timeout=PATIENCE_S)


def test_a_program_may_use_more_memory_than_is_free_beside_another(machine: Machine) -> None:
    trainers = [
        machine.start("run", "--gpus", "1", "--tenant", name, "--", *machine.trainer(gib=14, steps=6)) for name in "abc"
    ]
    for trainer in trainers:
        _, errors = trainer.communicate(timeout=PATIENCE_S)
        assert trainer.returncode == 0, errors


def test_several_gpus_are_visible_when_asked_for(machine: Machine) -> None:
    ask = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    both = machine.baton("run", "--gpus", "2", "--", sys.executable, "-c", ask).stdout.strip().split(",")
    assert both == [gpu.gpu for gpu in machine.control.status().gpus]
    one = machine.baton("run", "--gpus", "1", "--", sys.executable, "-c", ask).stdout.strip()
    assert one in both


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--gpus", "3", "--", "true"), 2, "--gpus is 3, but this machine has 2; `baton lock status` lists them"),
        (("--memory", "lots", "--", "true"), 2, "--memory is 'lots', expected a size such as 8Gi or 512Mi"),
        (("--gang", "--", "true"), 2, "--gang needs several GPUs, but --gpus is 0; ask for at least 2"),
        (("--priority", "urgent", "--", "true"), 2, "'low', 'normal', 'high'"),
        (("--", "no-such-program"), 127, "cannot run 'no-such-program': No such file or directory"),
        (("--", "/"), 126, "cannot run '/': Permission denied"),
    ],
)
def test_invalid_options_are_reported_in_one_sentence(
    machine: Machine, words: tuple[str, ...], code: int, sentence: str
) -> None:
    ran = machine.baton("run", "-q", *words)
    assert ran.returncode == code
    assert sentence in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_reaches_the_program_and_its_end_is_reported(machine: Machine, number: signal.Signals) -> None:
    word = number.name.removeprefix("SIG")
    run = machine.start(
        "run", "-q", "--", "sh", "-c", f"trap 'echo got it; kill $!; exit 5' {word}; echo ready; sleep 60 & wait"
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    run.send_signal(number)
    output, _ = run.communicate(timeout=PATIENCE_S)
    assert (output, run.returncode) == ("got it\n", 5)


def test_a_signal_from_the_terminal_is_not_sent_twice(machine: Machine) -> None:
    """The terminal sends Ctrl-C to the program, too; a second one would interrupt its shutdown."""
    master, slave = pty.openpty()
    count = "import signal; signal.signal(2, lambda *_: print('got it', flush=True)); print('ready', flush=True)"
    words = ["run", "-q", "--", sys.executable, "-c", f"{count}; input()"]
    command = f"import os, sys; os.login_tty({slave}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    words = [sys.executable, "-c", command, "-m", "baton.cli.main", *words]
    run = subprocess.Popen(words, env=machine.environment, pass_fds=[slave])
    os.close(slave)
    seen = b""
    for typed, shown in ((b"", b"ready"), (b"\x03", b"got it"), (b"\n", b"")):
        os.write(master, typed)
        while shown not in seen:
            seen += os.read(master, 1000)
    assert run.wait(PATIENCE_S) == 0
    with contextlib.suppress(OSError):
        while more := os.read(master, 1000):
            seen += more
    os.close(master)
    assert seen.count(b"got it") == 1


def test_a_user_without_a_name_appears_by_number(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under an arbitrary uid."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert launch.user_name() == f"uid-{os.getuid()}"


def test_the_exit_code_of_a_killed_program_is_that_of_a_shell(machine: Machine) -> None:
    assert machine.baton("run", "-q", "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9


def test_the_error_on_a_machine_without_gpu_names_a_remedy(machine: Machine) -> None:
    lost = {**machine.environment, "BATON_SIMGPU_DIR": str(machine.folder / "nothing")}
    ran = subprocess.run(
        [sys.executable, "-m", "baton.cli.main", "run", "--", "true"], env=lost, capture_output=True, text=True
    )
    assert ran.returncode == 3
    assert "baton simgpu start" in ran.stderr


def test_top_shows_holders_and_waiters(machine: Machine) -> None:
    machine.baton("run", "--", "true")
    words = machine.trainer("--gpu-seconds", "60", "--kernels", "4", steps=100_000)
    runs = [machine.start("run", "-q", "--gpus", "1", "--tenant", name, "--", *words) for name in ("ann", "ben", "cid")]
    # Three programs on two GPUs, each busy nearly all of the time: at any moment one of them waits.
    for status in machine.control.follow(50):
        assert all(run.poll() is None for run in runs)
        if sorted(client.state for client in status.clients) == ["holding", "holding", "waiting"]:
            break
    shown = machine.baton("top", "--once").stdout
    assert "in turns" in shown
    assert {"ann", "ben", "cid"} <= set(shown.split())
    for run in runs:
        run.terminate()
        run.communicate(timeout=PATIENCE_S)
