"""The queue controller and its commands, against a server that may be away."""

from typing import Any

import msgspec
import pytest

from baton.controllers.controller import Surroundings
from baton.controllers.queue.controller import QueueController
from baton.kube.errors import UnreachableError
from baton.model.ids import Key
from baton.model.resource import Resource
from baton.model.volcano import Command, Queue
from tests.controllers.job.streams import CountingServer, Events

TEAM = Key("team")


class Server(CountingServer):
    """Unreachable for the next deletions, as many as the test sets."""

    away = 0

    async def delete(self, resource: Resource[Any], name: str, namespace: str, *, options: Any = None) -> None:
        if self.away:
            self.away -= 1
            raise UnreachableError("away")
        await super().delete(resource, name, namespace, options=options)

    async def patch(self, resource: Resource[Any], name: str, body: Any, namespace: str = "", **how: Any) -> Any:
        old = self.stores[resource.plural].get(Key(name))
        assert old is not None
        status = msgspec.structs.replace(old.status, **body.get("status", {}))
        self.stores[resource.plural].put(self.changed(old, status=status))


def a_command(action: str) -> Command:
    body: dict[str, Any] = {
        "metadata": {"name": "do-it", "namespace": "n", "uid": "c1", "resourceVersion": "5"},
        "action": action,
        "target": {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": "team"},
    }
    return msgspec.convert(body, Command)


async def test_a_command_that_could_not_be_deleted_is_deleted_later() -> None:
    """Otherwise the next controller would close the queue again, hours after it was opened."""
    server = Server()
    client: Any = server
    recorder: Any = Events()
    scope: Any = server
    controller = QueueController(Surroundings(client=client, recorder=recorder))
    controller.watch(scope, lambda _key: None)
    queue = {"metadata": {"name": "team", "resourceVersion": "1"}, "spec": {"parent": "root"}}
    server.stores["queues"].put(msgspec.convert(queue, Queue))
    server.stores["commands"].put(a_command("CloseQueue"))
    server.away = 1
    with pytest.raises(UnreachableError):
        await controller.sync(TEAM)
    await controller.sync(TEAM)
    assert not len(server.stores["commands"])
    (team,) = server.stores["queues"]
    assert team.status.state == "Closed"
