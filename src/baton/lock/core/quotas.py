"""Compute limits: a share of GPU time per window, whatever the quantum.

All limited clients of a card share its windows. A client that has used its share is asked to release the card, even
when no other client waits, and is not eligible until the next window. Its overrun (the time from DROP_LOCK to
LOCK_RELEASED) is deducted from the next window. The window grows with the switch cost, so that the smallest slice is
worth a switch.
"""

from baton.lock.core.settings import Settings
from baton.lock.core.state import Card, Client


def window_length_s(card: Card, settings: Settings) -> float:
    """The length of a window for the limits in force: long enough that the smallest slice outweighs its switch."""
    smallest = min((client.quota.share for client in card.limited.values() if client.quota), default=1.0)
    slice_s = settings.slice_switches * ((card.cost_s or 0.0) + card.release_s)
    return max(settings.window_s, slice_s / smallest)


def roll(card: Card, now_s: float, settings: Settings) -> None:
    """Begin a new window if the current one is over; throttled clients become eligible again."""
    if not card.limited:
        card.window_s = 0.0
        return
    if card.window_s <= 0:
        card.window_start_s, card.window_s = now_s, window_length_s(card, settings)
        return
    # A timer never fires early, but a window may end a rounding error before the clock says so.
    passed = int((now_s - card.window_start_s) / card.window_s + 1e-9)
    if passed <= 0:
        return
    card.window_start_s += passed * card.window_s
    was_throttled: list[Client] = []
    for client in card.limited.values():
        card.bill(client)
        if card.throttled(client):
            was_throttled.append(client)
        if client.quota is not None:
            client.quota.used_s = max(0.0, client.quota.used_s - passed * client.quota.share * card.window_s)
    fresh_s = window_length_s(card, settings)
    if fresh_s != card.window_s:
        card.window_start_s, card.window_s = now_s, fresh_s
    for client in was_throttled:
        if client.id in card.waiters and not card.throttled(client):
            card.rejoin(client, now_s)


def exhausted_at_s(card: Card, client: Client, now_s: float) -> float | None:
    """When a limited holder will have used its share of this window if the number of holders stays the same."""
    quota = client.quota
    if quota is None or client.turn is None:
        return None
    left_s = quota.share * card.window_s - quota.used_s - (card.work_s - client.turn.work_mark_s)
    return now_s + max(0.0, left_s) * len(card.holders)


def window_end_s(card: Card) -> float | None:
    """When the next window begins; None if no active client is limited."""
    if not card.limited or not any(client.id in card.active for client in card.limited.values()):
        return None
    return card.window_start_s + card.window_s
