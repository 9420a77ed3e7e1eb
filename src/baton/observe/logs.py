"""The log of a program: structured lines, and never a reason to fail.

A line that cannot be written (a full disk, a closed pipe) is dropped: an exception in the middle of a decision would
cost more than the line is worth.
"""

import contextlib
import logging
import os
from typing import IO, TextIO, cast

import structlog


class LossyStream:
    """Writes lines to the descriptor of a stream and drops those that cannot be written.

    Not through the stream itself: its buffer would keep them, and a Python that cannot flush stderr when it exits turns
    a graceful stop into exit code 120.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            left = text.encode(errors="backslashreplace")
            while left:
                left = left[os.write(self._stream.fileno(), left) :]
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""


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
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, LossyStream(stream))),
        cache_logger_on_first_use=True,
    )
