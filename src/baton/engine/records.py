"""A record of a cluster: the engine's events as JSON lines, after a first line with the time and the configuration.

A record can be stored, shared, replayed into an engine with the same configuration (which makes the same decisions,
because they depend on nothing but events and configuration), and used as input of the simulator. A record written by
hand may omit the first line.
"""

from collections.abc import Iterable, Iterator

import msgspec

from baton.engine.configuration import Catalogue
from baton.engine.engine import Engine
from baton.engine.events import (
    BudgetChanged,
    Event,
    GroupChanged,
    HyperNodeChanged,
    NamespaceChanged,
    NodeChanged,
    PodChanged,
    QueueChanged,
    QuotaChanged,
)
from baton.engine.objects import Namespace, Pod
from baton.engine.plugins import BUILT_IN
from baton.engine.presets import configured
from baton.engine.state.cluster import ClusterState
from baton.engine.state.jobs import HELD, Status, Task
from baton.errors import BatonError

VERSION = 1


class Recorded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first line."""

    version: int = VERSION
    now_s: float = 0.0
    """When the record was taken, in seconds since the epoch."""
    configuration: str = ""
    """The text of the scheduler configuration, or the name of a preset; empty if it is not known."""
    memory_overcommit: float = 1.0
    share_overcommit: float = 1.0


class Record(msgspec.Struct, frozen=True):
    """A whole record."""

    about: Recorded
    events: tuple[Event, ...]

    def engine(self, configuration: str = "", catalogue: Catalogue = BUILT_IN) -> Engine:
        """An engine with the recorded events applied, under the recorded configuration or another one."""
        engine = Engine(
            configured(configuration or self.about.configuration or "simple", catalogue),
            memory_overcommit=self.about.memory_overcommit,
            share_overcommit=self.about.share_overcommit,
        )
        engine.apply(self.events)
        return engine


def lines(about: Recorded, events: Iterable[Event]) -> Iterator[bytes]:
    """The record, line by line."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(about) + b"\n"
    for event in events:
        yield encoder.encode(event) + b"\n"


def read(content: bytes, where: str) -> Record:
    """Parse a record; `where` names it in errors."""
    decoder: msgspec.json.Decoder[Event | Recorded] = msgspec.json.Decoder(Event | Recorded)
    about = Recorded()
    events: list[Event] = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            item = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BatonError(f"{where}, line {number}: not an event of the engine: {error}") from None
        if not isinstance(item, Recorded):
            events.append(item)
        elif item.version > VERSION:
            raise BatonError(f"{where}, line {number}: version is {item.version}, expected {VERSION} or older")
        else:
            about = item
    return Record(about, tuple(events))


def snapshot(state: ClusterState) -> Iterator[Event]:
    """Events that would produce this state; plans that are not confirmed yet count as carried out."""
    for name, labels in sorted(state.placed.namespace_labels.items()):
        yield NamespaceChanged(Namespace(name=name, labels=tuple(sorted(labels.items()))))
    for queue in state.queues.values():
        yield QueueChanged(queue.queue)
    for quota in state.quotas.values():
        yield QuotaChanged(quota)
    for budget in state.budgets.values():
        yield BudgetChanged(budget)
    for node in state.table.nodes:
        if node is not None:
            yield NodeChanged(node)
    for hyper_node in state.forest.hyper_nodes.values():
        yield HyperNodeChanged(hyper_node)
    for job in state.jobs.values():
        if not job.implicit:
            yield GroupChanged(msgspec.structs.replace(job.group, phase=job.phase))
    for task in state.tasks.values():
        yield PodChanged(_as_held(state, task))


def _as_held(state: ClusterState, task: Task) -> Pod:
    """The pod with its place in the state."""
    pod = task.pod
    if task.row < 0 or (task.status not in HELD and task.status is not Status.RELEASING):
        return pod
    cards = pod.cards
    node = state.table.node(task.row)
    holding = state.ledger.holders.get(task.key)
    if not cards and holding is not None:
        cards = state.ledger.card_grants(node.cards, holding.assignment)
    return msgspec.structs.replace(pod, node=node.name, cards=cards, deleting=task.status is Status.RELEASING)
