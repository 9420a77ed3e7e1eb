"""What every test of the agent needs around it."""

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def a_loop_that_is_closed() -> Iterator[None]:
    """The virtual-time plugin asks for the current loop around every test, also plain ones; the policy then makes one
    that nobody closes, and the warning about it hits whichever test runs when it is collected."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
