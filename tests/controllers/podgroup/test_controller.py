"""The event on a plain pod whose group is refused."""

from typing import Any

import msgspec
import pytest

from baton.controllers.controller import Surroundings
from baton.controllers.podgroup.controller import PodGroupController
from baton.kube.errors import ForbiddenError, UnreachableError
from baton.model.core import Pod
from baton.model.ids import Key
from baton.model.resource import Resource
from tests.controllers.job.streams import CountingServer, Events

POD = {
    "metadata": {"name": "web", "namespace": "n", "uid": "u", "annotations": {"scheduling.volcano.sh/queue-name": "x"}},
    "spec": {"schedulerName": "volcano"},
}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ForbiddenError(403, "Forbidden", "there is no queue x"), ["PodGroupError"]),
        (UnreachableError("no answer"), []),
    ],
)
async def test_a_refused_group_is_reported_on_the_pod(
    error: Exception, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, events = CountingServer(), Events()
    client: Any = server
    recorder: Any = events
    controller = PodGroupController(Surroundings(client=client, recorder=recorder))
    controller.watch(client, lambda _: None)
    server.stores["pods"].put(msgspec.convert(POD, Pod))

    async def refused(resource: Resource[Any], body: Any, namespace: str) -> Any:
        raise error

    monkeypatch.setattr(server, "create", refused)
    with pytest.raises(type(error)):
        await controller.sync(Key("n/podgroup-u"))
    assert [reason for reason, message in events.recorded if "no queue x" in message] == told
