"""Health: fatal events and failed probes take a card away, good probes return it, and nothing else does either."""

import pytest

from baton.agent.cards.health import HealthTracker
from baton.gpu.cards import CardEvent, CardHealth, Sample, Severity
from baton.gpu.xids import classify
from baton.model.ids import CardId

A, B = CardId("GPU-a"), CardId("GPU-b")


def tracker(*, max_temperature_c: int | None = None, min_link_percent: int = 0, hold_s: float = 60.0) -> HealthTracker:
    found = HealthTracker(1.0, hold_s, max_temperature_c=max_temperature_c, min_link_percent=min_link_percent)
    found.know([A, B])
    return found


def xid(number: int, card: CardId | None = A) -> CardEvent:
    return CardEvent(card, classify(number).severity, f"Xid {number}", number)


def probe(*bad: CardId, reason: str = "the driver asks for a reset of this GPU") -> tuple[CardHealth, ...]:
    return tuple(CardHealth(card, card not in bad, reason if card in bad else "") for card in (A, B))


def hot(card: CardId, temperature_c: int) -> Sample:
    return Sample(card, 0, 0, 0, temperature_c, None, None, None, None, None)


def on_link(card: CardId, lanes: int | None, most: int | None) -> Sample:
    return Sample(card, 0, 0, 0, 30, None, None, None, None, None, link_lanes=lanes, link_lanes_most=most)


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 94])
def test_application_errors_and_harmless_errors_take_no_card_away(number: int) -> None:
    health = tracker()
    assert not health.events([xid(number)], 0.0)
    assert health.unhealthy() == frozenset()


@pytest.mark.parametrize("number", [48, 74, 79, 95, 119, 31337])
def test_a_fatal_or_unknown_error_takes_only_its_card_away(number: int) -> None:
    health = tracker()
    assert health.events([xid(number)], 0.0)
    assert health.unhealthy() == {A}


def test_an_error_without_a_card_is_about_all_cards() -> None:
    health = tracker()
    health.events([CardEvent(None, Severity.FATAL, "NVML cannot wait for events")], 0.0)
    assert health.unhealthy() == {A, B}


def test_a_confirmed_fault_heals_after_good_probes_for_the_settling_time() -> None:
    health = tracker()
    health.events([xid(79)], 0.0)
    health.probes(probe(A), (), 0.5)
    assert not health.probes(probe(), (), 10.0), "the first good probe starts the clock"
    assert not health.probes(probe(), (), 10.9)
    assert health.probes(probe(), (), 11.0)
    assert health.unhealthy() == frozenset()


def test_a_fault_that_the_driver_cannot_see_is_not_forgotten_at_once() -> None:
    health = tracker()
    health.events([xid(79)], 0.0)
    for now_s in range(1, 60):
        health.probes(probe(), (), float(now_s))
        assert health.unhealthy() == {A}
    health.probes(probe(), (), 61.0)
    assert health.unhealthy() == frozenset()


def test_a_flapping_card_stays_away() -> None:
    health = tracker()
    for now_s in range(20):
        health.probes(probe(A) if now_s % 2 == 0 else probe(), (), now_s * 0.5)
        assert health.unhealthy() == {A}


def test_a_card_that_the_driver_no_longer_lists_is_unhealthy() -> None:
    health = tracker()
    assert health.probes((CardHealth(A, True),), (), 0.0)
    (verdict,) = [verdict for verdict in health.verdicts() if not verdict.healthy]
    assert verdict.card == B
    assert verdict.reason == "the driver no longer lists it"


def test_heat_above_a_given_limit_takes_a_card_away_and_cooling_brings_it_back() -> None:
    health = tracker(max_temperature_c=90)
    assert health.probes(probe(), (hot(A, 91), hot(B, 90)), 0.0)
    assert health.unhealthy() == {A}
    health.probes(probe(), (hot(A, 80), hot(B, 80)), 1.0)
    assert health.probes(probe(), (hot(A, 80), hot(B, 80)), 2.0)
    assert health.unhealthy() == frozenset()


def test_a_link_without_most_of_its_lanes_takes_a_card_away_until_it_is_retrained() -> None:
    health = tracker(min_link_percent=50)

    def measured(lanes: int) -> tuple[Sample, Sample]:
        return (on_link(A, lanes, 16), on_link(B, 8, 16))

    assert health.probes(probe(), measured(7), 0.0)
    (verdict,) = [verdict for verdict in health.verdicts() if not verdict.healthy]
    assert verdict.card == A
    assert "7 of 16 lanes" in verdict.reason
    health.probes(probe(), measured(16), 1.0)
    assert health.probes(probe(), measured(16), 2.0)
    assert health.unhealthy() == frozenset()


@pytest.mark.parametrize(("lanes", "most", "percent"), [(None, None, 50), (1, None, 50), (1, 16, 0)])
def test_an_unknown_or_unchecked_link_is_healthy(lanes: int | None, most: int | None, percent: int) -> None:
    health = tracker(min_link_percent=percent)
    assert not health.probes(probe(), (on_link(A, lanes, most),), 0.0)


def test_an_ignored_xid_is_counted_but_changes_nothing() -> None:
    health = HealthTracker(1.0, 60.0, ignore_xids=[79])
    health.know([A])
    assert not health.events([xid(79), xid(79)], 0.0)
    assert health.xids == {(A, 79): 2}
