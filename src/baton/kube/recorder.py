"""Events where a user looks for them: `kubectl describe`.

Recording never waits and never fails: events go through a bounded queue, and events that cannot be written are counted.
A repeated event (same object, reason and message) raises the count of the first one instead of creating a new object.
Many different messages with one reason about one object are folded into one, so that an event storm stays readable.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from baton.errors import BatonError
from baton.kube.client import Client
from baton.kube.errors import NotFoundError
from baton.model import times
from baton.model.meta import EVENTS, ObjectEvent, ObjectReference

_LOG = structlog.get_logger("baton.kube")

_WAITING = 2000
_REMEMBERED = 4096
_FOLD_AFTER = 10
_FOLD_WINDOW_S = 600.0
_LAST_WORDS_S = 2.0


class _Known(NamedTuple):
    name: str
    times: int


@dataclass
class _Crowd:
    """Different messages with one reason about one object."""

    since: float
    messages: set[str] = field(default_factory=set)
    folded: str = ""


class Recorder:
    """Writes events in the background while `run()` runs."""

    def __init__(
        self,
        client: Client,
        component: str,
        host: str = "",
        *,
        waiting: int = _WAITING,
        turn: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`turn` is awaited before each write, so that a caller with more urgent requests can delay events."""
        self._client = client
        self._turn = turn
        self._component = component
        self._host = host
        self._queue: asyncio.Queue[tuple[ObjectReference, str, str, str]] = asyncio.Queue(waiting)
        self._known: dict[tuple[str, str, str, str], _Known] = {}
        self._crowds: dict[tuple[str, str, str], _Crowd] = {}
        self.dropped = 0
        """Events that were not written because the queue was full or the API server refused them."""

    def record(self, about: ObjectReference, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event about an object."""
        kind = "Warning" if warning else "Normal"
        try:
            self._queue.put_nowait((about, reason, self._folded(about, reason, message), kind))
        except asyncio.QueueFull:
            self.dropped += 1

    def record_all(self, about: ObjectReference, events: Iterable[ObjectEvent]) -> None:
        for event in events:
            self.record(about, event.reason, event.message, warning=event.warning)

    async def run(self) -> None:
        """Write until cancelled, then try briefly to write the events that still wait."""
        try:
            while True:
                said = await self._queue.get()
                try:
                    if self._turn is not None:
                        await self._turn()
                    await self._write(*said)
                finally:
                    self._queue.task_done()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    while not self._queue.empty():
                        await self._write(*self._queue.get_nowait())
                        self._queue.task_done()

    async def flush(self) -> None:
        """Wait until all events so far are written or given up."""
        await self._queue.join()

    def _folded(self, about: ObjectReference, reason: str, message: str) -> str:
        """The message, or a collective one after too many different messages."""
        key = (about.uid, about.name, reason)
        now = time.monotonic()
        crowd = self._crowds.get(key)
        if crowd is None or now - crowd.since > _FOLD_WINDOW_S:
            crowd = self._crowds[key] = _Crowd(now)
            _forget_oldest(self._crowds)
        if message in crowd.messages:
            return message
        if len(crowd.messages) < _FOLD_AFTER:
            crowd.messages.add(message)
            return message
        crowd.folded = crowd.folded or f"many of this kind, such as: {message}"
        return crowd.folded

    async def _write(self, about: ObjectReference, reason: str, message: str, kind: str) -> None:
        key = (about.uid, reason, message, kind)
        now = times.stamp(time.time())
        namespace = about.namespace or "default"
        known = self._known.pop(key, None)
        try:
            if known is not None:
                change = {"count": known.times + 1, "lastTimestamp": now}
                try:
                    await self._client.patch(EVENTS, known.name, change, namespace)
                    self._known[key] = known._replace(times=known.times + 1)
                    return
                except NotFoundError:
                    pass  # the API server deletes events after an hour; record it again
            name = f"{about.name or self._component}.{secrets.token_hex(8)}"
            await self._client.create(EVENTS, self._body(about, name, namespace, reason, message, kind, now), namespace)
            self._known[key] = _Known(name, 1)
            _forget_oldest(self._known)
        except BatonError as error:
            self.dropped += 1
            _LOG.debug("event not written", about=about.name, reason=reason, error=str(error))

    def _body(
        self, about: ObjectReference, name: str, namespace: str, reason: str, message: str, kind: str, now: str
    ) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about,
            "reason": reason,
            "message": message[:1024],
            "type": kind,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component, "host": self._host},
        }


def _forget_oldest(table: dict[Any, Any]) -> None:
    if len(table) > _REMEMBERED:
        del table[next(iter(table))]
