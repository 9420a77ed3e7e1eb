"""Cron expressions: what they mean, and what is wrong with those that mean nothing."""

import datetime
import zoneinfo

import pytest

from baton.jobs.cron import CronError, parse

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def times(text: str, start: str, count: int, zone: datetime.tzinfo = datetime.UTC) -> list[str]:
    schedule = parse(text)
    moment = datetime.datetime.fromisoformat(start).replace(tzinfo=zone)
    found = []
    for _ in range(count):
        following = schedule.following(moment)
        assert following is not None
        moment = following
        found.append(moment.strftime("%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/20 * * * *", ["01-01 00:20", "01-01 00:40", "01-01 01:00"]),
        ("5 4 * * *", ["01-01 04:05", "01-02 04:05", "01-03 04:05"]),
        ("0 0 * * MON-WED", ["01-05 00:00", "01-06 00:00", "01-07 00:00"]),
        ("0 0 13 * 5", ["01-02 00:00", "01-09 00:00", "01-13 00:00"]),
        ("0 0 31 * *", ["01-31 00:00", "03-31 00:00", "05-31 00:00"]),
        ("0 12 1 feb,aug ?", ["02-01 12:00", "08-01 12:00", "02-01 12:00"]),
        ("10-40/15 3 * * 0", ["01-04 03:10", "01-04 03:25", "01-04 03:40"]),
        ("@hourly", ["01-01 01:00", "01-01 02:00", "01-01 03:00"]),
        ("@weekly", ["01-04 00:00", "01-11 00:00", "01-18 00:00"]),
        ("@every 90m", ["01-01 01:30", "01-01 03:00", "01-01 04:30"]),
    ],
)
def test_the_times_that_follow(text: str, expected: list[str]) -> None:
    assert times(text, "2026-01-01T00:00", 3) == expected


def test_a_time_that_the_clock_skips_does_not_come_and_one_that_it_repeats_comes_once() -> None:
    assert times("30 2 * * *", "2026-03-28T12:00", 2, BERLIN) == ["03-30 02:30", "03-31 02:30"]
    assert times("30 2 * * *", "2026-10-24T12:00", 2, BERLIN) == ["10-25 02:30", "10-26 02:30"]


def test_a_day_that_never_comes_is_none() -> None:
    assert parse("0 0 30 2 *").following(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("* * * *", "has 4 fields, expected 5"),
        ("60 * * * *", "minute is 60, expected 0 to 59"),
        ("* * * * 7", "day of week is 7, expected 0 to 6"),
        ("* * 0 * *", "day of month is 0, expected 1 to 31"),
        ("*/0 * * * *", "step '0' of minute"),
        ("5-1 * * * *", "range '5-1' of minute ends before it begins"),
        ("a * * * *", "minute is 'a'"),
        ("@nightly", "'@nightly' is not known; there are @yearly"),
        ("@every soon", "needs a duration"),
    ],
)
def test_a_wrong_expression_says_which_field(text: str, complaint: str) -> None:
    with pytest.raises(CronError, match=complaint):
        parse(text)
