"""Who holds the cards, kept for the next daemon: the journal, and the processes that it names.

Every change of holders is written before the frame that announces it is sent. A daemon that starts reads the journal of
its predecessor. A holder whose process is alive is *recalled*: its card is not granted to another client, and the
process is watched, so that the daemon learns at once when it ends. A process is identified by its pid and start time.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from baton.lock import peers
from baton.lock.core import events as ev
from baton.lock.core.events import ClientId, Event
from baton.lock.core.recovery import UNKNOWN
from baton.lock.core.state import Card
from baton.lock.daemon.journal import CardRecord, HolderJournal, HolderRecord
from baton.model.ids import CardId

log = structlog.get_logger("baton.lock")

_RECORDED = 64
"""Holders of one card that the journal names. More holders run only on a concurrent card, where missing some does no
harm."""


class Holders:
    """The journal of this daemon, and the holders that the earlier daemon left behind."""

    def __init__(self, path: Path, grace_s: float, submit: Callable[[Event], None]) -> None:
        self._journal = HolderJournal(path)
        self._grace_s = grace_s
        self._submit = submit
        self._records: dict[CardId, CardRecord] = {}
        self._started_ticks: dict[ClientId, int] = {}
        self._watches: dict[tuple[CardId, ClientId], int] = {}
        self._unknown_until_s = 0.0

    @property
    def failures(self) -> int:
        """How many times the journal could not be written."""
        return self._journal.failures

    def recall(self, cards: Iterable[CardId], *, earlier: bool, now_s: float) -> None:
        """Read the journal of the earlier daemon, if there was one, and begin a new one."""
        records = self._journal.open()
        if records is None and earlier:
            self._unknown_until_s = now_s + self._grace_s
            log.warning(
                "the journal of the earlier daemon is missing; cards are not granted before the grace time is over"
            )
            for card in cards:
                self.expect_unknown(card, now_s)
            return
        for record in records or ():
            self._recall_card(record)
        self.write()

    def _recall_card(self, record: CardRecord) -> None:
        card = CardId(record.card)
        if not record.complete:
            self._submit(ev.Recalled(UNKNOWN, card, 0, record.exclusive, self._grace_s))
        for holder in record.holders:
            alive = holder.pid == 0 or (holder.started_ticks and peers.start_ticks(holder.pid) == holder.started_ticks)
            if not alive:
                continue
            client = ClientId(holder.client)
            self._started_ticks[client] = holder.started_ticks
            if holder.pid and not self._watch(card, client, holder.pid):
                continue
            self._submit(ev.Recalled(client, card, holder.pid, record.exclusive, self._grace_s))
            log.info("holder recalled", gpu=card, client=f"{client:016x}", pid=holder.pid)

    def expect_unknown(self, card: CardId, now_s: float) -> None:
        """A card that may have a holder from before, because the journal is missing."""
        left_s = self._unknown_until_s - now_s
        if left_s > 0:
            self._submit(ev.Recalled(UNKNOWN, card, 0, True, left_s))

    def _watch(self, card: CardId, client: ClientId, pid: int) -> bool:
        """Watch the process of a recalled holder; returns False if it has ended."""
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        self._watches[(card, client)] = fd
        asyncio.get_running_loop().add_reader(fd, self._vanished, card, client)
        return True

    def _vanished(self, card: CardId, client: ClientId) -> None:
        _unwatch(self._watches.pop((card, client)))
        self._submit(ev.Vanished(client, card))

    def joined(self, client: ClientId, pid: int) -> None:
        """A client has joined; remember when its process started, to tell it from a later one with the same pid."""
        self._started_ticks[client] = peers.start_ticks(pid) if pid else 0

    def left(self, client: ClientId) -> None:
        """A client is gone."""
        self._started_ticks.pop(client, None)

    def same_process(self, client: ClientId, pid: int) -> bool:
        """Whether the process with this pid is still the one that joined as this client."""
        started = self._started_ticks.get(client)
        return bool(started) and peers.start_ticks(pid) == started

    def note(self, card: Card) -> None:
        """The holders of a card have changed; `write` stores it."""
        ticks = self._started_ticks
        holders = [HolderRecord(c.id, c.pid, ticks.get(c.id, 0)) for c in card.holders.values()]
        holders += [HolderRecord(g.client, g.pid, ticks.get(g.client, 0)) for g in card.ghosts.values()]
        many = not card.exclusive and len(holders) > _RECORDED
        self._records[card.id] = CardRecord(card.id, card.exclusive, () if many else tuple(holders), not many)

    def write(self) -> None:
        """Write the current holders of all cards."""
        self._journal.write(list(self._records.values()))

    def close(self) -> None:
        """Stop watching processes; the journal stays for the next daemon."""
        for fd in self._watches.values():
            _unwatch(fd)
        self._watches.clear()
        self._journal.close()


def _unwatch(fd: int) -> None:
    asyncio.get_running_loop().remove_reader(fd)
    os.close(fd)
