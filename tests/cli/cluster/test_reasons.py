"""`baton why` for a user who may not see the whole cluster."""

import asyncio
from typing import Any

import pytest

from baton.cli.cluster import observation, reasons
from baton.cli.cluster.requests import RightsError
from baton.cli.cluster.scheduler_link import NoSchedulerError
from baton.kube.decoding import Page
from baton.kube.errors import ForbiddenError
from baton.model.resource import Resource
from baton.scheduler.settings import Settings


class Restricted:
    """The client of a user with rights in one namespace, who may not query the scheduler."""

    async def list_page(self, resource: Resource[Any], **_: Any) -> Page[Any]:
        if resource.plural in ("nodes", "priorityclasses"):
            raise ForbiddenError(403, "Forbidden", f"{resource.plural} is forbidden")
        return Page([], "1", "")

    def get(self, resource: Resource[Any], name: str, namespace: str) -> dict[str, Any]:
        told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "insufficient cpu."}
        metadata = {"name": name, "namespace": namespace}
        return {
            "metadata": metadata,
            "spec": {"schedulerName": "volcano"},
            "status": {"conditions": [told] if name == "told" else []},
        }


def test_every_missing_right_is_named_at_once() -> None:
    client: Any = Restricted()
    with pytest.raises(RightsError, match="you may not list nodes, priorityclasses of the whole cluster"):
        asyncio.run(observation._listed(client, Settings()))


def test_a_user_with_few_rights_sees_what_the_scheduler_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: Exception) -> Any:
        def raising(*_: Any) -> Any:
            raise error

        return raising

    monkeypatch.setattr(reasons, "ask", refuse(NoSchedulerError("its lease cannot be read")))
    monkeypatch.setattr(observation, "observe", refuse(RightsError("you may not list nodes")))
    cluster: Any = Restricted()
    found = reasons.answer(cluster, "team", "told", None)
    assert (found.sentence, found.source, found.waits) == ("team/told waits: insufficient cpu.", "status", True)
    assert found.remark.endswith("no scheduler answered (its lease cannot be read), and you may not list nodes")
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
def test_the_newest_message_on_an_object_counts(conditions: list[tuple[str, str, str]], told: str) -> None:
    status = {"conditions": [{"type": kind, "status": state, "message": text} for kind, state, text in conditions]}
    assert reasons._written(status) == told
