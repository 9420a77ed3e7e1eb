"""The files that survive `kill -9`: who holds which card, and the accounts.

Holders are written before a LOCK_OK is sent, with one `pwrite` into a file whose blocks were reserved at the start: it
takes a few microseconds and works on a full disk. Two slots are used in turn, each with a sequence number and a
checksum, so an incomplete write leaves the previous state. That state is still true, because the LOCK_OK for which the
new one was written was not sent. The kernel keeps the written data when the process dies; after a power failure there
are no holders left to remember.

Accounts and overrides change slowly and are kept in a JSON file, which is replaced as a whole at most once a second.
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

log = structlog.get_logger("baton.lock")

SLOT_BYTES = 32 * 1024
_HEADER = struct.Struct("<8sQII")
_MAGIC = b"batonhl1"


class HolderRecord(msgspec.Struct, frozen=True, array_like=True):
    """One holder: its id, its process, and the start time of the process."""

    client: int
    pid: int
    started_ticks: int


class CardRecord(msgspec.Struct, frozen=True, array_like=True):
    """The holders of one card; `complete` is False if there were too many to write them all."""

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
    """What those clients of one tenant that are gone had received."""

    tenant: str
    received_s: float
    entitled_s: float
    waited_s: float
    grants: int
    drops: int
    paged_bytes: int


class CardSetting(msgspec.Struct, frozen=True):
    """What was set for a card."""

    card: str
    mode: str
    quantum_s: float | None
    on: bool


class TermsRecord(msgspec.Struct, frozen=True):
    """What was set for a client."""

    client: int
    terms: Terms


class Snapshot(msgspec.Struct, frozen=True):
    """The contents of the JSON file, which may be a second old."""

    cards: list[CardSetting] = []
    accounts: list[AccountRecord] = []
    tenants: list[TenantRecord] = []
    parked: list[int] = []
    rules: list[Rule] = []
    terms: list[TermsRecord] = []


class HolderJournal:
    """The file of holders. A failure to write is logged once and does not stop the daemon."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._sequence = 0
        self._failed = False
        self.failures = 0

    def open(self) -> list[CardRecord] | None:
        """Read the earlier daemon's records and prepare for writing; None if there are no readable records."""
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
        """Store the holders of all cards."""
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
        """Remove the journal: without one the next daemon waits, while a stale one would mislead it."""
        self.failures += 1
        if not self._failed:
            self._failed = True
            log.warning(
                "the journal cannot be written; after a restart, cards are not granted before the grace time is over",
                error=str(error),
            )
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
        """The earlier daemon's snapshot; an empty one if it is missing or not readable."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Snapshot)
        except OSError:
            return Snapshot()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("the accounts of the earlier daemon are not readable", path=str(self._path), error=str(error))
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
                log.warning("the accounts cannot be written", path=str(self._path), error=str(error))
