"""Settings come from the environment; an invalid value is logged in one sentence and replaced by the default."""

import random
from collections.abc import Callable

import pytest

from baton.lock import wire
from baton.lock.wire import Kind
from tests.hook.conftest import Workloads
from tests.hook.daemon import PATIENCE_S, Client, Daemon


def switched_off(client: Client) -> None:
    client.expect(Kind.REGISTER)
    client.send(wire.welcome(1, on=False))


def errors(workloads: Workloads, daemon: Daemon, program: str, **environment: str) -> list[str]:
    daemon.serve(switched_off)
    work = workloads.start(program, "linked", **environment)
    out, err = work.communicate(timeout=PATIENCE_S)
    assert (work.returncode, out) == (0, "0\n"), err
    return err.splitlines()


BAD = [
    ("BATON_MEMORY_LIMIT", "8Gb", "a size such as 8Gi, 512Mi or a number of bytes", "no limit"),
    ("BATON_MEMORY_LIMIT", "-1", "a size such as 8Gi, 512Mi or a number of bytes", "no limit"),
    ("BATON_MEMORY_LIMIT", "99999999999999999999", "a size such as 8Gi, 512Mi or a number of bytes", "no limit"),
    ("BATON_MEMORY_LIMIT", "9999999Ti", "a size such as 8Gi, 512Mi or a number of bytes", "no limit"),
    ("BATON_RESERVE", "much", "a size such as 8Gi, 512Mi or a number of bytes", "1536Mi"),
    ("BATON_CORES", "101", "a whole number from 0 to 100", "0 (no limit)"),
    ("BATON_WEIGHT", "0", "a number from 0.001 to 1000", "1"),
    ("BATON_WEIGHT", "2.", "a number from 0.001 to 1000", "1"),
    ("BATON_WEIGHT", "1000.001", "a number from 0.001 to 1000", "1"),
    ("BATON_PRIORITY", "urgent", "low, normal or high", "normal"),
    ("BATON_ON_DAEMON_LOSS", "exit", "wait, continue or fail", "continue"),
    ("BATON_DAEMON_TIMEOUT", "2d", "a duration of up to one day such as 30s, 500ms or 2m", "30s"),
    ("BATON_GANG", "yes", "1, true, on, 0, false or off", "0"),
    ("BATON_OVERSUBSCRIBE", "maybe", "1, true, on, 0, false or off", "1"),
    ("BATON_SOCKET_DIR", "relative/dir", "an absolute path of at most 92 characters", None),
    ("BATON_TENANT", "t" * 64, "at most 63 printable characters", "no tenant"),
]


@pytest.mark.parametrize(("name", "value", "allowed", "taken"), BAD)
def test_a_bad_value_is_one_sentence(
    workloads: Workloads,
    daemon: Daemon,
    program: Callable[[str], str],
    name: str,
    value: str,
    allowed: str,
    taken: str | None,
) -> None:
    more = {"BATON_DAEMON_TIMEOUT": "0"} if name == "BATON_SOCKET_DIR" else {}
    lines = errors(workloads, daemon, program("reach"), **more, **{name: value})
    wanted = f"baton: {name} is '{value}', but must be {allowed}; "
    assert lines[0].startswith(wanted)
    assert taken is None or lines[0] == f"{wanted}using {taken}"
    assert len([line for line in lines if name in line]) == 1


def test_valid_values_are_sent_to_the_daemon(
    workloads: Workloads, daemon: Daemon, program: Callable[[str], str]
) -> None:
    work = workloads.start(
        program("reach"),
        "linked",
        BATON_MEMORY_LIMIT="2Gi",
        BATON_CORES="30",
        BATON_WEIGHT="2.5",
        BATON_PRIORITY="high",
        BATON_TENANT="team a",
        BATON_RUN_ID="run-7",
        BATON_OVERSUBSCRIBE="0",
        KUBERNETES_SERVICE_HOST="10.0.0.1",
        HOSTNAME="pod-0",
        BATON_POD_NAMESPACE="ml",
    )
    client = daemon.client()
    identity = client.greet()
    client.grant()
    out, err = work.communicate(timeout=PATIENCE_S)
    assert (out, err) == ("0\n", "")
    assert int(identity.pop("pid")) == work.pid
    assert identity == {
        "name": "reach",
        "tenant": "team a",
        "run": "run-7",
        "weight": "2.500",
        "priority": "high",
        "cores": "30",
        "memory": str(2 << 30),
        "oversubscribe": "0",
    }
    assert wire.name(client.registration.pod) == "pod-0"
    assert wire.name(client.registration.namespace) == "ml"


def test_outside_kubernetes_the_pod_is_none(
    workloads: Workloads, daemon: Daemon, program: Callable[[str], str]
) -> None:
    workloads.start(program("reach"), "linked", HOSTNAME="host")
    client = daemon.client()
    client.greet()
    assert wire.name(client.registration.pod) == wire.name(client.registration.namespace) == "none"


def test_debug_prints_every_setting(workloads: Workloads, daemon: Daemon, program: Callable[[str], str]) -> None:
    quiet = errors(workloads, daemon, program("reach"))
    assert quiet == []
    for switch in ({"BATON_DEBUG": "1"}, {"NVSHARE_DEBUG": ""}):
        text = "\n".join(errors(workloads, daemon, program("reach"), **switch, BATON_WEIGHT="7"))
        for part in (
            "socket",
            "weight 7",
            "priority",
            "tenant",
            "cores",
            "memory limit",
            "reserve",
            "daemon",
            "window",
        ):
            assert part in text


@pytest.mark.parametrize("seed", range(20))
def test_the_program_survives_any_environment(
    workloads: Workloads, daemon: Daemon, program: Callable[[str], str], seed: int
) -> None:
    chance = random.Random(seed)
    names = sorted({name for name, *_ in BAD} - {"BATON_SOCKET_DIR", "BATON_DAEMON_TIMEOUT"})
    names += [
        "BATON_CAPTURE_WAIT",
        "BATON_IDLE",
        "BATON_WINDOW",
        "BATON_DEBUG",
        "BATON_RUN_ID",
        "BATON_POD_NAME",
        "BATON_POD_NAMESPACE",
    ]
    pieces = ["0", "1", "9" * 30, "Gi", "ms", "-", "+", " ", "%s%n", "\n", "\x1b[2J", "é", "=", "true", "x" * 300]
    environment = {name: "".join(chance.choices(pieces, k=chance.randrange(1, 5))) for name in chance.sample(names, 8)}
    for line in errors(workloads, daemon, program("reach"), **environment):
        assert line.startswith("baton: ")
        assert line.isprintable()
