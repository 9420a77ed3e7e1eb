"""One memory limit for several processes: those of one run, or of one pod.

Their hooks count together, in a page of memory that the daemon makes and hands to each of them: a row of counters, one
per process and GPU. A hook adds to its own counter first and then looks at the sum, so that no message is needed per
allocation, and what the limit forbids is never allocated, however many allocate at once. The daemon learns from the
connection when a process ends, in whatever way, and clears its counter. Who is not of the group never sees the page.
"""

import contextlib
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass, field

from baton.lock.core.events import ClientId
from baton.model.ids import CardId

SLOTS = 512
_COUNTER = struct.Struct("<q")
_BYTES = SLOTS * _COUNTER.size

Group = tuple[str, ...]
"""Who shares a limit: a pod, or a user's run."""


@dataclass
class _Page:
    fd: int
    memory: mmap.mmap
    taken: dict[ClientId, int] = field(default_factory=dict)


class Allowances:
    """The pages of all groups."""

    def __init__(self) -> None:
        self._pages: dict[tuple[Group, CardId], _Page] = {}
        self._joined: dict[ClientId, tuple[Group, CardId]] = {}

    def join(self, client: ClientId, group: Group, card: CardId) -> tuple[int, int] | None:
        """The descriptor of its group's page and its place there; None when it has one already, or there is no more.

        Without a page the limit holds for the process alone.
        """
        if client in self._joined:
            return None
        key = (group, card)
        page = self._pages.get(key)
        if page is None:
            try:
                page = self._pages[key] = _make()
            except OSError:
                return None
        used = set(page.taken.values())
        place = next((number for number in range(SLOTS) if number not in used), None)
        if place is None:
            return None
        page.taken[client] = place
        self._joined[client] = key
        return page.fd, place

    def leave(self, client: ClientId) -> None:
        """It is gone, and with it its memory."""
        key = self._joined.pop(client, None)
        if key is None:
            return
        page = self._pages[key]
        _COUNTER.pack_into(page.memory, page.taken.pop(client) * _COUNTER.size, 0)
        if not page.taken:
            page.memory.close()
            os.close(page.fd)
            del self._pages[key]

    def close(self) -> None:
        """Let go of all pages; those who have them go on counting."""
        for page in self._pages.values():
            page.memory.close()
            with contextlib.suppress(OSError):
                os.close(page.fd)
        self._pages.clear()
        self._joined.clear()


def _make() -> _Page:
    fd = os.memfd_create("baton-allowance", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, _BYTES)
        # A member that cut it short would end the others with SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return _Page(fd, mmap.mmap(fd, _BYTES))
    except OSError:
        os.close(fd)
        raise
