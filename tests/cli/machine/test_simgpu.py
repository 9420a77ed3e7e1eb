"""`baton simgpu`: the output, refusals and side effects of each command."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from baton.gpu import simulated
from tests.gpu import machines
from tests.gpu.machines import Machine, line

pytestmark = pytest.mark.process

TWO_T4 = ("start", "--profile", "t4")


def baton(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "baton.cli.main", "simgpu", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "BATON_SIMGPU_DIR": str(directory)},
    )


def succeeds(directory: Path, *arguments: str) -> str:
    done = baton(directory, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(directory: Path, *arguments: str, code: int = 2) -> str:
    done = baton(directory, *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    return done.stderr


@pytest.fixture
def two_t4(tmp_path: Path) -> Path:
    """The directory of the machine that `start --profile t4` creates."""
    return machines.make(tmp_path, "t4", "t4").directory


def uuids(directory: Path) -> list[str]:
    return [card.uuid for card in simulated.status(directory).cards]


def test_start_prints_what_a_shell_can_eval(tmp_path: Path) -> None:
    place = tmp_path / "a place with blanks"
    done = baton(tmp_path, "start", "--dir", str(place))
    assert done.stderr == f"2 x Tesla P100-PCIE-16GB in {place}, started\n"
    script = f'eval {shlex.quote(done.stdout)}; printf \'%s\\n\' "$LD_LIBRARY_PATH" "$BATON_SIMGPU_DIR"'
    libraries, directory = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, text=True, check=True, env={}
    ).stdout.splitlines()
    assert directory == str(place)
    assert (Path(libraries) / "libcuda.so.1").is_file()
    assert (Path(libraries) / "libnvidia-ml.so.1").is_file()


def test_start_for_programs(tmp_path: Path) -> None:
    started = json.loads(succeeds(tmp_path, *TWO_T4, "--gpus", "3", "-o", "json"))
    assert started["created"] is True
    assert len(set(started["cards"])) == 3
    assert started["environment"]["BATON_SIMGPU_DIR"] == str(tmp_path)


def test_starting_the_same_machine_again_changes_nothing(two_t4: Path) -> None:
    before = simulated.status(two_t4)
    again = baton(two_t4, *TWO_T4)
    assert again.stdout.splitlines() == [
        f"export {name}={value}" for name, value in simulated.environment(two_t4).items()
    ]
    assert again.stderr.endswith("already running\n")
    after = simulated.status(two_t4)
    assert after.shape == before.shape
    assert after.cards[0].modelled_s > before.cards[0].modelled_s


@pytest.mark.parametrize("other", [["--gpus", "3"], ["--time-scale", "10"]])
def test_starting_another_shape_names_the_running_machine(two_t4: Path, other: list[str]) -> None:
    assert fails(two_t4, *TWO_T4, *other, code=1) == (
        f"baton: {two_t4} already has another simulated machine (2 x Tesla T4); "
        "stop it with `baton simgpu stop`, or choose another directory with --dir\n"
    )


def test_concurrent_starts_create_one_machine(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "BATON_SIMGPU_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "baton.cli.main", "simgpu", *TWO_T4]
    starters = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True)
        for _ in range(4)
    ]
    told = sorted(starter.communicate()[1].rpartition(", ")[2] for starter in starters)
    assert told == ["already running\n"] * 3 + ["started\n"]


def test_cards_keep_their_identity_over_a_restart(two_t4: Path) -> None:
    before = uuids(two_t4)
    succeeds(two_t4, "stop")
    succeeds(two_t4, *TWO_T4)
    assert uuids(two_t4) == before


def test_one_profile_for_each_card(tmp_path: Path) -> None:
    own = tmp_path / "tiny.yaml"
    own.write_text("extends: l4\nmodel: Tiny\nmemory_mib: 512\n")
    succeeds(tmp_path, "start", "--profile", "h100", "--profile", str(own))
    assert [(card.name, card.memory_bytes) for card in simulated.status(tmp_path).cards] == [
        ("NVIDIA H100 80GB HBM3", 81559 << 20),
        ("Tiny", 512 << 20),
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["start", "--profile", "h10"], "no profile 'h10'; did you mean 'h100'?"),
        (["start", "--time-scale", "0"], "--time-scale is 0; expected a number above 0 and at most 1000000"),
        (["start", "--gpus", "1", "--profile", "t4", "--profile", "l4"], "--gpus is 1, but there are 2 profiles"),
        (["start", "--gpus", "3", "--profile", "t4", "--profile", "l4"], "--gpus is 3, but there are 2 profiles"),
        (["start", "--gpus", "33"], "a simulated machine has 1 to 32 cards, not 33"),
        (["inject", "xid"], "the fault xid needs its number, as in `baton simgpu inject xid 31`"),
        (["inject", "ecc", "31"], "unexpected argument 31: only the fault xid takes a number"),
        (["inject", "ecc", "--pid", "1"], "--pid goes with xid and hang, not with ecc"),
        (["inject", "slow-link", "--factor", "2"], "--factor is 2; expected a number above 0 and at most 1"),
    ],
)
def test_a_usage_error_is_one_sentence(tmp_path: Path, arguments: list[str], told: str) -> None:
    shown = fails(tmp_path, *arguments)
    assert shown.startswith(f"baton: {told}")
    assert shown.count("\n") == 1


def test_an_invalid_profile_reports_every_mistake(tmp_path: Path) -> None:
    own = tmp_path / "bad.yaml"
    own.write_text("extends: h100\nsms: 0\nmemory_mb: 3\n")
    assert fails(tmp_path, "start", "--profile", str(own), code=1).splitlines() == [
        f"baton: the profile {own} has 2 mistakes:",
        "  line 2: sms is 0; expected an integer >= 1",
        "  line 3: memory_mb is no field of a profile; did you mean 'memory_mib'?",
    ]


@pytest.mark.parametrize("command", [["status"], ["inject", "ecc"], ["stop"], ["stop", "--force"]])
def test_without_a_machine_every_command_says_how_to_start_one(tmp_path: Path, command: list[str]) -> None:
    told = fails(tmp_path, *command, code=3)
    assert told.startswith(f"baton: no simulated machine in {tmp_path}")
    assert told.endswith("`baton simgpu start` creates one\n")


def test_faults_show_in_the_status_until_they_are_healed(two_t4: Path) -> None:
    assert baton(two_t4, "inject", "off-bus", "--gpu", "1").stderr == "GPU 1: off-bus injected\n"
    succeeds(two_t4, "inject", "slow-link", "--factor", "0.25", "--gpu", "0")
    succeeds(two_t4, "inject", "hang", "--gpu", "0")
    succeeds(two_t4, "inject", "xid", "119", "--gpu", "0")
    header, first, second = succeeds(two_t4, "status").splitlines()
    assert header.split() == ["GPU", "MODEL", "MEMORY", "MIB", "LOAD", "TEMP", "POWER", "CLIENTS", "FAULTS"]
    assert first.rstrip().endswith("needs a reset after Xid 119, next kernel hangs, link at 25%")
    assert second.rstrip().endswith("off the bus")
    assert baton(two_t4, "inject", "heal").stderr == "GPU 0, 1: healed\n"
    assert all(row.rstrip().endswith("none") for row in succeeds(two_t4, "status").splitlines()[1:])


def test_calls_that_are_not_simulated_are_listed_with_their_count(two_t4: Path) -> None:
    assert "not simulated" not in succeeds(two_t4, "status")
    Machine(two_t4).run("open_card(); [cuda.cuTexRefCreate() for _ in range(3)]; cuda.cuCtxGetExecAffinity(0)")
    *_, title, header, first, second = succeeds(two_t4, "status").splitlines()
    assert title == "used but not simulated:"
    assert [row.split() for row in (header, first, second)] == [
        ["CALL", "TIMES"],
        ["cuTexRefCreate", "3"],
        ["cuCtxGetExecAffinity", "1"],
    ]


def test_inject_asks_which_card_only_when_there_are_several(two_t4: Path) -> None:
    assert fails(two_t4, "inject", "ecc") == "baton: the machine has 2 cards; choose one with --gpu 0 to --gpu 1\n"
    assert fails(two_t4, "inject", "ecc", "--gpu", "2") == "baton: --gpu is 2; the machine has cards 0 to 1\n"
    alone = machines.make(two_t4 / "alone", "t4")
    succeeds(alone.directory, "inject", "ecc")
    assert alone.status().cards[0].ecc_uncorrectable == 1


def test_stop_is_refused_while_a_process_uses_the_machine(two_t4: Path) -> None:
    with Machine(two_t4).start_asking("answer('here'); sys.stdin.readline()") as program:
        assert line(program) == "here"
        told = fails(two_t4, "stop", code=1)
        assert told.startswith(f"baton: process {program.pid} (python")
        assert told.endswith("end them first, or stop it with --force, which takes their cards away\n")
        assert told.count("\n") == 1
        succeeds(two_t4, "stop", "--force")
    fails(two_t4, "status", code=3)


def test_a_killed_process_does_not_block_a_stop(two_t4: Path) -> None:
    with Machine(two_t4).start_asking("answer('here'); sys.stdin.readline()") as program:
        assert line(program) == "here"
        program.kill()
    succeeds(two_t4, "stop")


def test_a_machine_of_another_version_can_only_be_stopped(two_t4: Path) -> None:
    with (two_t4 / "machine").open("r+b") as file:
        file.seek(8)
        file.write((9999).to_bytes(4, "little"))
    for command in (("status",), TWO_T4, ("inject", "ecc")):
        told = fails(two_t4, *command, code=1)
        assert "has layout 9999" in told
        assert told.endswith("stop the machine and start it again\n")
    succeeds(two_t4, "stop")
    succeeds(two_t4, *TWO_T4)


def test_no_command_shows_the_help(tmp_path: Path) -> None:
    shown = succeeds(tmp_path)
    assert shown.startswith("Usage: baton simgpu [OPTIONS] COMMAND")
    for command in ("start", "status", "inject", "stop"):
        assert f"\n  {command} " in shown
