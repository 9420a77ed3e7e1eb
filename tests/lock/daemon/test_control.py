"""The control socket and `baton lock`: status, changes, and the answers to invalid requests."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from baton.errors import BatonError, UnavailableError
from baton.lock.config import Config, Rule
from baton.lock.control import AsyncControlClient, ControlClient, DropRule, Park, SetCard, SetClient, SetRule
from baton.lock.core.events import Mode
from baton.lock.core.settings import Settings
from baton.lock.wire import Kind
from tests.lock.daemons import Nursery, running
from tests.lock.peer import GPU_TEXT, Peer

pytestmark = pytest.mark.process

SERIAL = Config(settings=Settings(mode=Mode.SERIAL, quantum_s=3600.0))


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with running(tmp_path, SERIAL, [(GPU_TEXT, 16 * 2**30)]) as one:
        yield one


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A daemon for tests that change nothing."""
    with running(tmp_path_factory.mktemp("c"), SERIAL, [(GPU_TEXT, 16 * 2**30)]) as one:
        yield one


def baton(nursery: Nursery, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "baton.cli.main", "lock", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "BATON_SOCKET_DIR": str(nursery.sockets)},
    )


def test_status_shows_holders_and_waiters_with_their_states(nursery: Nursery) -> None:
    with Peer(nursery.sockets) as holder, Peer(nursery.sockets) as waiter:
        holder.introduce(name="train.py", weight=2, priority="high", tenant="blue", run="r1", memory=2**30)
        holder.tell(Kind.REPORT, allocated=3 * 2**30)
        holder.ask()
        holder.expect(Kind.LOCK_OK)
        waiter.ask()
        status = json.loads(baton(nursery, "status", "-o", "json").stdout)
    card = status["gpus"][0]
    assert card["holders"] == [f"{holder.id:016x}"]
    assert card["waiters"] == [f"{waiter.id:016x}"]
    assert card["exclusive"] is True
    client = next(c for c in status["clients"] if c["id"] == f"{holder.id:016x}")
    assert client["state"] == "holding"
    assert client["pid"] == os.getpid()
    assert (client["name"], client["tenant"], client["weight"], client["priority"]) == ("train.py", "blue", 2.0, "high")
    assert client["working_set_bytes"] == 3 * 2**30
    assert client["account"]["grants"] == 1
    assert {tenant["tenant"] for tenant in status["tenants"]} >= {"blue"}


def test_the_table_has_a_line_for_every_card_and_client(nursery: Nursery) -> None:
    with Peer(nursery.sockets) as peer:
        peer.introduce(name="[bold]evil")
        shown = baton(nursery, "status").stdout
    assert GPU_TEXT in shown
    assert "[bold]evil" in shown


def test_quantum_mode_and_switch_are_set_and_survive_a_restart(nursery: Nursery) -> None:
    done = baton(nursery, "set", "--gpu", GPU_TEXT[:8], "--quantum", "0.5", "--mode", "concurrent", "--off")
    assert done.returncode == 0, done.stderr
    nursery.end()
    nursery.start(SERIAL, [(GPU_TEXT, 16 * 2**30)])
    card = nursery.control.status().gpus[0]
    assert (card.quantum_s, card.quantum_fixed, card.mode, card.on) == (0.5, True, "concurrent", False)
    nursery.control.send(SetCard(quantum="auto", on=True))
    assert not nursery.control.status().gpus[0].quantum_fixed


def test_switching_scheduling_off_lets_all_run_and_on_starts_over(nursery: Nursery) -> None:
    with Peer(nursery.sockets, None) as peer:
        nursery.control.send(SetCard(on=False))
        peer.expect(Kind.SCHED_OFF)
        nursery.control.send(SetCard(on=True))
        peer.expect(Kind.SCHED_ON)
        peer.ask()
        peer.expect(Kind.LOCK_OK)


def test_a_client_is_parked_and_unparked_and_notified(nursery: Nursery) -> None:
    with Peer(nursery.sockets) as peer:
        peer.introduce(name="victim")
        peer.ask()
        peer.expect(Kind.LOCK_OK)
        assert baton(nursery, "park", "name:victim").returncode == 0
        peer.expect(Kind.NOTICE)
        peer.expect(Kind.DROP_LOCK)
        peer.release()
        peer.ask()
        assert baton(nursery, "unpark", f"{peer.id:016x}"[:8]).returncode == 0
        peer.expect(Kind.NOTICE)
        peer.expect(Kind.LOCK_OK)


def test_new_terms_reach_the_client_as_limits(nursery: Nursery) -> None:
    with Peer(nursery.sockets) as peer:
        peer.introduce(name="x")
        nursery.control.send(SetClient("name:x", cores_percent=30, memory_bytes=2**30))
        peer.expect(Kind.LIMITS)
        assert nursery.control.status().clients[0].cores_percent == 30


def test_rules_give_terms_to_current_and_future_clients(nursery: Nursery) -> None:
    rule = Rule(namespace="team-a", cores_percent=40, weight=3)
    with Peer(nursery.sockets):
        nursery.control.send(SetRule(rule))
        assert nursery.control.status().clients[0].cores_percent == 0
    nursery.control.send(SetRule(Rule(uid=os.getuid(), cores_percent=20)))
    with Peer(nursery.sockets) as peer:
        assert nursery.control.status().clients[0].cores_percent == 20
        nursery.control.send(DropRule(Rule(uid=os.getuid())))
        peer.expect(Kind.LIMITS)
        assert nursery.control.status().clients[0].cores_percent == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["set"], "nothing to set"),
        (["set", "--weight", "2"], "name it with --client"),
        (["set", "--quantum", "soon"], "--quantum is 'soon', expected auto or a number"),
        (["set", "--quantum", "0"], "quantum is 0.0, expected auto or seconds above 0"),
        (["set", "--mode", "fast"], "--mode is 'fast', expected one of auto, serial, concurrent"),
        (["set", "--gpu", "GPU-9", "--on"], "'GPU-9' matches 0 GPUs"),
        (["set", "--client", "pid:1", "--weight", "0"], "weight is 0.0, expected a number above 0"),
        (["park", "nobody"], "no client matches 'nobody'"),
        (["park", "colour:red"], "begins with 'colour'"),
    ],
)
def test_an_invalid_request_is_answered_with_one_sentence(shared: Nursery, arguments: list[str], sentence: str) -> None:
    done = baton(shared, *arguments)
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr


@pytest.mark.parametrize(
    "wrong", [("--client", "pid:1", "--priority", "urgent"), ("--client", "pid:1", "--weight", "2")]
)
def test_an_invalid_option_beside_a_valid_one_changes_nothing(shared: Nursery, wrong: tuple[str, ...]) -> None:
    before = shared.control.status().gpus[0].quantum_s
    done = baton(shared, "set", "--quantum", "7", *wrong)
    assert done.returncode in (1, 2)
    assert shared.control.status().gpus[0].quantum_s == before


def test_lines_that_are_not_requests_are_answered(shared: Nursery) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(shared.paths.control))
        lines = connection.makefile("rb")
        for line in (
            b"hello",
            b"[]",
            b'{"op":"explode"}',
            b'{"op":"park"}',
            b'{"op":"status","x":1}',
            b"\xff\xfe",
            b'{"op":"park","client":"\xff"}',
        ):
            connection.sendall(line + b"\n")
            answer = json.loads(lines.readline())
            assert answer["ok"] is False
            assert answer["error"].startswith("not a request")
        connection.sendall(b'{"op":"status"}\n')
        assert json.loads(lines.readline())["ok"] is True
        connection.sendall(b'{"op":"subscribe","every_ms":%s}\n' % (b"9" * 400))
        assert json.loads(lines.readline())["ok"] is True
        lines.close()


def test_the_interval_of_updates_may_exceed_the_timeout(shared: Nursery) -> None:
    updates = ControlClient(shared.paths.control, timeout_s=0.2).follow(every_ms=500)
    assert next(updates).pid == next(updates).pid
    updates.close()


def test_an_incomplete_line_ends_the_updates(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "control.sock"))
        daemon.listen()

        def die_while_writing() -> None:
            with daemon.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b'{"ok": true, "result": {"ver')

        with ThreadPoolExecutor() as pool:
            dying = pool.submit(die_while_writing)
            assert list(ControlClient(tmp_path / "control.sock").follow()) == []
            dying.result()


def test_a_missing_daemon_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no lock daemon answers"):
        ControlClient(tmp_path / "control.sock").status()


def test_the_async_client_sees_the_same_status(shared: Nursery) -> None:
    client = AsyncControlClient(shared.paths.control)

    async def talk() -> int:
        assert (await client.status()).gpus[0].gpu == GPU_TEXT
        with pytest.raises(BatonError, match="no client matches"):
            await client.send(Park("pid:1"))
        seen = 0
        async with contextlib.aclosing(client.follow(every_ms=20)) as statuses:
            async for _ in statuses:
                seen += 1
                if seen == 3:
                    break
        return seen

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, talk()).result() == 3


@pytest.mark.parametrize(
    "line", [b'{"ok": true, "result": {"cards": 1}}', b'{"okay": true}', b'{"ok": true, "error": "\xff"}']
)
def test_a_daemon_of_another_version_is_reported_in_one_sentence(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "control"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server, ThreadPoolExecutor() as pool:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(line + b"\n")

        answered = pool.submit(answer)
        with pytest.raises(
            BatonError, match=r"^the lock daemon and this command have different versions: .*; restart the daemon$"
        ):
            ControlClient(path).status()
        answered.result()
