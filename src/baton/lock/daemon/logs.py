"""The daemon's log: structured lines, and never a reason to fail.

A log that cannot be written (a full disk, a reader that went away) is lost; raising from inside a decision would cost
more than the line was worth.
"""

import contextlib
import logging
from typing import IO, TextIO, cast

import structlog


class Unfailing:
    """A text stream whose writes never raise."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def set_up(stream: IO[str], *, as_json: bool = False, verbose: bool = False) -> None:
    """Send the log of this process to a stream."""
    renderer: structlog.typing.Processor
    renderer = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, Unfailing(stream))),
        cache_logger_on_first_use=True,
    )
