"""Waiting for what happens in another process, which sends no signal when it does."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
_PAUSE_S = 0.01


def until(question: Callable[[], T], wanted: Callable[[T], bool] = bool, timeout_s: float = PATIENCE_S) -> T:
    """Repeat the question until the answer is the wanted one."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = question()
        if wanted(found):
            return found
        assert time.monotonic() < deadline, f"still {found!r} after {timeout_s} s"
        time.sleep(_PAUSE_S)


async def until_async(question: Callable[[], T], wanted: Callable[[T], bool] = bool) -> T:
    """The same, while the loop's other tasks go on."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = question()
        if wanted(found):
            return found
        assert time.monotonic() < deadline, f"still {found!r} after {PATIENCE_S} s"
        await asyncio.sleep(_PAUSE_S)
