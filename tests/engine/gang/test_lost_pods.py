"""A gang that ran and lost pods: its phase, the room of what is missing, and how it comes back."""

from typing import Any

import msgspec
import pytest

from baton.engine.events import BindFailed, GroupChanged, NodeRemoved, PodChanged, PodRemoved
from baton.engine.objects import GroupPhase, Pod, PodPhase
from baton.model.ids import GroupKey, NodeName, PodKey
from tests.engine.clusters import Cluster, JobLiteral, gang, job, node, pod, spec

CPU = 1000
ADMITTING = ["overcommit", "proportion", "capacity"]


def conf(plugin: str = "overcommit") -> str:
    return (
        f'actions: "enqueue, allocate"\ntiers:\n- plugins:\n  - name: gang\n  - name: {plugin}\n  - name: predicates\n'
    )


def trainer(pods: int = 3) -> JobLiteral:
    """A gang of pods of one CPU, all of it running."""
    least = (("cpu", pods * CPU),)
    return gang("train", pods=pods, on=["a"] * pods, phase=GroupPhase.RUNNING, min_resources=least)


def waiting(cpu: int) -> JobLiteral:
    return job("other", pods=0, phase=GroupPhase.PENDING, created_s=1.0, min_resources=(("cpu", cpu * CPU),))


def member(index: int, **more: Any) -> Pod:
    return pod(f"train-{index}", group=GroupKey("team/train"), index=index, **more)


def gone(index: int) -> PodRemoved:
    return PodRemoved(PodKey(f"team/train-{index}"))


def changed(cluster: Cluster, index: int, **fields: Any) -> PodChanged:
    task = cluster.engine.state.tasks[PodKey(f"team/train-{index}")]
    return PodChanged(msgspec.structs.replace(task.pod, **fields))


def phase(cluster: Cluster) -> GroupPhase:
    return cluster.engine.state.jobs[GroupKey("team/train")].phase


def test_a_gang_of_which_some_are_lost_is_unknown_until_it_is_whole_again() -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer()], conf=conf())
    assert cluster.run().phases == {}
    cluster.apply(changed(cluster, 0, deleting=True))
    assert cluster.run().phases == {"train": GroupPhase.UNKNOWN}
    cluster.apply(gone(0))
    assert cluster.run().phases == {}
    cluster.apply(PodChanged(member(0)))
    outcome = cluster.run()
    assert outcome.phases == {"train": GroupPhase.RUNNING}
    assert outcome.placed == {"train-0": "a"}
    assert not cluster.engine.state.active


def test_it_is_said_what_a_gang_of_unknown_state_lacks() -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer()], conf=conf())
    cluster.apply(gone(0))
    cluster.run()
    assert "2 of 3 pods of the gang exist" in cluster.run().verdicts["train"].paragraph()


@pytest.mark.parametrize("plugin", ADMITTING)
def test_nobody_is_admitted_into_the_room_of_a_pod_that_will_come_again(plugin: str) -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer(), waiting(1)], conf=conf(plugin))
    cluster.apply(gone(0))
    in_the_cycle_that_hears_of_it = cluster.run().phases
    assert in_the_cycle_that_hears_of_it == {"train": GroupPhase.UNKNOWN}
    assert cluster.run().phases == {}
    cluster.apply(PodChanged(member(0)))
    assert cluster.run().placed == {"train-0": "a"}


@pytest.mark.parametrize("plugin", ADMITTING)
def test_the_room_of_a_pod_that_failed_is_free(plugin: str) -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer(), waiting(1)], conf=conf(plugin))
    cluster.apply(changed(cluster, 0, phase=PodPhase.FAILED))
    assert cluster.run().phases == {"train": GroupPhase.UNKNOWN, "other": GroupPhase.INQUEUE}


@pytest.mark.parametrize("last", [PodPhase.SUCCEEDED, PodPhase.FAILED])
def test_when_all_have_ended_it_is_completed_whatever_failed(last: PodPhase) -> None:
    cluster = Cluster(nodes=[node("a")], jobs=[trainer()], conf=conf())
    cluster.apply(changed(cluster, 0, phase=PodPhase.FAILED))
    cluster.apply(changed(cluster, 1, phase=PodPhase.SUCCEEDED))
    cluster.run()
    assert phase(cluster) is GroupPhase.UNKNOWN
    cluster.apply(changed(cluster, 2, phase=last))
    assert cluster.run().phases == {"train": GroupPhase.COMPLETED}
    assert not cluster.engine.state.active


def test_one_that_lost_all_is_admitted_anew() -> None:
    cluster = Cluster(nodes=[node("a", cpu=3)], jobs=[trainer()], conf=conf())
    cluster.apply(*(changed(cluster, index, deleting=True) for index in range(3)))
    assert cluster.run().phases == {"train": GroupPhase.PENDING}
    cluster.apply(*(gone(index) for index in range(3)))
    assert cluster.run().phases == {"train": GroupPhase.INQUEUE}
    cluster.apply(*(PodChanged(member(index)) for index in range(3)))
    assert cluster.run().phases == {"train": GroupPhase.RUNNING}


def test_pods_of_a_node_that_is_gone_are_lost() -> None:
    literal = gang("train", pods=3, on=["a", "a", "b"], phase=GroupPhase.RUNNING)
    cluster = Cluster(nodes=[node("a"), node("b")], jobs=[literal], conf=conf())
    cluster.apply(NodeRemoved(NodeName("b")))
    assert cluster.run().phases == {"train": GroupPhase.UNKNOWN}


def test_a_role_that_lacks_its_minimum_counts() -> None:
    literal = gang("train", pods=3, min_member=1, on=["a"] * 3, phase=GroupPhase.RUNNING)
    master = msgspec.structs.replace(literal.pods[0], role="master")
    group = msgspec.structs.replace(literal.group, min_role_members=(("master", 1),))
    cluster = Cluster(nodes=[node("a")], jobs=[JobLiteral(group, (master, *literal.pods[1:]))], conf=conf())
    cluster.apply(gone(1))
    assert cluster.run().phases == {}
    cluster.apply(gone(0))
    assert cluster.run().phases == {"train": GroupPhase.UNKNOWN}


def test_a_bind_that_failed_loses_nothing() -> None:
    """The pod is there and is left alone for a while, which is no reason to alarm anybody."""
    literal = gang("train", pods=2, phase=GroupPhase.INQUEUE)
    cluster = Cluster(nodes=[node("a")], jobs=[literal], conf=conf())
    assert cluster.run().phases == {"train": GroupPhase.RUNNING}
    cluster.apply(changed(cluster, 0, node=NodeName("a"), phase=PodPhase.RUNNING))
    cluster.apply(BindFailed(PodKey("team/train-1")), changed(cluster, 1, gated=True))
    cluster.run()
    assert phase(cluster) is GroupPhase.INQUEUE
    cluster.apply(changed(cluster, 1, gated=False))
    assert cluster.run().phases == {"train": GroupPhase.RUNNING}


def test_a_gang_that_needs_fewer_runs_again() -> None:
    cluster = Cluster(nodes=[node("a")], jobs=[literal := trainer()], conf=conf())
    cluster.apply(gone(0))
    cluster.run()
    known = msgspec.structs.replace(literal.group, phase=GroupPhase.UNKNOWN)
    cluster.apply(GroupChanged(known), GroupChanged(msgspec.structs.replace(known, min_member=2)))
    assert cluster.run().phases == {"train": GroupPhase.RUNNING}


def test_victims_that_were_only_considered_leave_no_trace() -> None:
    """A preemptor that does not fit whatever is evicted: nobody's phase changes, and nobody stays on the list."""
    text = conf("priority").replace("allocate", "allocate, preempt")
    low = job("low", pods=3, on=["a"] * 3, phase=GroupPhase.RUNNING, what=spec(cpu=1))
    high = gang("high", pods=2, what=spec(cpu=3), priority=9)
    cluster = Cluster(nodes=[node("a", cpu=4)], jobs=[low, high], conf=text)
    outcome = cluster.run()
    assert not outcome.evicted
    assert outcome.phases == {}
    assert set(cluster.engine.state.active) == {"team/high"}
