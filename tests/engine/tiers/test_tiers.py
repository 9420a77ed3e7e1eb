"""How the votes of plugins in tiers are combined: Volcano's rule for each kind of hook."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from baton.engine.engine import Engine
from baton.engine.framework import NoArguments, Plugin, Vote
from baton.engine.plugins import BUILT_IN
from baton.engine.presets import configured
from baton.engine.session.session import Session
from baton.engine.state.jobs import Job, Task
from tests.engine.clusters import Cluster, JobLiteral, job, node

PERMIT, ABSTAIN, REJECT = Vote.PERMIT, Vote.ABSTAIN, Vote.REJECT


class Panel:
    """Plugins that return fixed values for one hook, and a list of those that were called."""

    def __init__(self, hook: str, tiers: Sequence[Sequence[object]], *jobs: JobLiteral) -> None:
        self.asked: list[str] = []
        named = [[(f"p{tier}{place}", answer) for place, answer in enumerate(row)] for tier, row in enumerate(tiers)]
        plugins: dict[str, type[Plugin[Any]]] = {
            name: self._scripted(name, hook, answer) for row in named for name, answer in row
        }
        rows = "".join("- plugins:\n" + "".join(f"  - name: {name}\n" for name, _ in row) for row in named)
        known = {**BUILT_IN, **plugins}
        engine = Engine(configured(f'actions: "allocate"\ntiers:\n{rows}', known))
        engine.apply(Cluster(nodes=[node("a")], jobs=jobs or [job("j", pods=3)]).events)
        self.session: Session = engine.session(0.0)
        self.jobs: list[Job] = list(engine.state.jobs.values())
        self.job = self.jobs[0]

    def _scripted(self, name: str, hook: str, answer: object) -> type[Plugin[Any]]:
        def say(_: object, *question: Any) -> object:
            self.asked.append(name)
            return answer(*question) if callable(answer) else answer

        return type(name, (Plugin,), {"name": name, "arguments_type": NoArguments, hook: say})


@pytest.mark.parametrize("hook", ["job_enqueueable", "job_pipelined"])
@pytest.mark.parametrize(
    ("tiers", "said", "asked"),
    [
        ([[ABSTAIN, ABSTAIN], [ABSTAIN]], True, ["p00", "p01", "p10"]),
        ([[ABSTAIN, REJECT, PERMIT], [PERMIT]], False, ["p00", "p01"]),
        ([[PERMIT, REJECT]], False, ["p00", "p01"]),
        ([[PERMIT, ABSTAIN], [REJECT]], True, ["p00", "p01"]),
        ([[ABSTAIN], [PERMIT], [REJECT]], True, ["p00", "p10"]),
        ([[ABSTAIN], [REJECT], [PERMIT]], False, ["p00", "p10"]),
    ],
)
def test_votes_end_with_the_first_rejection_or_the_first_tier_that_permits(
    hook: str, tiers: list[list[Vote]], said: bool, asked: list[str]
) -> None:
    panel = Panel(hook, tiers)
    assert getattr(panel.session.votes, hook)(panel.job) is said
    assert panel.asked == asked


@pytest.mark.parametrize(
    ("tiers", "starving"),
    [
        ([[True, True], [False]], True),
        ([[True, False], [True]], False),
        ([[False], [True]], False),
    ],
)
def test_the_first_tier_that_votes_decides_who_starves(tiers: list[list[bool]], starving: bool) -> None:
    panel = Panel("job_starving", tiers)
    assert panel.session.votes.job_starving(panel.job) is starving


@pytest.mark.parametrize(
    ("tiers", "all_agree", "one_is_enough"),
    [([[True], [True]], True, True), ([[True], [False]], False, True), ([[False], [False]], False, False)],
)
def test_every_tier_must_agree_but_one_is_enough_to_find_a_queue_overused(
    tiers: list[list[bool]], all_agree: bool, one_is_enough: bool
) -> None:
    assert (ready := Panel("job_ready", tiers)).session.votes.job_ready(ready.job) is all_agree
    may = Panel("allocatable", tiers)
    task = next(iter(may.job.tasks.values()))
    assert may.job.queue is not None
    assert may.session.votes.allocatable(may.job.queue, task) is all_agree
    over = Panel("overused", tiers)
    assert over.job.queue is not None
    assert over.session.votes.overused(over.job.queue) is one_is_enough


def only(*numbers: int) -> Callable[[Task, Sequence[Task]], list[Task]]:
    """A vote that allows only these victims."""
    return lambda _, victims: [task for task in victims if int(task.key[-1]) in numbers]


@pytest.mark.parametrize("hook", ["preemptable", "reclaimable"])
@pytest.mark.parametrize(
    ("tiers", "gone"),
    [
        ([[only(0, 1), only(1, 2)]], [1]),
        ([[only(0), only(1)], [only(2)]], [2]),
        ([[only()], [only(0, 2)], [only(1)]], [0, 2]),
        ([[lambda *_: None, only(2)]], [2]),
        ([[lambda *_: None], [only(1)]], [1]),
        ([[lambda *_: None]], []),
    ],
)
def test_victims_need_a_whole_tier_and_the_next_tier_votes_if_there_are_none(
    hook: str, tiers: list[list[Any]], gone: list[int]
) -> None:
    panel = Panel(hook, tiers)
    tasks = sorted(panel.job.tasks.values(), key=lambda task: task.key)
    found = getattr(panel.session.votes, hook)(tasks[0], tasks)
    assert [int(task.key[-1]) for task in found] == gone


def ranked(**ranks: int) -> Callable[[Job], tuple[int]]:
    """Orders jobs by these numbers."""
    return lambda one: (ranks[one.key.partition("/")[2]],)


@pytest.mark.parametrize(
    ("tiers", "order"),
    [
        ([[ranked(a=1, b=0, c=0)], [ranked(a=0, b=2, c=1)]], ["c", "b", "a"]),
        ([[ranked(a=0, b=0, c=0), ranked(a=1, b=1, c=0)]], ["c", "b", "a"]),
        ([[ranked(a=0, b=0, c=0)]], ["b", "c", "a"]),
    ],
)
def test_jobs_are_ordered_by_the_first_difference_then_by_age_then_by_name(
    tiers: list[list[object]], order: list[str]
) -> None:
    literals = (job("a", created_s=2.0), job("b", created_s=1.0), job("c", created_s=1.0))
    panel = Panel("job_key", tiers, *literals)
    found = sorted(panel.jobs, key=panel.session.votes.job_key)
    assert [one.key.partition("/")[2] for one in found] == order
