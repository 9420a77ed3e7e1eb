"""What survives `kill -9`: who holds which card, and the accounts.

Holders are written before a LOCK_OK leaves, with one `pwrite` into a file whose blocks were reserved at start: a few
microseconds, and a full disk cannot stop it. Two slots are used in turn, each with a sequence number and a check sum,
so that a write cut short leaves the previous state, which is then still true, because the LOCK_OK that it was
written for was not sent. The kernel keeps what was written when the process dies; after a power failure
there are no holders left to remember.

The accounts and what was set by hand change slowly and go into a JSON file, replaced as a whole, at most once a second.
"""

import contextlib
import os
import struct
import zlib
from pathlib import Path

import msgspec
import structlog

from baton.lock.config import Rule
from baton.lock.core.events import Terms

log = structlog.get_logger()

SLOT_BYTES = 32 * 1024
_HEADER = struct.Struct("<8sQII")
_MAGIC = b"batonhl1"


class HolderRecord(msgspec.Struct, frozen=True, array_like=True):
    """One holder: its id, and its process with the time that process started."""

    client: int
    pid: int
    started_ticks: int


class CardRecord(msgspec.Struct, frozen=True, array_like=True):
    """The holders of one card; `complete` is False when there were too many to write them all."""

    card: str
    exclusive: bool
    holders: tuple[HolderRecord, ...]
    complete: bool = True


class AccountRecord(msgspec.Struct, frozen=True):
    """What one client had received when this was written."""

    client: int
    received_s: float
    entitled_s: float
    waited_s: float
    grants: int
    drops: int
    paged_bytes: int
    tenant: str = ""


class TenantRecord(msgspec.Struct, frozen=True):
    """What the departed clients of one tenant had received."""

    tenant: str
    received_s: float
    entitled_s: float
    waited_s: float
    grants: int
    drops: int
    paged_bytes: int


class CardSetting(msgspec.Struct, frozen=True):
    """What was set by hand for a card."""

    card: str
    mode: str
    quantum_s: float | None
    on: bool


class TermsRecord(msgspec.Struct, frozen=True):
    """What was set by hand for a client."""

    client: int
    terms: Terms


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that may be a second old."""

    cards: list[CardSetting] = []
    accounts: list[AccountRecord] = []
    tenants: list[TenantRecord] = []
    parked: list[int] = []
    rules: list[Rule] = []
    terms: list[TermsRecord] = []


class HolderJournal:
    """The file of holders. Failing to write is reported once and does not stop anybody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._sequence = 0
        self._failed = False
        self.failures = 0

    def open(self) -> list[CardRecord] | None:
        """Read what an earlier daemon left and get ready to write; None when there is nothing readable."""
        found: list[CardRecord] | None = None
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            found = self._read()
            os.posix_fallocate(self._fd, 0, 2 * SLOT_BYTES)
        except OSError as error:
            self._fail(error)
        return found

    def _read(self) -> list[CardRecord] | None:
        newest: tuple[int, list[CardRecord]] | None = None
        for slot in (0, 1):
            raw = os.pread(self._fd, SLOT_BYTES, slot * SLOT_BYTES)
            if len(raw) < _HEADER.size:
                continue
            magic, sequence, size, check = _HEADER.unpack_from(raw)
            body = raw[_HEADER.size : _HEADER.size + size]
            if magic != _MAGIC or len(body) != size or zlib.crc32(body, sequence & 0xFFFFFFFF) != check:
                continue
            with contextlib.suppress(msgspec.DecodeError):
                records = msgspec.json.decode(body, type=list[CardRecord])
                if newest is None or sequence > newest[0]:
                    newest = (sequence, records)
        if newest is None:
            return None
        self._sequence = newest[0]
        return newest[1]

    def write(self, records: list[CardRecord]) -> None:
        """Make this the truth."""
        if self._fd < 0:
            return
        body = msgspec.json.encode(records)
        room = SLOT_BYTES - _HEADER.size
        if len(body) > room:
            brief = [CardRecord(r.card, r.exclusive, r.holders if r.exclusive else (), r.exclusive) for r in records]
            body = msgspec.json.encode(brief)
            if len(body) > room:
                self._fail(OSError(f"{len(records)} cards do not fit into the journal"))
                return
        self._sequence += 1
        check = zlib.crc32(body, self._sequence & 0xFFFFFFFF)
        try:
            frame = _HEADER.pack(_MAGIC, self._sequence, len(body), check) + body
            os.pwrite(self._fd, frame, (self._sequence % 2) * SLOT_BYTES)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Without a journal the next daemon can only wait; a stale one would tell it wrong things."""
        self.failures += 1
        if not self._failed:
            self._failed = True
            log.warning("journal not written; a restart will wait out the grace time", error=str(error))
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Leave the file for the next daemon."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SnapshotFile:
    """The JSON file of accounts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False

    def read(self) -> Snapshot:
        """What an earlier daemon left; empty when it is not there or not readable."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Snapshot)
        except OSError:
            return Snapshot()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("accounts of the earlier daemon are not readable", path=str(self._path), error=str(error))
            return Snapshot()

    def write(self, snapshot: Snapshot) -> None:
        """Replace the file as a whole."""
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.encode(snapshot))
            fresh.replace(self._path)
            self._failed = False
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            if not self._failed:
                self._failed = True
                log.warning("accounts not written", path=str(self._path), error=str(error))
