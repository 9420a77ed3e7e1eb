"""Shared pages in which the processes of one group count their memory."""

import mmap
import os
import struct
from pathlib import Path

import pytest

from baton.lock.core import events as ev
from baton.lock.core.events import ClientId
from baton.lock.daemon.allowances import SLOTS, Allowances
from baton.lock.daemon.daemon import LockDaemon
from baton.lock.paths import Paths
from baton.lock.peers import UNKNOWN_POD
from baton.model.ids import CardId

CARD, OTHER = CardId("GPU-0"), CardId("GPU-1")
RUN = ("run", "0", "r1")


def join(allowances: Allowances, client: int, group: tuple[str, ...] = RUN, card: CardId = CARD) -> tuple[int, int]:
    joined = allowances.join(ClientId(client), group, card)
    assert joined is not None
    return joined


def write(fd: int, place: int, number: int) -> None:
    with mmap.mmap(fd, SLOTS * 8) as page:
        struct.pack_into("<q", page, place * 8, number)


def read(fd: int, place: int) -> int:
    with mmap.mmap(fd, SLOTS * 8) as page:
        return int(struct.unpack_from("<q", page, place * 8)[0])


def test_a_group_shares_one_page_and_each_process_has_its_slot() -> None:
    allowances = Allowances()
    first, second = join(allowances, 1), join(allowances, 2)
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert join(allowances, 3, ("run", "0", "r2"))[0] != first[0]
    assert join(allowances, 4, ("run", "1000", "r1"))[0] != first[0]
    assert join(allowances, 5, card=OTHER)[0] != first[0]


def test_a_process_that_leaves_frees_its_slot_and_memory() -> None:
    allowances = Allowances()
    fd, place = join(allowances, 1)
    _, second = join(allowances, 2)
    write(fd, place, 7 << 30)
    write(fd, second, 1 << 30)
    allowances.leave(ClientId(1))
    assert (read(fd, place), read(fd, second)) == (0, 1 << 30)
    assert join(allowances, 3) == (fd, place)


def test_the_page_is_closed_when_the_last_process_leaves() -> None:
    allowances = Allowances()
    fd, _ = join(allowances, 1)
    allowances.leave(ClientId(1))
    allowances.leave(ClientId(1))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_full_page_admits_no_more_processes() -> None:
    allowances = Allowances()
    for client in range(1, SLOTS + 1):
        join(allowances, client)
    assert allowances.join(ClientId(SLOTS + 1), RUN, CARD) is None
    allowances.leave(ClientId(9))
    join(allowances, SLOTS + 1)
    allowances.close()


def test_a_page_cannot_be_truncated() -> None:
    allowances = Allowances()
    fd, _ = join(allowances, 1)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    allowances.close()


def test_a_group_is_a_pod_or_the_run_of_a_user(tmp_path: Path) -> None:
    daemon = LockDaemon(Paths(tmp_path / "lock"))

    def group_of(number: int, pod_uid: str, run: str) -> tuple[str, ...] | None:
        client = ClientId(number)
        daemon.core.handle(ev.Joined(client, CARD, 100 + number, uid=1000, extended=True, pod_uid=pod_uid), 0.0)
        daemon.core.handle(ev.Described(client, run=run), 0.0)
        return daemon.group_of(client)

    assert group_of(1, "", "r1") == ("run", "1000", "r1")
    assert group_of(2, "", "") is None
    assert group_of(3, "c0ffee", "") == ("pod", "c0ffee")
    assert group_of(4, "c0ffee", "r1") == ("pod", "c0ffee")  # naming a run does not escape the pod's limit
    assert group_of(5, UNKNOWN_POD, "r1") is None
    assert daemon.group_of(ClientId(99)) is None
