"""Durations as Go writes them, ages as kubectl shows them, and hours of the day as Volcano's configuration does."""

import re

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})$")


def parse_duration_s(text: str) -> float | None:
    """`1h30m` and the like, or None when it is not one."""
    text = text.strip()
    if not text or _PART.sub("", text):
        return None
    return sum(float(amount) * _UNITS_S[unit] for amount, unit in _PART.findall(text))


def duration_text(length_s: float) -> str:
    """`1h2m3s` and the like, in whole seconds."""
    rest = max(0, round(length_s))
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"


def age_text(length_s: float) -> str:
    """A length of time in the few letters that `kubectl get` uses: `45s`, `5m30s`, `3d`."""
    passed = int(length_s)
    if passed < -1:
        return "<invalid>"
    passed = max(passed, 0)
    minutes, hours, days = passed // 60, passed // 3600, passed // 86400
    if passed < 120:
        return f"{passed}s"
    if minutes < 10:
        return _two(minutes, "m", passed % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def parse_window_s(text: str) -> tuple[int, int] | None:
    """`10:00-21:00` as seconds of the day; an end before the start is on the next day."""
    start_text, dash, end_text = text.partition("-")
    start, end = _clock_s(start_text.strip()), _clock_s(end_text.strip())
    if not dash or start is None or end is None:
        return None
    return start, end


def in_window(window_s: tuple[int, int], second_of_day: float) -> bool:
    start, end = window_s
    if start <= end:
        return start <= second_of_day < end
    return second_of_day >= start or second_of_day < end


def _clock_s(text: str) -> int | None:
    match = _CLOCK.match(text)
    if match is None or int(match[1]) > 24 or int(match[2]) > 59:
        return None
    return int(match[1]) * 3600 + int(match[2]) * 60


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
