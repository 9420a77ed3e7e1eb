"""The program around the checks: whatever it is sent it answers, and its upkeep goes on after a failure, or the program
ends and is started again."""

import asyncio
import base64
import io
import json
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest

from baton.admission.certificates.authority import Lifetimes, next_keyring
from baton.admission.certificates.keeper import Keeper, utc_now
from baton.admission.endpoints import Policy
from baton.admission.server import AdmissionProgram, Settings
from baton.kube.client import Client
from baton.kube.decoding import Page
from baton.kube.errors import NotFoundError
from tests.admission.cases import queue, task_of
from tests.volcano_jobs import container, manifest


class Broken:
    """A client with a bug."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("a mistake of ours")


class Rehearsed(Keeper):
    """A keeper whose checks end as the test says; after the last one, `over` is set."""

    def __init__(self, *ends: Exception | None) -> None:
        super().__init__(cast("Client", Broken()), "baton-system", ("localhost",), every_s=0.0)
        self.ends = list(ends)
        self.over = asyncio.Event()

    async def look(self) -> None:
        if not self.ends:
            self.over.set()
            await asyncio.Event().wait()
        if (end := self.ends.pop(0)) is not None:
            raise end


async def test_certificates_are_checked_again_after_the_disk_was_full() -> None:
    keeper = Rehearsed(OSError(28, "No space left on device"), None)
    task = asyncio.create_task(keeper.run())
    over = asyncio.create_task(keeper.over.wait())
    await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
    assert not task.done()
    task.cancel()
    over.cancel()


async def test_a_watch_that_fails_ends_the_program() -> None:
    """It would answer from stale data otherwise; kubelet restarts it."""
    settings = Settings(listen="127.0.0.1:0", observe="127.0.0.1:0")
    program = AdmissionProgram(cast("Client", Broken()), Rehearsed(None), settings, Policy())
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        async with asyncio.timeout(60):
            await program.run()


class Empty:
    """An empty cluster without events."""

    async def list_page(self, *_: Any, **__: Any) -> Page[Any]:
        return Page([], "1", "")

    async def get(self, *_: Any, **__: Any) -> Any:
        raise NotFoundError(404, "NotFound", "there is nothing")

    async def list_all(self, *_: Any, **__: Any) -> list[Any]:
        return []

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield []


class Ready(Keeper):
    """A keeper with a certificate that needs no cluster."""

    async def look(self) -> None:
        self._load(next_keyring(self.keyring, ("localhost",), utc_now(), Lifetimes()))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def review(**request: Any) -> bytes:
    return json.dumps({"request": {"uid": "u-1", "operation": "CREATE", "namespace": "team", **request}}).encode()


async def test_any_request_is_answered_and_so_is_the_next() -> None:
    client = cast("Client", Empty())
    keeper = Ready(client, "baton-system", ("localhost",))
    port = free_port()
    settings = Settings(listen=f"127.0.0.1:{port}", observe="127.0.0.1:0", drain_s=0)
    program = AdmissionProgram(client, keeper, settings, Policy())
    running = asyncio.create_task(program.run())
    try:
        async with asyncio.timeout(60):
            while program.waiting_for():
                await asyncio.sleep(0)
                assert not running.done()
            _, plain = await asyncio.open_connection("127.0.0.1", port)
            plain.write(b"GET / HTTP/1.1\r\n\r\n")  # not TLS
            trust = ssl.create_default_context(cadata=keeper.keyring.bundle() if keeper.keyring else "")
            trust.check_hostname = False
            async with aiohttp.ClientSession(f"https://127.0.0.1:{port}") as session:

                async def ask(path: str, body: bytes) -> tuple[int, Any]:
                    async with session.post(path, data=io.BytesIO(body), ssl=trust) as response:
                        text = await response.text()
                        return response.status, json.loads(text).get("response") if response.status == 200 else text

                for nonsense in (b"", b"null", b"{", b"[]", b'{"request": {}}', b"\xff" * 9, b'{"request": 5}'):
                    status, said = await ask("/jobs/mutate", nonsense)
                    assert (status, said[:23]) == (400, "not an AdmissionReview:")
                assert (await ask("/jobs/mutate", b" " * (17 << 20)))[0] == 413
                assert (await ask("/unknown/validate", review()))[0] == 404
                for path in program._webhooks.endpoints():
                    for odd in (review(object=None), review(operation="DELETE", object=None), review(object={})):
                        status, said = await ask(path, odd)
                        assert (status, said["uid"]) == (200, "u-1"), path
                status, said = await ask("/jobs/mutate", review(object=manifest(), dryRun=True))
                assert said["allowed"]
                assert {"op": "add", "path": "/spec/queue", "value": "default"} in json.loads(
                    base64.b64decode(said["patch"])
                )
                status, said = await ask(
                    "/jobs/mutate", review(object=manifest(task_of(container(command="train.sh"))))
                )
                assert (said["allowed"], said["status"]["code"]) == (False, 422)
                status, said = await ask(
                    "/queues/validate", review(operation="DELETE", oldObject=queue("root"), object=None)
                )
                assert not said["allowed"]
            plain.close()
    finally:
        program.stopping.set()
        await running
