"""What is asked of a job and happens to it at a bad moment: before it is seen, before it has a status, two things at
once, or while a policy's timeout runs."""

import datetime
from typing import Any

import msgspec
import pytest

from baton.controllers.job import controller
from baton.kube.errors import ForbiddenError, UnreachableError
from baton.model.ids import Key
from baton.model.resource import Resource
from baton.model.volcano import Command, LifecyclePolicy
from tests.controllers.job.streams import Stream

JOB = Key("n/j0")
EVICTED = {"action": "RestartJob", "event": "PodEvicted"}


def order(stream: Stream, action: str, *, name: str = "do-it", version: int = 1, uid: str = "u0") -> None:
    """A command; all commands have the same second."""
    body: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": name,
            "resourceVersion": str(version),
            "creationTimestamp": "2027-01-15T08:00:00Z",
        },
        "action": action,
        "target": {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j0", "uid": uid},
    }
    stream.server.stores["commands"].put(msgspec.convert(body, Command))


def evict(stream: Stream) -> None:
    (pod,) = stream.server.stores["pods"]
    stream.server.stores["pods"].remove(Key(f"n/{pod.metadata.name}"))


async def test_a_command_before_the_first_status_of_its_job_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load a job may run for a while before its first status is written."""
    monkeypatch.setattr(controller, "CROWDED_S", 3600.0)
    monkeypatch.setattr(controller, "CROWD", 0)
    stream = Stream(1)
    await stream.run_all()
    assert stream.phases() == {""}
    order(stream, "AbortJob")
    await stream.settle()
    assert stream.phases() == {"Aborted"}
    assert not len(stream.server.stores["commands"])


async def test_a_command_that_arrives_before_its_job_waits_for_it() -> None:
    stream = Stream(1)
    (job,) = stream.server.stores["jobs"]
    stream.server.stores["jobs"].remove(JOB)
    stream.server.unseen.append(("jobs", job))
    order(stream, "AbortJob")
    await stream.settle()
    await stream.settle()
    assert stream.phases() == {"Aborted"}


async def test_a_command_for_a_deleted_job_is_deleted() -> None:
    stream = Stream(1)
    stream.server.stores["jobs"].remove(JOB)
    order(stream, "AbortJob")
    await stream.settle()
    assert not len(stream.server.stores["commands"])


async def test_a_command_for_an_earlier_job_of_the_same_name_has_no_effect() -> None:
    stream = Stream(1)
    await stream.run_all()
    order(stream, "TerminateJob", uid="an earlier one")
    await stream.settle()
    assert stream.phases() == {"Running"}
    assert not len(stream.server.stores["commands"])


async def test_a_new_command_with_the_name_of_a_finished_one_is_not_deleted() -> None:
    stream = Stream(1)
    await stream.run_all()
    order(stream, "ResumeJob")
    (first,) = stream.server.stores["commands"]
    second = msgspec.structs.replace(first.metadata, uid="another")
    stream.server.others["commands", "do-it"] = msgspec.structs.replace(first, metadata=second)
    await stream.settle()
    assert ("commands", "do-it") in stream.server.others


async def test_a_forbidden_deletion_of_a_command_is_reported_on_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job waits for the deletion: the next controller would carry out a command that was left behind."""
    stream = Stream(1)
    await stream.run_all()

    async def refuse(*_: Any, **__: Any) -> None:
        raise ForbiddenError(403, "Forbidden", "commands is forbidden")

    monkeypatch.setattr(stream.server, "delete", refuse)
    order(stream, "ResumeJob")
    with pytest.raises(ForbiddenError):
        await stream.settle()
    assert [reason for reason, message in stream.recorded if "commands is forbidden" in message] == ["CommandError"]


async def test_commands_within_one_second_are_carried_out_in_order() -> None:
    stream = Stream(1)
    await stream.run_all()
    order(stream, "AbortJob", name="z", version=9)
    order(stream, "ResumeJob", name="a", version=10)
    await stream.settle()
    (job,) = stream.server.stores["jobs"]
    assert "Restarting" in [stage.status for stage in job.status.conditions]


async def test_a_command_without_effect_does_not_hide_that_a_pod_was_evicted() -> None:
    stream = Stream(1)
    await stream.scale(1, min_available=1, policies=(msgspec.convert(EVICTED, LifecyclePolicy),))
    await stream.run_all()
    order(stream, "ResumeJob")
    evict(stream)
    await stream.settle()
    (job,) = stream.server.stores["jobs"]
    assert job.status.retry_count == 1


async def test_an_eviction_before_the_first_status_counts_as_an_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "CROWDED_S", 3600.0)
    monkeypatch.setattr(controller, "CROWD", 0)
    stream = Stream(1)
    await stream.scale(1, min_available=1, policies=(msgspec.convert(EVICTED, LifecyclePolicy),))
    await stream.run_all()
    assert stream.phases() == {""}
    evict(stream)
    await stream.settle()
    (job,) = stream.server.stores["jobs"]
    assert job.status.retry_count == 1


async def test_a_changed_job_triggers_a_policy_with_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(1)
    now = datetime.datetime.now(datetime.UTC)
    monkeypatch.setattr(stream.controller, "_now", lambda: now)
    policy = msgspec.convert({"action": "RestartJob", "event": "JobUpdated", "timeout": "10m"}, LifecyclePolicy)
    await stream.scale(1, min_available=1, policies=(policy,))
    await stream.run_all()
    now += datetime.timedelta(hours=1)
    await stream.scale(2, min_available=1)
    assert stream.phases() == {"Running"}
    now += datetime.timedelta(minutes=11)
    stream.woken[JOB] = None
    await stream.settle()
    (job,) = stream.server.stores["jobs"]
    assert job.status.retry_count == 1


async def test_a_changed_job_triggers_its_policy_despite_a_concurrent_write() -> None:
    stream = Stream(1)
    policy = msgspec.convert({"action": "RestartJob", "event": "JobUpdated"}, LifecyclePolicy)
    await stream.run_all()
    stream.server.conflicts = 1
    await stream.scale(2, min_available=1, policies=(policy,))
    stream.woken[JOB] = None
    await stream.settle()
    (job,) = stream.server.stores["jobs"]
    assert job.status.retry_count == 1


async def test_a_command_that_could_not_be_deleted_is_deleted_later_and_carried_out_once() -> None:
    """The next controller would carry out a command that was left behind, hours later."""
    stream = Stream(1)
    await stream.run_all()
    delete, failures = stream.server.delete, ["once"]

    async def failing(resource: Resource[Any], *words: Any, **options: Any) -> None:
        if resource.plural == "commands" and failures:
            raise UnreachableError(failures.pop())
        await delete(resource, *words, **options)

    stream.server.delete = failing  # type: ignore[method-assign]  # a server that is away for a moment
    order(stream, "RestartJob")
    with pytest.raises(UnreachableError):
        await stream.settle()
    stream.server.show()
    stream.woken[JOB] = None
    await stream.settle()
    assert not len(stream.server.stores["commands"])
    (job,) = stream.server.stores["jobs"]
    assert job.status.retry_count == 1
    assert [message for reason, message in stream.recorded if reason == "CommandIssued"] == [
        "command RestartJob (do-it): carried out"
    ]
