"""Cron expressions as in Volcano's CronJobs, and the times that they describe.

Five fields: minute, hour, day of month, month, day of week (0 is Sunday). Each takes `*` or `?`, numbers, ranges, lists
and steps (`N/S` means from N on); months and days have English names of three letters. If both day fields are
restricted, either of them is enough; a step is a restriction, so `*/2` is one. Or a word: `@daily` and the like,
`@every 1h30m`.

A schedule is a set of minutes, and an instant is in it if the wall clock of the time zone shows one of them. So a time
that the clock skips in spring does not occur, and one that it shows twice in autumn occurs twice. No package on PyPI
has this grammar with these rules (`?`, `N/S`, `@every`, the rule for days, no catching up of skipped times), and the
users' schedules rely on them.
"""

import datetime
import functools
import zoneinfo
from dataclasses import dataclass
from typing import NamedTuple

from baton.errors import BatonError
from baton.model.durations import parse_duration_s
from baton.model.numerals import whole_number

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
_HORIZON = datetime.timedelta(days=5 * 366)
"""How far ahead to search: 29 February occurs every four years, with one exception in a century."""
_LAST_YEAR = 9800
_LONGEST_EVERY_S = 100 * 366 * 86400
"""The longest @every: a century, so that no time is beyond the calendar."""
_MINUTE = datetime.timedelta(minutes=1)
_LOOK_BACK = tuple(datetime.timedelta(hours=hours) for hours in (1, 24, 24 * 32, 24 * 367))
"""The first step back when searching the last time before now; most schedules have one in the last hour."""


class CronError(BatonError):
    """The expression is invalid; the sentence names the field and the reason."""


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


@dataclass(frozen=True)
class Schedule:
    """When to act. `every` replaces the fields when it is set."""

    zone: datetime.tzinfo
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    both_days: bool
    """Whether a day must match the day of the month and the day of the week; otherwise one of the two is enough."""
    every: datetime.timedelta | None = None

    def following(self, moment: datetime.datetime) -> datetime.datetime | None:
        """The first time after a moment, in UTC; None if there is none in years or before the calendar ends."""
        if moment.year >= _LAST_YEAR:
            return None
        if self.every is not None:
            return (moment.astimezone(datetime.UTC) + self.every).replace(microsecond=0)
        at = moment.astimezone(datetime.UTC).replace(second=0, microsecond=0) + _MINUTE
        end = at + _HORIZON
        while at <= end:
            wall = at.astimezone(self.zone)
            if wall.month not in self.months:
                at = self._midnight(wall.year + wall.month // 12, wall.month % 12 + 1, 1, at)
            elif not self._fits(wall):
                tomorrow = wall.date() + datetime.timedelta(days=1)
                at = self._midnight(tomorrow.year, tomorrow.month, tomorrow.day, at)
            elif wall.hour not in self.hours:
                at += datetime.timedelta(minutes=60 - wall.minute)
            elif wall.minute not in self.minutes:
                at += _MINUTE
            else:
                return at
        return None

    def latest(self, after: datetime.datetime, until: datetime.datetime) -> datetime.datetime | None:
        """The last time in `(after, until]`."""
        if self.every is not None:
            steps = (until - after) // self.every
            return (after + steps * self.every).astimezone(datetime.UTC).replace(microsecond=0) if steps > 0 else None
        for back in (*_LOOK_BACK, until - after):
            start = max(after, until - back)
            found = None
            while (at := self.following(found or start)) is not None and at <= until:
                found = at
            if found is not None or start == after:
                return found
        return None

    def count(self, after: datetime.datetime, until: datetime.datetime, most: int) -> int:
        """How many times there are in `(after, until]`; counting ends at `most`."""
        found = 0
        at = self.following(after)
        while found < most and at is not None and at <= until:
            found += 1
            at = self.following(at)
        return found

    def _fits(self, wall: datetime.datetime) -> bool:
        by_date, by_weekday = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        return by_date and by_weekday if self.both_days else by_date or by_weekday

    def _midnight(self, year: int, month: int, day: int, now: datetime.datetime) -> datetime.datetime:
        """The first instant of a local day, always later than now. Where the clock skips midnight it is the instant
        after the gap, because a wall time in a gap is read with the offset from before it."""
        first = datetime.datetime(year, month, day, tzinfo=self.zone).astimezone(datetime.UTC)
        return max(first, now + _MINUTE)


@functools.lru_cache(maxsize=1024)
def parse(text: str, zone: datetime.tzinfo = datetime.UTC) -> Schedule:
    """Parse an expression; `CronError` says what is wrong with it."""
    words = text.strip()
    if words.startswith(_EVERY):
        seconds = parse_duration_s(words.removeprefix(_EVERY))
        if not seconds:
            raise CronError(f"{words!r} needs a duration after @every, as in @every 10m")
        if seconds > _LONGEST_EVERY_S:
            raise CronError(f"{words[:40]!r} is longer than a century")
        never: frozenset[int] = frozenset()
        every = datetime.timedelta(seconds=max(1, int(seconds)))
        return Schedule(zone, never, never, never, never, never, True, every)
    if words.startswith("@"):
        if words not in _ALIASES:
            raise CronError(f"{words!r} is unknown, expected {', '.join(_ALIASES)} or @every DURATION")
        words = _ALIASES[words]
    fields = words.split()
    if len(fields) != len(_PARTS):
        raise CronError(f"it has {len(fields)} fields, expected 5: minute, hour, day of month, month, day of week")
    minutes, hours, days, months, weekdays = (_field(field, part) for field, part in zip(fields, _PARTS, strict=True))
    return Schedule(zone, minutes, hours, days, months, weekdays, _is_any(fields[2]) or _is_any(fields[4]))


def time_zone(name: str | None) -> datetime.tzinfo:
    """The zone of a name from the IANA list; UTC for none."""
    if name is None:
        return datetime.UTC
    try:
        if not name or name.lower() == "local":
            raise ValueError
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise CronError(f"the time zone is {name!r}, expected a name such as Europe/Berlin") from None


def _is_any(field: str) -> bool:
    """Whether a field restricts nothing: it contains a star without a step."""
    for item in field.split(","):
        span, _, step = item.partition("/")
        if span in ("*", "?") and step in ("", "1"):
            return True
    return False


def _field(field: str, part: _Part) -> frozenset[int]:
    found: set[int] = set()
    for item in field.split(","):
        span, slash, step_text = item.partition("/")
        step = 1
        if slash:
            step = whole_number(step_text) or 0
            if not step:
                raise CronError(f"the step {step_text!r} of {part.name} is not a positive number")
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
        value = whole_number(word)
    if value is None or not part.least <= value <= part.most:
        shown = repr(word) if value is None else value
        raise CronError(f"{part.name} is {shown}, expected {part.least} to {part.most}")
    return value
