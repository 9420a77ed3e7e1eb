"""Fixtures for all tests of the agent."""

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def a_loop_that_is_closed() -> Iterator[None]:
    """The virtual-time plugin asks for the current loop around every test, also plain ones. The event loop policy would
    then create one that stays open, and the warning about it would hit an arbitrary later test."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
