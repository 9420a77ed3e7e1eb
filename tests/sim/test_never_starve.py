"""No job waits forever, in any job order: a big gang against a constant stream of small jobs.

The stream asks for one and a half times the cluster, so a gang that needs both nodes at once would wait until the
stream ends. With `easy-backfill` its wait has a computable bound: after `firm-after` the reservation holds, every job
that starts before the shadow time is expected to end by then, and no job runs longer than the longest job.
"""

import random

import pytest

from baton.sim.run.prediction import Foresight
from baton.sim.run.replay import Replay
from baton.sim.run.settings import Settings
from baton.sim.run.translation import engine_node
from baton.sim.scheduling_policies import POLICIES, Policy
from baton.sim.traces.workload import TraceJob, uniform_cluster

LONGEST_S = 400.0
MIN_WAIT_S, FIRM_AFTER_S = 300.0, 1000.0
BOUND_S = FIRM_AFTER_S + 2 * LONGEST_S
GANG_COMES_S, STREAM_ENDS_S = 500.0, 6000.0


def configuration(order: str, *, reserving: bool) -> str:
    reservation = f"""
  - name: easy-backfill
    arguments: {{easy-backfill.min-wait: {MIN_WAIT_S}, easy-backfill.firm-after: {FIRM_AFTER_S}}}"""
    return f"""
actions: "allocate"
tiers:
- plugins:{reservation if reserving else ""}
  - name: job-order
    arguments: {{job-order.policy: {order}, job-order.promote-after: 0}}
  - name: gang
- plugins:
  - name: predicates
"""


def ordered(order: str, *, reserving: bool = True) -> Policy:
    return Policy(
        name=order,
        configuration=configuration(order, reserving=reserving),
        foresight=Foresight.PREDICTED,
        trace_priorities=True,
    )


def wait_of_the_gang(policy: Policy, seed: int) -> float:
    """Two nodes with two cards each. The gang needs all four; it has the lowest priority and the longest duration."""
    dice = random.Random(seed)
    jobs = [TraceJob(name="gang", duration_s=900.0, submit_s=GANG_COMES_S, cards=2, tasks=2, tenant="big")]
    at_s = 0.0
    while at_s < STREAM_ENDS_S:
        at_s += dice.expovariate(1 / 33)
        jobs.append(
            TraceJob(
                name=f"small-{len(jobs)}",
                duration_s=dice.choice((20.0, 200.0, LONGEST_S)),
                submit_s=at_s,
                cards=1,
                priority=dice.randint(1, 3),
                tenant=dice.choice("abc"),
                family=dice.choice("xyz"),
            )
        )
    nodes = [engine_node(node, 1) for node in uniform_cluster(4, 2)]
    simulation = Replay(jobs, nodes, policy, Settings(visible_per_shape=4))
    simulation.run()
    run = next(run for run in simulation.runs.values() if run.job.name == "gang")
    assert run.start_s is not None
    return run.start_s - GANG_COMES_S


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("order", ["fcfs", "priority", "sjf", "las", "round-robin"])
def test_the_wait_of_a_gang_has_a_bound_in_every_order(order: str, seed: int) -> None:
    assert wait_of_the_gang(ordered(order), seed) <= BOUND_S


def test_in_strict_order_a_gang_waits_only_for_running_jobs_once_it_is_first() -> None:
    assert wait_of_the_gang(POLICIES["strict-fifo"], 1) <= BOUND_S


def test_without_a_reservation_the_gang_waits_for_the_stream_to_end() -> None:
    assert wait_of_the_gang(ordered("sjf", reserving=False), 1) > STREAM_ENDS_S - GANG_COMES_S
