"""The conventions that hold for every command: help, errors, exit codes, formats."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from baton.cli.main import COMMANDS

pytestmark = pytest.mark.process


def baton(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "baton.cli.main", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
    )


def test_no_arguments_show_the_help() -> None:
    shown = baton()
    assert shown.returncode == 0
    assert shown.stdout == baton("--help").stdout
    for name in COMMANDS:
        assert name in shown.stdout


def test_an_unknown_command_is_one_sentence_with_a_hint() -> None:
    shown = baton("docter")
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert shown.stderr == "baton: no command 'docter'; did you mean 'doctor'?\n"


def test_an_unknown_option_names_the_command() -> None:
    shown = baton("version", "--frob")
    assert shown.returncode == 2
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.startswith("baton version: No such option: --frob")


def test_an_invalid_format_lists_the_valid_ones() -> None:
    shown = baton("version", "-o", "xml")
    assert shown.returncode == 2
    assert "'table', 'json', 'yaml'" in shown.stderr


def test_an_unknown_phase_is_an_error_and_not_an_empty_list() -> None:
    shown = baton("job", "list", "--phase", "runing")
    assert shown.returncode == 2
    assert shown.stderr.startswith("baton: --phase is 'runing', expected one of Pending, Running, ")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_its_own_help(name: str) -> None:
    shown = baton(name, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"Usage: baton {name}")


def test_json_and_yaml_have_the_same_content() -> None:
    as_json = json.loads(baton("version", "-o", "json").stdout)
    as_yaml = yaml.safe_load(baton("version", "-o", "yaml").stdout)
    assert as_json == as_yaml
    assert as_json["hook"]


def test_no_colours_without_a_terminal() -> None:
    assert "\x1b" not in baton("doctor").stdout


@pytest.mark.parametrize("program", ["baton", "vcctl"])
def test_an_interrupted_command_ends_silently(tmp_path: Path, program: str) -> None:
    """The API server accepts the connection and never answers."""
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # an ignored signal would also be ignored in the child
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        address = "http://{}:{}".format(*server.getsockname())
        cluster, context = {"server": address}, {"cluster": "c", "user": "c"}
        config = tmp_path / "config"
        config.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "c", "user": {}}],
                    "contexts": [{"name": "c", "context": context}],
                }
            )
        )
        words = [str(Path(sys.executable).with_name(program)), "job", "list", "--kubeconfig", str(config)]
        try:
            running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        finally:
            signal.signal(signal.SIGINT, before)
        with running:
            connection, _ = server.accept()
            with connection:
                running.send_signal(signal.SIGINT)
                assert running.communicate(timeout=120) == ("", "")
    assert running.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("module", ["main", "vcctl.command"])
def test_characters_that_the_locale_lacks_are_escaped(module: str) -> None:
    probe = (
        f"import sys; sys.argv[1:] = ['version']; import baton.cli.{module} as m\n"
        "try:\n m.main()\nexcept SystemExit: pass\nprint('a → b')"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=environment)
    assert (shown.stdout.splitlines()[-1:], shown.stderr) == (["a \\u2192 b"], "")


def test_help_imports_no_command() -> None:
    """The help stays within 250 ms of CPU time because it imports nothing heavy."""
    probe = "import sys; sys.argv = ['baton']; import baton.cli.main as m\ntry:\n m.main()\nexcept SystemExit: pass\n"
    shown = subprocess.run(
        [sys.executable, "-c", probe + "print('modules:', *sys.modules)"], capture_output=True, text=True, check=True
    )
    loaded = set(shown.stdout.partition("modules:")[2].split())
    heavy = {
        "rich",
        "aiohttp",
        "numpy",
        "yaml",
        "grpc",
        *(entry.module for entry in COMMANDS.values()),
    }
    assert not loaded & heavy


def test_a_question_to_the_cluster_imports_no_engine_and_no_logging() -> None:
    """`baton why` answers within a second because it does not import modules that only the programs need."""
    probe = "import sys, baton.cli.cluster.reasons; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert not set(shown.stdout.split()) & {"structlog", "pygments", "numpy", "prometheus_client", "grpc"}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", {"run", "lock", "doctor"}),
        ("lock ", {"status", "set", "park", "unpark"}),
        ("doctor --", {"--output", "--quiet"}),
    ],
)
def test_the_shell_completes_commands_and_options(typed: str, offered: set[str]) -> None:
    words = f"baton {typed}"
    shown = subprocess.run(
        [Path(sys.executable).with_name("baton")],
        capture_output=True,
        text=True,
        env={"_BATON_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
    )
    assert offered <= set(shown.stdout.split())
