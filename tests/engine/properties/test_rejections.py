"""A plugin's word on what can end its rejections saves questions and changes no plan."""

import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from baton.engine.configuration import Configuration
from baton.engine.engine import Engine
from baton.engine.events import (
    BindFailed,
    BudgetChanged,
    Event,
    GroupChanged,
    GroupRemoved,
    HyperNodeChanged,
    NamespaceChanged,
    NodeChanged,
    NodeRemoved,
    PodChanged,
    PodRemoved,
    QueueChanged,
    QueueRemoved,
    QuotaChanged,
    QuotaRemoved,
)
from baton.engine.framework import Change, Job, NoArguments, Plugin, SessionView, Vote
from baton.engine.objects import Budget, HyperNode, LabelSelector, Namespace, Quota
from baton.engine.plan import Plan
from baton.engine.plugins import BUILT_IN
from baton.engine.presets import configured
from baton.model.ids import NodeName, PodKey, QueueName
from baton.model.names import PodGroupPhase, PodPhase
from tests.engine.clusters import Cluster, JobLiteral, job, node, queue, spec

ADMISSION = "enqueue, allocate, backfill, preempt, reclaim"
PLUGINS = (
    ("overcommit",),
    ("proportion",),
    ("capacity",),
    ("resourcequota",),
    ("sla", "overcommit"),
    ("resourcequota", "overcommit", "capacity"),
    ("fickle-nodes",),
    ("fickle-pods",),
    ("fickle-groups",),
    ("fickle-queues",),
    ("fickle-quotas",),
    ("fickle-budgets", "sla", "fickle-pods"),
    ("fickle-namespaces", "fickle-groups"),
    ("fickle-hyper_nodes",),
)
CYCLES = 40
QUEUES = ("a", "b")


def seen(session: SessionView, change: Change) -> object:
    """Everything of a kind that a plugin could look at, as it is at this moment."""
    state = session.state
    match change:
        case Change.NODES:
            return sorted(str(item) for item in state.table.nodes if item is not None)
        case Change.PODS:
            places = {key: state.table.name(task.row) if task.row >= 0 else "" for key, task in state.tasks.items()}
            return sorted((key, task.status.name, places[key]) for key, task in state.tasks.items())
        case Change.GROUPS:
            return sorted((key, job.phase, str(job.group)) for key, job in state.jobs.items() if not job.implicit)
        case Change.QUEUES:
            return sorted((name, str(share.queue)) for name, share in state.queues.items())
        case Change.QUOTAS:
            return sorted(map(str, state.quotas.values()))
        case Change.BUDGETS:
            return sorted(map(str, state.budgets.values()))
        case Change.NAMESPACES:
            return sorted(state.placed.namespace_labels.items())
        case Change.HYPER_NODES:
            return sorted(map(str, state.forest.hyper_nodes.values()))


class Fickle(Plugin[NoArguments]):
    """Changes its mind with every change of one kind, and never without one."""

    change: Change

    def open(self, session: SessionView) -> None:
        self._session = session

    def job_enqueueable(self, job: Job) -> Vote:
        text = f"{job.key} {seen(self._session, self.change)}"
        return Vote.REJECT if zlib.crc32(text.encode()) % 2 else Vote.ABSTAIN


FICKLE: dict[str, type[Plugin[Any]]] = {
    name: type(name, (Fickle,), {"name": name, "change": change, "rejections_end_with": frozenset({change})})
    for change in Change
    for name in [f"fickle-{change.name.lower()}"]
}


def conf(plugins: Sequence[str], actions: str = ADMISSION, *, tiers: bool = False) -> str:
    rows = [f"  - name: {name}" for name in plugins]
    between = "\n- plugins:\n" if tiers else "\n"
    return (
        f'actions: "{actions}"\ntiers:\n- plugins:\n{between.join(rows)}\n'
        "- plugins:\n  - name: priority\n  - name: gang\n  - name: predicates\n"
    )


def asking_always(configuration: Configuration) -> Configuration:
    """The same plugins, without what they declare."""
    tiers = tuple(
        tuple(
            replace(option, plugin=type(option.plugin.__name__, (option.plugin,), {"rejections_end_with": None}))
            for option in tier
        )
        for tier in configuration.tiers
    )
    return replace(configuration, tiers=tiers)


def budget(allowed: int) -> Event:
    return BudgetChanged(Budget(namespace="team", name="b", selector=LabelSelector(), disruptions_allowed=allowed))


class World:
    """Random events, and what becomes of plans."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._jobs: list[JobLiteral] = []
        self._bound: dict[PodKey, Any] = {}
        self._number = 0

    def start(self) -> list[Event]:
        nodes = [NodeChanged(node(f"n{at}", cpu=4)) for at in range(3)]
        return [*(self._queue(name) for name in QUEUES), *nodes, *self._jobs_come(8)]

    def step(self, plan: Plan) -> list[Event]:
        """Confirm a part of the plan, and let something else happen, or nothing."""
        happened: list[Event] = []
        pods = {member.key: member for literal in self._jobs for member in literal.pods}
        silent = self._chance.random() < 0.5
        for binding in plan.bindings:
            bound = replace(pods[binding.pod], node=binding.node, phase=PodPhase.RUNNING)
            if self._chance.random() < 0.1:
                happened.append(BindFailed(binding.pod))
            else:
                self._bound[binding.pod] = bound
                happened += [] if silent else [PodChanged(bound)]
        for eviction in plan.evictions:
            self._bound.pop(eviction.pod, None)
            happened.append(PodRemoved(eviction.pod))
        if self._chance.random() < 0.6:
            happened += self._chance.choice(self._kinds())()
        return happened

    def _kinds(self) -> list[Any]:
        chance = self._chance
        return [
            *[lambda: self._jobs_come(chance.randint(1, 3))] * 4,
            lambda: [NodeChanged(node(f"n{chance.randint(0, 4)}", cpu=chance.choice((2, 4, 8))))],
            lambda: [NodeRemoved(NodeName(f"n{chance.randint(0, 4)}"))],
            *[self._a_pod_ends] * 4,
            self._a_group_changes,
            lambda: [self._queue(chance.choice(QUEUES))],
            lambda: [QueueRemoved(QueueName("b"))],
            lambda: [self._quota()],
            lambda: [QuotaRemoved("team", "q")],
            lambda: [NamespaceChanged(Namespace(name="team", labels=(("a", chance.choice("xyz")),)))],
            lambda: [budget(chance.randint(0, 2))],
            lambda: [HyperNodeChanged(HyperNode(name="h", tier=chance.randint(1, 3)))],
        ]

    def _jobs_come(self, number: int) -> list[Event]:
        events: list[Event] = []
        for _ in range(number):
            self._number += 1
            cpu, size = self._chance.randint(1, 4), self._chance.randint(1, 3)
            literal = job(
                f"j{self._number:03}",
                pods=size,
                min_member=size,
                what=spec(cpu=cpu, memory_gib=0),
                queue=self._chance.choice(QUEUES),
                priority=self._chance.randint(0, 2),
                created_s=float(self._number),
                phase=PodGroupPhase.PENDING,
                min_resources=(("cpu", cpu * size * 1000),),
                sla_waiting_s=self._chance.choice((None, 5.0)),
            )
            self._jobs.append(literal)
            events += [GroupChanged(literal.group), *(PodChanged(member) for member in literal.pods)]
        return events

    def _a_pod_ends(self) -> list[Event]:
        if not self._bound:
            return []
        key = self._chance.choice(sorted(self._bound))
        return [PodChanged(replace(self._bound.pop(key), phase=PodPhase.SUCCEEDED))]

    def _a_group_changes(self) -> list[Event]:
        group = self._chance.choice(self._jobs).group
        if self._chance.random() < 0.3:
            return [GroupRemoved(group.key)]
        return [GroupChanged(replace(group, min_resources=(("cpu", 1000),)))]

    def _queue(self, name: str) -> Event:
        capability = {"cpu": self._chance.choice((2, 6, 20)) * 1000}
        return QueueChanged(queue(name, weight=self._chance.randint(1, 3), capability=capability))

    def _quota(self) -> Event:
        hard = (("requests.cpu", self._chance.choice((3, 8, 20)) * 1000),)
        return QuotaChanged(Quota(namespace="team", name="q", hard=hard))


@pytest.mark.parametrize("actions", [ADMISSION, "allocate, preempt, enqueue"])
@pytest.mark.parametrize(
    ("plugins", "tiers"), [(plugins, tiers) for plugins in PLUGINS for tiers in (False, True)[: len(plugins)]]
)
def test_plans_are_the_same_with_and_without_the_declaration(plugins: Sequence[str], actions: str, tiers: bool) -> None:
    configuration = configured(conf(plugins, actions, tiers=tiers), {**BUILT_IN, **FICKLE})
    for seed in range(3):
        world = World(seed)
        engines = [Engine(configuration), Engine(asking_always(configuration))]
        events = world.start()
        for cycle in range(CYCLES):
            found = []
            for engine in engines:
                engine.apply(events)
                found.append(engine.schedule(float(cycle)))
            assert found[0] == found[1], f"seed {seed}, cycle {cycle}"
            events = world.step(found[0])


class Counting(Plugin[NoArguments]):
    """Rejects every job, and counts how often it is asked."""

    name = "counting"
    rejections_end_with = frozenset({Change.QUOTAS})
    asked = 0

    def open(self, session: SessionView) -> None:
        self._now_s = session.now_s

    def job_enqueueable(self, job: Job) -> Vote:
        type(self).asked += 1
        return Vote.REJECT


QUOTA = QuotaChanged(Quota(namespace="team", name="q", hard=()))
NAMESPACE = NamespaceChanged(Namespace(name="team"))


def test_a_rejected_job_is_asked_about_again_only_after_a_declared_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "asked", 0)
    jobs = [job(f"j{at}", phase=PodGroupPhase.PENDING, min_resources=(("cpu", 1),)) for at in range(5)]
    known = {**BUILT_IN, "counting": Counting}
    engine = Engine(configured(conf(["counting"], "enqueue"), known))
    engine.apply(Cluster(nodes=[node("a")], jobs=jobs).events)
    asked = []
    for event in (None, None, NAMESPACE, budget(1), NodeChanged(node("b")), QUOTA, None):
        engine.apply([event] if event is not None else [])
        before = Counting.asked
        assert engine.schedule(0.0, explain=False).refused
        asked.append(Counting.asked - before)
    assert asked == [5, 0, 0, 0, 0, 5, 0]
    engine.configure(configured(conf(["counting"], "enqueue"), known))
    assert engine.schedule(0.0, explain=False).refused
    assert Counting.asked == 15, "another configuration remembers nothing"


def test_an_earlier_tier_that_may_permit_at_any_time_is_asked_each_time() -> None:
    late = job("late", phase=PodGroupPhase.PENDING, min_resources=(("cpu", 1),), sla_waiting_s=10.0)
    known = {**BUILT_IN, "counting": Counting}
    for plugins, tiers, admitted in ((["sla", "counting"], True, True), (["sla", "counting"], False, False)):
        engine = Engine(configured(conf(plugins, "enqueue", tiers=tiers), known))
        engine.apply(Cluster(nodes=[node("a")], jobs=[late]).events)
        assert engine.schedule(0.0).refused
        assert (not engine.schedule(11.0).refused) is admitted
