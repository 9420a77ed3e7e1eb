"""A job finds a name taken: by an earlier job of its name, or by a foreign object."""

from typing import Any

import msgspec
import pytest

from baton.controllers.job import controller
from baton.errors import BatonError
from baton.job_plugins.plugin import AnyObject
from baton.model.core import CLAIMS, Pod
from baton.model.ids import Key
from baton.model.volcano import VolumeSpec
from tests.controllers.job.streams import Stream

JOB = Key("n/j0")
POD = Key("n/j0-main-0")


def owner(uid: str, name: str = "j0") -> list[dict[str, Any]]:
    return [{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": name, "uid": uid, "controller": True}]


def a_pod_of(owners: list[dict[str, Any]]) -> Pod:
    metadata = {"name": "j0-main-0", "namespace": "n", "uid": "other", "resourceVersion": "7"}
    return msgspec.convert({"metadata": {**metadata, "ownerReferences": owners}}, Pod)


def an_object_of(name: str, owners: list[dict[str, Any]]) -> AnyObject:
    return msgspec.convert({"metadata": {"name": name, "namespace": "n", "ownerReferences": owners}}, AnyObject)


async def until_admitted(stream: Stream) -> None:
    stream.lend(pods="8")
    await stream.settle()


async def test_a_job_waits_without_polling_for_the_pod_of_an_earlier_job() -> None:
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
async def test_a_foreign_pod_is_reported_and_creation_is_retried_with_pauses(
    owners: list[dict[str, Any]], whose: str
) -> None:
    stream = Stream(1)
    stream.server.stores["pods"].put(a_pod_of(owners))
    await until_admitted(stream)
    assert [message for reason, message in stream.recorded if reason == "FailedCreate" and whose in message]
    assert stream.server.requests["create pods"] == 0


async def test_a_job_syncs_again_soon_for_a_pod_that_the_watch_has_not_shown() -> None:
    stream = Stream(1)
    stream.server.others["pods", "j0-main-0"] = a_pod_of([])
    await until_admitted(stream)
    again_s = await stream.controller.sync(JOB)
    assert again_s == pytest.approx(controller.COALESCE_S)


@pytest.mark.parametrize(
    ("owners", "whose"),
    [(owner("an earlier one"), "still belongs to an earlier job"), ([], "is not this job's")],
)
@pytest.mark.parametrize(
    ("plural", "name"), [("services", "j0"), ("configmaps", "j0-svc"), ("networkpolicies", "j0"), ("secrets", "j0-ssh")]
)
async def test_plugins_do_not_use_the_objects_of_others(
    plural: str, name: str, owners: list[dict[str, Any]], whose: str
) -> None:
    """That of an earlier job is collected soon, and the new one would be without; somebody else's would be changed,
    and deleted with the job."""
    stream = Stream(1)
    stream.server.others[plural, name] = an_object_of(name, owners)
    stream.change(1, min_available=1, plugins={"svc": (), "ssh": ()})
    with pytest.raises(BatonError, match=whose):
        await until_admitted(stream)
    assert [
        message for reason, message in stream.recorded if reason == "PluginError" and f'{plural} "{name}"' in message
    ]
    assert not len(stream.server.stores["pods"])
    assert stream.server.requests[f"change {plural}"] == 0
    del stream.server.others[plural, name]
    stream.woken[JOB] = None
    await stream.run_all()
    stream.move_pods("Succeeded")
    await stream.settle()
    assert stream.phases() == {"Completed"}
    assert stream.server.requests[f"delete {plural}"]


@pytest.mark.parametrize("owners", [owner("a later one"), []])
@pytest.mark.parametrize(
    ("plural", "name"), [("services", "j0"), ("configmaps", "j0-svc"), ("networkpolicies", "j0"), ("secrets", "j0-ssh")]
)
async def test_foreign_objects_with_the_names_of_a_running_job_are_neither_changed_nor_deleted(
    plural: str, name: str, owners: list[dict[str, Any]]
) -> None:
    """A user deleted the object of the job, which is still recorded as created."""
    stream = Stream(1)
    await stream.scale(1, min_available=1, plugins={"svc": (), "ssh": ()})
    await stream.run_all()
    theirs = stream.server.others[plural, name] = an_object_of(name, owners)
    if plural == "configmaps":
        with pytest.raises(BatonError, match=f'{plural} "{name}"'):
            await stream.scale(2, min_available=1)
        stream.change(1, min_available=1)
    stream.move_pods("Succeeded")
    await stream.settle()
    assert stream.phases() == {"Completed"}
    assert stream.server.others == {(plural, name): theirs}
    assert stream.server.requests[f"change {plural}"] == 0


async def test_existing_objects_of_the_job_are_reused_by_plugins() -> None:
    """The program died after it created the object and before it recorded that."""
    stream = Stream(1)
    for plural, name in (("services", "j0"), ("configmaps", "j0-svc"), ("networkpolicies", "j0")):
        stream.server.others[plural, name] = an_object_of(name, owner("u0"))
    stream.change(1, min_available=1, plugins={"svc": ()})
    await stream.run_all()
    assert stream.phases() == {"Running"}
    assert stream.server.requests["change configmaps"] == 1


async def test_the_claim_of_an_earlier_job_is_not_used_but_a_foreign_claim_is() -> None:
    volumes = [{"mountPath": "/data", "volumeClaimName": "data", "volumeClaim": {}}]
    stream = Stream(1)
    stream.server.others[CLAIMS.plural, "data"] = an_object_of("data", owner("an earlier one"))
    stream.change(1, min_available=1, volumes=msgspec.convert(volumes, tuple[VolumeSpec, ...]))
    with pytest.raises(BatonError, match="still belongs to an earlier job"):
        await until_admitted(stream)
    stream.server.others[CLAIMS.plural, "data"] = an_object_of("data", [])
    stream.woken[JOB] = None
    await stream.run_all()
    assert stream.phases() == {"Running"}
    assert stream.server.requests["create persistentvolumeclaims"] == 0


async def test_the_host_list_of_a_job_is_updated_even_if_it_is_not_the_first_owner() -> None:
    stream = Stream(1)
    await stream.scale(1, min_available=1, plugins={"svc": ()})
    await stream.run_all()
    stream.server.others["configmaps", "j0-svc"] = an_object_of("j0-svc", [*owner("somebody"), *owner("u0")])
    await stream.scale(2, min_available=1)
    assert stream.server.requests["change configmaps"] == 1
