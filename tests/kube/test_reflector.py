"""Events that a real server shows only after minutes: an expired version, or a token that is no longer accepted."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from baton.kube.client import Client
from baton.kube.kubeconfig import Access
from baton.kube.reflector import Reflector
from baton.kube.store import Store
from baton.model.meta import Metadata
from baton.model.resource import Resource


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


class Strict:
    """Takes a token for lists; watches need the next one, which is there once they were refused."""

    def __init__(self, token: Path) -> None:
        self.token = token
        self.lists = self.refusals = 0
        self.accepted = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not request.query.get("watch"):
            self.lists += 1
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        if request.headers["Authorization"] != "Bearer two":
            self.refusals += 1
            self.token.write_text("two")
            return web.Response(status=401, body=b'{"kind":"Status","code":401,"reason":"Unauthorized"}')
        self.accepted.set()
        return web.Response(body=b"")


class Quiet:
    """Has nothing to tell but how far it is; ends each watch then."""

    def __init__(self) -> None:
        self.lists = 0
        self.versions: list[str] = []
        self.third = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not request.query.get("watch"):
            self.lists += 1
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        self.versions.append(request.query["resourceVersion"])
        if len(self.versions) == 3:
            self.third.set()
        bookmark = {"metadata": {"resourceVersion": str(len(self.versions) * 100)}}
        return web.Response(body=json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/api/v1/things", handler)
    runner = web.AppRunner(application, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


@contextlib.asynccontextmanager
async def following(client: Client, store: Store[Thing]) -> AsyncIterator[None]:
    task = asyncio.create_task(Reflector(client, THINGS, store).run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    "answer",
    [b'{"type":"ERROR","object":' + GONE + b"}\n", web.Response(status=410, body=GONE)],
    ids=["in the stream", "as the answer"],
)
async def test_a_forgotten_version_leads_to_a_new_list(answer: web.Response | bytes) -> None:
    forgetful = Forgetful(answer)
    store: Store[Thing] = Store()
    third = asyncio.Event()
    store.subscribe(lambda delta: third.set() if delta.key == "t2" else None)
    async with serving(forgetful.handle) as url, Client(Access("x", url)) as client, following(client, store):
        await asyncio.wait_for(third.wait(), 60)
    assert forgetful.lists >= 3


async def test_a_watch_that_is_refused_for_its_token_goes_on_with_the_next(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    strict = Strict(token)
    async with (
        serving(strict.handle) as url,
        Client(Access("x", url, token_file=token)) as client,
        following(client, Store()),
    ):
        await asyncio.wait_for(strict.accepted.wait(), 60)
    assert (strict.lists, strict.refusals) == (1, 1)


async def test_a_bookmark_moves_the_version_that_the_next_watch_goes_on_from() -> None:
    quiet = Quiet()
    async with serving(quiet.handle) as url, Client(Access("x", url)) as client, following(client, Store()):
        await asyncio.wait_for(quiet.third.wait(), 60)
    assert quiet.versions[:3] == ["1", "100", "200"]
    assert quiet.lists == 1


class Dying:
    """Refuses a watch with an answer that breaks off, as a server does that is just ending."""

    def __init__(self) -> None:
        self.watches = 0
        self.third = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not request.query.get("watch"):
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        self.watches += 1
        if self.watches == 3:
            self.third.set()
        answer = web.StreamResponse(status=503, headers={"Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(b"the server is")
        assert request.transport is not None
        request.transport.close()
        return answer


async def test_a_refusal_that_breaks_off_ends_no_reflector() -> None:
    dying = Dying()
    async with serving(dying.handle) as url, Client(Access("x", url)) as client, following(client, Store()):
        await asyncio.wait_for(dying.third.wait(), 60)


@pytest.mark.process
async def test_credentials_that_cannot_be_had_for_a_while_end_no_reflector(tmp_path: Path) -> None:
    """The plugin fails when it is asked the second time, after the refusal."""
    (tmp_path / "plugin").write_text(
        f"""#!/bin/sh
        echo called >> {tmp_path}/calls
        case $(wc -l < {tmp_path}/calls) in 1) token=one ;; 2) exit 1 ;; *) token=two ;; esac
        echo '{{"kind": "ExecCredential", "status": {{"token": "'$token'"}}}}'
        """
    )
    (tmp_path / "plugin").chmod(0o755)
    strict = Strict(tmp_path / "unused")
    async with (
        serving(strict.handle) as url,
        Client(Access("x", url, exec_command=(str(tmp_path / "plugin"),))) as client,
        following(client, Store()),
    ):
        await asyncio.wait_for(strict.accepted.wait(), 60)
    assert (strict.lists, strict.refusals) == (1, 1)


class SetBack:
    """A server that was restored from a backup: it knows nothing of our version and says nothing until it comes."""

    def __init__(self) -> None:
        self.lists = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not request.query.get("watch"):
            self.lists += 1
            version, name = ("1000", "lost") if self.lists == 1 else ("500", "kept")
            items = [{"metadata": {"name": name, "uid": name, "resourceVersion": version}}]
            return web.json_response({"metadata": {"resourceVersion": version}, "items": items})
        answer = web.StreamResponse()
        await answer.prepare(request)
        await asyncio.Event().wait()
        return answer


async def test_a_server_that_says_nothing_time_after_time_is_asked_for_a_list() -> None:
    store: Store[Thing] = Store()
    kept = asyncio.Event()
    store.subscribe(lambda delta: kept.set() if delta.key == "kept" else None)
    async with serving(SetBack().handle) as url, Client(Access("x", url)) as client:
        task = asyncio.create_task(Reflector(client, THINGS, store, silence_s=0.1).run())
        await asyncio.wait_for(kept.wait(), 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [item.metadata.name for item in store] == ["kept"]
