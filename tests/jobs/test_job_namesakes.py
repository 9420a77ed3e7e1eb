"""A job finds a name taken: by an earlier job of its name, or by somebody else."""

from typing import Any

import msgspec
import pytest

from baton.errors import BatonError
from baton.jobs import job_controller
from baton.kube.core import Pod
from baton.kube.store import Key
from tests.jobs.job_streams import Stream

JOB = Key("n/j0")
POD = Key("n/j0-main-0")


def owner(uid: str, name: str = "j0") -> list[dict[str, Any]]:
    return [{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": name, "uid": uid, "controller": True}]


def a_pod_of(owners: list[dict[str, Any]]) -> Pod:
    metadata = {"name": "j0-main-0", "namespace": "n", "uid": "other", "resourceVersion": "7"}
    return msgspec.convert({"metadata": {**metadata, "ownerReferences": owners}}, Pod)


async def until_admitted(stream: Stream) -> None:
    stream.lend(pods="8")
    await stream.settle()


async def test_the_pod_of_an_earlier_job_is_waited_for_and_not_asked_about_again_and_again() -> None:
    stream = Stream(1)
    stream.server.stores["pods"].put(a_pod_of(owner("an earlier one")))
    await until_admitted(stream)
    assert await stream.controller.sync(JOB) is None
    assert stream.server.requests["create pods"] == 0
    stream.server.stores["pods"].remove(POD)
    assert JOB in stream.woken
    await stream.settle()
    assert stream.server.requests["create pods"] == 1


@pytest.mark.parametrize(
    ("owners", "whose"), [([], "is not this job's"), (owner("u9", "j0-main"), "belongs to the Job j0-main")]
)
async def test_the_pod_of_somebody_else_is_told_to_the_user_and_tried_again_with_pauses(
    owners: list[dict[str, Any]], whose: str
) -> None:
    stream = Stream(1)
    stream.server.stores["pods"].put(a_pod_of(owners))
    with pytest.raises(BatonError, match=whose):
        await until_admitted(stream)
    assert [message for reason, message in stream.said if reason == "FailedCreate" and whose in message]
    assert stream.server.requests["create pods"] == 0


async def test_a_pod_that_the_watch_has_not_shown_yet_is_looked_for_soon() -> None:
    stream = Stream(1)
    stream.server.others["pods", "j0-main-0"] = a_pod_of([])
    await until_admitted(stream)
    again_s = await stream.controller.sync(JOB)
    assert again_s == pytest.approx(job_controller.COALESCE_S)
