"""One memory limit for several processes: those of one run, or of one pod.

Their hooks count together in a page of shared memory, which the daemon creates and passes to each of them: a row of
counters, one per process and GPU. A hook first adds to its counter and then checks the sum, so an allocation needs no
message, and the limit holds however many processes allocate at once. When a process ends, its connection ends, and the
daemon clears its counter. Processes outside the group never see the page.
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
"""The processes that share a limit: a pod, or a run of a user."""


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
        """The descriptor of the group's page and the client's slot there; None if it has one already or none is free.

        Without a page the limit applies to the process alone.
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
        slot = next((number for number in range(SLOTS) if number not in used), None)
        if slot is None:
            return None
        page.taken[client] = slot
        self._joined[client] = key
        return page.fd, slot

    def leave(self, client: ClientId) -> None:
        """A client is gone, and its memory is free."""
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
        """Close all pages; processes that have them continue to count."""
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
        # If a member could truncate the page, the others would die of SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return _Page(fd, mmap.mmap(fd, _BYTES))
    except OSError:
        os.close(fd)
        raise
