"""Requests against an explicit rate, on virtual time."""

import asyncio

import pytest

from baton.kube.rate import RateLimit

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


async def test_without_a_rate_no_request_waits() -> None:
    assert await departures(RateLimit(0, 1), 50) == [0] * 50


async def test_patient_requests_let_others_pass_but_not_endlessly() -> None:
    limit = RateLimit(10, 1)
    await limit.wait()
    gone: list[str] = []

    async def request(name: str, *, patient: bool) -> None:
        await limit.wait(patient=patient)
        gone.append(name)

    early = [request("patient", patient=True) for _ in range(2)]
    late = [request("eager", patient=False) for _ in range(10)]
    await asyncio.gather(*early, *late)
    assert gone == [*["eager"] * 7, "patient", *["eager"] * 3, "patient"]


async def test_who_gives_up_leaves_the_turn_to_the_next() -> None:
    limit = RateLimit(10, 1)
    await limit.wait()
    loop = asyncio.get_running_loop()
    began = loop.time()
    impatient = [asyncio.create_task(limit.wait(patient=patient)) for patient in (False, True, False)]
    last = asyncio.create_task(limit.wait())
    await asyncio.sleep(0)
    for task in impatient:
        task.cancel()
    await last
    assert round(loop.time() - began, 3) == 0.1


async def test_a_turn_that_came_in_the_moment_of_giving_up_is_given_back() -> None:
    limit = RateLimit(10, 1)
    await limit.wait()
    late = asyncio.create_task(limit.wait())
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, late.cancel)
    await asyncio.gather(late, return_exceptions=True)
    began = loop.time()
    await limit.wait()
    assert round(loop.time() - began, 3) == 0.0
