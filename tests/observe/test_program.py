"""The shell of a program, in process: errors of the work, draining, leadership."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from baton.errors import UnavailableError
from baton.observe.program import Leadership, Program, together


async def forever() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise UnavailableError("the disk is gone")


async def test_an_error_of_the_work_ends_the_program_and_is_raised_as_it_is() -> None:
    with pytest.raises(UnavailableError, match="the disk is gone"):
        await Program().run(failing)


async def test_the_first_error_of_several_parts_cancels_the_others_and_is_raised_as_it_is() -> None:
    cancelled = []

    async def other() -> None:
        try:
            await forever()
        finally:
            cancelled.append(True)

    with pytest.raises(UnavailableError, match="the disk is gone"):
        await together(other(), failing())
    assert cancelled


async def test_parts_that_end_let_the_others_go_on() -> None:
    steps = []

    async def short() -> None:
        steps.append("short")

    async def long() -> None:
        await asyncio.sleep(0.01)
        steps.append("long")

    await together(short(), long())
    assert steps == ["short", "long"]


async def test_a_program_drains_before_its_work_is_cancelled_and_its_server_goes_last() -> None:
    steps = []

    class Server:
        addresses = (("127.0.0.1", 80),)

        async def start(self) -> None:
            steps.append("listening")

        async def stop(self) -> None:
            steps.append("closed")

    async def work() -> None:
        program.stopping.set()
        try:
            await forever()
        finally:
            steps.append("cancelled")

    async def drain() -> None:
        steps.append("draining")
        await asyncio.sleep(0)
        steps.append("drained")

    program = Program(Server(), drain=drain)
    await program.run(work)
    assert steps == ["listening", "draining", "drained", "cancelled", "closed"]


class TwoTerms:
    """A lease that is won, lost and won again."""

    def __init__(self) -> None:
        self.leader = ""
        self.terms = 0

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        if self.terms == 2:
            await forever()
        self.terms += 1
        self.leader = "me"
        await lead()


async def test_a_term_runs_whenever_the_lease_is_won() -> None:
    led = []

    both = asyncio.Event()

    async def term() -> None:
        led.append(leadership.leading)
        if len(led) == 2:
            both.set()

    leadership = Leadership(TwoTerms())
    assert leadership.leader == ""
    running = asyncio.create_task(leadership.run(term))
    await both.wait()
    await asyncio.sleep(0)
    assert led == [True, True]
    assert not leadership.leading
    assert leadership.leader == "me"
    running.cancel()


async def test_without_a_lease_there_is_one_term() -> None:
    led = []

    async def term() -> None:
        led.append(True)

    await Leadership(None).run(term)
    assert led == [True]
