"""The phase that a PodGroup shows, from what its pods do."""

import msgspec

from baton.engine.events import GroupChanged, PodChanged, PodRemoved
from baton.engine.jobs import Job
from baton.engine.objects import GroupKey, GroupPhase, PodPhase
from baton.kube.scheduler.statuses import phase_of
from tests.engine.clusters import Cluster, gang, node


def group(*, on: tuple[str, ...] = (), phase: GroupPhase = GroupPhase.INQUEUE) -> tuple[Cluster, Job]:
    """A gang of two, some of it running, on a cluster of one node."""
    cluster = Cluster(nodes=[node("a")], jobs=[gang("g", pods=2, on=on, phase=phase)])
    return cluster, cluster.engine.state.jobs[GroupKey("team/g")]


def test_an_admitted_group_runs_once_its_minimum_is_placed() -> None:
    cluster, job = group()
    assert phase_of(job) is GroupPhase.INQUEUE
    cluster.run()
    assert phase_of(job) is GroupPhase.RUNNING


def test_a_group_whose_pods_have_all_ended_is_completed() -> None:
    cluster, job = group(on=("a", "a"), phase=GroupPhase.RUNNING)
    members = [event for event in cluster.events if isinstance(event, PodChanged)]
    ended = [PodChanged(msgspec.structs.replace(event.pod, phase=PodPhase.SUCCEEDED)) for event in members]
    cluster.apply(ended[0])
    assert phase_of(job) is GroupPhase.RUNNING
    cluster.apply(ended[1])
    assert phase_of(job) is GroupPhase.COMPLETED


def test_a_running_group_that_lost_all_its_pods_waits_for_admission_again() -> None:
    cluster, job = group(on=("a", "a"), phase=GroupPhase.RUNNING)
    cluster.apply(*(PodRemoved(event.pod.key) for event in cluster.events if isinstance(event, PodChanged)))
    assert phase_of(job) is GroupPhase.PENDING


def test_what_the_cluster_says_of_a_group_stands() -> None:
    cluster, job = group(phase=GroupPhase.PENDING)
    assert phase_of(job) is GroupPhase.PENDING
    cluster.apply(GroupChanged(job.group))
    assert phase_of(job) is GroupPhase.PENDING
