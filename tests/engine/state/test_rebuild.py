"""An engine that applied all events equals one that got only the final state, and makes the same decisions."""

import random
from typing import Any

import msgspec
import pytest

from baton.engine.engine import Engine
from baton.engine.events import (
    BindFailed,
    Event,
    EvictFailed,
    GroupChanged,
    GroupRemoved,
    NodeChanged,
    NodeRemoved,
    PodChanged,
    PodRemoved,
    QueueChanged,
)
from baton.engine.objects import AffinityTerm, LabelSelector, Node, Pod, PodGroup, PodSpec, Queue, SpreadConstraint
from baton.engine.plan import Plan
from baton.engine.presets import configured
from baton.engine.state.affinity import NODE_DOMAIN, TermCounts, TermKey
from baton.engine.state.cluster import ClusterState
from baton.engine.state.jobs import ON_NODE
from baton.model.ids import GroupKey, NodeName, QueueName
from baton.model.names import PodGroupPhase, PodPhase
from tests.engine.clusters import milli, node, pod, queue, slot, spec, vgpu, whole

HOST = "kubernetes.io/hostname"
APART = (("app", "apart"),)
DRIVER = "csi.example"
SUCCEEDED, FAILED = ({"phase": phase} for phase in (PodPhase.SUCCEEDED, PodPhase.FAILED))


def _specs() -> list[PodSpec]:
    apart = AffinityTerm(selector=LabelSelector(APART), topology_key=HOST)
    spread = SpreadConstraint(selector=LabelSelector(APART), topology_key="zone")
    return [
        spec(cpu=2),
        spec(cpu=4, ask=[whole()]),
        spec(cpu=1, ask=[whole(2)]),
        spec(cpu=1, ask=[milli(300)]),
        spec(cpu=1, ask=[slot()]),
        spec(cpu=1, ask=[vgpu(memory_mib=5000, cores=30)]),
        spec(cpu=1, anti_affinity=(apart,)),
        spec(cpu=1, host_ports=(("", "TCP", 80),)),
        spec(cpu=1, spread=(spread,)),
        spec(cpu=1, attachments=((DRIVER, "one"), (DRIVER, "two"))),
        spec(cpu=1, attachments=((DRIVER, "two"), (DRIVER, "three"))),
        spec(cpu=1, sole_claims=("team/data",)),
    ]


class World:
    """The real cluster that the engine's events describe, kept as plain values."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.specs = _specs()
        self.nodes: dict[NodeName, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.groups: dict[GroupKey, PodGroup] = {}
        self.queues: list[Queue] = [queue("default"), queue("other", weight=3)]
        self.serial = 0

    def start(self) -> list[Event]:
        for number in range(4):
            made = node(f"n{number}", cpu=16, cards=self.chance.choice((0, 2, 4)))
            self.nodes[made.name] = made
        return [*(QueueChanged(item) for item in self.queues), *(NodeChanged(item) for item in self.nodes.values())]

    def event(self) -> list[Event]:
        draw = self.chance.random()
        if draw < 0.45:
            return self._new_job()
        if draw < 0.75 and self.pods:
            return self._remove(self.chance.choice(sorted(self.pods)))
        if draw < 0.85:
            self.serial += 1
            made = node(
                f"n{self.chance.randrange(8)}", cpu=self.chance.choice((8, 16)), cards=self.chance.choice((0, 2, 4))
            )
            if any(item.node == made.name for item in self.pods.values()) and made.name in self.nodes:
                made = msgspec.structs.replace(
                    self.nodes[made.name], labels=(*self.nodes[made.name].labels[:1], ("x", "y"))
                )
            self.nodes[made.name] = made
            return [NodeChanged(made)]
        if draw < 0.9 and len(self.nodes) > 2:
            name = self.chance.choice(sorted(self.nodes))
            del self.nodes[name]
            lost = [key for key, item in self.pods.items() if item.node == name]
            return [NodeRemoved(name), *(event for key in lost for event in self._remove(key))]
        return self._odd_event()

    def _odd_event(self) -> list[Event]:
        """Rarer events: a node that flaps or changes; a pod that ends, leaves or is relabelled."""
        draw = self.chance.random()
        placed = [key for key, item in self.pods.items() if item.node is not None]
        if draw < 0.4 and self.nodes:
            name = self.chance.choice(sorted(self.nodes))
            changed = self._changed(self.nodes[name])
            self.nodes[name] = changed
            if draw < 0.2:
                return [NodeChanged(changed)]
            ends = [key for key in placed if self.pods[key].node == name and self.chance.random() < 0.3]
            return [
                NodeRemoved(name),
                *(event for key in ends for event in self._pod(key, FAILED)),
                NodeChanged(changed),
            ]
        if draw < 0.7 and placed:
            return self._pod(self.chance.choice(placed), self.chance.choice((SUCCEEDED, {"deleting": True})))
        if self.pods:
            return self._pod(self.chance.choice(list(self.pods)), {"labels": self.chance.choice(((), APART))})
        return []

    def _changed(self, known: Node) -> Node:
        zone = (*known.labels[:1], ("zone", self.chance.choice("ab")))
        cards = tuple(msgspec.structs.replace(card, healthy=self.chance.random() < 0.8) for card in known.cards[::-1])
        limits = ((DRIVER, self.chance.randint(1, 3)),)
        change = self.chance.choice(
            ({"ready": not known.ready}, {"labels": zone}, {"cards": cards}, {"volume_limits": limits})
        )
        return msgspec.structs.replace(known, **change)

    def _pod(self, key: str, change: dict[str, Any]) -> list[Event]:
        self.pods[key] = msgspec.structs.replace(self.pods[key], **change)
        return [PodChanged(self.pods[key])]

    def _remove(self, key: str) -> list[Event]:
        gone = self.pods.pop(key)
        events: list[Event] = [PodRemoved(gone.key)]
        if gone.group is not None and not any(item.group == gone.group for item in self.pods.values()):
            del self.groups[gone.group]
            events.append(GroupRemoved(gone.group))
        return events

    def _new_job(self) -> list[Event]:
        self.serial += 1
        size = self.chance.choice((1, 1, 2, 3))
        key = GroupKey(f"team/j{self.serial:04}")
        group = PodGroup(
            key=key,
            min_member=size,
            queue=self.chance.choice(self.queues).name,
            created_s=float(self.serial),
            phase=PodGroupPhase.INQUEUE,
        )
        what = self.chance.choice(self.specs)
        labels = dict(APART) if what.anti_affinity or what.spread else {}
        members = [
            pod(f"j{self.serial:04}-{at}", what, group=key, index=at, labels=labels, created_s=float(self.serial))
            for at in range(size)
        ]
        self.groups[key] = group
        self.pods.update({item.key: item for item in members})
        events: list[Event] = [GroupChanged(group), *(PodChanged(item) for item in members)]
        self.chance.shuffle(events)
        return events

    def carry_out(self, plan: Plan) -> list[Event]:
        events: list[Event] = []
        for binding in plan.bindings:
            if self.chance.random() < 0.1:
                events.append(BindFailed(binding.pod))
                continue
            bound = msgspec.structs.replace(
                self.pods[binding.pod], node=binding.node, cards=binding.cards, phase=PodPhase.RUNNING
            )
            self.pods[binding.pod] = bound
            events.append(PodChanged(bound))
        for eviction in plan.evictions:
            if self.chance.random() < 0.3:
                events.append(EvictFailed(eviction.pod))
            else:
                events += self._remove(eviction.pod)
        for change in plan.phases:
            if change.group in self.groups:
                self.groups[change.group] = msgspec.structs.replace(self.groups[change.group], phase=change.phase)
                events.append(GroupChanged(self.groups[change.group]))
        return events

    def everything(self) -> list[Event]:
        events: list[Event] = [
            *(QueueChanged(item) for item in self.queues),
            *(NodeChanged(item) for item in self.nodes.values()),
            *(GroupChanged(item) for item in self.groups.values()),
            *(PodChanged(item) for item in self.pods.values()),
        ]
        self.chance.shuffle(events)
        return events


def _by_place(state: ClusterState, key: TermKey, counts: TermCounts) -> dict[str, int]:
    """How many pods the term counts, by node or value of a label."""
    table = state.table
    if key.topology_key == NODE_DOMAIN:
        names = {int(table.number[row]): str(name) for name, row in table.row_of.items()}
    else:
        names = {number: value for value, number in table.label_values(key.topology_key).items()}
    return {names[place]: int(number) for place, number in enumerate(counts.by_domain) if number}


def _picture(engine: Engine) -> dict[str, Any]:
    """All state that decisions depend on, by names instead of positions."""
    state = engine.state
    state.settle()
    table, names = state.table, state.resources.names
    rows = dict(table.row_of)
    return {
        "nodes": sorted(rows),
        "used": {
            name: [
                {names[at]: int(table.used[plane, at, row]) for at in range(len(names)) if table.used[plane, at, row]}
                for plane in (0, 1)
            ]
            for name, row in rows.items()
        },
        "cards": {
            state.ledger.ids[int(number)]: state.ledger.usage[:, :, position, row].tolist()
            for row in rows.values()
            for position, number in enumerate(state.ledger.number[:, row])
            if number
        },
        "placed": {key: table.name(task.row) for key, task in state.tasks.items() if task.status in ON_NODE},
        "queues": {
            name: [dict(state.resources.amounts(share.allocated)), dict(state.resources.amounts(share.requested))]
            for name, share in state.queues.items()
        },
        "jobs": {key: (job.counts, job.ready, sorted(job.pending)) for key, job in state.jobs.items()},
        "active": sorted(state.active),
        "near": {key: _by_place(state, key, counts) for key, counts in state.placed._matching.items()},
        "ports": {table.name(row): taken for row, taken in state.ports.items() if taken},
        "volumes": {
            (driver, table.name(row)): planes for (driver, row), planes in state.attachments.distinct().items()
        },
        "total": dict(state.resources.amounts(table.capacity_total)),
    }


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("preset", ["simple", "high-performance"])
def test_rebuilt_equals_incrementally_updated(seed: int, preset: str) -> None:
    world = World(seed)
    engine = Engine(configured(preset))
    engine.apply(world.start())
    for cycle in range(12):
        for _ in range(world.chance.randrange(5)):
            engine.apply(world.event())
        engine.apply(world.carry_out(engine.schedule(float(cycle))))
    fresh = Engine(configured(preset))
    fresh.apply(world.everything())
    mine, rebuilt = _picture(engine), _picture(fresh)
    # Only one of the engines knows terms that no pod has any more.
    mine["near"] = {key: counts for key, counts in mine["near"].items() if key in rebuilt["near"]}
    for part in mine:
        assert mine[part] == rebuilt[part], part
    one, other = engine.schedule(100.0), fresh.schedule(100.0)
    assert one.bindings == other.bindings
    assert one.evictions == other.evictions
    assert one.verdicts == other.verdicts


def test_events_twice_change_nothing() -> None:
    world = World(7)
    engine = Engine(configured("simple"))
    events = [*world.start(), *world.event(), *world.event(), *world.event()]
    engine.apply(events)
    before = _picture(engine)
    engine.apply(events)
    assert _picture(engine) == before


def test_a_pod_in_an_unknown_queue_waits_for_the_queue() -> None:
    engine = Engine(configured("simple"))
    engine.apply([NodeChanged(node("a")), PodChanged(pod("p", spec(), queue=QueueName("late")))])
    assert engine.schedule(0.0).bindings == ()
    engine.apply([QueueChanged(queue("late"))])
    assert len(engine.schedule(1.0).bindings) == 1
