"""Real processes that die, stop and starve: no workload is lost, no card has two holders, no wait is endless."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.lock import wire
from baton.lock.config import Config
from baton.lock.core.events import Measure, Mode
from baton.lock.core.settings import Settings
from baton.lock.wire import Kind
from tests.lock.daemons import Nursery, running
from tests.lock.peer import GPU, GPU_TEXT, Peer

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("BATON_LOCK_KILLS", "100"))
FAST = Config(settings=Settings(quantum_s=0.01, mode=Mode.SERIAL, holder_grace_s=3600.0))
SLOW = Config(settings=Settings(quantum_s=3600.0, mode=Mode.SERIAL, holder_grace_s=3600.0))


class Running:
    """A workload process and what it prints."""

    def __init__(self, nursery: Nursery) -> None:
        witness = nursery.log.with_name("witness")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.lock.workload", str(nursery.sockets), str(witness), GPU.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self) -> None:
        """Wait for its next turn."""
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        assert line == "turn", f"the workload said {line!r} and ended with {self.process.poll()}"

    def finish(self) -> int:
        """End it; returns the number of its turns."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        last = self.process.stdout.read().split("\n")[-2]
        assert self.process.wait() == 0, last
        assert last.startswith("done ")
        self.process.stdout.close()
        return int(last.split()[1])

    def discard(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


Starter = Callable[[Nursery], Running]


@pytest.fixture
def workload() -> Iterator[Starter]:
    started: list[Running] = []

    def start(nursery: Nursery) -> Running:
        started.append(Running(nursery))
        return started[-1]

    yield start
    for one in started:
        one.discard()


def test_the_next_waiter_is_granted_when_the_holder_is_killed(tmp_path: Path, workload: Starter) -> None:
    with running(tmp_path, SLOW) as nursery:
        holder = workload(nursery)
        holder.turn()
        with Peer(nursery.sockets) as waiter:
            waiter.ask()
            holder.process.kill()
            waiter.expect(Kind.LOCK_OK)


def test_a_waiter_that_dies_while_the_holder_releases_is_skipped(tmp_path: Path) -> None:
    with running(tmp_path, SLOW) as nursery, Peer(nursery.sockets) as holder, Peer(nursery.sockets) as patient:
        for _ in range(50):
            holder.ask()
            holder.expect(Kind.LOCK_OK)
            dying = Peer(nursery.sockets)
            dying.ask()
            patient.ask()
            # The daemon is stopped meanwhile, so that it sees both in one batch.
            nursery.tell(signal.SIGSTOP)
            dying.socket.close()
            holder.release()
            nursery.tell(signal.SIGCONT)
            patient.expect(Kind.LOCK_OK)
            patient.release()


def test_daemon_killed_many_times_under_load(tmp_path: Path, workload: Starter) -> None:
    with Nursery(tmp_path) as nursery:
        nursery.start(FAST)
        workloads = [workload(nursery) for _ in range(4)]
        for one in workloads:
            one.turn()
        for round_ in range(KILLS):
            nursery.end(signal.SIGKILL if round_ % 10 else signal.SIGTERM)
            nursery.start(FAST)
            workloads[round_ % len(workloads)].turn()
        before = {client.pid: client.account.grants for client in nursery.control.status().clients}
        for status in nursery.control.follow(every_ms=20):
            served = [c for c in status.clients if c.account.grants > before.get(c.pid, 0)]
            if len(served) == len(workloads):
                break
        for one in workloads:
            assert one.finish() > 0


def test_a_holder_keeps_its_turn_over_a_restart_and_no_other_client_gets_it(tmp_path: Path, workload: Starter) -> None:
    with Nursery(tmp_path) as nursery:
        nursery.start(SLOW)
        holder = workload(nursery)
        holder.turn()
        nursery.end()
        # The holder is stopped: it cannot resume yet, but it is alive.
        holder.process.send_signal(signal.SIGSTOP)
        nursery.start(SLOW)
        with Peer(nursery.sockets) as waiter:
            waiter.ask()
            card = nursery.control.status().gpus[0]
            assert card.recalled == 1
            assert card.holders == []
            holder.process.send_signal(signal.SIGCONT)
            for status in nursery.control.follow(every_ms=20):
                card = status.gpus[0]
                assert len(card.waiters) == 1
                if card.recalled == 0:
                    break
            assert len(card.holders) == 1
            holder.process.kill()
            waiter.expect(Kind.LOCK_OK)


def test_a_recalled_holder_that_dies_frees_the_card_at_once(tmp_path: Path, workload: Starter) -> None:
    with Nursery(tmp_path) as nursery:
        nursery.start(SLOW)
        holder = workload(nursery)
        holder.turn()
        nursery.end()
        holder.process.send_signal(signal.SIGSTOP)
        nursery.start(SLOW)
        with Peer(nursery.sockets) as waiter:
            waiter.ask()
            holder.process.kill()
            waiter.expect(Kind.LOCK_OK)


def test_a_lost_journal_means_waiting_not_two_holders(tmp_path: Path, workload: Starter) -> None:
    with Nursery(tmp_path) as nursery:
        nursery.start(SLOW)
        holder = workload(nursery)
        holder.turn()
        nursery.end()
        nursery.paths.journal.unlink()
        holder.process.send_signal(signal.SIGSTOP)
        nursery.start(SLOW)
        with Peer(nursery.sockets) as waiter:
            waiter.ask()
            assert nursery.control.status().gpus[0].holders == []
            holder.process.send_signal(signal.SIGCONT)
            for status in nursery.control.follow(every_ms=20):
                if status.gpus[0].holders:
                    break
            assert status.gpus[0].waiters == [f"{waiter.id:016x}"]
        assert holder.finish() == 1


def test_daemon_stopped_and_continued(tmp_path: Path, workload: Starter) -> None:
    with running(tmp_path, FAST) as nursery:
        pair = [workload(nursery) for _ in range(2)]
        for _ in range(3):
            for one in pair:
                one.turn()
            nursery.tell(signal.SIGSTOP)
            # These events queue in the kernel: one client connects and asks, another connects, asks and dies.
            newcomer, dying = (Peer(nursery.sockets, register=False) for _ in range(2))
            for peer in (dying, newcomer):
                peer.send(wire.registration(GPU))
                peer.ask()
            dying.socket.close()
            nursery.tell(signal.SIGCONT)
            newcomer.expect(Kind.SCHED_ON)
            newcomer.expect(Kind.LOCK_OK)
            newcomer.socket.close()
        for one in pair:
            one.turn()
            assert one.finish() > 0


def test_a_stopped_client_is_reported_and_disconnected_by_the_measure(tmp_path: Path, workload: Starter) -> None:
    settings = Settings(quantum_s=0.01, mode=Mode.SERIAL, drop_grace_s=0.05, revoke_s=0.05, measure=Measure.DISCONNECT)
    with running(tmp_path, Config(settings=settings)) as nursery:
        stopped = workload(nursery)
        stopped.turn()
        stopped.process.send_signal(signal.SIGSTOP)
        with Peer(nursery.sockets) as waiter:
            waiter.ask()
            waiter.expect(Kind.LOCK_OK)
        assert "DROP_LOCK ignored" in nursery.log.read_text()


def test_a_stopped_client_is_killed_if_that_is_the_measure(tmp_path: Path, workload: Starter) -> None:
    settings = Settings(quantum_s=0.01, mode=Mode.SERIAL, drop_grace_s=0.05, revoke_s=0.05, measure=Measure.KILL)
    with running(tmp_path, Config(settings=settings)) as nursery:
        stopped = workload(nursery)
        stopped.turn()
        stopped.process.send_signal(signal.SIGSTOP)
        with Peer(nursery.sockets) as waiter:
            waiter.ask()
            waiter.expect(Kind.LOCK_OK)
            assert stopped.process.wait() == -signal.SIGKILL


def test_running_out_of_descriptors_does_not_disturb_connected_clients(tmp_path: Path) -> None:
    with Nursery(tmp_path) as nursery:
        nursery.start(SLOW, descriptors=48)
        peers = [Peer(nursery.sockets) for _ in range(2)]
        crowd = [Peer(nursery.sockets, register=False) for _ in range(100)]
        for peer in crowd:
            peer.send(wire.registration(GPU))
        for _ in range(20):
            for peer in peers:
                peer.ask()
                peer.expect(Kind.LOCK_OK)
                peer.release()
        for peer in crowd[:80]:
            peer.socket.close()
        # There are descriptors again: the waiting connections are accepted.
        assert crowd[-1].read()[0] is Kind.SCHED_ON
        for peer in (*peers, *crowd):
            peer.socket.close()
        assert "accepting paused" in nursery.log.read_text()


def test_without_descriptors_a_memory_limit_holds_for_the_process_alone(tmp_path: Path) -> None:
    with Nursery(tmp_path) as nursery:
        nursery.start(SLOW, descriptors=48)
        with Peer(nursery.sockets) as first, Peer(nursery.sockets) as second:
            first.introduce(run="r", memory=2**30)
            crowd = [Peer(nursery.sockets, register=False) for _ in range(100)]
            while "accepting paused" not in nursery.log.read_text():
                first.introduce(run="r", memory=2**30)
            assert second.introduce(run="r", memory=2**30)["memory"] == str(2**30)
            for peer in crowd:
                peer.socket.close()
        assert "memory limit is not shared within the group" in nursery.log.read_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate small file system that a test can fill."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.getuid() != 0:
        pytest.skip("needs root to mount a small file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "baton-test", place], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> None:
    """Fill the file system completely."""
    for piece in (65536, 4096, 512, 1):
        with (disk / f"ballast{piece}").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"x" * piece)


def test_a_full_disk_stops_no_client_and_the_holder_is_still_remembered(small_disk: Path, tmp_path: Path) -> None:
    with Nursery(small_disk) as nursery:
        nursery.start(SLOW)
        fill(small_disk)
        with Peer(nursery.sockets) as first, Peer(nursery.sockets) as second:
            for _ in range(3):
                for peer in (first, second):
                    peer.ask()
                    peer.expect(Kind.LOCK_OK)
                    peer.release()
            first.ask()
            first.expect(Kind.LOCK_OK)
            nursery.end()
            nursery.start(SLOW)
            assert nursery.control.status().gpus[0].recalled == 1


def test_without_a_journal_from_the_start_all_clients_are_served(small_disk: Path) -> None:
    with Nursery(small_disk) as nursery:
        nursery.paths.sockets.mkdir(parents=True)
        with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"x" * 4096)
        # There is space for the sockets, but not for the files.
        os.truncate(small_disk / "ballast", (small_disk / "ballast").stat().st_size - 16384)
        nursery.start(SLOW)
        assert "the journal cannot be written" in nursery.log.read_text()
        with Peer(nursery.sockets) as first, Peer(nursery.sockets) as second:
            for peer in (first, second):
                peer.ask()
                peer.expect(Kind.LOCK_OK)
                peer.release()


def test_an_unusable_directory_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "baton.cli.main", "lockd", "--socket-dir", str(tmp_path / "file" / "b" / "lock")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "Not a directory" in done.stderr


def test_a_second_daemon_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with running(tmp_path, SLOW) as nursery:
        done = subprocess.run(
            [sys.executable, "-m", "baton.cli.main", "lockd", "--socket-dir", str(nursery.sockets)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        assert f"another lock daemon (pid {nursery.pid})" in done.stderr


def test_accounts_survive_a_restart(tmp_path: Path, workload: Starter) -> None:
    with Nursery(tmp_path) as nursery:
        nursery.start(FAST)
        pair = [workload(nursery) for _ in range(2)]
        for _ in range(3):
            for one in pair:
                one.turn()
        before = {client.pid: client.account for client in nursery.control.status().clients}
        nursery.end(signal.SIGTERM)
        nursery.start(FAST)
        for one in pair:
            one.turn()
        for status in nursery.control.follow(every_ms=20):
            if len(status.clients) == 2 and all(c.account.grants >= before[c.pid].grants for c in status.clients):
                break
        assert all(c.account.received_s >= before[c.pid].received_s for c in status.clients)
        assert {c.gpu for c in status.clients} == {GPU_TEXT}
