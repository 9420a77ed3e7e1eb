"""The status of Queues: what their pods use, and their credit, which lets the job controller create pods without
asking.

Writes are level-triggered and rate-limited, except for the end of a credit, which is written at once. A credit names
the newest PodGroup that it includes; the job controller itself counts newer ones. So the scheduler writes a credit
again when it includes new PodGroups or when its amount has changed a lot, not whenever a pod starts or ends.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from baton.engine.engine import Engine
from baton.kube.client import Client
from baton.kube.errors import NotFoundError
from baton.kube.queue import WorkQueue
from baton.kube.store import Delta
from baton.mapping.cluster import group_queue
from baton.model import volcano
from baton.model.ids import Key, QueueName
from baton.model.names import QueueState
from baton.model.quantities import Amounts, amounts, text_of
from baton.scheduler.feed.feed import Feed
from baton.scheduler.settings import Settings

_OTHER = 0.25
"""A credit is written again if it differs from the last one by more than this fraction."""


class QueueStatuses:
    """The writer of `status` of Queues."""

    def __init__(
        self, client: Client, feed: Feed, engine: Engine, settings: Settings, now_s: Callable[[], float]
    ) -> None:
        self._client = client
        self._feed = feed
        self._engine = engine
        self._settings = settings
        self._now_s = now_s
        self._names: WorkQueue[QueueName] = WorkQueue()
        self._known = ""
        """The newest PodGroup that the engine knows."""
        self._stale = False
        """Whether the engine has taken in events since credits were computed."""
        self._as_of = ""
        self._credits: dict[QueueName, Amounts] = {}
        self._arrived: set[QueueName] = set()
        """Queues with PodGroups that the engine does not know yet."""
        self._counted: set[QueueName] = set()
        """Queues with PodGroups that the engine has learned of since their credit was last written."""
        feed.groups.subscribe(self._group_changed)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._names.run(self._write))
                group.create_task(self._for_ever())
        finally:
            self._names.close()

    def looked(self, known: str, *, refused: bool) -> None:
        """Note after a cycle which PodGroups the engine knows, and whether any was not admitted."""
        self._known = known
        self._counted |= self._arrived
        self._arrived.clear()
        self._stale = not refused
        if refused and self._credits:
            self._credits = {}
            self._add_all()

    def _group_changed(self, delta: Delta[volcano.PodGroup]) -> None:
        if delta.old is None and delta.new is not None:
            self._arrived.add(group_queue(delta.new))

    async def _for_ever(self) -> None:
        while True:
            if self._stale:
                self._stale = False
                self._as_of, self._credits = self._known, self._engine.credits(self._now_s())
            self._add_all()
            await asyncio.sleep(self._settings.status_pause_s)

    def _add_all(self) -> None:
        for queue in self._feed.queues:
            self._names.add(QueueName(queue.metadata.name))

    async def _write(self, name: QueueName) -> None:
        queue = self._feed.queues.get(Key(name))
        share = self._engine.state.queues.get(name)
        if queue is None or share is None:
            return
        change: dict[str, Any] = {}
        allocated = _texts(self._engine.state.resources.amounts(share.allocated))
        if _differ(queue.status.allocated, allocated):
            change["allocated"] = _replaced(queue.status.allocated, allocated)
        if not queue.status.state:
            change["state"] = (
                QueueState.OPEN.value
            )  # a queue that has not been closed is open, also without a controller
        change |= self._credit(name, queue.status.credit, with_others=bool(change))
        if not change:
            return
        try:
            await self._client.patch(volcano.QUEUES, name, {"status": change}, subresource="status")
        except NotFoundError:
            return
        if "credit" in change:
            self._counted.discard(name)

    def _credit(self, name: QueueName, said: volcano.QueueCredit, *, with_others: bool) -> dict[str, Any]:
        """The change of the credit, if it is worth a write or is part of a write that happens anyway."""
        credit = self._credits.get(name, ())
        if not credit:
            return {"credit": None} if said.amounts else {}
        if said.as_of == self._as_of and amounts(said.amounts) == tuple(sorted(credit)):
            return {}
        if not (with_others or name in self._counted or _is_other(said.amounts, credit)):
            return {}
        return {"credit": {"asOf": self._as_of, "amounts": _replaced(said.amounts, _texts(credit))}}


def _texts(found: Amounts) -> dict[str, str]:
    return {resource: text_of(resource, amount) for resource, amount in sorted(found)}


def _differ(have: volcano.Quantities, wanted: dict[str, str]) -> bool:
    return {name: str(value) for name, value in have.items()} != wanted


def _replaced(have: volcano.Quantities, wanted: dict[str, str]) -> dict[str, str | None]:
    """A merge patch that leaves nothing but `wanted`."""
    return {**wanted, **dict.fromkeys(have.keys() - wanted.keys())}


def _is_other(said: volcano.Quantities, credit: Amounts) -> bool:
    before, now = dict(amounts(said)), dict(credit)
    if before.keys() != now.keys():
        return True
    return any(abs(now[name] - before[name]) > _OTHER * before[name] for name in now)
