"""Cron expressions: the wall-clock times that they mean, and the errors of invalid ones."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.model.cron import CronError, Schedule, parse, time_zone

UTC = datetime.UTC
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Asia/Beirut")


def wall(text: str, zone: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=time_zone(zone))


def series(expression: str, zone: str, start: str, count: int) -> list[str]:
    """The next times as the clock on the wall shows them."""
    schedule, found = parse(expression, time_zone(zone)), []
    moment = wall(start, zone)
    for _ in range(count):
        following = schedule.following(moment)
        assert following is not None
        moment = following
        found.append(moment.astimezone(time_zone(zone)).strftime("%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("expression", "times"),
    [
        ("*/20 * * * *", ["01-01 10:20", "01-01 10:40", "01-01 11:00"]),
        ("5/25 10 * * *", ["01-01 10:05", "01-01 10:30", "01-01 10:55"]),
        ("0 9-17/4 * * *", ["01-01 13:00", "01-01 17:00", "01-02 09:00"]),
        ("0 0 29 FEB ?", ["02-29 00:00"]),
        ("0 0 * * mon,3", ["01-03 00:00", "01-08 00:00", "01-10 00:00"]),
        ("0 0 10 * fri", ["01-05 00:00", "01-10 00:00", "01-12 00:00"]),
        ("0 0 */10 * fri", ["01-05 00:00", "01-11 00:00", "01-12 00:00"]),
        ("0 0 */1 * fri", ["01-05 00:00", "01-12 00:00", "01-19 00:00"]),
        ("@monthly", ["02-01 00:00", "03-01 00:00"]),
        ("@every 90m", ["01-01 11:30", "01-01 13:00"]),
    ],
)
def test_expressions_stand_for_these_times(expression: str, times: list[str]) -> None:
    assert series(expression, "UTC", "2024-01-01T10:00", len(times)) == times


def test_a_time_that_the_clock_skips_does_not_come() -> None:
    assert series("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", 3) == ["03-28 02:30", "03-30 02:30", "03-31 02:30"]


def test_a_time_that_the_clock_shows_twice_comes_twice() -> None:
    assert series("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 3) == ["10-25 02:30", "10-25 02:30", "10-26 02:30"]


def test_a_day_without_a_midnight_is_not_lost() -> None:
    assert series("0 * 29 * *", "Asia/Beirut", "2026-03-28T12:00", 2) == ["03-29 01:00", "03-29 02:00"]


def test_a_date_that_never_comes_is_never() -> None:
    assert parse("0 0 30 2 *").following(datetime.datetime(2026, 1, 1, tzinfo=UTC)) is None
    assert (
        parse("0 0 30 2 *").latest(datetime.datetime(2020, 1, 1, tzinfo=UTC), datetime.datetime(2026, 1, 1, tzinfo=UTC))
        is None
    )


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("* * * *", "it has 4 fields, expected 5: minute, hour, day of month, month, day of week"),
        ("61 * * * *", "minute is 61, expected 0 to 59"),
        ("* * * * 7", "day of week is 7, expected 0 to 6"),
        ("* * * foo *", "month is 'foo', expected 1 to 12"),
        (f"{'1' * 5000} * * * *", f"minute is '{'1' * 5000}', expected 0 to 59"),
        ("*/² * * * *", "the step '²' of minute is not a positive number"),
        (f"*/{'1' * 5000} * * * *", f"the step '{'1' * 5000}' of minute is not a positive number"),
        ("*/0 * * * *", "the step '0' of minute is not a positive number"),
        ("30-10 * * * *", "the range '30-10' of minute ends before it begins"),
        ("@sometimes", "'@sometimes' is unknown, expected @yearly"),
        ("@every fortnight", "'@every fortnight' needs a duration after @every"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(expression: str, sentence: str) -> None:
    with pytest.raises(CronError) as refused:
        parse(expression)
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("name", ["", "Local", "Mars/Base", "../etc/passwd"])
def test_a_zone_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(CronError, match="the time zone is"):
        time_zone(name)


fields = st.tuples(
    st.sampled_from(["*", "0", "*/7", "30", "10-40/15", "5,45"]),
    st.sampled_from(["*", "0", "2", "*/3", "1-3"]),
    st.sampled_from(["*", "1", "29", "*/2", "25-31"]),
    st.sampled_from(["*", "3", "10", "3,10", "*/2"]),
    st.sampled_from(["*", "0", "mon-fri", "*/2"]),
).map(" ".join)
# Days on which clocks are changed somewhere, and the days around them.
moments = st.sampled_from(["2026-03-28", "2026-03-29", "2026-10-24", "2026-10-25", "2026-04-04", "2026-10-03"]).flatmap(
    lambda day: st.integers(0, 2 * 1440).map(
        lambda minute: datetime.datetime.fromisoformat(f"{day}T00:00:00+00:00") + datetime.timedelta(minutes=minute)
    )
)


def is_in(schedule: Schedule, expression: str, moment: datetime.datetime) -> bool:
    """By definition, and with nothing of the code under test but its reading of single fields."""
    shown = moment.astimezone(schedule.zone)
    day_field, weekday_field = expression.split()[2], expression.split()[4]
    by_day, by_weekday = shown.day in schedule.days, shown.isoweekday() % 7 in schedule.weekdays
    right_day = by_day and by_weekday if "*" in (day_field, weekday_field) else by_day or by_weekday
    return (
        shown.minute in schedule.minutes
        and shown.hour in schedule.hours
        and shown.month in schedule.months
        and right_day
    )


@given(fields, st.sampled_from(ZONES), moments)
def test_the_next_time_is_the_first_minute_that_the_wall_clock_shows(
    expression: str, zone: str, moment: datetime.datetime
) -> None:
    schedule = parse(expression, time_zone(zone))
    following = schedule.following(moment)
    assert following is None or is_in(schedule, expression, following)
    end = min(following or moment + datetime.timedelta(days=3), moment + datetime.timedelta(days=3))
    minute = moment + datetime.timedelta(minutes=1)
    while minute < end:
        assert not is_in(schedule, expression, minute)
        minute += datetime.timedelta(minutes=1)


@given(fields, st.sampled_from(ZONES), moments, st.integers(0, 5000))
def test_the_last_time_is_where_looking_forward_ends(
    expression: str, zone: str, moment: datetime.datetime, minutes: int
) -> None:
    schedule, until = parse(expression, time_zone(zone)), moment + datetime.timedelta(minutes=minutes)
    found, last = 0, None
    at = schedule.following(moment)
    while at is not None and at <= until:
        found, last = found + 1, at
        at = schedule.following(at)
    assert schedule.latest(moment, until) == last
    assert schedule.count(moment, until, 50) == min(found, 50)


@pytest.mark.parametrize("hours", ["2600000", "100000000000000", "9" * 400])
def test_a_period_of_more_than_a_century_is_refused_with_a_sentence(hours: str) -> None:
    with pytest.raises(CronError, match="longer than"):
        parse(f"@every {hours}h")
