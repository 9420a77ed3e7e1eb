"""Holders that an earlier daemon left behind.

After a restart the journal names who held which card. A holder whose process is alive goes on working, so its card is
given to nobody until it is back, its process ends, or its grace time is over: it is a *ghost*. When there was
an earlier daemon but its journal is lost, a ghost without a name (client 0) keeps the card for the grace time.
"""

from baton.lock.core.events import ClientId, Recalled
from baton.lock.core.state import Card, Client, Ghost

UNKNOWN = ClientId(0)


def expect(card: Card, event: Recalled, now_s: float) -> None:
    """Keep the card for a holder that is alive."""
    card.exclusive = event.exclusive
    card.ghosts[event.client] = Ghost(event.client, event.pid, now_s + event.grace_s)


def claim(card: Card, client: Client, previous: ClientId) -> bool:
    """A client is back: whether it is one that was waited for. Known by its old id, or by its process."""
    found = card.ghosts.pop(previous, None) if previous != UNKNOWN else None
    if found is None:
        found = _of_process(card, client)
    return found is not None


def give_up(card: Card, client: Client) -> None:
    """A client asks or releases without having resumed: its process holds nothing."""
    if card.ghosts and not client.owns():
        _of_process(card, client)


def _of_process(card: Card, client: Client) -> Ghost | None:
    if client.pid:
        for ghost in card.ghosts.values():
            if ghost.pid == client.pid:
                return card.ghosts.pop(ghost.client)
    return None


def room(card: Card) -> bool:
    """Whether somebody who says that it holds the card may be believed."""
    if not card.exclusive:
        return True
    return not card.holders and all(ghost.client == UNKNOWN for ghost in card.ghosts.values())


def adopted(card: Card) -> None:
    """An exclusive card had one holder; once it is back there is no unknown one to wait for."""
    if card.exclusive:
        card.ghosts.pop(UNKNOWN, None)


def expire(card: Card, now_s: float) -> bool:
    """Stop waiting for those whose grace time is over; whether there were any."""
    late = [ghost.client for ghost in card.ghosts.values() if ghost.until_s <= now_s]
    for client in late:
        del card.ghosts[client]
    return bool(late)
