"""Runs of small traces whose outcome can be computed by hand, and properties of any run."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.objects import Node
from baton.model.ids import NodeName
from baton.sim.run.books import CardBooks, DefectError
from baton.sim.run.metrics import Summary
from baton.sim.run.prediction import Foresight
from baton.sim.run.replay import Replay
from baton.sim.run.settings import Outage, Settings
from baton.sim.run.sharing import SharingModel
from baton.sim.run.translation import engine_node
from baton.sim.scheduling_policies import PATIENCE_S, POLICIES, Policy
from baton.sim.traces.synthetic import SyntheticSettings, generate
from baton.sim.traces.workload import TraceJob, TraceNode, uniform_cluster
from tests.sim.trace_jobs import job


def cluster(gpus: int = 2, cards_per_node: int = 2, slots: int = 1) -> list[Node]:
    return [engine_node(node, slots) for node in uniform_cluster(gpus, cards_per_node)]


def replay(
    jobs: Sequence[TraceJob], policy: str | Policy = "fifo", nodes: Sequence[Node] | None = None, **options: object
) -> tuple[Summary, dict[str, tuple[float, float]]]:
    """The summary, and each job's first start and end (-1: never)."""
    chosen = POLICIES[policy] if isinstance(policy, str) else policy
    simulation = Replay(jobs, nodes if nodes is not None else cluster(), chosen, Settings(**options))  # type: ignore[arg-type]  # fields by name, and plain strings as keys
    summary = simulation.run()
    return summary, {
        run.job.name: (-1 if run.start_s is None else run.start_s, -1 if run.end_s is None else run.end_s)
        for run in simulation.runs.values()
    }


def test_first_come_first_served() -> None:
    jobs = [
        job("a", 100),
        job("b", 50, submit_s=1),
        job("c", 10, submit_s=2),
        job("d", 10, submit_s=3),
    ]
    summary, times = replay(jobs)
    # a and b take the two cards; c gets b's at 51, d the same card at 61.
    assert times == {"a": (0, 100), "b": (1, 51), "c": (51, 61), "d": (61, 71)}
    assert summary.jct_s.mean == (100 + 50 + 59 + 68) / 4
    assert summary.wait_s.mean == (0 + 0 + 49 + 58) / 4
    assert summary.makespan_s == 100
    assert summary.utilisation == pytest.approx((100 + 50 + 10 + 10) / 200)
    assert summary.finished == 4


def test_times_count_from_the_first_submission() -> None:
    _, times = replay([job("a", 10, submit_s=1_000_000), job("b", 10, submit_s=1_000_005)])
    assert times == {"a": (0, 10), "b": (5, 15)}


def test_a_gang_starts_only_as_a_whole() -> None:
    jobs = [
        job("one", 100),
        job("gang", 10, submit_s=1, cards=1, tasks=2),
        job("late", 5, submit_s=2),
    ]
    _, times = replay(jobs)
    # The gang would need both cards; meanwhile the later job may use the idle one.
    assert times == {"one": (0, 100), "late": (2, 7), "gang": (100, 110)}


def test_a_job_gets_a_card_that_is_freed_in_the_second_of_its_submission() -> None:
    _, times = replay([job("a", 10, cards=2), job("b", 10, submit_s=10, cards=2)])
    assert times["b"] == (10, 20)


def test_higher_priority_goes_first() -> None:
    jobs = [
        job("running", 10, cards=2),
        job("low", 10, submit_s=1, cards=2),
        job("high", 10, submit_s=2, cards=2, priority=9),
    ]
    _, times = replay(jobs, "priority")
    assert times == {"running": (0, 10), "high": (10, 20), "low": (20, 30)}
    _, in_order = replay(jobs, "fifo")
    assert in_order["low"] == (10, 20), "fifo does not look at priorities"


def test_shortest_first_uses_the_known_durations() -> None:
    jobs = [
        job("first", 10, cards=2),
        job("long", 100, submit_s=1, cards=2, family="x"),
        job("short", 5, submit_s=2, cards=2, family="y"),
    ]
    _, told = replay(jobs, "sjf")
    assert told == {"first": (0, 10), "short": (10, 15), "long": (15, 115)}
    _, guessed = replay(jobs, "sjf-predicted")
    assert guessed == {"first": (0, 10), "long": (10, 110), "short": (110, 115)}, "no family has a history yet"


def test_history_teaches_which_families_are_short() -> None:
    past = [
        job("x1", 100, cards=2, family="x"),
        job("y1", 5, submit_s=1, cards=2, family="y"),
        job("wall", 50, submit_s=150, cards=2, family="z"),
    ]
    jobs = [
        *past,
        job("x2", 100, submit_s=151, cards=2, family="x"),
        job("y2", 5, submit_s=152, cards=2, family="y"),
    ]
    _, times = replay(jobs, "sjf-predicted")
    assert [times["y2"], times["x2"]] == [(200, 205), (205, 305)]


def test_least_attained_service_gives_a_new_job_the_card_of_an_old_one() -> None:
    jobs = [job("old", 20_000), job("new", 10, submit_s=5_000)]
    summary, times = replay(jobs, "las", cluster(1, 1))
    # After an hour on one card the old job is one level lower; it waits 10 s and needs a minute to restart.
    assert times == {"old": (0, 20_070), "new": (5_000, 5_010)}
    assert (summary.preemptions, summary.wait_s.max) == (1, 10)
    assert summary.lost_gpu_hours == pytest.approx(60 / 3600)


def test_jobs_of_one_level_do_not_preempt_each_other() -> None:
    _, times = replay([job("old", 20_000), job("new", 10, submit_s=1_000)], "las", cluster(1, 1))
    assert times["new"] == (3_600, 3_610), "it waits until the old job has had its hour"


def test_a_gang_is_stopped_and_restarted_as_a_whole() -> None:
    jobs = [job("gang", 20_000, tasks=2), job("new", 10, submit_s=5_000)]
    summary, times = replay(jobs, "las", cluster(2, 1))
    assert times == {"gang": (0, 20_070), "new": (5_000, 5_010)}
    assert summary.preemptions == 1


def test_a_job_that_cannot_restart_is_left_alone() -> None:
    jobs = [job("old", 20_000, restartable=False), job("new", 10, submit_s=5_000)]
    summary, times = replay(jobs, "las", cluster(1, 1))
    assert times == {"old": (0, 20_000), "new": (20_000, 20_010)}
    assert summary.preemptions == 0


def test_a_job_that_has_waited_two_weeks_goes_first_under_least_attained_service() -> None:
    # A new one-hour job arrives every hour: without patience, a stopped job would wait until the last of them ends.
    stream = [job(f"s{i}", 3_600, submit_s=4_000 + 3_600 * i) for i in range(400)]
    summary, times = replay([job("old", 8_000), *stream], "las", cluster(1, 1))
    resumed_s = 4_000 + PATIENCE_S
    old_end_s = times["old"][1]
    # The promoted job takes the card of the running job at once.
    assert old_end_s == resumed_s + 60 + 4_000
    assert summary.finished == 401


def test_backfill_lets_only_short_jobs_pass_a_gang() -> None:
    jobs = [
        job("one", 100),
        job("gang", 10, submit_s=1, cards=2),
        job("long", 1_000, submit_s=2),
        job("short", 50, submit_s=3),
    ]
    told = msgspec.structs.replace(POLICIES["backfill"], foresight=Foresight.PERFECT)
    _, times = replay(jobs, told)
    assert times == {"one": (0, 100), "short": (3, 53), "gang": (100, 110), "long": (110, 1_110)}
    _, served = replay(jobs, "fifo")
    assert served["gang"] == (1_002, 1_012), "without a reservation the long job keeps the gang out"


def test_decisions_may_be_spaced() -> None:
    _, times = replay([job("a", 10), job("b", 10, submit_s=1), job("c", 10, submit_s=2)], cycle_s=60)
    assert times == {"a": (0, 10), "b": (60, 70), "c": (60, 70)}


def test_a_job_larger_than_the_cluster_is_reported_and_does_not_block_the_others() -> None:
    jobs = [
        job("wide", 10, cards=3),
        job("many", 10, tasks=3),
        job("rare", 10, models=("H100",)),
        job("fat", 10, memory_mib=10**9),
        job("fits", 10),
    ]
    summary, times = replay(jobs)
    assert summary.impossible == ["wide", "many", "rare", "fat"]
    assert times == {"fits": (0, 10)}
    assert summary.jobs == 5


def test_a_job_without_cards_runs_beside_full_ones() -> None:
    jobs = [job("full", 100, cards=2), job("cpu", 10, submit_s=5, cards=0, milli=0, cpu_milli=1000)]
    _, times = replay(jobs)
    assert times == {"full": (0, 100), "cpu": (5, 15)}


def test_models_decide_where_a_job_may_run() -> None:
    nodes = [engine_node(TraceNode(name=name, cards=1, model=name), 1) for name in ("A10", "A100")]
    _, times = replay([job("a", 10, models=("A10",)), job("b", 10, models=("A10",))], nodes=nodes)
    assert times == {"a": (0, 10), "b": (10, 20)}, "A100 is another model, not a longer spelling"


def test_shares_of_one_card_run_together_and_slow_each_other() -> None:
    shares = [job("a", 89, milli=500, utilisation=0.5), job("b", 89, milli=500, utilisation=0.6)]
    _, times = replay(shares, nodes=cluster(1, 1))
    # Solo utilisations add up to 110 %: both run at 0.89 of their speed.
    assert times["a"] == pytest.approx((0, 100))
    assert times["b"] == pytest.approx((0, 100))
    _, alone = replay(shares, nodes=cluster(1, 1), sharing=SharingModel(interference=False))
    assert alone["a"] == (0, 89)


def test_a_job_speeds_up_when_its_neighbour_leaves() -> None:
    shares = [job("long", 100, milli=500, utilisation=0.5), job("short", 44.5, milli=500, utilisation=0.6)]
    _, times = replay(shares, nodes=cluster(1, 1))
    assert times["short"] == pytest.approx((0, 50))
    assert times["long"] == pytest.approx((0, 50 + (100 - 44.5)))


def test_slots_take_turns_when_memory_is_oversubscribed() -> None:
    heavy = [job(name, 100, card_memory_mib=20_000, utilisation=0.5) for name in ("a", "b")]
    _, turns = replay(heavy, nodes=cluster(1, 1, slots=2), slots_per_card=2)
    _, thrash = replay(heavy, nodes=cluster(1, 1, slots=2), slots_per_card=2, sharing=SharingModel(lock=False))
    _, serial = replay(heavy, nodes=cluster(1, 1))
    assert serial["b"][1] == 200
    assert 100 < turns["b"][1] < 200, "turns beat one after the other"
    assert thrash["b"][1] == pytest.approx(850)


def test_a_node_failure_costs_the_work_since_the_last_checkpoint() -> None:
    outages = (Outage(NodeName("node-0001"), at_s=700, lasts_s=3600),)
    summary, times = replay([job("a", 1000)], nodes=cluster(1, 1), outages=outages, checkpoint_s=300)
    # 600 s were saved; the node returns after an hour; then a minute to restart and the last 400 s.
    assert times == {"a": (0, 700 + 3600 + 60 + 400)}
    assert (summary.node_failures, summary.job_failures, summary.preemptions) == (1, 1, 0)
    assert summary.lost_gpu_hours == pytest.approx((100 + 60) / 3600)


def test_failing_nodes_delay_jobs_but_lose_none() -> None:
    jobs = generate(SyntheticSettings(jobs=60, gpus=16, load=0.8, median_s=600))
    summary, _ = replay(jobs, nodes=cluster(16, 8), node_mtbf_s=20_000.0, node_repair_s=1_000.0)
    calm, _ = replay(jobs, nodes=cluster(16, 8))
    assert summary.node_failures > 0
    assert summary.finished == 60
    assert summary.jct_s.mean > calm.jct_s.mean


@pytest.mark.parametrize("policy", ["fifo", "priority", "sjf", "sjf-predicted"])
def test_showing_fewer_jobs_changes_the_cost_and_not_the_result(policy: str) -> None:
    jobs = generate(SyntheticSettings(jobs=150, gpus=16, load=2.5, fractions=0.2, median_s=900, seed=5))
    every, times = replay(jobs, policy, cluster(16, 8))
    some, same = replay(jobs, policy, cluster(16, 8), visible_per_shape=2)
    assert max(every.curve.pending) > 20
    assert times == same
    assert every.jct_s == some.jct_s


def test_the_books_refuse_an_impossible_plan() -> None:
    nodes = cluster(1, 1)
    books = CardBooks(nodes, [], slots_per_card=1)
    (card,) = nodes[0].cards
    books.take("t/a", [card.id], 600)  # type: ignore[arg-type]  # fields by name, and plain strings as keys
    with pytest.raises(DefectError, match="over-committed: t/b joins t/a"):
        books.take("t/b", [card.id], 500)  # type: ignore[arg-type]  # fields by name, and plain strings as keys


small_jobs = st.lists(
    st.builds(
        lambda cards, tasks, milli, duration, submit, priority: (cards, tasks, milli, duration, submit, priority),
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from([1000, 1000, 500, 300]),
        st.integers(1, 500),
        st.integers(0, 300),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=25, deadline=None)
@given(drawn=small_jobs, failures=st.booleans(), seed=st.integers(0, 3))
def test_every_run_completes_all_work_and_repeats_with_the_same_seed(
    policy: str, drawn: list[tuple[int, int, int, int, int, int]], failures: bool, seed: int
) -> None:
    jobs = [
        TraceJob(
            name=f"j{number}",
            cards=1 if milli < 1000 else cards,
            tasks=tasks,
            milli=milli,
            duration_s=duration,
            submit_s=submit,
            priority=priority,
            tenant=f"t{number % 3}",
        )
        for number, (cards, tasks, milli, duration, submit, priority) in enumerate(drawn)
    ]
    options = Settings(
        seed=seed,
        node_mtbf_s=2000.0 if failures else 0.0,
        node_repair_s=100.0,
        sharing=SharingModel(interference=False),
    )
    first = Replay(jobs, cluster(4, 2), POLICIES[policy], options)
    summary = first.run()
    assert summary == Replay(jobs, cluster(4, 2), POLICIES[policy], options).run()
    assert summary.finished == len(jobs)
    held_s = sum(
        moment.held_milli * (following.time_s - moment.time_s)
        for moment, following in zip(first.moments, first.moments[1:], strict=False)
    )
    work_s = sum(job.total_milli * (job.duration_s or 0) for job in jobs)
    # Cards were held only for the work itself, for restarts, and for work that failures lost.
    assert held_s == pytest.approx(work_s + first.lost_gpu_s * 1000)
    assert all(0 <= moment.held_milli <= 4000 for moment in first.moments)
    for run in first.runs.values():
        assert run.start_s is not None
        assert run.start_s >= run.job.submit_s
        assert run.end_s is not None
        assert run.end_s - run.start_s >= (run.job.duration_s or 0) - 1e-6
