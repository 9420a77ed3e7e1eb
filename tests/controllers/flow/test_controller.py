"""How the steps of a JobFlow affect each other when one of them cannot be created."""

from typing import Any

import msgspec
import pytest

from baton.controllers.controller import Surroundings
from baton.controllers.flow.controller import JobFlowController
from baton.job_plugins.plugin import AnyObject
from baton.kube.errors import ConflictError, InvalidError
from baton.model.ids import Key
from baton.model.resource import Resource
from baton.model.volcano import FLOW, Job, JobFlow, JobTemplate
from tests.controllers.job.streams import CountingServer, Events


class Server(CountingServer):
    """Accepts whole statuses of the existing flow."""

    def __init__(self) -> None:
        super().__init__()
        self.flow: JobFlow | None = None

    async def patch(self, resource: Resource[Any], name: str, body: Any, namespace: str, **how: Any) -> Any:
        assert self.flow is not None
        for change in body:
            if change["op"] == "test" and change["value"] != self.flow.metadata.uid:
                raise InvalidError(422, "Invalid", "the test failed")
            if change["path"] == "/status":
                self.flow = self.changed(self.flow, status=change["value"])
        return self.flow


def a_flow(uid: str) -> JobFlow:
    metadata = {"name": "flow", "namespace": "n", "uid": uid, "resourceVersion": "900"}
    return msgspec.convert(
        {"metadata": metadata, "spec": {"flows": [{"name": "one"}], "jobRetainPolicy": "delete"}}, JobFlow
    )


def with_a_completed_step() -> tuple[Server, JobFlowController]:
    server = Server()
    client: Any = server
    recorder: Any = Events()
    controller = JobFlowController(Surroundings(client=client, recorder=recorder))
    controller.watch(client, lambda _: None)
    server.flow = a_flow("f")
    server.stores["jobflows"].put(server.flow)
    template = {"metadata": {"name": "one", "namespace": "n", "uid": "t", "resourceVersion": "1"}}
    server.stores["jobtemplates"].put(msgspec.convert(template, JobTemplate))
    owner = {"apiVersion": FLOW, "kind": "JobFlow", "name": "flow", "uid": "f", "controller": True}
    metadata = {"name": "flow-one", "namespace": "n", "uid": "j", "resourceVersion": "2", "ownerReferences": [owner]}
    done = {"metadata": metadata, "status": {"state": {"phase": "Completed"}}}
    server.stores["jobs"].put(msgspec.convert(done, Job))
    return server, controller


async def test_a_finished_and_deleted_step_is_not_created_again_while_the_watch_lags() -> None:
    server, controller = with_a_completed_step()
    await controller.sync(Key("n/flow"))
    assert not len(server.stores["jobs"])
    await controller.sync(Key("n/flow"))
    assert server.requests["create jobs"] == 0


async def test_the_status_of_an_earlier_flow_is_not_written_into_a_new_one_of_its_name() -> None:
    server, controller = with_a_completed_step()
    server.flow = a_flow("another")
    with pytest.raises(InvalidError):
        await controller.sync(Key("n/flow"))
    assert server.flow == a_flow("another")
    assert len(server.stores["jobs"]) == 1


async def test_a_step_that_cannot_be_created_does_not_hold_back_others() -> None:
    server, events = CountingServer(), Events()
    client: Any = server
    recorder: Any = events
    controller = JobFlowController(Surroundings(client=client, recorder=recorder))
    controller.watch(client, lambda _: None)
    for name in ("one", "other"):
        metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"}
        server.stores["jobtemplates"].put(msgspec.convert({"metadata": metadata}, JobTemplate))
    metadata = {"name": "flow", "namespace": "n", "uid": "f", "resourceVersion": "1"}
    spec = {"flows": [{"name": "one"}, {"name": "other"}]}
    server.stores["jobflows"].put(msgspec.convert({"metadata": metadata, "spec": spec}, JobFlow))
    server.others["jobs", "flow-one"] = msgspec.convert({"metadata": {"name": "flow-one", "namespace": "n"}}, AnyObject)
    with pytest.raises(ConflictError):
        await controller.sync(Key("n/flow"))
    assert [job.metadata.name for _, job in server.unseen] == ["flow-other"]
    assert "ForeignJob" in [reason for reason, _ in events.recorded]
