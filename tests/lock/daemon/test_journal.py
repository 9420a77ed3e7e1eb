"""The state that survives a kill: the last complete one, never a part of one."""

import os
from pathlib import Path

from baton.lock.daemon.journal import (
    SLOT_BYTES,
    AccountRecord,
    CardRecord,
    HolderJournal,
    HolderRecord,
    Snapshot,
    SnapshotFile,
)


def held_by(*clients: int) -> list[CardRecord]:
    return [CardRecord("GPU-0", True, tuple(HolderRecord(client, 100 + client, 5) for client in clients))]


def reopened(path: Path) -> list[CardRecord] | None:
    journal = HolderJournal(path)
    found = journal.open()
    journal.close()
    return found


def test_the_last_state_is_found_again(tmp_path: Path) -> None:
    journal = HolderJournal(tmp_path / "holders")
    assert journal.open() is None
    for client in range(1, 8):
        journal.write(held_by(client))
    assert reopened(tmp_path / "holders") == held_by(7)


def test_an_incomplete_write_leaves_the_previous_state(tmp_path: Path) -> None:
    path = tmp_path / "holders"
    for cut in range(1, 60, 7):
        path.unlink(missing_ok=True)
        journal = HolderJournal(path)
        journal.open()
        journal.write(held_by(1))
        journal.write(held_by(2))
        before = path.read_bytes()
        journal.write(held_by(3))
        after = path.read_bytes()
        journal.close()
        changed = next(n for n in range(len(after)) if after[n] != before[n])
        start = changed // SLOT_BYTES * SLOT_BYTES
        path.write_bytes(before[:start] + after[start : start + cut] + before[start + cut :])
        found = reopened(path)
        assert found in (held_by(2), held_by(3)), f"cut after {cut} bytes"
        if found == held_by(3):
            assert path.read_bytes()[start:] == after[start:]


def test_a_file_with_other_contents_is_not_a_journal(tmp_path: Path) -> None:
    (tmp_path / "holders").write_bytes(os.urandom(2 * SLOT_BYTES))
    assert reopened(tmp_path / "holders") is None


def test_more_holders_than_fit_are_left_out_but_not_forgotten(tmp_path: Path) -> None:
    journal = HolderJournal(tmp_path / "holders")
    journal.open()
    crowd = tuple(HolderRecord(2**63 + n, 100_000 + n, 10**9) for n in range(3000))
    journal.write([CardRecord("GPU-0", False, crowd), *held_by(1)])
    journal.close()
    assert reopened(tmp_path / "holders") == [CardRecord("GPU-0", False, (), False), *held_by(1)]


def test_accounts_are_replaced_as_a_whole_and_garbage_is_ignored(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / "accounts.json")
    assert file.read() == Snapshot()
    snapshot = Snapshot(accounts=[AccountRecord(1, 1.0, 2.0, 3.0, 4, 5, 6, "blue")], parked=[1])
    file.write(snapshot)
    assert file.read() == snapshot
    for rubbish in (b'{"cards": 3}', b'{"accounts": [{"tenant": "\xff"}]}'):
        (tmp_path / "accounts.json").write_bytes(rubbish)
        assert file.read() == Snapshot()
