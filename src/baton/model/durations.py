"""Durations and hours of the day as Volcano's configuration writes them."""

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
