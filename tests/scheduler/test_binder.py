"""A bind until its outcome is known: retries, reading the pod back, and withdrawal in the engine."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import structlog.testing
from aiohttp import web

from baton.engine.events import BindFailed, Event
from baton.engine.objects import CardGrant, CardKind
from baton.engine.plan import Binding
from baton.kube.client import Client
from baton.kube.kubeconfig import Access
from baton.kube.recorder import Recorder
from baton.model import core
from baton.model.ids import CardId, Key, NodeName, PodKey
from baton.scheduler import binder
from baton.scheduler.binder import Binder
from baton.scheduler.feed.feed import Feed
from baton.scheduler.metrics import Metrics
from baton.scheduler.nodelock import NodeLocks
from baton.scheduler.settings import Settings

LIMITS = {"volcano.sh/vgpu-memory": 1000}
QUICK = Settings(retry_first_s=0.01, retry_longest_s=0.02, bind_limit_s=120.0, request_limit_s=120.0)
IMPATIENT = msgspec.structs.replace(QUICK, bind_limit_s=2.0)


class Server:
    """Answers bind requests by a script, and tells where each pod is."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.binds: list[dict[str, Any]] = []
        self.nodes: dict[str, str] = {}
        self.uids: dict[str, str] = {}

    async def bind(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.binds.append(body)
        answer = self.script.pop(0) if self.script else 201
        if answer == "lost":
            self.nodes[body["metadata"]["name"]] = body["target"]["name"]
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if answer == 201:
            self.nodes[body["metadata"]["name"]] = body["target"]["name"]
        status = {"code": answer, "reason": "Said", "message": f"answer {answer}"}
        if answer == "ending":
            answer = 403
            message = "unable to create new content in namespace team because it is being terminated"
            status = {"code": answer, "reason": "Forbidden", "message": message}
        headers = {"Retry-After": "0"} if answer == 429 else {}
        return web.json_response(status, status=answer, headers=headers)

    async def read(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.uids:
            return web.json_response({"code": 404}, status=404)
        metadata = {"name": name, "namespace": "team", "uid": self.uids[name]}
        return web.json_response({"metadata": metadata, "spec": {"nodeName": self.nodes.get(name, "")}})


class Bench:
    """A binder with a feed that is filled by hand."""

    def __init__(self, client: Client, server: Server, settings: Settings) -> None:
        self.server = server
        self.feed = Feed(client, ("volcano",), ("nvshare.com/gpu",), lambda: None)
        self.recorder = Recorder(client, "test")
        self.metrics = Metrics()
        locks = NodeLocks(client, self.feed.nodes, self.feed.pods, "me", lambda: 0.0)
        self.binder = Binder(client, self.feed, self.recorder, self.recorder, settings, self.metrics, locks)

    def pod(self, name: str, uid: str = "u") -> None:
        containers = [{"name": "main", "resources": {"limits": LIMITS}}]
        body = {
            "metadata": {"name": name, "namespace": "team", "uid": uid, "resourceVersion": uid},
            "spec": {"schedulerName": "volcano", "containers": containers},
        }
        self.feed.pods.put(msgspec.convert(body, core.Pod))
        self.server.uids[name] = uid

    async def bind(self, *names: str) -> list[Event]:
        """Bind pods to node n and return what the engine is told of it."""
        self.feed.take()
        grant = CardGrant("main", CardId("GPU-a"), CardKind.VGPU, 1000, 0)
        self.binder.submit([Binding(PodKey(f"team/{name}"), NodeName("n"), (grant,)) for name in names])
        async with asyncio.timeout(240):
            await self.binder.idle.wait()
        return [event for event in self.feed.take() if isinstance(event, BindFailed)]


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    server = Server()
    app = web.Application()
    app.router.add_post("/api/v1/namespaces/team/pods/{name}/binding", server.bind)
    app.router.add_get("/api/v1/namespaces/team/pods/{name}", server.read)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with Client(Access(server=f"http://{host}:{port}", context="test")) as client:
        made = Bench(client, server, getattr(request, "param", QUICK))
        work = asyncio.create_task(made.binder.run())
        yield made
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    await runner.cleanup()


async def test_a_bind_names_the_pods_uid_its_node_and_its_cards(bench: Bench) -> None:
    bench.pod("a", uid="u1")
    assert await bench.bind("a") == []
    (body,) = bench.server.binds
    assert (body["metadata"]["uid"], body["target"]["name"]) == ("u1", "n")
    assert body["metadata"]["annotations"]["volcano.sh/vgpu-ids-new"] == "GPU-a,NVIDIA,1000,0:"


async def test_two_shares_of_a_node_never_have_the_same_time(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        bench.pod(name)
    await bench.bind("a", "b", "c")
    times = [int(body["metadata"]["annotations"]["volcano.sh/vgpu-time"]) for body in bench.server.binds]
    assert len(set(times)) == 3


@pytest.mark.parametrize("said", ["²", "9" * 5000, "18446744073709551615"], ids=["superscript", "long", "allocated"])
async def test_a_time_that_is_none_is_not_counted_from(bench: Bench, said: str) -> None:
    """Anybody may annotate a pod; a device plugin writes the largest number once it has allocated."""
    metadata = {"name": "before", "namespace": "team", "uid": "b", "annotations": {"volcano.sh/vgpu-time": said}}
    bench.feed.pods.put(msgspec.convert({"metadata": metadata, "spec": {"nodeName": "n"}}, core.Pod))
    bench.pod("a")
    await bench.bind("a")
    (body,) = bench.server.binds
    assert int(body["metadata"]["annotations"]["volcano.sh/vgpu-time"]) < 2**40


@pytest.mark.parametrize("answers", [[429], [500, 503], [409], ["lost"], [429, "lost"]])
async def test_a_temporary_failure_is_retried(bench: Bench, answers: list[Any]) -> None:
    """A conflict on a pod that is still free, a busy server, a lost answer: none of them is the end."""
    bench.pod("a")
    bench.server.script = list(answers)
    assert await bench.bind("a") == []
    assert bench.server.nodes == {"a": "n"}


async def test_a_pod_that_another_scheduler_bound_is_left_to_it(bench: Bench) -> None:
    bench.pod("a")
    bench.server.nodes["a"] = "elsewhere"
    bench.server.script = [409]
    assert await bench.bind("a") == [BindFailed(PodKey("team/a"))]
    assert len(bench.server.binds) == 1


async def test_a_refusal_is_taken_back_and_the_pod_left_alone_for_a_while(bench: Bench) -> None:
    bench.pod("a")
    bench.server.script = [403]
    assert await bench.bind("a") == [BindFailed(PodKey("team/a"))]
    assert bench.server.nodes == {}


@pytest.mark.parametrize(("answer", "told"), [(403, 1), ("ending", 0)])
async def test_a_pod_in_a_namespace_that_is_being_deleted_fails_without_an_event(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, answer: Any, told: int
) -> None:
    bench.pod("a")
    said: list[str] = []
    monkeypatch.setattr(bench.recorder, "record", lambda _about, reason, *_, **__: said.append(reason))
    bench.server.script = [answer]
    assert await bench.bind("a") == [BindFailed(PodKey("team/a"))]
    assert len(said) == told
    assert len(bench.server.binds) == 1


@pytest.mark.parametrize("bench", [IMPATIENT], indirect=True)
async def test_a_server_that_stays_busy_is_given_up_on_and_the_pod_read_back(bench: Bench) -> None:
    bench.pod("a")
    bench.server.script = [500] * 1000
    assert await bench.bind("a") == [BindFailed(PodKey("team/a"))]
    assert len(bench.server.binds) > 3


async def test_nothing_is_sent_for_a_pod_that_is_gone(bench: Bench) -> None:
    bench.pod("a")
    bench.feed.pods.remove(Key("team/a"))
    assert await bench.bind("a") == []
    assert bench.server.binds == []


@pytest.mark.parametrize(("number", "window"), [(20, "_BURST_S"), (50, "_LONG_BURST_S")])
async def test_many_bindings_in_a_short_time_are_a_burst(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int, window: str
) -> None:
    for name in ("_BURST_S", "_LONG_BURST_S"):
        monkeypatch.setattr(binder, name, 3600.0 if name == window else 0.0)
    names = [f"p{place}" for place in range(number)]
    for name in names:
        bench.pod(name)
    await bench.bind(*names[1:])
    assert not bench.binder.in_burst()
    await bench.bind(names[0])
    assert bench.binder.in_burst()
    monkeypatch.setattr(binder, window, 0.0)
    assert not bench.binder.in_burst()


async def test_a_burst_lasts_while_bindings_stand_in_line(bench: Bench) -> None:
    names = [f"p{number}" for number in range(20)]
    for name in names:
        bench.pod(name)
    submitted = [Binding(PodKey(f"team/{name}"), NodeName("n1")) for name in names]
    bench.binder.submit(submitted[1:])
    assert not bench.binder.in_burst()
    bench.binder.submit(submitted[:1])
    assert bench.binder.in_burst(), "nobody carries them out"


async def test_a_pod_whose_bind_is_refused_for_a_day_is_still_tried(bench: Bench) -> None:
    bench.pod("a")
    with structlog.testing.capture_logs():
        for _ in range(1100):
            bench.server.script = [422]
            assert await bench.bind("a") == [BindFailed(PodKey("team/a"))]
    assert await bench.bind("a") == []


@pytest.mark.parametrize(
    "bench", [msgspec.structs.replace(QUICK, retry_first_s=0.1, retry_longest_s=60.0)], indirect=True
)
async def test_a_failed_bind_does_not_count_for_a_later_pod_of_the_same_name(bench: Bench) -> None:
    """Its own pause is the first, and does not end with that of the one before."""
    with structlog.testing.capture_logs() as logs:
        for uid in ("u1", "u1", "u1", "u2"):
            bench.pod("a", uid=uid)
            bench.server.script = [422]
            assert await bench.bind("a") == [BindFailed(PodKey("team/a"))]
        pauses_s = [entry["pause_s"] for entry in logs if entry["event"] == "bind failed"]
        assert pauses_s[2] > 2 * pauses_s[3]
