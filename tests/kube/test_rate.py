"""Requests against an explicit rate, on virtual time."""

import asyncio

import pytest

from baton.kube.client import RateLimit

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def departures(limit: RateLimit, number: int) -> list[float]:
    """When each of so many requests that come at once may go, from now on."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    left: list[float] = []

    async def request() -> None:
        await limit.wait()
        left.append(round(loop.time() - began, 3))

    await asyncio.gather(*(request() for _ in range(number)))
    return left


async def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    assert await departures(RateLimit(10, 3), 6) == [0, 0, 0, 0.1, 0.2, 0.3]


async def test_a_quiet_time_earns_no_more_than_a_burst() -> None:
    limit = RateLimit(10, 3)
    await departures(limit, 3)
    await asyncio.sleep(100)
    assert await departures(limit, 5) == [0, 0, 0, 0.1, 0.2]


async def test_what_was_not_used_up_again_is_earned_bit_by_bit() -> None:
    limit = RateLimit(10, 3)
    await departures(limit, 3)
    await asyncio.sleep(0.2)
    assert await departures(limit, 3) == [0, 0, 0.1]


async def test_without_a_rate_nobody_waits() -> None:
    assert await departures(RateLimit(0, 1), 50) == [0] * 50
