"""What a JobFlow's steps have to do with each other when one of them cannot be made."""

from typing import Any

import msgspec
import pytest

from baton.jobs.controller import Surroundings
from baton.jobs.flow_controller import JobFlowController
from baton.jobs.job_plugins.plugin import Thing
from baton.kube.errors import ConflictError
from baton.kube.store import Key
from baton.kube.volcano import JobFlow, JobTemplate
from tests.jobs.job_streams import CountingServer, Events


async def test_a_step_that_cannot_be_made_does_not_keep_others_from_starting() -> None:
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
    server.others["jobs", "flow-one"] = msgspec.convert({"metadata": {"name": "flow-one", "namespace": "n"}}, Thing)
    with pytest.raises(ConflictError):
        await controller.sync(Key("n/flow"))
    assert [job.metadata.name for _, job in server.unseen] == ["flow-other"]
    assert "ForeignJob" in [reason for reason, _ in events.said]
