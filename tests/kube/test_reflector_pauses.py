"""How long a reflector waits after a failure, on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from baton.kube.decoding import Page
from baton.kube.errors import ApiError, GoneError, ThrottledError, UnreachableError
from baton.kube.reflector import Reflector
from baton.kube.store import Store
from baton.model.core import NODES

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class Server:
    """Lists nothing, and ends every watch at once, with the next of its errors or without any."""

    def __init__(self, errors: Sequence[Exception] = ()) -> None:
        self.errors = list(errors)
        self.watches: list[float] = []

    async def list_page(self, *_: Any, **__: Any) -> Page[Any]:
        return Page([], "1", "")

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[list[Any]]:
        self.watches.append(asyncio.get_running_loop().time())
        if self.errors:
            raise self.errors.pop(0)
        for batch in list[list[Any]]():
            yield batch


async def pauses(server: Server, seconds: float) -> list[float]:
    """How long it waited before each watch but the first, in so much time."""
    client: Any = server
    task = asyncio.create_task(Reflector(client, NODES, Store()).run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [after - before for before, after in pairwise(server.watches)]


@pytest.mark.parametrize("error", [UnreachableError("cut"), ApiError(500, "InternalError", "broken")])
async def test_pauses_grow_to_a_limit_and_are_spread(error: Exception) -> None:
    waited = await pauses(Server([error] * 1000), 300)
    for place, pause in enumerate(waited):
        ceiling = min(15.0, 0.2 * 2 ** (place + 1))
        assert ceiling / 2 - 0.01 <= pause <= ceiling + 0.01
    assert len({round(pause, 3) for pause in waited[-10:]}) > 1


async def test_a_watch_that_ends_as_soon_as_it_began_is_a_failure_too() -> None:
    assert len(await pauses(Server(), 60)) < 20


async def test_a_server_that_names_a_time_is_obeyed() -> None:
    waited = await pauses(Server([ThrottledError(429, "TooManyRequests", "busy", retry_after_s=7.0)]), 10)
    assert 7.0 <= waited[0] <= 8.41


async def test_a_server_that_forgets_every_version_at_once_is_not_asked_for_list_after_list() -> None:
    gone = GoneError(410, "Expired", "too old resource version")
    waited = await pauses(Server([gone] * 100_000), 60)
    assert waited[0] == 0
    assert len(waited) < 20
