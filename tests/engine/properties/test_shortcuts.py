"""Shortcuts for long backlogs do not change decisions: without them the plan is the same."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.engine.actions.allocate import Unfit
from baton.engine.plan import Plan
from baton.engine.presets import PRESETS
from baton.engine.search.evictions import Failures
from tests.engine.clusters import Cluster, job, node, queue, spec, vgpu, whole

SPECS = [spec(cpu=2), spec(cpu=1, ask=[whole()]), spec(cpu=1, ask=[whole(3)]), spec(cpu=1, ask=[vgpu(memory_mib=9000)])]

waiting = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(1, 3), st.integers(0, len(SPECS) - 1), st.integers(0, 3), st.sampled_from("ab")
    ),
    min_size=4,
    max_size=16,
)
running = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 3), st.sampled_from("ab")), min_size=2, max_size=10
)

Waiting = list[tuple[int, int, int, int, str]]
Running = list[tuple[int, int, int, str]]


def plans(drawn: Waiting, held: Running, preset: str, strategy: str) -> list[Plan]:
    """Two cycles: the second one uses the results that the first one cached."""
    jobs = [
        job(
            f"w{at}",
            pods=max(pods, least),
            min_member=least,
            what=SPECS[kind],
            priority=priority,
            queue=name,
            created_s=float(at),
        )
        for at, (pods, least, kind, priority, name) in enumerate(drawn)
    ]
    jobs += [
        job(f"r{at}", what=SPECS[kind], on=[f"n{place}"], priority=priority, queue=name)
        for at, (place, kind, priority, name) in enumerate(held)
    ]
    queues = [queue(name, weight=weight, dequeue_strategy=strategy) for name, weight in (("a", 1), ("b", 3))]
    nodes = [node(f"n{at}", cpu=6, cards=2) for at in range(3)]
    cluster = Cluster(nodes=nodes, jobs=jobs, queues=queues, conf=preset)
    return [cluster.run(1000.0).plan, cluster.run(2000.0).plan]


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    drawn=waiting,
    held=running,
    preset=st.sampled_from(sorted(PRESETS)),
    strategy=st.sampled_from(["traverse", "traverse", "fifo"]),
)
def test_plans_are_the_same_without_shortcuts(
    monkeypatch: pytest.MonkeyPatch, drawn: Waiting, held: Running, preset: str, strategy: str
) -> None:
    quick = plans(drawn, held, preset, strategy)
    with monkeypatch.context() as patch:
        patch.setattr(Unfit, "pass_over", lambda *_: False)
        patch.setattr(Failures, "knows", lambda *_: False)
        slow = plans(drawn, held, preset, strategy)
    for one, other in zip(quick, slow, strict=True):
        assert (one.bindings, one.evictions, one.nominations, one.phases) == (
            other.bindings,
            other.evictions,
            other.nominations,
            other.phases,
        )
        assert [verdict.group for verdict in one.verdicts] == [verdict.group for verdict in other.verdicts]
