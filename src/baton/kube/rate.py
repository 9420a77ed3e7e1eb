"""The rate of requests of a program, and the order of waiting requests."""

import asyncio
from collections import deque

_PATIENT_SHARE = 8
"""While both kinds wait, one in this many departures is a patient one, so that none waits endlessly."""
_WHOLE = 1 - 1e-9
"""One token, within the rounding errors of summed times."""


class RateLimit:
    """A token bucket: `qps` requests a second on average, `burst` at once. Zero qps means no limit.

    First come, first served, except that patient requests let others pass: status updates can wait for bindings.
    """

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at: float | None = None
        self._eager: deque[asyncio.Future[None]] = deque()
        self._patient: deque[asyncio.Future[None]] = deque()
        self._passed = 0
        """Requests that have gone since the last patient one."""
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, *, patient: bool = False) -> None:
        """Take a token, or wait in turn for one."""
        if self._qps <= 0:
            return
        loop = asyncio.get_running_loop()
        self._fill(loop.time())
        if self._tokens >= _WHOLE and not self._eager and not self._patient:
            self._tokens -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        (self._patient if patient else self._eager).append(turn)
        self._set_timer(loop)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._tokens += 1  # it got its turn but does not use it
            raise

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._qps)
        self._filled_at = now

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(max(0.0, 1 - self._tokens) / self._qps, self._depart, loop)

    def _depart(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._fill(loop.time())
        while self._tokens >= _WHOLE and (turn := self._next()) is not None:
            self._tokens -= 1
            turn.set_result(None)
        if self._eager or self._patient:
            self._set_timer(loop)

    def _next(self) -> asyncio.Future[None] | None:
        """The next waiter; cancelled ones have left the line."""
        for line in (self._eager, self._patient):
            while line and line[0].done():
                line.popleft()
        if self._patient and (not self._eager or self._passed >= _PATIENT_SHARE - 1):
            self._passed = 0
            return self._patient.popleft()
        if self._eager:
            self._passed += 1
            return self._eager.popleft()
        return None
