"""The status of hyper nodes: how many nodes they contain, and which members were left out.

A hyper node is written by hand or by a program that knows the switches, and its author does not notice at once when it
names a node that does not exist. The scheduler computes the forest anyway, so it reports the result for each hyper
node: a count and, if something is wrong, a condition `Valid` and an event. It writes only differences.
"""

import asyncio
import time
from typing import Any

import msgspec

from baton.engine.engine import Engine
from baton.engine.state.hypernodes import Forest
from baton.kube.client import Client
from baton.kube.errors import NotFoundError
from baton.kube.queue import WorkQueue
from baton.kube.recorder import Recorder
from baton.model import volcano
from baton.model.ids import Key
from baton.model.meta import ObjectReference
from baton.model.times import stamp
from baton.scheduler.feed.feed import Feed
from baton.scheduler.settings import Settings

VALID = "Valid"
LEFT_OUT, COMPLETE = "MembersLeftOut", "MembersFound"


class HyperNodeStatuses:
    """The writer of HyperNode statuses."""

    def __init__(self, client: Client, feed: Feed, engine: Engine, recorder: Recorder, settings: Settings) -> None:
        self._client = client
        self._feed = feed
        self._engine = engine
        self._recorder = recorder
        self._settings = settings
        self._names: WorkQueue[str] = WorkQueue()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._names.run(self._write))
                group.create_task(self._look_for_ever())
        finally:
            self._names.close()

    async def _look_for_ever(self) -> None:
        while True:
            if len(self._feed.hyper_nodes):
                self._engine.apply(self._feed.take())
                self._engine.state.settle()
                for hyper_node in self._feed.hyper_nodes:
                    if missing(hyper_node, self._engine.state.forest):
                        self._names.add(hyper_node.metadata.name)
            await asyncio.sleep(self._settings.status_pause_s)

    async def _write(self, name: str) -> None:
        hyper_node = self._feed.hyper_nodes.get(Key(name))
        change = missing(hyper_node, self._engine.state.forest) if hyper_node is not None else {}
        if hyper_node is None or not change:
            return
        if problem := self._engine.state.forest.problems.get(name, "") if "conditions" in change else "":
            about = ObjectReference(
                kind=volcano.HYPER_NODE_KIND, name=name, uid=hyper_node.metadata.uid, api_version=volcano.TOPOLOGY
            )
            self._recorder.record(about, LEFT_OUT, problem, warning=True)
        try:
            await self._client.patch(volcano.HYPER_NODES, name, {"status": change}, subresource="status")
        except NotFoundError:
            return


def missing(hyper_node: volcano.HyperNode, forest: Forest) -> dict[str, Any]:
    """The difference between the wanted and the present status."""
    name = hyper_node.metadata.name
    if name not in forest.counts:
        return {}
    change: dict[str, Any] = {}
    if hyper_node.status.node_count != forest.counts[name]:
        change["nodeCount"] = forest.counts[name]
    problem = forest.problems.get(name, "")
    known = next((item for item in hyper_node.status.conditions if item.type == VALID), None)
    if (known.message if known is not None else "") != problem:
        status = "False" if problem else "True"
        since = known.last_transition_time if known is not None and known.status == status else stamp(time.time())
        made = volcano.HyperNodeCondition(
            type=VALID,
            status=status,
            last_transition_time=since,
            reason=LEFT_OUT if problem else COMPLETE,
            message=problem,
        )
        others = [item for item in hyper_node.status.conditions if item.type != VALID]
        change["conditions"] = [*msgspec.to_builtins(others), {"message": "", **msgspec.to_builtins(made)}]
    return change
