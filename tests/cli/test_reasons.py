"""`baton why` before the scheduler is asked: what the API server's own words come down to."""

import asyncio
from typing import Any

import pytest

from baton.cli.cluster import observation, reasons
from baton.cli.cluster.reasons import settled
from baton.cli.cluster.requests import RightsError
from baton.cli.cluster.scheduler_link import NoSchedulerError
from baton.kube.decoding import Page
from baton.kube.errors import ForbiddenError
from baton.model.resource import Resource
from baton.scheduler.settings import Settings

OURS = {"schedulerName": "volcano"}
PLACED = {**OURS, "nodeName": "node-1"}


def waiting(name: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("spec", "status", "told"),
    [
        (OURS, {"phase": "Pending"}, ""),
        (OURS, {}, ""),
        ({"schedulerName": "other"}, {}, "is left to the scheduler 'other', which is none of Baton's"),
        (PLACED, {"phase": "Running"}, "runs on node-1"),
        (PLACED, {"phase": "Pending"}, "starts on node-1"),
        (PLACED, {"phase": "Pending", "containerStatuses": [waiting("main", "ContainerCreating")]}, "starts on node-1"),
        (
            PLACED,
            {"phase": "Pending", "containerStatuses": [waiting("main", "ErrImagePull", "no such image")]},
            "is on node-1 and its containers cannot start: main ErrImagePull no such image",
        ),
        (PLACED, {"phase": "Succeeded"}, "has succeeded"),
        (PLACED, {"phase": "Failed", "reason": "Evicted", "message": "no memory"}, "has failed: Evicted, no memory"),
    ],
)
def test_a_pod_that_no_scheduler_has_to_place_is_told_as_it_is(
    spec: dict[str, Any], status: dict[str, Any], told: str
) -> None:
    assert settled(spec, status, deleting=False) == told


def test_a_pod_that_is_being_deleted_waits_for_nothing_else() -> None:
    assert settled(OURS, {"phase": "Pending"}, deleting=True) == "is being deleted"


class Restricted:
    """A client of somebody who has rights in a namespace, and a cluster whose scheduler may not be asked by them."""

    async def list_page(self, resource: Resource[Any], **_: Any) -> Page[Any]:
        if resource.plural in ("nodes", "priorityclasses"):
            raise ForbiddenError(403, "Forbidden", f"{resource.plural} is forbidden")
        return Page([], "1", "")

    def get(self, resource: Resource[Any], name: str, namespace: str) -> dict[str, Any]:
        told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "insufficient cpu."}
        metadata = {"name": name, "namespace": namespace}
        return {"metadata": metadata, "spec": OURS, "status": {"conditions": [told] if name == "told" else []}}


def test_what_may_not_be_listed_is_named_at_once() -> None:
    client: Any = Restricted()
    with pytest.raises(RightsError, match="you may not list nodes, priorityclasses of the whole cluster"):
        asyncio.run(observation._listed(client, Settings()))


def test_somebody_with_few_rights_is_shown_what_the_scheduler_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: Exception) -> Any:
        def raising(*_: Any) -> Any:
            raise error

        return raising

    monkeypatch.setattr(reasons, "ask", refuse(NoSchedulerError("its lease cannot be read")))
    monkeypatch.setattr(observation, "observe", refuse(RightsError("you may not list nodes")))
    cluster: Any = Restricted()
    found = reasons.answer(cluster, "team", "told", None)
    assert (found.sentence, found.source, found.waits) == ("team/told waits: insufficient cpu.", "status", True)
    assert found.remark.endswith("it was not asked (its lease cannot be read), and you may not list nodes")
    with pytest.raises(RightsError):
        reasons.answer(cluster, "team", "untold", None)


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ([("Unschedulable", "True", "2/2 tasks")], "2/2 tasks"),
        ([("Unschedulable", "True", "2/2 tasks"), ("Scheduled", "True", "")], ""),
        ([("Scheduled", "True", ""), ("Unschedulable", "True", "1/2 tasks")], "1/2 tasks"),
        ([("PodScheduled", "True", ""), ("Ready", "False", "not yet")], ""),
    ],
)
def test_the_newest_word_on_an_object_counts(conditions: list[tuple[str, str, str]], told: str) -> None:
    status = {"conditions": [{"type": kind, "status": state, "message": text} for kind, state, text in conditions]}
    assert reasons._written(status) == told
