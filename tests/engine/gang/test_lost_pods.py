"""A gang that ran and lost pods: its phase, the room of its missing pods, and how it recovers."""

from typing import Any

import msgspec
import pytest

from baton.engine.events import BindFailed, GroupChanged, NodeRemoved, PodChanged, PodRemoved
from baton.engine.objects import Pod
from baton.model.ids import GroupKey, NodeName, PodKey
from baton.model.names import PodGroupPhase, PodPhase
from tests.engine.clusters import Cluster, JobLiteral, gang, job, node, pod, spec

CPU = 1000
ADMITTING = ["overcommit", "proportion", "capacity"]


def conf(plugin: str = "overcommit") -> str:
    return (
        f'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - name: gang\n  - name: {plugin}\n  - name: predicates\n'
    )


def trainer(pods: int = 3) -> JobLiteral:
    """A gang of pods with one CPU each, all of them running."""
    least = (("cpu", pods * CPU),)
    return gang("train", pods=pods, on=["a"] * pods, phase=PodGroupPhase.RUNNING, min_resources=least)


def waiting(cpu: int) -> JobLiteral:
    return job("other", pods=0, phase=PodGroupPhase.PENDING, created_s=1.0, min_resources=(("cpu", cpu * CPU),))


def member(index: int, **more: Any) -> Pod:
    return pod(f"train-{index}", group=GroupKey("team/train"), index=index, **more)


def gone(index: int) -> PodRemoved:
    return PodRemoved(PodKey(f"team/train-{index}"))


def changed(cluster: Cluster, index: int, **fields: Any) -> PodChanged:
    task = cluster.engine.state.tasks[PodKey(f"team/train-{index}")]
    return PodChanged(msgspec.structs.replace(task.pod, **fields))


def phase(cluster: Cluster) -> PodGroupPhase:
    return cluster.engine.state.jobs[GroupKey("team/train")].phase


def test_a_gang_that_lost_pods_is_unknown_until_it_is_complete_again() -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer()], conf=conf())
    assert cluster.run().phases == {}
    cluster.apply(changed(cluster, 0, deleting=True))
    assert cluster.run().phases == {"train": PodGroupPhase.UNKNOWN}
    cluster.apply(gone(0))
    assert cluster.run().phases == {}
    cluster.apply(PodChanged(member(0)))
    outcome = cluster.run()
    assert outcome.phases == {"train": PodGroupPhase.RUNNING}
    assert outcome.placed == {"train-0": "a"}
    assert not cluster.engine.state.active


def test_the_verdict_of_an_unknown_gang_tells_how_many_pods_are_missing() -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer()], conf=conf())
    cluster.apply(gone(0))
    cluster.run()
    assert "2 of 3 pods of the gang exist" in cluster.run().verdicts["train"].paragraph()


@pytest.mark.parametrize("plugin", ADMITTING)
def test_no_job_is_admitted_into_the_room_of_a_pod_that_will_be_recreated(plugin: str) -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer(), waiting(1)], conf=conf(plugin))
    cluster.apply(gone(0))
    in_the_cycle_that_hears_of_it = cluster.run().phases
    assert in_the_cycle_that_hears_of_it == {"train": PodGroupPhase.UNKNOWN}
    assert cluster.run().phases == {}
    cluster.apply(PodChanged(member(0)))
    assert cluster.run().placed == {"train-0": "a"}


@pytest.mark.parametrize("plugin", ADMITTING)
def test_the_room_of_a_pod_that_failed_is_free(plugin: str) -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer(), waiting(1)], conf=conf(plugin))
    cluster.apply(changed(cluster, 0, phase=PodPhase.FAILED))
    assert cluster.run().phases == {"train": PodGroupPhase.UNKNOWN, "other": PodGroupPhase.INQUEUE}


@pytest.mark.parametrize("last", [PodPhase.SUCCEEDED, PodPhase.FAILED])
def test_a_gang_is_completed_once_all_its_pods_have_ended_even_if_some_failed(last: PodPhase) -> None:
    cluster = Cluster(nodes=[node("a")], jobs=[trainer()], conf=conf())
    cluster.apply(changed(cluster, 0, phase=PodPhase.FAILED))
    cluster.apply(changed(cluster, 1, phase=PodPhase.SUCCEEDED))
    cluster.run()
    assert phase(cluster) is PodGroupPhase.UNKNOWN
    cluster.apply(changed(cluster, 2, phase=last))
    assert cluster.run().phases == {"train": PodGroupPhase.COMPLETED}
    assert not cluster.engine.state.active


def test_a_gang_that_lost_all_its_pods_is_admitted_again() -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer()], conf=conf())
    cluster.apply(*(changed(cluster, index, deleting=True) for index in range(3)))
    assert cluster.run().phases == {"train": PodGroupPhase.PENDING}
    cluster.apply(*(gone(index) for index in range(3)))
    assert cluster.run().phases == {"train": PodGroupPhase.INQUEUE}
    cluster.apply(*(PodChanged(member(index)) for index in range(3)))
    assert cluster.run().phases == {"train": PodGroupPhase.RUNNING}


def test_pods_of_a_removed_node_count_as_lost() -> None:
    literal = gang("train", pods=3, on=["a", "a", "b"], phase=PodGroupPhase.RUNNING)
    cluster = Cluster(nodes=[node("a"), node("b")], jobs=[literal], conf=conf())
    cluster.apply(NodeRemoved(NodeName("b")))
    assert cluster.run().phases == {"train": PodGroupPhase.UNKNOWN}


def test_a_role_below_its_minimum_makes_the_gang_incomplete() -> None:
    literal = gang("train", pods=3, min_member=1, on=["a"] * 3, phase=PodGroupPhase.RUNNING)
    master = msgspec.structs.replace(literal.pods[0], role="master")
    group = msgspec.structs.replace(literal.group, min_role_members=(("master", 1),))
    cluster = Cluster(nodes=[node("a")], jobs=[JobLiteral(group, (master, *literal.pods[1:]))], conf=conf())
    cluster.apply(gone(1))
    assert cluster.run().phases == {}
    cluster.apply(gone(0))
    assert cluster.run().phases == {"train": PodGroupPhase.UNKNOWN}


def test_a_failed_binding_does_not_count_as_a_lost_pod() -> None:
    """The pod still exists and is only skipped for a while, so the gang is not reported as incomplete."""
    literal = gang("train", pods=2, phase=PodGroupPhase.INQUEUE)
    cluster = Cluster(nodes=[node("a")], jobs=[literal], conf=conf())
    assert cluster.run().phases == {"train": PodGroupPhase.RUNNING}
    cluster.apply(changed(cluster, 0, node=NodeName("a"), phase=PodPhase.RUNNING))
    cluster.apply(BindFailed(PodKey("team/train-1")), changed(cluster, 1, gated=True))
    cluster.run()
    assert phase(cluster) is PodGroupPhase.INQUEUE
    cluster.apply(changed(cluster, 1, gated=False))
    assert cluster.run().phases == {"train": PodGroupPhase.RUNNING}


def test_a_gang_whose_minimum_is_lowered_runs_again() -> None:
    cluster = Cluster(nodes=[node("a")], jobs=[literal := trainer()], conf=conf())
    cluster.apply(gone(0))
    cluster.run()
    known = msgspec.structs.replace(literal.group, phase=PodGroupPhase.UNKNOWN)
    cluster.apply(GroupChanged(known), GroupChanged(msgspec.structs.replace(known, min_member=2)))
    assert cluster.run().phases == {"train": PodGroupPhase.RUNNING}


def test_victims_that_were_only_considered_leave_no_trace() -> None:
    """A preemptor does not fit, whatever is evicted: no phase changes, and no job stays on the list."""
    text = conf("priority").replace("allocate", "allocate, preempt")
    low = job("low", pods=3, on=["a"] * 3, phase=PodGroupPhase.RUNNING, what=spec(cpu=1))
    high = gang("high", pods=2, what=spec(cpu=3), priority=9)
    cluster = Cluster(nodes=[node("a", cpu=4)], jobs=[low, high], conf=text)
    outcome = cluster.run()
    assert not outcome.evicted
    assert outcome.phases == {}
    assert set(cluster.engine.state.active) == {"team/high"}
