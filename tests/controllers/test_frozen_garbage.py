"""A controller whose kind cannot be listed must not keep the garbage collector from running for the others."""

import asyncio
import gc
from typing import Any

from baton.controllers import program


class Unlistable:
    """A controller whose first lists never arrive."""

    def __init__(self) -> None:
        self.scope = self

    async def synced(self) -> None:
        await asyncio.Event().wait()


async def test_the_garbage_collector_runs_while_a_kind_is_missing() -> None:
    running: Any = [Unlistable()]
    waiting = asyncio.create_task(program._freeze_garbage(running))
    await asyncio.sleep(0)
    assert gc.isenabled()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
