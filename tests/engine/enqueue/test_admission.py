"""Which waiting jobs are admitted: overcommit, queue limits, namespace quotas, waiting time."""

from typing import Any

import pytest

from baton.engine.events import GroupChanged, PodChanged, QuotaChanged
from baton.engine.objects import Quota
from baton.model.names import PodGroupPhase
from tests.engine.clusters import Cluster, JobLiteral, job, node, queue, running, spec

CPU = 1000


def conf(*plugins: str) -> str:
    listed = "\n".join(f"  - name: {plugin}" for plugin in plugins)
    return f'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - name: gang\n{listed}\n  - name: predicates\n'


def waiting(name: str, cpu: int, **more: Any) -> JobLiteral:
    return job(name, pods=0, phase=PodGroupPhase.PENDING, min_resources=(("cpu", cpu * CPU),), **more)


def admitted(cluster: Cluster, now_s: float = 0.0) -> set[str]:
    return {name for name, phase in cluster.run(now_s).phases.items() if phase is PodGroupPhase.INQUEUE}


def test_overcommit_admits_up_to_the_factor() -> None:
    jobs = [waiting(f"j{i}", 4, created_s=float(i)) for i in range(4)]
    cluster = Cluster(nodes=[node("a", cpu=10)], jobs=jobs, conf=conf("overcommit"))
    assert admitted(cluster) == {"j0", "j1", "j2"}


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(("ready", "on", "left"), [(True, "a", 15), (True, "b", 15), (False, "a", 3), (False, "b", 12)])
def test_overcommit_counts_the_usage_on_ready_nodes(ours: bool, ready: bool, on: str, left: int) -> None:
    """12 may be admitted for each ready node's 10."""
    nodes = [node("a", cpu=10), node("b", cpu=10, ready=ready)]
    taken = [running("r", on, spec(cpu=9), ours=ours)]
    for wanted, expected in ((left, {"j"}), (left + 1, set())):
        cluster = Cluster(nodes=nodes, pods=taken, jobs=[waiting("j", wanted)], conf=conf("overcommit"))
        assert admitted(cluster) == expected


def test_a_job_without_a_minimum_is_always_admitted() -> None:
    cluster = Cluster(
        nodes=[node("a", cpu=1)], jobs=[job("j", pods=0, phase=PodGroupPhase.PENDING)], conf=conf("overcommit")
    )
    assert admitted(cluster) == {"j"}


def test_without_the_action_allocate_admits() -> None:
    text = conf("overcommit").replace("enqueue, ", "")
    outcome = Cluster(nodes=[node("a")], jobs=[job("j", phase=PodGroupPhase.PENDING)], conf=text).run()
    assert set(outcome.placed) == {"j-0"}


def test_queue_capability_limits_admission() -> None:
    jobs = [waiting(f"j{i}", 4, created_s=float(i), queue="q") for i in range(3)]
    queues = [queue("q", capability={"cpu": 8 * CPU}), queue("other")]
    for plugin in ("proportion", "capacity"):
        cluster = Cluster(nodes=[node("a", cpu=64)], jobs=jobs, queues=queues, conf=conf(plugin))
        assert admitted(cluster) == {"j0", "j1"}, plugin


@pytest.mark.parametrize("hierarchy", [True, False])
def test_resources_above_a_jobs_minimum_do_not_block_admission(hierarchy: bool) -> None:
    """Neither in its own queue nor in the queues above it."""
    queues = [
        queue("root"),
        queue("lab", capability={"cpu": 4 * CPU}),
        queue("q", capability={"cpu": 4 * CPU}, parent="lab"),
    ]
    elastic = job(
        "old", pods=4, on=["a"] * 4, queue="q", phase=PodGroupPhase.RUNNING, min_resources=(("cpu", CPU),), min_member=1
    )
    text = conf("capacity\n    enableHierarchy: true" if hierarchy else "capacity")
    for cpu, expected in ((3, {"new"}), (4, set())):
        cluster = Cluster(nodes=[node("a")], jobs=[elastic, waiting("new", cpu, queue="q")], queues=queues, conf=text)
        assert admitted(cluster) == expected


def test_a_quota_is_not_promised_again_before_the_pods_exist() -> None:
    """The next cycle runs long before the pods of an admitted job exist and count as used in the quota."""
    quota = Quota(namespace="team", name="q", hard=(("requests.cpu", 10 * CPU),))
    cluster = Cluster(nodes=[node("a")], quotas=[quota], jobs=[waiting("first", 8)], conf=conf("resourcequota"))
    assert admitted(cluster) == {"first"}
    cluster.apply(GroupChanged(waiting("second", 8).group), GroupChanged(waiting("small", 2).group))
    assert admitted(cluster, 1.0) == {"small"}
    made = job("first", pods=2, what=spec(cpu=4), phase=PodGroupPhase.INQUEUE, min_resources=(("cpu", 8 * CPU),))
    made_quota = Quota(
        namespace="team", name="q", hard=(("requests.cpu", 18 * CPU),), used=(("requests.cpu", 8 * CPU),)
    )
    cluster.apply(*(PodChanged(item) for item in made.pods), QuotaChanged(made_quota))
    assert admitted(cluster, 2.0) == {"second"}


@pytest.mark.parametrize("resource", ["volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"])
def test_a_namespace_quota_counts_shares_of_cards_too(resource: str) -> None:
    asked = f"requests.{resource}"
    quota = Quota(namespace="team", name="q", hard=((asked, 100),), used=((asked, 30),))
    jobs = [
        job(f"j{i}", pods=0, phase=PodGroupPhase.PENDING, created_s=float(i), min_resources=((resource, 40),))
        for i in range(2)
    ]
    other = job("other", pods=0, phase=PodGroupPhase.PENDING, min_resources=((resource, 400),), namespace="free")
    cluster = Cluster(nodes=[node("a")], jobs=[*jobs, other], quotas=[quota], conf=conf("resourcequota"))
    assert admitted(cluster) == {"j0", "free/other"}


def test_after_its_waiting_time_a_job_is_admitted_before_others() -> None:
    text = (
        'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - name: gang\n  - name: sla\n'
        "    arguments: {sla-waiting-time: 1h}\n- plugins:\n  - name: overcommit\n  - name: predicates\n"
    )
    cluster = Cluster(nodes=[node("a", cpu=1)], jobs=[waiting("big", 50)], conf=text)
    assert admitted(cluster, 3599.0) == set()
    assert admitted(cluster, 3600.0) == {"big"}


def test_phases_follow_the_pods() -> None:
    cluster = Cluster(nodes=[node("a")], jobs=[job("j", pods=1, what=spec(), phase=PodGroupPhase.PENDING)])
    assert cluster.run().phases == {"j": PodGroupPhase.RUNNING}


@pytest.mark.parametrize("plugin", ["overcommit", "proportion", "capacity"])
def test_pods_with_scheduling_gates_do_not_block_jobs_that_can_start(plugin: str) -> None:
    """A job whose pods are gated was admitted with the whole cluster; it does not block other jobs."""
    gated = job(
        "gated", pods=10, min_member=10, min_resources=(("cpu", 10 * CPU),), pod_options={"gated": True}, what=spec()
    )
    jobs = [gated, waiting("first", 5, created_s=1.0), waiting("second", 5, created_s=2.0)]
    assert admitted(Cluster(nodes=[node("a", cpu=10)], jobs=jobs, conf=conf(plugin))) == {"first", "second"}


@pytest.mark.parametrize("plugin", ["overcommit", "proportion", "capacity"])
def test_an_admitted_job_reserves_its_resources_before_its_pods_exist(plugin: str) -> None:
    cluster = Cluster(
        nodes=[node("a", cpu=10)],
        jobs=[waiting("first", 10), waiting("second", 10, created_s=1.0)],
        conf=conf(plugin),
    )
    assert admitted(cluster) == {"first"}
    assert admitted(cluster) == set()
