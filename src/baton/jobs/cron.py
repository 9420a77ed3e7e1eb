"""Cron expressions: five fields, or `@daily` and the like, as Volcano's CronJobs write them.

Fields are minute, hour, day of month, month, day of week (0 is Sunday). Each takes `*`, numbers, ranges, lists and
steps; months and days have English names of three letters. When both days are restricted, either of them is enough.
"""

import datetime
from typing import NamedTuple

from baton.engine.durations import parse_duration_s
from baton.errors import BatonError

_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: place for place, name in enumerate(_MONTH_NAMES, start=1)}
_DAYS = {name: place for place, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
_YEARS = 5
"""How far ahead a time is looked for: 29 February comes every four years, with one exception in a century."""


class CronError(BatonError):
    """The expression is wrong; the sentence says which field and why."""


class _Part(NamedTuple):
    name: str
    least: int
    most: int
    words: dict[str, int]


_PARTS = (
    _Part("minute", 0, 59, {}),
    _Part("hour", 0, 23, {}),
    _Part("day of month", 1, 31, {}),
    _Part("month", 1, 12, _MONTHS),
    _Part("day of week", 0, 6, _DAYS),
)


class Schedule(NamedTuple):
    """When to act; `every_s` replaces the fields when it is set."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool
    every_s: float = 0.0

    def following(self, moment: datetime.datetime) -> datetime.datetime | None:
        """The first time after a moment, in the moment's own zone; None when there is none in years."""
        if self.every_s:
            return (moment + datetime.timedelta(seconds=self.every_s)).replace(microsecond=0)
        day = moment.date()
        for _ in range(_YEARS * 366):
            if self._fits(day):
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        time = datetime.time(hour, minute, tzinfo=moment.tzinfo)
                        found = datetime.datetime.combine(day, time)
                        # A time that the clock skips in spring does not come back from UTC as it went.
                        real = found.astimezone(datetime.UTC).astimezone(moment.tzinfo)
                        if real == found and real.time() == found.time() and found > moment:
                            return found
            day += datetime.timedelta(days=1)
        return None

    def _fits(self, day: datetime.date) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date and by_weekday if self.any_day or self.any_weekday else by_date or by_weekday


def parse(text: str) -> Schedule:
    """Read an expression; `CronError` says what is wrong with it."""
    words = text.strip()
    if words.startswith(_EVERY):
        seconds = parse_duration_s(words.removeprefix(_EVERY))
        if not seconds:
            raise CronError(f"{words!r} needs a duration after @every, as in @every 10m")
        never: frozenset[int] = frozenset()
        return Schedule(never, never, never, never, never, True, True, max(1.0, float(int(seconds))))
    if words.startswith("@"):
        if words not in _ALIASES:
            raise CronError(f"{words!r} is not known; there are {', '.join(_ALIASES)} and @every DURATION")
        words = _ALIASES[words]
    fields = words.split()
    if len(fields) != len(_PARTS):
        raise CronError(f"it has {len(fields)} fields, expected 5: minute, hour, day of month, month, day of week")
    minutes, hours, days, months, weekdays = (_field(field, part) for field, part in zip(fields, _PARTS, strict=True))
    return Schedule(minutes, hours, days, months, weekdays, _is_any(fields[2]), _is_any(fields[4]))


def _is_any(field: str) -> bool:
    return any(item.split("/")[0] in ("*", "?") for item in field.split(","))


def _field(field: str, part: _Part) -> frozenset[int]:
    found: set[int] = set()
    for item in field.split(","):
        span, slash, step_text = item.partition("/")
        step = 1
        if slash:
            if not step_text.isdigit() or int(step_text) == 0:
                raise CronError(f"the step {step_text!r} of {part.name} is not a positive number")
            step = int(step_text)
        if span in ("*", "?"):
            first, last = part.least, part.most
        else:
            first_text, dash, last_text = span.partition("-")
            first = _number(first_text, part)
            last = _number(last_text, part) if dash else part.most if slash else first
        if first > last:
            raise CronError(f"the range {span!r} of {part.name} ends before it begins")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(word: str, part: _Part) -> int:
    value = part.words.get(word.lower())
    if value is None:
        if not word.isascii() or not word.isdigit():
            raise CronError(f"{part.name} is {word!r}, expected {part.least} to {part.most}")
        value = int(word)
    if not part.least <= value <= part.most:
        raise CronError(f"{part.name} is {value}, expected {part.least} to {part.most}")
    return value
