"""A server that has forgotten our version, which a real one does only after minutes: listed again, nothing lost."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web

from baton.kube.client import Client, Resource
from baton.kube.kubeconfig import Access
from baton.kube.objects import Metadata
from baton.kube.reflector import Reflector
from baton.kube.store import Store


class Thing(msgspec.Struct, frozen=True):
    metadata: Metadata


THINGS: Resource[Thing] = Resource("", "v1", "things", Thing)


class Forgetful:
    """Answers lists with ever more things, and each watch with an error of the kind under test."""

    def __init__(self, answer: web.Response | bytes) -> None:
        self.answer = answer
        self.lists = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            if isinstance(self.answer, bytes):
                return web.Response(body=self.answer)
            return web.Response(status=self.answer.status, body=self.answer.body)
        self.lists += 1
        items = [{"metadata": {"name": f"t{n}", "uid": "u", "resourceVersion": str(n)}} for n in range(self.lists)]
        return web.json_response({"metadata": {"resourceVersion": str(self.lists)}, "items": items})


GONE = b'{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version: 1 (5)"}'


@pytest.fixture
async def server(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Forgetful, str]]:
    forgetful = Forgetful(request.param)
    application = web.Application()
    application.router.add_get("/api/v1/things", forgetful.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield forgetful, f"http://{host}:{port}"
    await runner.cleanup()


@pytest.mark.parametrize(
    "server",
    [b'{"type":"ERROR","object":' + GONE + b"}\n", web.Response(status=410, body=GONE)],
    indirect=True,
    ids=["in the stream", "as the answer"],
)
async def test_a_forgotten_version_leads_to_a_new_list(server: tuple[Forgetful, str]) -> None:
    forgetful, url = server
    store: Store[Thing] = Store()
    third = asyncio.Event()
    store.subscribe(lambda delta: third.set() if delta.key == "t2" else None)
    async with Client(Access("x", url)) as client:
        task = asyncio.create_task(Reflector(client, THINGS, store).run())
        await asyncio.wait_for(third.wait(), 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert forgetful.lists >= 3
