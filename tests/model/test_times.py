"""Times as Kubernetes writes them."""

import datetime

import pytest

from baton.model.times import micro_stamp, seconds, stamp

NOON_S = 1_780_315_200.0


def test_a_time_is_written_in_seconds_and_a_lease_in_microseconds() -> None:
    assert stamp(NOON_S + 0.9) == "2026-06-01T12:00:00Z"
    assert micro_stamp(NOON_S) == "2026-06-01T12:00:00.000000Z"
    assert micro_stamp(NOON_S + 0.25) == "2026-06-01T12:00:00.250000Z"


def test_another_zone_is_written_with_its_offset() -> None:
    assert stamp(NOON_S, datetime.timezone(datetime.timedelta(hours=2))) == "2026-06-01T14:00:00+02:00"


@pytest.mark.parametrize(
    "text",
    [
        "2026-06-01T12:00:00Z",
        "2026-06-01T12:00:00.000000Z",
        "2026-06-01T14:00:00+02:00",
        "2026-06-01T12:00:00",
    ],
)
def test_every_form_is_read_and_a_time_without_a_zone_is_in_utc(text: str) -> None:
    assert seconds(text) == NOON_S


@pytest.mark.parametrize("text", [None, "", "soon", "12:00"])
def test_text_that_is_not_a_time_has_no_seconds(text: str | None) -> None:
    assert seconds(text) is None
