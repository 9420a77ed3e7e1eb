"""The program survives a daemon that is absent, killed, restarted, silent, or sends garbage."""

import queue
import random
import subprocess

import pytest

from baton.lock import wire
from baton.lock.wire import Kind
from tests.hook.conftest import Workloads, finish
from tests.hook.daemon import PATIENCE_S, Client, Daemon

NOT_READY = 802
ONE_BY_ONE = "use()\nwhile next_line():\n    say(launch())"


STEADY = """
use()
ended = threading.Event()
threading.Thread(target=lambda: (next_line(), ended.set())).start()
while not ended.is_set():
    assert launch() == 0
    time.sleep(0.005)
say('done')
"""


def ask(work: subprocess.Popen[str]) -> None:
    assert work.stdin is not None
    work.stdin.write("go\n")
    work.stdin.flush()


def answer(work: subprocess.Popen[str]) -> str:
    assert work.stdout is not None
    return work.stdout.readline().strip()


def test_without_a_daemon_the_program_runs_unscheduled(workloads: Workloads) -> None:
    work = workloads.python("use(); say(launch())", BATON_DAEMON_TIMEOUT="100ms")
    out, err = work.communicate(timeout=PATIENCE_S)
    assert out == "0\n"
    assert err.count("runs unscheduled") == 1


def test_without_a_daemon_calls_fail_when_asked(workloads: Workloads) -> None:
    work = workloads.python("use(); say(launch(), launch())", BATON_DAEMON_TIMEOUT="100ms", BATON_ON_DAEMON_LOSS="fail")
    out, err = work.communicate(timeout=PATIENCE_S)
    assert out == f"{NOT_READY} {NOT_READY}\n"
    assert err.count("fail until it is back") == 1


def test_without_a_daemon_the_program_waits_when_asked(workloads: Workloads) -> None:
    work = workloads.python("use(); say(launch())", BATON_DAEMON_TIMEOUT="0", BATON_ON_DAEMON_LOSS="wait")
    with pytest.raises(subprocess.TimeoutExpired):
        work.wait(0.5)
    daemon = Daemon(workloads.sockets).start()
    client = daemon.client()
    client.greet()
    client.grant()
    assert finish(work) == "0\n"
    daemon.stop()


def test_an_unscheduled_program_is_scheduled_again(workloads: Workloads) -> None:
    work = workloads.python(ONE_BY_ONE, BATON_DAEMON_TIMEOUT="50ms")
    ask(work)
    assert answer(work) == "0"
    daemon = Daemon(workloads.sockets).start()
    client = daemon.client()
    client.greet()
    assert client.silent(0.3)  # work that ran without a turn is stopped, and nothing is reported for it
    launches = workloads.record.devices[0].launches
    ask(work)
    client.expect(Kind.REQ_LOCK)
    assert workloads.record.devices[0].launches == launches
    client.send(wire.LOCK_OK)
    assert answer(work) == "0"
    finish(work)
    daemon.stop()


def test_a_holder_keeps_working_and_resumes(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python(ONE_BY_ONE)
    ask(work)
    client = daemon.client()
    client.greet(epoch="11")
    client.grant()
    assert answer(work) == "0"
    daemon.stop()
    ask(work)
    assert answer(work) == "0"
    daemon.start()
    client = daemon.client()
    client.greet(epoch="22")
    resumed = wire.fields(client.expect(Kind.RESUME))
    held_us = int(resumed.pop("held_us"))
    assert resumed == {"epoch": "11", "id": "0000000000000abc", "holding": "1", "waiting": "0"}
    assert held_us > 0
    ask(work)
    assert answer(work) == "0"
    client.drop()
    finish(work)


def test_a_waiter_resumes_its_place(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); say(launch())")
    client = daemon.client()
    client.greet(epoch="11")
    client.expect(Kind.REQ_LOCK)
    daemon.stop()
    daemon.start()
    client = daemon.client()
    client.greet(epoch="22")
    resumed = wire.fields(client.expect(Kind.RESUME))
    assert (resumed["holding"], resumed["waiting"]) == ("0", "1")
    assert client.silent()
    client.send(wire.LOCK_OK)
    assert finish(work) == "0\n"


def test_a_daemon_killed_many_times_loses_no_client(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python(STEADY)
    chance = random.Random(3)
    for turn in range(25):
        client = daemon.client()
        client.greet(epoch=f"{turn:x}")
        if turn and wire.fields(client.expect(Kind.RESUME))["holding"] == "1":
            if chance.random() < 0.5:
                client.drop()
                client.grant()
        elif chance.random() < 0.8:
            if not turn:
                client.expect(Kind.REQ_LOCK)
            client.send(wire.LOCK_OK)
        daemon.stop()
        daemon.start()
    client = daemon.client()
    client.greet(epoch="ff")
    client.send(wire.SCHED_OFF)
    assert finish(work) == "done\n"


def test_after_a_daemon_dies_during_a_release_the_next_learns_that_nothing_is_held(
    workloads: Workloads, daemon: Daemon
) -> None:
    work = workloads.python("use(); launch(); say('launched'); next_line()", PROBE_KERNEL_US="3600000000")
    client = daemon.client()
    client.greet(epoch="11")
    client.grant()
    assert answer(work) == "launched"
    client.send(wire.DROP_LOCK)
    daemon.stop()
    daemon.start()
    client = daemon.client()
    client.greet(epoch="22")
    assert wire.fields(client.expect(Kind.RESUME))["holding"] == "1"  # the kernel still runs
    workloads.record.devices[0].busy_until_us = 0
    client.expect(Kind.LOCK_RELEASED)
    finish(work)


def test_the_base_dialect_is_enough_for_nvshares_daemon(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python(ONE_BY_ONE)
    ask(work)
    client = daemon.client()
    client.expect(Kind.REGISTER)
    client.send(wire.welcome(7, on=True))
    client.grant()
    assert answer(work) == "0"
    client.drop()
    ask(work)
    client.grant()
    assert answer(work) == "0"
    # nvshare's daemon has no RESUME: the hook gives up the turn and requests a new one.
    daemon.stop()
    daemon.start()
    client = daemon.client()
    client.expect(Kind.REGISTER)
    client.send(wire.welcome(8, on=True))
    assert client.silent(0.4)
    ask(work)
    client.grant()
    assert answer(work) == "0"
    finish(work)


def test_a_daemon_that_starts_switched_off_gates_nothing(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); say(launch())")
    daemon.client().greet(on=False)
    assert finish(work) == "0\n"


def test_a_silent_daemon_is_a_lost_one(workloads: Workloads, daemon: Daemon) -> None:
    """The daemon is stopped rather than dead: it accepts connections but never answers."""
    work = workloads.python("use(); say(launch())", BATON_DAEMON_TIMEOUT="200ms")
    assert finish(work) == "0\n"


def test_a_frame_in_pieces_is_one_frame(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); say(launch())")
    client = daemon.client()
    client.greet()
    client.expect(Kind.REQ_LOCK)
    for byte in range(0, wire.FRAME_BYTES, 100):
        client.send(wire.LOCK_OK[byte : byte + 100])
        assert client.silent(0.01)
    assert finish(work) == "0\n"


def test_a_refusal_is_logged_once_with_its_reason(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); say(launch())", BATON_DAEMON_TIMEOUT="1500ms")
    for _ in range(3):
        client = daemon.client()
        client.expect(Kind.REGISTER)
        client.send(wire.extension(Kind.NOTICE, {"reason": "there is no such GPU here", "code": "refused"}))
        client.close()
    daemon.stop()
    out, err = work.communicate(timeout=PATIENCE_S)
    assert out == "0\n"
    assert err.count("there is no such GPU here") == 1
    assert "no lock daemon answers" not in err
    assert err.count("runs unscheduled") == 1


def test_a_revoked_turn_is_released_and_the_reason_logged(workloads: Workloads, daemon: Daemon) -> None:
    work = workloads.python("use(); launch(); say('launched'); next_line()")
    client = daemon.client()
    client.greet()
    client.grant()
    assert answer(work) == "launched"
    client.send(wire.extension(Kind.NOTICE, {"reason": "ignored two\tdrops", "code": "revoked"}))
    client.expect(Kind.LOCK_RELEASED)
    _, err = work.communicate(timeout=PATIENCE_S)
    assert "ignored two?drops" in err


@pytest.mark.parametrize("seed", range(8))
def test_garbage_never_breaks_the_program(workloads: Workloads, daemon: Daemon, seed: int) -> None:
    """Frames with any content, in any order, cut at any point; then a daemon that behaves."""
    chance = random.Random(seed)
    work = workloads.python(
        "use()\nfor _ in range(50):\n    assert launch() == 0\nsay('done')", BATON_DAEMON_TIMEOUT="1m"
    )
    for turn in range(1000):
        try:
            client = daemon.client(0.5)
        except queue.Empty:
            if work.poll() is not None:
                break
            continue
        if turn >= 6:
            client.expect(Kind.REGISTER)
            client.send(wire.welcome(2, on=False))
        else:
            send_garbage(client, chance)
            client.close()
    assert finish(work) == "done\n"


def send_garbage(client: Client, chance: random.Random) -> None:
    if chance.random() < 0.7:
        client.send(wire.welcome(1, on=True))
    for _ in range(40):
        kind = chance.choice([0, 1, 2, 4, 5, 6, 7, 8, *range(64, 70), 9, 13, 200, 255])
        text = chance.choice(
            [
                chance.randbytes(508),
                b"idle_ms=" + b"9" * 500,
                b"idle_ms=-1\nreport_ms=1e3\nepoch=" + b"f" * 400,
                b"memory=\noversubscribe=x\n=\n\n\n",
                b"reason=" + b"\x1b[31m" * 99,
            ]
        )[:508]
        frame = wire.Frame(kind, text[:254], text[254:], chance.getrandbits(64), chance.randbytes(20)).pack()
        client.send(frame[: chance.choice([537, 537, 537, chance.randrange(537)])])
