"""Times and durations as Kubernetes and Go write them."""

import datetime


def stamp(now_s: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.datetime.fromtimestamp(now_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float | None:
    """A Kubernetes time in seconds since 1970, or None for what is not one."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def go_duration(length_s: float) -> str:
    """A length of time as Go writes it: `1h2m3s`."""
    rest = max(0, round(length_s))
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"
