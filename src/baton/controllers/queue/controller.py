"""Queues: their state, the tree they form, the counts of their PodGroups, and the Commands that open and close them.

The queues `root` and `default` are created when they are missing. A Command is deleted after it was carried out, so the
next program repeats a Command that a dying one left behind. That does no harm: commands are carried out in the order in
which they were given, and each sets the state of the queue.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import structlog

from baton.controllers.controller import Surroundings, Wake
from baton.controllers.queue.states import Verdict, judge
from baton.controllers.queue.tally import FAMILIES, GroupTally
from baton.kube.errors import ConflictError, NotFoundError
from baton.kube.informers import Scope
from baton.kube.store import Delta, Store, key_of, version_of
from baton.mapping.cluster import group_queue
from baton.model.ids import Key, QueueName
from baton.model.meta import ObjectReference
from baton.model.names import CLOSED_BY_PARENT, DEFAULT_QUEUE, ROOT_QUEUE, PodGroupPhase
from baton.model.volcano import COMMANDS, POD_GROUPS, QUEUE_KIND, QUEUES, SCHEDULING, Command, PodGroup, Queue

_LOG = structlog.get_logger("baton.controllers")

_COUNTS_EVERY_S = 1.0
"""Counts in the status of a queue are written at most this often: every write goes to all clients that watch queues,
and a burst of a thousand groups would cause thousands of writes. States are written at once."""
_ROOT_LOOK_S = 0.2

_MADE_AT_START: Mapping[str, Mapping[str, Any]] = {
    ROOT_QUEUE: {"weight": 1, "reclaimable": False},
    DEFAULT_QUEUE: {"weight": 1, "reclaimable": True, "parent": ROOT_QUEUE},
}


class QueueController:
    """Keys are names of queues."""

    name = "queue"

    def __init__(self, surroundings: Surroundings) -> None:
        self._client = surroundings.client
        self._recorder = surroundings.recorder
        self._tally = GroupTally()
        surroundings.metrics.read(FAMILIES, self._tally.rows)
        self._queues: Store[Queue]
        self._commands: Store[Command]
        self._done: set[str] = set()
        """Uids of commands that were carried out and whose deletion the watch has not shown yet."""
        self._counted_at: dict[str, float] = {}

    def watch(self, scope: Scope, wake: Wake) -> None:
        self._queues = scope.store(QUEUES, {"parent": _parent_index})
        self._commands = scope.store(COMMANDS, {"queue": _target_index})

        def queue_changed(delta: Delta[Queue]) -> None:
            wake(delta.key)
            if delta.new is None or delta.old is None or delta.new.status.state != delta.old.status.state:
                for child in self._queues.by_index("parent", delta.key):
                    wake(Key(child.metadata.name))

        def group_changed(delta: Delta[PodGroup]) -> None:
            for group in (delta.old, delta.new):
                if group is not None:
                    wake(Key(group_queue(group)))

        def command_changed(delta: Delta[Command]) -> None:
            if delta.new is not None:
                for name in _target_index(delta.new):
                    wake(Key(name))
            elif delta.old is not None:
                self._done.discard(delta.old.metadata.uid)

        groups = scope.store(POD_GROUPS)
        groups.subscribe(self._tally.follow)
        groups.subscribe(group_changed)
        self._queues.subscribe(queue_changed)
        self._commands.subscribe(command_changed)
        for name in _MADE_AT_START:
            wake(Key(name))

    async def sync(self, key: Key) -> float | None:
        queue = self._queues.get(key)
        commands = self._orders(key)
        if queue is None and commands:
            # The watch may have shown the command before its queue.
            queue = await self._find(key)
        if queue is None:
            self._counted_at.pop(key, None)
            await self._finish(commands)
            return await self._make(key)
        if queue.metadata.deletion_timestamp:
            return None
        parent_name = "" if QueueName(key) == ROOT_QUEUE else queue.spec.parent or ROOT_QUEUE
        parent = self._queues.get(Key(parent_name)) if parent_name else None
        current = [command for command in commands if _meant_for(command, queue)]
        verdict = judge(queue, parent, self._tally.groups(key), current)
        if parent_name and not queue.spec.parent:
            await self._client.patch(QUEUES, key, {"spec": {"parent": parent_name}})
        # In this order, because the program may die in between: a closed queue without the mark would stay closed for
        # good, while an open one with the mark is corrected by the next sync.
        if verdict.closed_by_parent:
            await self._mark(queue, verdict)
            again_s = await self._write_status(queue, verdict.state)
        else:
            again_s = await self._write_status(queue, verdict.state)
            await self._mark(queue, verdict)
        about = ObjectReference(kind=QUEUE_KIND, name=key, uid=queue.metadata.uid, api_version=SCHEDULING)
        self._recorder.record_all(about, verdict.events)
        await self._finish(commands)
        return again_s

    def _orders(self, name: str) -> list[Command]:
        """The commands for a queue that are not carried out yet, in the order in which they were given."""
        waiting = [one for one in self._commands.by_index("queue", name) if one.metadata.uid not in self._done]
        return sorted(waiting, key=_given)

    async def _find(self, name: str) -> Queue | None:
        try:
            return await self._client.get(QUEUES, name)
        except NotFoundError:
            return None

    async def _make(self, name: str) -> float | None:
        """Create the queues that every cluster has. The scheduler does the same; the first one wins."""
        spec = _MADE_AT_START.get(name)
        if spec is None:
            return None
        if name != ROOT_QUEUE and self._queues.get(Key(ROOT_QUEUE)) is None:
            return _ROOT_LOOK_S
        try:
            await self._client.create(QUEUES, {**_TYPE, "metadata": {"name": name}, "spec": spec})
        except ConflictError:
            return None
        _LOG.info("queue created", queue=name)
        return None

    async def _mark(self, queue: Queue, verdict: Verdict) -> None:
        """Record on the queue whether it was closed with its parent."""
        if verdict.closed_by_parent != (queue.metadata.annotations.get(CLOSED_BY_PARENT) == "true"):
            mark = {CLOSED_BY_PARENT: str(verdict.closed_by_parent).lower()}
            await self._client.patch(QUEUES, queue.metadata.name, {"metadata": {"annotations": mark}})

    async def _write_status(self, queue: Queue, state: str) -> float | None:
        """Write the changed fields. Returns the delay of counts that have to wait."""
        name = queue.metadata.name
        counts = self._tally.counts(name)
        change: dict[str, Any] = {
            phase.lower(): counts[phase]
            for phase in PodGroupPhase
            if counts[phase] != getattr(queue.status, phase.lower())
        }
        now = asyncio.get_running_loop().time()
        left_s = self._counted_at.get(name, -_COUNTS_EVERY_S) + _COUNTS_EVERY_S - now
        wait_s: float | None = None
        if change and left_s > 0:
            change, wait_s = {}, left_s
        elif change:
            self._counted_at[name] = now
        if state != queue.status.state:
            change["state"] = state
        if change:
            await self._client.patch(QUEUES, name, {"status": change}, subresource="status")
        return wait_s

    async def _finish(self, commands: list[Command]) -> None:
        for command in commands:
            metadata = command.metadata
            # Another client may have deleted it, or created another one of that name. A command that cannot be deleted
            # is not done: the next process would carry it out after newer ones.
            with contextlib.suppress(NotFoundError, ConflictError):
                await self._client.delete(
                    COMMANDS, metadata.name, metadata.namespace, options={"preconditions": {"uid": metadata.uid}}
                )
            shown = self._commands.get(key_of(command))
            if shown is not None and shown.metadata.uid == metadata.uid:
                self._done.add(metadata.uid)


_TYPE = {"apiVersion": SCHEDULING, "kind": QUEUE_KIND}


def _parent_index(queue: Queue) -> list[str]:
    if queue.metadata.name == ROOT_QUEUE:
        return []
    return [queue.spec.parent or ROOT_QUEUE]


def _target_index(command: Command) -> list[str]:
    target = command.target
    if target is None or target.kind != QUEUE_KIND or not target.api_version.startswith("scheduling.volcano.sh/"):
        return []
    return [target.name]


def _meant_for(command: Command, queue: Queue) -> bool:
    """Whether the command is for this queue, and not for an earlier one of the same name."""
    return command.target is not None and command.target.uid in ("", queue.metadata.uid)


def _given(command: Command) -> tuple[str, int]:
    """When it was given: by seconds first, then by the order of the API server."""
    return command.metadata.creation_timestamp, version_of(command)
