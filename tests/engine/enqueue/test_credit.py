"""Queue credit: admission without asking, never for more than the scheduler would admit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.engine import Engine
from baton.engine.events import GroupChanged, NodeChanged, QueueChanged, QuotaChanged
from baton.engine.framework import NoArguments, Plugin, Vote
from baton.engine.objects import Quota
from baton.engine.plugins import BUILT_IN
from baton.engine.presets import configured
from baton.engine.state.jobs import Job
from baton.model.names import PodGroupPhase, QueueState
from tests.engine.clusters import GIB, Cluster, JobLiteral, job, node, queue, spec

CPU = 1000
PLUGINS = ("overcommit", "proportion", "capacity")


def conf(*plugins: str, actions: str = "enqueue, allocate") -> str:
    listed = "\n".join(f"  - {plugin}" for plugin in plugins)
    return f'actions: "{actions}"\ntiers:\n- plugins:\n  - name: gang\n{listed}\n  - name: predicates\n'


def named(*plugins: str, **more: Any) -> str:
    return conf(*(f"name: {plugin}" for plugin in plugins), **more)


def asking(name: str, cpu: int, **more: Any) -> JobLiteral:
    return job(name, pods=0, min_resources=(("cpu", cpu * CPU),), **more)


def cpu_of(cluster: Cluster) -> dict[str, float]:
    """Credit in CPUs by queue."""
    return {str(name): dict(credit).get("cpu", 0) / CPU for name, credit in cluster.engine.credits(0.0).items()}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_an_empty_cluster_lends_exactly_its_capacity(plugin: str) -> None:
    cluster = Cluster(nodes=[node("a", cpu=10, memory_gib=20)], conf=named(plugin))
    assert cluster.engine.credits(0.0) == {"default": (("cpu", 10 * CPU), ("memory", 20 * GIB), ("pods", 110))}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_resources_of_running_and_admitted_jobs_are_not_lent(plugin: str) -> None:
    jobs = [job("runs", on=["a"], what=spec(cpu=3), phase=PodGroupPhase.RUNNING), asking("admitted", 4)]
    left = cpu_of(Cluster(nodes=[node("a", cpu=10)], jobs=jobs, conf=named(plugin)))["default"]
    assert left == (5 if plugin == "overcommit" else 3)


@pytest.mark.parametrize("plugin", ["proportion", "capacity"])
def test_a_queue_is_lent_no_more_than_its_capability(plugin: str) -> None:
    queues = [queue("small", capability={"cpu": 4 * CPU}), queue("free")]
    cluster = Cluster(
        nodes=[node("a", cpu=10)], queues=queues, jobs=[asking("j", 3, queue="small")], conf=named(plugin)
    )
    assert cpu_of(cluster) == {"small": 1, "free": 10}


def test_capacity_shared_by_queues_is_divided() -> None:
    queues = [queue("one"), queue("two"), queue("shut", state=QueueState.CLOSED)]
    cluster = Cluster(nodes=[node("a", cpu=10)], queues=queues, conf=named("overcommit"))
    assert cpu_of(cluster) == {"one": 6, "two": 6}


def test_nothing_is_lent_while_a_job_waits_for_admission() -> None:
    jobs = [asking("big", 50, phase=PodGroupPhase.PENDING)]
    cluster = Cluster(nodes=[node("a", cpu=10)], jobs=jobs, conf=named("overcommit"))
    assert cluster.run().plan.refused
    assert cluster.engine.credits(0.0) == {}
    cluster.apply(GroupChanged(asking("big", 5, phase=PodGroupPhase.PENDING).group))
    assert not cluster.run().plan.refused
    assert cpu_of(cluster) == {"default": 7}


def test_a_job_of_a_closed_queue_does_not_stop_lending() -> None:
    jobs = [asking("late", 1, queue="shut", phase=PodGroupPhase.PENDING)]
    queues = [queue("default"), queue("shut", state=QueueState.CLOSED)]
    cluster = Cluster(nodes=[node("a", cpu=10)], jobs=jobs, queues=queues, conf=named("proportion"))
    assert not cluster.run().plan.refused
    assert cpu_of(cluster) == {"default": 10}


def test_without_the_enqueue_action_there_is_no_credit() -> None:
    cluster = Cluster(nodes=[node("a")], conf=named("overcommit", actions="allocate"))
    assert cluster.engine.credits(0.0) == {}


def test_a_resource_quota_must_check_each_job() -> None:
    cluster = Cluster(nodes=[node("a", cpu=10)], conf=named("resourcequota", "sla"))
    assert cpu_of(cluster) == {"default": 10}
    cluster.apply(QuotaChanged(Quota(namespace="team", name="q", hard=(("cpu", 5 * CPU),), used=())))
    assert cluster.engine.credits(0.0) == {"default": ()}


def test_a_plugin_without_credit_support_checks_every_job() -> None:
    class Picky(Plugin[NoArguments]):
        name = "picky"

        def job_enqueueable(self, job: Job) -> Vote:
            return Vote.REJECT

    known = {**BUILT_IN, "picky": Picky}
    engine = Engine(configured(named("overcommit", "picky"), known))
    engine.apply([NodeChanged(node("a")), QueueChanged(queue("default"))])
    assert engine.credits(0.0) == {}
    engine.configure(configured(named("overcommit"), known))
    assert engine.credits(0.0)


@given(
    plugins=st.sampled_from(
        [
            ("name: overcommit",),
            ("name: proportion",),
            ("name: capacity",),
            ("name: capacity\n    enableHierarchy: true",),
            ("name: overcommit", "name: proportion"),
            ("name: overcommit", "name: capacity\n    enableHierarchy: true"),
        ]
    ),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    limits=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    guarantees=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    before=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=5),
    parts=st.integers(1, 4),
)
def test_all_queues_may_spend_their_credit_at_once(
    plugins: tuple[str, ...],
    sizes: list[int],
    limits: list[int],
    guarantees: list[int],
    before: list[tuple[int, int, bool]],
    parts: int,
) -> None:
    """All queues spend their whole credit at once, in several jobs: the scheduler would have admitted each of them."""
    queues = [
        queue("top", capability={"cpu": 10 * CPU}),
        *(
            queue(
                f"q{place}",
                capability={"cpu": limit * CPU} if limit else {},
                guarantee={"cpu": guarantees[place] * CPU} if guarantees[place] else {},
                parent="top",
            )
            for place, limit in enumerate(limits)
        ),
    ]
    names = ["default", *(f"q{place}" for place in range(len(limits)))]
    jobs = [
        asking(f"old{place}", cpu, queue=names[owner % len(names)])
        if admitted
        else job(
            f"old{place}", on=["n0"], what=spec(cpu=cpu), queue=names[owner % len(names)], phase=PodGroupPhase.RUNNING
        )
        for place, (owner, cpu, admitted) in enumerate(before)
    ]
    nodes = [node(f"n{place}", cpu=cpu) for place, cpu in enumerate(sizes)]
    cluster = Cluster(nodes=nodes, queues=queues, jobs=jobs, conf=conf(*plugins))
    fresh = []
    for name, credit in cluster.engine.credits(0.0).items():
        shares = tuple((resource, amount // parts) for resource, amount in credit if amount >= parts)
        fresh += [
            job(f"new-{name}-{part}", pods=0, phase=PodGroupPhase.PENDING, queue=str(name), min_resources=shares)
            for part in range(parts)
        ]
    cluster.apply(*(GroupChanged(item.group) for item in fresh))
    assert not cluster.run().plan.refused
