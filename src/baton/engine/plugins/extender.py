"""A plugin outside the process. The engine does no I/O, so the caller brings the connection (`ExtenderPort`).

Without a port the plugin takes no part. The arguments are Volcano's, for the caller to read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from baton.engine.objects import Pod
from baton.engine.session.plugin import Check, Plugin
from baton.engine.session.session import Session
from baton.engine.state.columns import Floats
from baton.engine.state.jobs import Task
from baton.engine.state.nodes import NodeView
from baton.model.ids import NodeName


class ExtenderPort(Protocol):
    """What the other side answers."""

    def turned_down(self, pod: Pod, nodes: Sequence[NodeName]) -> Mapping[NodeName, str]:
        """Nodes that will not do, with the reason."""
        ...

    def scores(self, pod: Pod, nodes: Sequence[NodeName]) -> Mapping[NodeName, float]: ...

    def evictable(self, preemptor: Pod, victims: Sequence[Pod]) -> Iterable[Pod] | None: ...


class ExtenderArguments(msgspec.Struct, frozen=True):
    url: str = msgspec.field(default="", name="extender.urlPrefix")
    timeout: str = msgspec.field(default="2s", name="extender.httpTimeout")
    predicate_verb: str = msgspec.field(default="", name="extender.predicateVerb")
    prioritize_verb: str = msgspec.field(default="", name="extender.prioritizeVerb")
    preemptable_verb: str = msgspec.field(default="", name="extender.preemptableVerb")
    reclaimable_verb: str = msgspec.field(default="", name="extender.reclaimableVerb")
    ignorable: bool = msgspec.field(default=False, name="extender.ignorable")


class ExtenderPlugin(Plugin[ExtenderArguments]):
    name = "extender"
    arguments_type = ExtenderArguments

    def open(self, session: Session) -> None:
        self._port: ExtenderPort | None = session.ports.get("extender")

    def sees_world(self, task: Task) -> bool:
        """The other side may change its mind at any time, so its answers are never kept."""
        return self._port is not None

    def world_filters(self, task: Task, nodes: NodeView) -> Iterator[Check]:
        if self._port is None:
            return
        names = nodes.names()
        refused = self._port.turned_down(task.pod, names)
        for reason in sorted(set(refused.values())):
            yield Check(reason, np.array([refused.get(name) != reason for name in names], dtype=np.bool_))

    def world_scores(self, task: Task, nodes: NodeView) -> Floats | None:
        if self._port is None:
            return None
        names = nodes.names()
        scores = self._port.scores(task.pod, names)
        return np.array([scores.get(name, 0.0) for name in names], dtype=np.float64)

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        if self._port is None:
            return None
        allowed = self._port.evictable(preemptor.pod, [victim.pod for victim in victims])
        if allowed is None:
            return None
        keys = {pod.key for pod in allowed}
        return [victim for victim in victims if victim.key in keys]

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        return self.preemptable(reclaimer, victims)
