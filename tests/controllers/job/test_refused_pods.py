"""Pods that the API server refuses: they are retried with growing pauses, and the job tells the reason."""

import asyncio
import re
from typing import Any

import msgspec
import pytest

from baton.controllers.job import controller, tracking
from baton.kube.errors import ApiError, ForbiddenError, InvalidError
from baton.model.ids import Key
from baton.model.resource import Resource
from tests.controllers.job.streams import Stream

JOB = Key("n/j0")
QUOTA = ForbiddenError(403, "Forbidden", 'pods "j0-main-0" is forbidden: exceeded quota: small')
INVALID = InvalidError(422, "Invalid", 'Pod "j0-main-0" is invalid: spec.containers[0].image: Required value')
DENIED = ApiError(400, "BadRequest", 'admission webhook "guard.example.com" denied the request: no')


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tracking, "time", clock)
    return clock


def refuse(stream: Stream, error: ApiError, *, tasks: tuple[str, ...] = ("main",)) -> None:
    """From now on all pods of these tasks are refused."""
    create = stream.server.create

    async def refusing(resource: Resource[Any], body: Any, namespace: str) -> Any:
        if resource.plural == "pods" and body["metadata"]["annotations"]["volcano.sh/task-spec"] in tasks:
            stream.server.requests["create pods"] += 1
            raise error
        return await create(resource, body, namespace)

    stream.server.create = refusing  # type: ignore[method-assign]  # a server that refuses


async def admitted(replicas: int, error: ApiError) -> Stream:
    stream = Stream(1)
    stream.change(replicas, min_available=1)
    refuse(stream, error)
    stream.lend(pods="99")
    await stream.settle()
    return stream


def state(stream: Stream) -> Any:
    (job,) = stream.server.stores["jobs"]
    return job.status.state


async def waits_s(stream: Stream, clock: Clock, times: int) -> list[float]:
    """The pauses that the job asks for, one after the other."""
    waits = []
    for _ in range(times):
        await stream.settle()
        wait_s = await stream.controller.sync(JOB)
        assert wait_s is not None
        waits.append(wait_s)
        clock.now_s += wait_s
        stream.woken[JOB] = None
    return waits


async def test_refused_pods_are_retried_with_pauses_that_grow_to_a_minute(clock: Clock) -> None:
    stream = await admitted(1, QUOTA)
    waits = await waits_s(stream, clock, 12)
    assert waits == sorted(waits)
    assert waits[-3:] == [60.0] * 3


async def test_changes_of_other_pods_do_not_trigger_a_retry(clock: Clock) -> None:
    """Otherwise a thousand pods, half of them over the quota, would be retried whenever one of the others changes."""
    stream = await admitted(5, QUOTA)
    tried = stream.server.requests["create pods"]
    for _ in range(20):
        stream.woken[JOB] = None
        await stream.settle()
    assert stream.server.requests["create pods"] == tried == 5


async def test_a_retry_tries_one_pod_of_each_task_first(clock: Clock) -> None:
    stream = await admitted(5, QUOTA)
    clock.now_s += 60.0
    stream.woken[JOB] = None
    await stream.settle()
    assert stream.server.requests["create pods"] == 5 + 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (QUOTA, "pods are refused and will be tried again: .*exceeded quota: small"),
        (DENIED, "pods are refused and will be tried again: .*denied the request: no"),
        (INVALID, "no pods can be created from this template: .*image: Required value.*submit the job again"),
    ],
)
async def test_the_reason_is_in_one_event_and_in_the_status(clock: Clock, error: ApiError, words: str) -> None:
    stream = await admitted(3, error)
    clock.now_s += 10.0
    stream.woken[JOB] = None
    await stream.settle()
    await later(stream)
    told = [message for reason, message in stream.recorded if reason == "FailedCreate"]
    assert len(set(told)) == 1
    assert state(stream).phase == "Pending"
    assert state(stream).reason == "FailedCreate"
    assert re.search(words, state(stream).message)


async def test_the_reason_disappears_once_the_pods_are_accepted(clock: Clock) -> None:
    stream = Stream(1)
    create = stream.server.create
    refuse(stream, QUOTA)
    stream.lend(pods="99")
    await stream.settle()
    await later(stream)
    assert state(stream).reason == "FailedCreate"
    stream.server.create = create  # type: ignore[method-assign]  # it refuses no more
    clock.now_s += 60.0
    stream.woken[JOB] = None
    await stream.settle()
    stream.move_pods("Running")
    await stream.settle()
    assert (state(stream).phase, state(stream).reason, state(stream).message) == ("Running", "", "")


async def test_a_task_whose_pods_are_refused_does_not_block_others(clock: Clock) -> None:
    stream = Stream(1)
    (job,) = stream.server.stores["jobs"]
    other = msgspec.structs.replace(job.spec.tasks[0], name="other", replicas=3)
    spec = msgspec.structs.replace(job.spec, tasks=(job.spec.tasks[0], other), min_available=1)
    stream.server.stores["jobs"].put(stream.server.changed(job, spec=spec))
    refuse(stream, INVALID)
    stream.lend(pods="99")
    await stream.settle()
    assert len(stream.server.stores["pods"]) == 3


async def test_a_changed_job_is_retried_at_once(clock: Clock) -> None:
    stream = await admitted(2, QUOTA)
    tried = stream.server.requests["create pods"]
    await stream.scale(1, min_available=1)
    assert stream.server.requests["create pods"] > tried


async def later(stream: Stream) -> None:
    """The time during which counts and messages within a phase are gathered is over."""
    for _ in range(3):
        await asyncio.sleep(controller.COALESCE_S)
        stream.woken[JOB] = None
        await stream.settle()


@pytest.mark.parametrize("plugins", [{}, {"svc": (), "ssh": (), "pytorch": ("--master=main",), "mpi": ()}])
@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"spec": "x"}, "spec"),
        ({"spec": {"containers": "abc"}}, "spec.containers"),
        ({"spec": {"containers": [None]}}, r"spec.containers\[0\]"),
        ({"spec": {"containers": [{"resources": "x"}]}}, r"containers\[0\].resources"),
        ({"spec": {"containers": [{"resources": {"limits": "x"}}]}}, "resources.limits"),
        ({"spec": {"containers": [{"resources": {"limits": {"cpu": []}}}]}}, "resources.limits"),
        ({"spec": {"initContainers": "x"}}, "spec.initContainers"),
        ({"spec": {"containers": [{"ports": ["x"]}]}}, r"ports\[0\]"),
        ({"spec": {"containers": [{"env": "x"}]}}, "env"),
        ({"spec": {"volumes": "x"}}, "spec.volumes"),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {"labels": ["a"]}}, "metadata.labels"),
        ({"metadata": {"labels": {"a": 1}}}, "metadata.labels"),
        ({"metadata": {"annotations": "x"}}, "metadata.annotations"),
    ],
)
async def test_an_invalid_template_is_reported_without_an_exception(
    clock: Clock, template: dict[str, Any], words: str, plugins: dict[str, tuple[str, ...]]
) -> None:
    """Without webhooks, the controller is the first to check templates."""
    stream = Stream(1)
    (job,) = stream.server.stores["jobs"]
    task = msgspec.structs.replace(job.spec.tasks[0], template=template)
    spec = msgspec.structs.replace(job.spec, tasks=(task,), plugins=plugins)
    stream.server.stores["jobs"].put(stream.server.changed(job, spec=spec))
    stream.lend(pods="99")
    await stream.settle()
    assert (state(stream).phase, state(stream).reason) == ("Pending", "FailedCreate")
    assert re.search(
        f"no pods can be created from this template: the template of task main: .*{words}", state(stream).message
    )
    assert {reason for reason, _ in stream.recorded} == {"FailedCreate"}
    assert stream.server.requests["create pods"] == 0
