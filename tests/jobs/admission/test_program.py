"""The program around the checks: its upkeep goes on after a failure, or the program ends and is started again."""

import asyncio
from typing import Any, cast

import pytest

from baton.jobs.admission.endpoints import Policy
from baton.jobs.admission.keeper import Keeper
from baton.jobs.admission.server import AdmissionProgram, Settings
from baton.kube.client import Client


class Broken:
    """A client with a mistake in it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("a mistake of ours")


class Rehearsed(Keeper):
    """A keeper whose looks end as they are told to; when they are all told, it is over."""

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


async def test_certificates_are_looked_after_again_when_the_disk_was_full() -> None:
    keeper = Rehearsed(OSError(28, "No space left on device"), None)
    task = asyncio.create_task(keeper.run())
    over = asyncio.create_task(keeper.over.wait())
    await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
    assert not task.done()
    task.cancel()
    over.cancel()


async def test_a_watch_that_ends_by_a_mistake_ends_the_program() -> None:
    """It would go on answering from what it knew then; kubelet starts it anew."""
    settings = Settings(listen="127.0.0.1:0", observe="127.0.0.1:0")
    program = AdmissionProgram(cast("Client", Broken()), Rehearsed(None), settings, Policy())
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        async with asyncio.timeout(60):
            await program.run()
