"""The consequences of one event: instructions, cards to schedule, and cards whose holders must be recorded."""

from baton.lock.core import events as ev
from baton.lock.core.events import Instruction
from baton.lock.core.state import Card, Client
from baton.model.ids import CardId


class Effects:
    """Collects consequences while an event is handled; the state machine empties it before the next event."""

    __slots__ = ("instructions", "marked", "recorded")

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.marked: dict[CardId, Card] = {}
        """Cards that have changed and must be scheduled."""
        self.recorded: dict[CardId, None] = {}
        """Cards whose holders have changed; a dict because it keeps the order."""

    def mark(self, card: Card, now_s: float) -> None:
        """A card is about to change: account for the time until now, and schedule it after the event."""
        card.advance(now_s)
        self.marked[card.id] = card

    def log(
        self, level: str, event: str, client: Client | None = None, card: Card | None = None, detail: str = ""
    ) -> None:
        """Write a line to the daemon's log."""
        of = card or (client.card if client else None)
        self.instructions.append(ev.Log(level, event, client.id if client else None, of.id if of else None, detail))

    def notice(self, client: Client, code: str, reason: str) -> None:
        """Tell a client something for its log."""
        self.log("info", code, client)
        if client.extended:
            self.instructions.append(ev.Notice(client.id, code, reason))
