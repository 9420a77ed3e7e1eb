"""The models: speeds on a shared card, predictions from history, and the statistics of a run."""

import pytest

from baton.sim.run.metrics import (
    Distribution,
    Moment,
    Outcome,
    alone_jct,
    curve,
    finish_time_fairness,
    jain,
    quantiles,
    utilisation_until,
)
from baton.sim.run.prediction import FIRST_GUESS_S, TraceHistory, corrected
from baton.sim.run.sharing import Resident, SharingModel, interference
from baton.sim.scheduling_policies import FIRST_LEVEL_GPU_S, LEVEL_GROWTH, level_of, next_level
from tests.sim.trace_jobs import job

CARD_MIB = 16_384
HALF_BUSY = Resident(0.5, 15_300)


def test_alone_on_a_card_a_job_runs_at_full_speed() -> None:
    assert SharingModel().speed([Resident(1.0, 10 * CARD_MIB)], CARD_MIB) == 1.0


@pytest.mark.parametrize(("utilisation", "speed"), [(0.9, 0.93), (1.1, 0.89), (1.5, 0.74), (1.9, 0.61), (4.0, 0.305)])
def test_interference_follows_the_measured_table(utilisation: float, speed: float) -> None:
    assert interference(utilisation) == pytest.approx(speed)


def test_running_two_together_beats_taking_turns_while_memory_suffices() -> None:
    for percent in range(0, 101, 5):
        both = [Resident(percent / 100, 1_000)] * 2
        assert 2 * SharingModel().speed(both, CARD_MIB) > 1


def test_the_lock_saves_a_third_of_the_time_on_the_published_case() -> None:
    """Two jobs with 15.3 GB and half a card's duty cycle on 16 GB: nvshare's authors measured 30 to 35 % less time."""
    speed = SharingModel().speed([HALF_BUSY, HALF_BUSY], CARD_MIB)
    saved = 1 - 1 / (2 * speed)
    assert 0.30 <= saved <= 0.37


def test_a_short_quantum_spends_its_time_moving_memory() -> None:
    speeds = [SharingModel(quantum_s=quantum).speed([HALF_BUSY] * 2, CARD_MIB) for quantum in (1, 3, 10, 30, 120)]
    assert speeds == sorted(speeds)
    assert speeds[0] < 0.5, "worse than one after the other"


def test_without_the_lock_an_oversubscribed_card_thrashes() -> None:
    # In series, two jobs progress at 1/2 each; the published case is 4.25 times slower.
    assert SharingModel(lock=False).speed([HALF_BUSY] * 2, CARD_MIB) == pytest.approx(1 / 8.5)


def test_a_prediction_is_the_mean_of_the_last_two_of_the_family() -> None:
    history = TraceHistory()
    assert history.predict(job("a", 1)) == FIRST_GUESS_S
    for duration_s in (1000, 10, 30):
        history.observe(job("a", duration_s), duration_s)
    assert history.predict(job("b", 1)) == 20
    assert history.predict(job("b", 1, family="other")) == 20, "falls back to the tenant"
    assert history.predict(job("d", 1, tenant="v")) == FIRST_GUESS_S, "another tenant's jobs say nothing"


def test_numbered_families_are_distinct_and_numbered_names_are_not() -> None:
    history = TraceHistory()
    history.observe(job("a", 10, family="f-1"), 10)
    history.observe(job("a", 1000, family="f-2"), 1000)
    assert (history.predict(job("b", 1, family="f-1")), history.predict(job("b", 1, family="f-2"))) == (
        10,
        1000,
    )
    history.observe(job("train-7", 50, family=""), 50)
    assert history.predict(job("train-8", 1, family="")) == 50


def test_an_outlived_prediction_is_doubled() -> None:
    assert corrected(100, 0) == 100
    assert corrected(100, 100) == 200
    assert corrected(100, 750) == 800


def test_levels_of_attained_service_grow_geometrically() -> None:
    first, second = FIRST_LEVEL_GPU_S, FIRST_LEVEL_GPU_S * LEVEL_GROWTH
    assert [level_of(service) for service in (0, first - 1, first, second - 1, second)] == [0, 0, 1, 1, 2]
    assert [next_level(service) for service in (0, first, second)] == [first, second, second * LEVEL_GROWTH]


def test_jain_is_one_for_equal_tenants_and_one_over_n_for_one_tenant() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([5, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([]) == 1


def test_a_tenant_alone_on_its_share_waits_only_for_its_own_jobs() -> None:
    jobs = [job("a", 100), job("b", 100), job("c", 10), job("wide", 50, cards=4, submit_s=200)]
    # Two cards: a and b run at once, c waits until 100; wide needs four cards and takes twice as long on two.
    assert alone_jct(jobs, 2) == {"a": 100, "b": 100, "c": 110, "wide": 100}


def test_finish_time_fairness_compares_with_an_equal_share() -> None:
    jobs = [job("a", 100, tenant="x", cards=2), job("b", 100, tenant="y", cards=2)]
    outcomes = {
        name: Outcome(name=name, tenant=tenant, gpus=2, submit_s=0, duration_s=100, start_s=0, end_s=end_s, ran_s=100)
        for name, tenant, end_s in (("a", "x", 100), ("b", "y", 300))
    }
    # Each tenant's share of four cards is two: alone both would take 100 s.
    assert finish_time_fairness(jobs, outcomes, 4) == {"a": 1.0, "b": 3.0}


def test_wait_and_slowdown_of_a_job() -> None:
    outcome = Outcome(name="a", tenant="t", gpus=1, submit_s=50, duration_s=100, start_s=70, end_s=250, ran_s=120)
    assert (outcome.jct_s, outcome.wait_s, outcome.slowdown) == (200, 80, 2.0)
    blink = Outcome(name="a", tenant="t", gpus=1, submit_s=0, duration_s=0.1, start_s=0, end_s=20, ran_s=0.1)
    assert blink.slowdown == 2.0, "a tiny job counts as ten seconds"


def test_curves_are_means_over_time() -> None:
    moments = [Moment(0, 1000, 4, 1, 0), Moment(10, 3000, 0, 3, 500), Moment(30, 0, 0, 0, 0)]
    found = curve(moments, 40, capacity_milli=4000, points=2)
    assert found.utilisation == pytest.approx([(10 * 0.25 + 10 * 0.75) / 20, (10 * 0.75) / 20])
    assert found.pending == pytest.approx([2, 0])
    assert found.fragmentation == pytest.approx([500 / 4000 / 2, 500 / 4000 / 2])
    assert utilisation_until(moments, 40, 4000) == pytest.approx((10 * 0.25 + 20 * 0.75) / 40)
    assert utilisation_until(moments, 20, 4000) == pytest.approx(0.5)
    assert curve([], 0, 4000).time_h == []


def test_an_empty_sample_has_a_distribution_of_zeros() -> None:
    assert Distribution.of([]) == Distribution(0, 0, 0, 0, 0)
    assert Distribution.of([1, 2, 3]).p50 == 2
    assert quantiles([5, 7], 3) == [5, 6, 7]
