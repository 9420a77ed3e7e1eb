"""A cycle that ends early never ends inside a gang, and jobs late in the order do not wait forever."""

from collections import Counter
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.events import GroupChanged, PodChanged
from baton.engine.verdicts import Cause
from baton.model.names import PodGroupPhase
from tests.engine.clusters import Cluster, JobLiteral, Outcome, gang, job, node, queue, spec, whole

CONF = """
actions: "enqueue, allocate, backfill, preempt, reclaim"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: predicates}, {name: nodeorder}]
"""


def after(turns: int) -> Callable[[], bool]:
    """Time is up after this many checks of the clock; the engine checks before each turn except the first."""
    left = turns - 1

    def out_of_time() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return out_of_time


def cycles(cluster: Cluster, turns: int, limit: int = 200) -> list[Outcome]:
    """The cycles of one round, if each cycle has time for this many turns."""
    found = []
    for number in range(limit):
        found.append(Outcome(cluster.engine.schedule(float(number), out_of_time=after(turns))))
        if not found[-1].plan.cut:
            return found
    raise AssertionError("the round has no end")


Drawn = list[tuple[int, int, int, int, bool]]


def literals(drawn: Drawn) -> list[JobLiteral]:
    return [
        job(
            f"j{at}",
            pods=max(pods, least),
            min_member=least,
            what=spec(cpu=cpu),
            priority=priority,
            created_s=float(at),
            phase=PodGroupPhase.INQUEUE if admitted else PodGroupPhase.PENDING,
        )
        for at, (pods, least, cpu, priority, admitted) in enumerate(drawn)
    ]


jobs_strategy = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=10,
)


@settings(max_examples=40, deadline=None)
@given(drawn=jobs_strategy, turns=st.integers(1, 4))
def test_a_round_of_short_cycles_decides_the_same_as_one_long_cycle(drawn: Drawn, turns: int) -> None:
    nodes = [node(f"n{at}", cpu=8) for at in range(3)]
    long = Cluster(nodes=nodes, jobs=literals(drawn), conf=CONF).run()
    short = cycles(Cluster(nodes=nodes, jobs=literals(drawn), conf=CONF), turns)
    assert {pod: where for each in short for pod, where in each.placed.items()} == long.placed
    assert short[-1].verdicts.keys() == long.verdicts.keys(), "at the end of the round every waiting job has a verdict"
    started: Counter[str] = Counter()
    for each in short:
        started.update(name.rpartition("-")[0] for name in each.placed)
        for literal in literals(drawn):
            count = started[literal.group.key.removeprefix("team/")]
            assert count == 0 or count >= literal.group.min_member, "no cycle ends inside a gang"


def test_jobs_that_cannot_be_placed_do_not_keep_later_jobs_from_their_turn() -> None:
    stuck = [gang(f"stuck{at}", pods=2, what=spec(cpu=5 + at % 3), priority=9, created_s=float(at)) for at in range(6)]
    small = job("small", pods=1, what=spec(cpu=1), created_s=99.0)
    cluster = Cluster(nodes=[node("n", cpu=8)], jobs=[*stuck, small], conf=CONF)
    placed = [name for each in cycles(cluster, 1) for name in each.placed]
    assert placed == ["small-0"]


def test_a_job_that_arrives_during_a_round_gets_its_turn_in_order() -> None:
    waiting = [gang(f"stuck{at}", pods=2, what=spec(cpu=5 + at % 3), created_s=float(at)) for at in range(4)]
    late = job("late", pods=1, what=spec(cpu=6), created_s=99.0)
    cluster = Cluster(nodes=[node("n", cpu=8)], jobs=[*waiting, late], conf=CONF)
    assert cluster.engine.schedule(0.0, out_of_time=after(1)).cut
    urgent = job("urgent", pods=1, what=spec(cpu=6), priority=9)
    cluster.apply(GroupChanged(urgent.group), *(PodChanged(pod) for pod in urgent.pods))
    assert Outcome(cluster.engine.schedule(1.0, out_of_time=after(1))).placed == {"urgent-0": "n"}


def test_no_job_overtakes_the_head_of_a_strict_queue_in_a_later_cycle() -> None:
    first = gang("first", pods=2, what=spec(cpu=5), queue="strict", created_s=0.0)
    others = [job(f"o{at}", pods=1, what=spec(cpu=1), queue="strict", created_s=1.0 + at) for at in range(3)]
    free = [gang(f"f{at}", pods=2, what=spec(cpu=5), created_s=float(at)) for at in range(3)]
    queues = [queue("default"), queue("strict", dequeue_strategy="fifo")]
    cluster = Cluster(nodes=[node("n", cpu=8)], jobs=[first, *others, *free], queues=queues, conf=CONF)
    assert [each.placed for each in cycles(cluster, 1) if each.placed] == []


def test_jobs_are_admitted_cycle_by_cycle_and_get_their_verdicts_at_the_end() -> None:
    least = (("cpu", 4000),)
    waiting = [
        job(f"j{at}", pods=0, phase=PodGroupPhase.PENDING, created_s=float(at), min_resources=least) for at in range(4)
    ]
    conf = CONF.replace("{name: conformance}", "{name: overcommit}")
    found = cycles(Cluster(nodes=[node("n", cpu=8)], jobs=waiting, conf=conf), 1)
    assert [sorted(each.phases) for each in found[:4]] == [["j0"], ["j1"], [], []]
    assert {name: verdict.cause for name, verdict in found[-1].verdicts.items()} == {
        "j2": Cause.NOT_ADMITTED,
        "j3": Cause.NOT_ADMITTED,
    }


def test_room_is_made_for_one_job_per_cycle() -> None:
    conf = """
actions: "allocate, shuffle"
tiers: [{plugins: [{name: gang}, {name: predicates}]}]
configurations: [{name: shuffle, arguments: {maxMoves: 5}}]
"""
    card, pair = spec(ask=[whole()]), spec(ask=[whole(2)])
    nodes = [node(name, cards=2) for name in "abcd"]
    small = [job(f"small-{name}", on=[name], what=card, phase=PodGroupPhase.RUNNING) for name in "abcd"]
    big = [job(f"big{at}", what=pair, created_s=float(at)) for at in range(2)]
    found = cycles(Cluster(nodes=nodes, jobs=[*small, *big], conf=conf), 1)
    assert [len(each.evicted) for each in found if each.evicted] == [1, 1]


def test_every_cycle_does_some_work_before_it_checks_the_clock() -> None:
    """However slow the machine is, each cycle advances the round."""
    cluster = Cluster(nodes=[node("n", cpu=8)], jobs=[job("one", pods=1), job("two", pods=1)], conf=CONF)
    plan = cluster.engine.schedule(0.0, out_of_time=lambda: True)
    assert plan.cut
    assert len(plan.bindings) == 1
