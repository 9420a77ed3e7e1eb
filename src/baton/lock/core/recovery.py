"""Holders that an earlier daemon left behind.

After a restart the journal says who held which card. A holder whose process is alive is still working, so its card is
not granted until the holder resumes, its process ends, or its grace time is over: it is a *ghost*. If there was an
earlier daemon but its journal is lost, an unknown ghost (client 0) keeps the card for the grace time.
"""

from baton.lock.core.events import ClientId, Recalled
from baton.lock.core.state import Card, Client, Ghost

UNKNOWN = ClientId(0)


def expect(card: Card, event: Recalled, now_s: float) -> None:
    """Reserve the card for a holder that is alive."""
    card.exclusive = event.exclusive
    card.ghosts[event.client] = Ghost(event.client, event.pid, now_s + event.grace_s)


def claim(card: Card, client: Client, previous: ClientId) -> bool:
    """A client resumes: whether it was a ghost of this card, by its old id or by its process."""
    found = card.ghosts.pop(previous, None) if previous != UNKNOWN else None
    if found is None:
        found = _of_process(card, client)
    return found is not None


def give_up(card: Card, client: Client) -> None:
    """A client asks or releases without having resumed, so its process holds nothing: drop its ghost."""
    if card.ghosts and not client.owns():
        _of_process(card, client)


def _of_process(card: Card, client: Client) -> Ghost | None:
    if client.pid:
        for ghost in card.ghosts.values():
            if ghost.pid == client.pid:
                return card.ghosts.pop(ghost.client)
    return None


def room(card: Card) -> bool:
    """Whether a client that claims to hold the card can be right."""
    if not card.exclusive:
        return True
    return not card.holders and all(ghost.client == UNKNOWN for ghost in card.ghosts.values())


def adopted(card: Card) -> None:
    """A holder has resumed: an exclusive card had only one, so there is no unknown one to wait for."""
    if card.exclusive:
        card.ghosts.pop(UNKNOWN, None)


def expire(card: Card, now_s: float) -> bool:
    """Stop waiting for ghosts whose grace time is over; returns whether there were any."""
    late = [ghost.client for ghost in card.ghosts.values() if ghost.until_s <= now_s]
    for client in late:
        del card.ghosts[client]
    return bool(late)
