"""No peer may disturb another one: fragments, floods, peers that do not read, garbage, crowds."""

import contextlib
import os
import random
import resource
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.lock import wire
from baton.lock.config import Config
from baton.lock.control import SetCard
from baton.lock.core.events import Mode
from baton.lock.core.settings import Settings
from baton.lock.wire import Frame, Kind
from tests.lock.daemons import Nursery, running
from tests.lock.peer import GPU, GPU_TEXT, PATIENCE_S, Peer

pytestmark = pytest.mark.process

SERIAL = Config(settings=Settings(mode=Mode.SERIAL, quantum_s=3600.0))


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with running(tmp_path_factory.mktemp("d"), SERIAL, [(GPU_TEXT, 2**34), ("GPU-second", 2**34)]) as one:
        yield one


def serves(nursery: Nursery) -> None:
    """Assert that the daemon still gives turns to a new client."""
    with Peer(nursery.sockets) as peer:
        peer.ask()
        peer.expect(Kind.LOCK_OK)


def test_both_dialects_take_turns_on_one_card(nursery: Nursery) -> None:
    with Peer(nursery.sockets, None) as old, Peer(nursery.sockets) as new:
        assert new.introduce(pid=1, name="new") == {"memory": "0", "cores": "0", "oversubscribe": "1"}
        old.ask()
        old.expect(Kind.LOCK_OK)
        new.ask()
        old.release()
        new.expect(Kind.LOCK_OK)


def test_each_card_has_a_socket_for_clients_that_name_none(nursery: Nursery) -> None:
    own = nursery.sockets / "gpu" / "GPU-second"
    with Peer(own, None) as second, Peer(nursery.sockets, None) as first:
        for peer in (first, second):
            peer.ask()
            peer.expect(Kind.LOCK_OK)


def test_an_unknown_card_is_refused_with_a_reason(nursery: Nursery) -> None:
    with Peer(nursery.sockets, register=False) as peer:
        peer.send(wire.registration(b"\xff" * 16))
        notice = wire.fields(peer.expect(Kind.NOTICE))
        assert notice["code"] == "refused"
        assert "ffffffff" in notice["reason"]
        assert peer.closed()


def test_fragmented_frames_are_reassembled(nursery: Nursery) -> None:
    with Peer(nursery.sockets, register=False) as peer:
        stream = wire.registration(None) + Frame(Kind.REQ_LOCK).pack()
        for byte in range(0, len(stream), 7):
            peer.send(stream[byte : byte + 7])
        peer.expect(Kind.SCHED_ON)
        peer.expect(Kind.LOCK_OK)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([Frame(Kind.REQ_LOCK).pack()], "REQ_LOCK before REGISTER"),
        ([Frame(Kind.LOCK_RELEASED).pack()], "LOCK_RELEASED before REGISTER"),
        ([wire.extension(Kind.REPORT, {"allocated": 1})], "REPORT before REGISTER"),
        ([wire.registration(None), wire.registration(None)], "registered twice on one connection"),
        ([Frame(200).pack()] * 65, "frames of unknown types"),
    ],
)
def test_an_invalid_conversation_is_closed_with_a_logged_reason_and_others_continue(
    nursery: Nursery, frames: list[bytes], reason: str
) -> None:
    before = nursery.log.read_text().count(reason)
    with Peer(nursery.sockets, register=False) as peer:
        peer.send(b"".join(frames))
        assert peer.closed()
    serves(nursery)
    assert nursery.log.read_text().count(reason) == before + 1


def test_a_few_unknown_types_are_ignored(nursery: Nursery) -> None:
    with Peer(nursery.sockets) as peer:
        for kind in range(9, 15):
            peer.send(Frame(kind).pack())
        peer.ask()
        peer.expect(Kind.LOCK_OK)


def test_a_holder_that_registers_twice_loses_its_turn_to_the_next(nursery: Nursery) -> None:
    with Peer(nursery.sockets) as holder, Peer(nursery.sockets) as waiter:
        holder.ask()
        holder.expect(Kind.LOCK_OK)
        waiter.ask()
        holder.send(wire.registration(GPU))
        waiter.expect(Kind.LOCK_OK)


def test_garbage_never_ends_the_daemon(nursery: Nursery) -> None:
    pick = random.Random(4)
    for _ in range(60):
        with Peer(nursery.sockets, register=pick.random() < 0.5) as peer:
            for _ in range(pick.randint(1, 30)):
                raw = bytearray(pick.randbytes(pick.choice([1, 100, 537, 537, 1074, 5000])))
                if pick.random() < 0.8:
                    raw[0] = pick.choice(list(Kind))
                try:
                    peer.send(bytes(raw))
                except OSError:
                    break
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_WR)
            assert peer.closed()  # so the daemon has read everything
    # Some of the frames were commands, which count because the test runs as root.
    nursery.control.send(SetCard(on=True, quantum=3600.0))
    serves(nursery)


def test_random_conversations_never_end_the_daemon(nursery: Nursery) -> None:
    pick = random.Random(5)
    peers: list[Peer] = []
    keys = [
        "weight",
        "cores",
        "memory",
        "gang",
        "gang_size",
        "priority",
        "holding",
        "waiting",
        "id",
        "allocated",
        "sync_us",
    ]
    for _ in range(3000):
        if len(peers) < 8:
            peers.append(Peer(nursery.sockets, pick.choice([GPU, None])))
        peer = pick.choice(peers)
        kind = pick.choice([Kind.REQ_LOCK, Kind.LOCK_RELEASED, Kind.IDENTITY, Kind.REPORT, Kind.RESUME])
        try:
            if kind in (Kind.REQ_LOCK, Kind.LOCK_RELEASED):
                peer.send(Frame(kind).pack())
            else:
                values = {key: pick.choice(["1", "-1", "2", "x", "1e9", "99999999999999999999"]) for key in keys}
                peer.tell(kind, **values)
            peer.socket.setblocking(False)
            while peer.socket.recv(65536):
                pass
        except BlockingIOError:
            peer.socket.setblocking(True)
        except OSError:
            peers.remove(peer)
            peer.socket.close()
        if pick.random() < 0.01:
            peers.remove(peer) if peer in peers else None
            peer.socket.close()
    for peer in peers:
        peer.socket.close()
    serves(nursery)


def test_a_flood_does_not_keep_others_from_their_turns(nursery: Nursery) -> None:
    with Peer(nursery.sockets) as flooder, Peer(nursery.sockets) as other:
        flooder.socket.setblocking(False)
        flood = Frame(Kind.LOCK_RELEASED).pack()
        for _ in range(100):
            try:
                while True:
                    flooder.socket.send(flood)
            except BlockingIOError:
                pass
            other.ask()
            other.expect(Kind.LOCK_OK)
            other.release()


def test_a_peer_that_does_not_read_is_closed(nursery: Nursery) -> None:
    with Peer(nursery.sockets, register=False) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.send(wire.registration(GPU))
        identity = wire.extension(Kind.IDENTITY, {"name": "deaf"})
        closed = False
        for _ in range(100_000):
            try:
                deaf.send(identity)
            except OSError:
                closed = True
                break
        assert closed
    assert "does not read" in nursery.log.read_text()
    serves(nursery)


def test_two_thousand_clients_wait_in_line(nursery: Nursery) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2200:
        pytest.skip(f"only {hard} descriptors allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    peers = [Peer(nursery.sockets) for _ in range(2000)]
    for peer in peers:
        peer.ask()
    with selectors.DefaultSelector() as waiting:
        for peer in peers:
            waiting.register(peer.socket, selectors.EVENT_READ, peer)
        # One at a time, in the order in which the daemon read their requests.
        while waiting.get_map():
            ready = waiting.select(PATIENCE_S)
            assert ready, f"{len(waiting.get_map())} wait for a turn that does not come"
            for key, _ in ready:
                if key.data.next_is(Kind.LOCK_OK):
                    waiting.unregister(key.fileobj)
                    key.data.release()
    for peer in peers:
        peer.socket.close()
    serves(nursery)


def test_every_user_can_connect_but_not_list_the_directories(nursery: Nursery) -> None:
    assert (nursery.sockets / "scheduler.sock").stat().st_mode & 0o777 == 0o722
    assert nursery.sockets.stat().st_mode & 0o777 == 0o711
    assert (nursery.sockets / "gpu" / GPU_TEXT).stat().st_mode & 0o777 == 0o711
    assert nursery.paths.control.stat().st_mode & 0o007 == 0


def as_user(uid: int, sockets: Path, talk: str) -> str:
    """The result of a conversation that another user has with the daemon."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            space: dict[str, object] = {"Peer": Peer, "Kind": Kind, "Frame": Frame, "sockets": sockets, "wire": wire}
            exec(talk, space)
            os.write(write, str(space.get("result", "")).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


@pytest.fixture
def world_readable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    directory = tmp_path_factory.mktemp("u")
    with running(directory, Config(settings=SERIAL.settings, control_group="4242")) as nursery:
        for parent in [directory, *directory.parents]:
            if parent.stat().st_uid == 0 and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
        yield nursery


def test_a_workload_of_another_user_takes_turns_but_its_terms_are_ignored(world_readable: Nursery) -> None:
    result = as_user(
        12345,
        world_readable.sockets,
        "p = Peer(sockets); result = p.introduce(weight=9, cores=50)['cores']; p.ask(); p.expect(Kind.LOCK_OK)",
    )
    assert result == "0"
    assert "ignored the terms that a workload asked for" in world_readable.log.read_text()


def test_commands_of_another_user_are_refused(world_readable: Nursery) -> None:
    talk = (
        "p = Peer(sockets, None, register=False)\n"
        "p.send(Frame(Kind.SCHED_OFF, id=0xBEEF).pack()); p.send(Frame(Kind.SET_TQ, data=b'7').pack())\n"
        "q = Peer(sockets, None); result = q.id > 0"
    )
    assert as_user(12345, world_readable.sockets, talk) == "True"
    card = world_readable.control.status().gpus[0]
    assert card.on
    assert card.quantum_s == 3600.0


CONTROL = """
from baton.lock.control import ControlClient, SetCard
from baton.lock.paths import Paths
try:
    ControlClient(Paths(sockets).control).send(SetCard(quantum=9.0))
    result = "done"
except Exception as error:
    result = error
"""


def test_the_control_socket_is_for_the_group(world_readable: Nursery) -> None:
    Peer(world_readable.sockets, None).socket.close()
    assert "Permission denied" in as_user(12345, world_readable.sockets, CONTROL)
    # Not only the mode of the file decides, but also the credentials of the peer.
    world_readable.paths.control.chmod(0o666)
    assert "only root" in as_user(12345, world_readable.sockets, CONTROL)
    assert world_readable.control.status().gpus[0].quantum_s == 3600.0
    assert as_user(4242, world_readable.sockets, CONTROL) == "done"
    assert world_readable.control.status().gpus[0].quantum_s == 9.0


def test_commands_of_the_control_group_are_obeyed(world_readable: Nursery) -> None:
    Peer(world_readable.sockets, None).socket.close()
    talk = (
        "p = Peer(sockets, None, register=False)\n"
        "p.send(Frame(Kind.SET_TQ, data=b'7').pack())\n"
        "q = Peer(sockets, None); result = q.id > 0"
    )
    assert as_user(4242, world_readable.sockets, talk) == "True"
    assert world_readable.control.status().gpus[0].quantum_s == 7.0
