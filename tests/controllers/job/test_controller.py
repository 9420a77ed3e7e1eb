"""How many requests the job controller makes, and which ones wait: a stream of jobs against a server that counts.

What the requests do on a real API server is shown in tests/cluster/jobs; here only their number and order matter.
"""

from collections import Counter
from typing import Any

import msgspec
import pytest

from baton.controllers import expectations
from baton.controllers.job import controller
from baton.kube.errors import ForbiddenError
from baton.kube.store import key_of
from baton.model.ids import Key
from baton.model.resource import Resource
from tests.controllers.job.streams import Stream
from tests.observe.pages import scrape


async def test_one_job_costs_one_group_one_pod_and_a_status_per_phase() -> None:
    stream = Stream(1)
    await stream.run_all()
    assert stream.phases() == {"Running"}
    assert stream.server.requests == {"create podgroups": 1, "create pods": 1, "write jobs/status": 2}


async def test_under_load_pods_come_first_and_good_news_later(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(500)
    await stream.run_all()
    requests = stream.server.requests
    assert (requests["create podgroups"], requests["create pods"]) == (500, 500)
    assert requests["write jobs/status"] < 100
    monkeypatch.setattr(controller, "CROWDED_S", 0.0)
    for _ in range(200):
        for job in stream.server.stores["jobs"]:
            if job.status.state.phase != "Running":
                stream.woken[key_of(job)] = None
        if not stream.woken:
            break
        await stream.settle()
    assert stream.phases() == {"Running"}
    assert requests["write jobs/status"] < 2 * 500


async def test_a_job_with_delayed_news_is_not_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "CROWDED_S", 3600.0)
    stream = Stream(100)
    await stream.run_all()
    waits = [await stream.controller.sync(key_of(job)) for job in list(stream.server.stores["jobs"])]
    assert stream.server.requests["write jobs/status"] == 0
    assert min(wait or 0.0 for wait in waits) > controller.CROWDED_S / 2


async def test_delayed_news_is_written_once_the_load_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "CROWDED_S", 3600.0)
    stream = Stream(100)
    await stream.run_all()
    assert stream.phases() == {""}
    for job in list(stream.server.stores["jobs"])[20:]:
        stream.server.stores["jobs"].remove(key_of(job))
    await stream.settle()
    assert stream.phases() == {"Running"}


async def test_the_assignment_of_a_pod_to_a_node_triggers_no_sync() -> None:
    stream = Stream(1)
    await stream.run_all()
    (pod,) = stream.server.stores["pods"]
    spec = msgspec.structs.replace(pod.spec, node_name="a")
    stream.server.stores["pods"].put(stream.server.changed(pod, spec=spec))
    assert not stream.woken


@pytest.mark.parametrize("index", ["²", "9" * 5000, "first"])
async def test_arbitrary_annotations_of_a_pod_do_not_break_the_watch(index: str) -> None:
    stream = Stream(1)
    await stream.run_all()
    (pod,) = stream.server.stores["pods"]
    notes = {**pod.metadata.annotations, "volcano.sh/task-index": index}
    odd = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=notes))
    stream.server.stores["pods"].put(stream.server.changed(odd))
    await stream.settle()
    assert stream.phases() == {"Running"}


async def test_the_end_of_a_job_is_written_at_once_under_load() -> None:
    stream = Stream(300)
    await stream.run_all()
    stream.move_pods("Failed")
    await stream.settle()
    assert stream.phases() == {"Failed"}


async def test_a_job_with_a_write_conflict_is_synced_again() -> None:
    stream = Stream(1)
    stream.server.conflicts = 1
    assert await stream.controller.sync(Key("n/j0")) == controller.COALESCE_S
    await stream.run_all()
    assert stream.phases() == {"Running"}
    assert stream.server.requests["create podgroups"] == 1


async def test_the_host_list_of_a_scaled_job_is_updated_at_once_and_created_again_if_deleted() -> None:
    """Pods read the list when they start, so no failing attempt to create it comes first."""
    stream = Stream(1)
    server = stream.server

    await stream.scale(1, min_available=1, plugins={"svc": ()})
    await stream.run_all()
    assert (server.requests["create configmaps"], server.requests["change configmaps"]) == (1, 0)
    await stream.scale(2, min_available=1)
    assert server.requests["create configmaps"] == 1
    assert server.requests["change configmaps"] >= 1
    server.lost = {"configmaps"}
    await stream.scale(3, min_available=1)
    assert server.requests["create configmaps"] >= 2


async def test_objects_of_plugins_are_created_once_and_removed_once_under_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recording an object costs one request, creating it again three, and a key for ssh a tenth of a second of CPU."""
    monkeypatch.setattr(controller, "CROWD", 0)
    stream = Stream(1)
    await stream.scale(1, min_available=1, plugins={"svc": ()})
    await stream.run_all()
    stream.move_pods("Succeeded")
    await stream.settle()
    assert stream.phases() == {"Completed"}
    await stream.controller.sync(Key("n/j0"))
    for kind in ("services", "configmaps", "networkpolicies"):
        assert (stream.server.requests[f"create {kind}"], stream.server.requests[f"delete {kind}"]) == (1, 1)


async def test_the_group_asks_for_fewer_pods_before_surplus_pods_are_deleted() -> None:
    """Otherwise the scheduler takes the pods as lost."""
    stream = Stream(1)
    await stream.scale(3, min_available=3)
    await stream.run_all()
    requests = stream.server.requests
    requests.clear()
    await stream.scale(1, min_available=1)
    assert requests["delete pods"] == 2
    assert requests["change podgroups"] == 1
    in_order = list(requests)
    assert in_order.index("change podgroups") < in_order.index("delete pods")


async def test_a_job_within_the_credit_of_its_queue_gets_its_pods_without_the_scheduler() -> None:
    stream = Stream(3)
    stream.lend(pods="2")
    await stream.settle()
    assert sorted(group.status.phase for group in stream.server.stores["podgroups"]) == [
        "Inqueue",
        "Inqueue",
        "Pending",
    ]
    assert len(stream.server.stores["pods"]) == 2
    page = await scrape(stream.metrics)
    for admitter, number in (("credit", 2), ("scheduler", 1)):
        assert page.value("baton_job_groups_made_total", admitted_by=admitter) == number
    await stream.run_all()
    assert stream.phases() == {"Running"}
    assert stream.server.requests["create pods"] == 3


async def test_under_load_a_job_within_credit_needs_one_sync_until_its_pod_runs() -> None:
    """The watch events of its own writes hold no news for the controller."""
    stream = Stream(100)
    stream.lend(pods="100")
    looks: Counter[Key] = Counter()
    real = stream.controller.sync

    async def counted(key: Key) -> float | None:
        looks[key] += 1
        return await real(key)

    stream.controller.sync = counted  # type: ignore[method-assign]  # counts, and does the same
    await stream.settle()
    assert len(stream.server.stores["pods"]) == 100
    assert set(looks.values()) == {1}


async def test_new_pods_of_a_running_job_are_counted_soon() -> None:
    """Their watch events wake no job, so the sync that created them asks for another one."""
    stream = Stream(1)
    await stream.run_all()
    stream.change(2, min_available=1)
    again_s = await stream.controller.sync(Key("n/j0"))
    assert stream.server.requests["create pods"] == 2
    assert again_s == pytest.approx(controller.COALESCE_S)
    stream.woken.clear()
    stream.server.show()
    assert not stream.woken
    await stream.controller.sync(Key("n/j0"))
    stream.controller._memories[Key("n/j0")].due_s = 0.0
    await stream.controller.sync(Key("n/j0"))
    stream.server.show()
    (job,) = stream.server.stores["jobs"]
    assert job.status.pending == 1


async def test_a_job_asks_for_another_sync_until_the_watch_shows_its_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pod may have gone while the watch was cut, and no event would then trigger a sync."""
    stream = Stream(1)
    await stream.run_all()
    stream.change(2, min_available=1)
    await stream.controller.sync(Key("n/j0"))
    stream.server.unseen.clear()
    stream.controller._memories[Key("n/j0")].due_s = 0.0
    again_s = await stream.controller.sync(Key("n/j0"))
    assert again_s is not None
    assert again_s > controller.COALESCE_S
    assert stream.server.requests["create pods"] == 2
    monkeypatch.setattr(expectations, "LIMIT_S", 0.0)
    await stream.controller.sync(Key("n/j0"))
    assert stream.server.requests["create pods"] == 3


async def test_pods_wait_for_the_scheduler_if_the_server_drops_the_phase_of_a_new_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a PodGroup definition whose status is a subresource."""
    stream = Stream(1)
    stream.lend(pods="8")
    real = stream.server.create

    async def without_status(resource: Resource[Any], body: Any, namespace: str) -> Any:
        return await real(resource, {name: value for name, value in body.items() if name != "status"}, namespace)

    monkeypatch.setattr(stream.server, "create", without_status)
    await stream.settle()
    assert not len(stream.server.stores["pods"])
    await stream.run_all()
    assert stream.phases() == {"Running"}


async def test_a_group_that_could_not_be_created_spends_no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(1)
    stream.lend(pods="1")
    real = stream.server.create

    async def refused(resource: Resource[Any], body: Any, namespace: str) -> Any:
        raise ForbiddenError(403, "Forbidden", "not now")

    monkeypatch.setattr(stream.server, "create", refused)
    with pytest.raises(ForbiddenError):
        await stream.controller.sync(Key("n/j0"))
    monkeypatch.setattr(stream.server, "create", real)
    await stream.settle()
    assert [group.status.phase for group in stream.server.stores["podgroups"]] == ["Inqueue"]
