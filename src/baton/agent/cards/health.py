"""When a card counts as unhealthy, and when as healthy again: a pure tracker of probes and events.

The two can disagree. A *probe* is the driver's present opinion; an *event* (an Xid) is a moment that the driver may or
may not remember. So a fatal event makes a card unhealthy at once, and a probe that finds a defect keeps it unhealthy.
How it heals depends on whether the driver sees the fault: if a probe has confirmed it, good probes for `heal_s` are
enough; if no probe ever did, the driver cannot see it, and the card stays unhealthy for `hold_s`.

Application errors and harmless events change nothing. An event without a card is about every card.
"""

from collections.abc import Iterable, Sequence

import msgspec

from baton.gpu.cards import CardEvent, CardHealth, Sample, Severity
from baton.model.ids import CardId


class Verdict(msgspec.Struct, frozen=True):
    """Whether a card is healthy, with the reason that the node's condition shows."""

    card: CardId
    healthy: bool
    reason: str = ""
    since_s: float = 0.0


class _Record:
    def __init__(self) -> None:
        self.reason = ""
        self.bad_since_s = 0.0
        self.good_since_s: float | None = None
        self.event_s: float | None = None
        self.confirmed = False


class HealthTracker:
    """Tracks every card that it has ever heard of."""

    def __init__(
        self,
        heal_s: float,
        hold_s: float,
        *,
        max_temperature_c: int | None = None,
        min_link_percent: int = 0,
        ignore_xids: Iterable[int] = (),
    ) -> None:
        self._heal_s = heal_s
        self._hold_s = hold_s
        self._max_temperature_c = max_temperature_c
        self._min_link_percent = min_link_percent
        self._ignored = frozenset(ignore_xids)
        self._records: dict[CardId, _Record] = {}
        self.xids: dict[tuple[CardId | None, int], int] = {}
        """How often each Xid was seen, for the metric."""

    def know(self, cards: Iterable[CardId]) -> None:
        """Add cards; they are healthy until a probe or an event says otherwise."""
        for card in cards:
            self._records.setdefault(card, _Record())

    def verdicts(self) -> tuple[Verdict, ...]:
        """One per card, in the order in which they became known."""
        return tuple(
            Verdict(card, not record.reason, record.reason, record.bad_since_s)
            for card, record in self._records.items()
        )

    def unhealthy(self) -> frozenset[CardId]:
        return frozenset(card for card, record in self._records.items() if record.reason)

    def events(self, happened: Sequence[CardEvent], now_s: float) -> bool:
        """Process events; True if a verdict changed."""
        changed = False
        for event in happened:
            if event.xid is not None:
                key = (event.card, event.xid)
                self.xids[key] = self.xids.get(key, 0) + 1
            if event.severity is not Severity.FATAL or event.xid in self._ignored:
                continue
            for card in [event.card] if event.card is not None else list(self._records):
                record = self._records.setdefault(card, _Record())
                record.event_s = now_s
                record.confirmed = False
                record.good_since_s = None
                changed |= self._condemn(record, event.summary, now_s)
        return changed

    def probes(self, states: Sequence[CardHealth], samples: Sequence[Sample], now_s: float) -> bool:
        """Process the driver's opinion of every card; True if a verdict changed."""
        measured = {sample.card: sample for sample in samples}
        seen = {state.card: state for state in states}
        changed = False
        for card, record in self._records.items():
            state = seen.get(card)
            defect = record.reason or "the driver no longer lists it" if state is None else state.reason
            if not defect and card in measured:
                defect = self._out_of_bounds(measured[card])
            if defect:
                record.confirmed = True
                record.good_since_s = None
                changed |= self._condemn(record, defect, now_s)
            elif record.reason:
                if record.good_since_s is None:
                    record.good_since_s = now_s
                changed |= self._pardon(record, now_s)
        return changed

    def _out_of_bounds(self, sample: Sample) -> str:
        """A measurement that the configuration does not allow; empty if there is none."""
        most_c, heat_c = self._max_temperature_c, sample.temperature_c
        if most_c is not None and heat_c is not None and heat_c > most_c:
            return f"{heat_c} °C is above the limit of {most_c} °C"
        lanes, most = sample.link_lanes, sample.link_lanes_most
        if lanes and most and 100 * lanes < self._min_link_percent * most:
            return (
                f"its link to the host uses {lanes} of {most} lanes, less than {self._min_link_percent} %; "
                "reset or reseat it"
            )
        return ""

    def _condemn(self, record: _Record, reason: str, now_s: float) -> bool:
        fresh = not record.reason
        if fresh:
            record.bad_since_s = now_s
        changed = record.reason != reason
        record.reason = reason
        return changed

    def _pardon(self, record: _Record, now_s: float) -> bool:
        assert record.good_since_s is not None
        wait_s = self._heal_s
        if record.event_s is not None and not record.confirmed:
            wait_s = max(wait_s, self._hold_s)
        if now_s - record.good_since_s < wait_s:
            return False
        record.reason = ""
        record.event_s = record.good_since_s = None
        record.confirmed = False
        record.bad_since_s = now_s
        return True
