"""Times as Kubernetes writes them (RFC 3339), and back."""

import datetime


def stamp(at_s: float, zone: datetime.tzinfo = datetime.UTC) -> str:
    """A time in whole seconds, such as `2026-01-31T12:00:00Z`, or with the offset of another zone."""
    return _written(at_s, zone, "seconds")


def micro_stamp(at_s: float) -> str:
    """A time with its microseconds, which leases and newer events have."""
    return _written(at_s, datetime.UTC, "microseconds")


def seconds(text: str | None) -> float | None:
    """A time in seconds since 1970, or None when the text is not one; without a zone it is in UTC."""
    if not text:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)).timestamp()


def _written(at_s: float, zone: datetime.tzinfo, precision: str) -> str:
    return datetime.datetime.fromtimestamp(at_s, zone).isoformat(timespec=precision).replace("+00:00", "Z")
