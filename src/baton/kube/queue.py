"""A work queue of keys: one worker at a time processes a key, and a key waits once however often it is added.

A key that is added during its processing is processed again afterwards, so no change is lost. A key whose processing
failed returns after a pause that doubles with each failure in a row.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from baton.errors import BatonError

_LOG = structlog.get_logger("baton.kube")

_DOUBLINGS = 30
"""The largest exponent that matters; endless failures would otherwise overflow a float."""

K = TypeVar("K", bound=Hashable)


def doubled(first_s: float, times: int, longest_s: float) -> float:
    """The pause after a number of earlier failures."""
    return min(longest_s, first_s * 2.0 ** min(times, _DOUBLINGS))


class WorkQueue(Generic[K]):
    """Keys to be processed, first come first served."""

    def __init__(self, *, first_pause_s: float = 0.05, longest_pause_s: float = 60.0) -> None:
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._ready: dict[K, None] = {}
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._waiters: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: K) -> None:
        """Process the key soon."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._wake()

    def add_after(self, key: K, delay_s: float) -> None:
        """Process the key in `delay_s`, or earlier if it is added meanwhile; of two delays the shorter counts."""
        if key in self._ready:
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + delay_s:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(delay_s, self.add, key)

    async def run(self, work: Callable[[K], Awaitable[None]], *, workers: int = 1) -> None:
        """Process keys until cancelled; an exception of `work` is logged, and the key returns later."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._serve(work))

    def close(self) -> None:
        """Forget all delayed keys."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def _serve(self, work: Callable[[K], Awaitable[None]]) -> None:
        while True:
            key = await self._take()
            try:
                await work(key)
            except Exception as error:  # one bad object must not block all others
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                pause_s = doubled(self._first_pause_s, failures - 1, self._longest_pause_s)
                said = str(error) or type(error).__name__
                if isinstance(error, BatonError | TimeoutError):
                    _LOG.warning("work failed", key=str(key), error=said, pause_s=pause_s)
                else:
                    _LOG.exception("internal error; the key will be retried", key=str(key), pause_s=pause_s)
                self._done(key)
                self.add_after(key, pause_s)
            else:
                self._failures.pop(key, None)
                self._done(key)

    async def _take(self) -> K:
        while not self._ready:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        key = next(iter(self._ready))
        del self._ready[key]
        self._working.add(key)
        return key

    def _done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return
