"""How a client identifies itself, and how it treats answers that do not come from an API server."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from baton.kube.client import Client
from baton.kube.errors import UnreachableError
from baton.kube.kubeconfig import Access
from baton.model.core import CONFIG_MAPS


@contextlib.asynccontextmanager
async def answering(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield "http://{}:{}".format(*runner.addresses[0][:2])
    await runner.cleanup()


@pytest.mark.parametrize("body", ["<html>please log in</html>", "", "[]"])
async def test_a_success_that_is_no_object_is_no_answer(body: str) -> None:
    """A proxy between us and the cluster may say so of its own page."""

    async def page(_request: web.Request) -> web.StreamResponse:
        return web.Response(text=body, content_type="text/html")

    async with answering(page) as server, Client(Access("x", server)) as client:
        for request in (
            client.get(CONFIG_MAPS, "m", "n"),
            client.create(CONFIG_MAPS, {}, "n"),
            client.patch(CONFIG_MAPS, "m", {}, "n"),
            client.replace(CONFIG_MAPS, "m", {}, "n"),
            client.list_page(CONFIG_MAPS, "n"),
        ):
            with pytest.raises(
                UnreachableError, match=f"{server} does not answer as an API server: the response is not a Kubernetes"
            ):
                await request


async def test_who_acts_as_another_says_so_in_every_request() -> None:
    seen: list[tuple[list[str], list[str]]] = []

    async def note(request: web.Request) -> web.StreamResponse:
        seen.append((request.headers.getall("Impersonate-User"), request.headers.getall("Impersonate-Group")))
        return web.json_response({"metadata": {"name": "m"}})

    acting = (("Impersonate-User", "bob"), ("Impersonate-Group", "dev"), ("Impersonate-Group", "ml"))
    async with (
        answering(note) as server,
        Client(Access("x", server, token="t", impersonation=acting)) as client,
        client.apart() as other,
    ):
        await client.get(CONFIG_MAPS, "m", "n")
        await other.create(CONFIG_MAPS, {}, "n")
    assert seen == [(["bob"], ["dev", "ml"])] * 2


async def test_a_list_whose_next_page_has_expired_begins_again() -> None:
    """Without pages: what is listed again page by page may be forgotten again."""
    asked: list[str] = []

    async def pages(request: web.Request) -> web.StreamResponse:
        asked.append(request.query["limit"])
        if "continue" in request.query:
            return web.json_response({"code": 410, "reason": "Expired", "message": "too old"}, status=410)
        whole = request.query["limit"] == "0"
        names = ("a", "b") if whole else ("a",)
        return web.json_response(
            {
                "metadata": {"resourceVersion": "7", "continue": "" if whole else "next"},
                "items": [{"metadata": {"name": name}} for name in names],
            }
        )

    async with answering(pages) as server, Client(Access("x", server)) as client:
        found = await client.list_all(CONFIG_MAPS, "n", label_selector="app=x")
    assert [item.metadata.name for item in found] == ["a", "b"]
    assert asked == ["500", "500", "0"]
