"""The life of a program: signals, leadership, the HTTP server, and a stop that ends.

SIGTERM and SIGINT stop it gracefully: it drains, its work is cancelled and cleans up, its server goes last, so that
probes are answered until the end. A stop has a limit. A driver call that never returns would keep the process alive
for good, so a watchdog outside the event loop then prints the stack of every thread and ends the process. All programs
may be killed at any moment, so this loses nothing.

What listens is passed in and HTTP is not imported here: the lock daemon starts beside every `baton run` and usually
serves none.
"""

import asyncio
import faulthandler
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

import structlog

_LOG = structlog.get_logger("baton.observe")

STOP_LIMIT_S = 25.0
"""Kubernetes kills a container 30 seconds after SIGTERM; a program that ends before leaves a trace."""
_STDERR = 2


class Listening(Protocol):
    """A server, as far as a program needs to know one."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    @property
    def addresses(self) -> Sequence[tuple[str, int]]: ...


class Lease(Protocol):
    """One lease that replicas compete for; `baton.kube.election.Election` is one."""

    leader: str

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease and run `lead` while it is ours; returns when the lease is lost."""


class Leadership:
    """Runs terms: whatever only one replica may do at a time. Without a lease there is one term, at once."""

    def __init__(self, lease: Lease | None) -> None:
        self._lease = lease
        self.leading = False

    @property
    def leader(self) -> str:
        """Who holds the lease as far as this replica knows; empty when it could not read the lease yet."""
        return self._lease.leader if self._lease is not None else ""

    async def run(self, term: Callable[[], Awaitable[None]]) -> None:
        """Run `term` whenever this replica leads. A term starts from the API server alone: a takeover from a replica
        that was killed is the same path as an ordinary start."""

        async def lead() -> None:
            self.leading = True
            try:
                await term()
            finally:
                self.leading = False

        if self._lease is None:
            await lead()
            return
        while True:
            await self._lease.run(lead)


class Program:
    """One process from its start to its end. `stopping.set()` ends it like SIGTERM."""

    def __init__(
        self,
        server: Listening | None = None,
        *,
        reload: Callable[[], None] | None = None,
        drain: Callable[[], Awaitable[None]] | None = None,
        stop_limit_s: float = STOP_LIMIT_S,
    ) -> None:
        """SIGHUP calls `reload`. `drain` runs beside the work from the signal to stop until the work is cancelled."""
        self.stopping = asyncio.Event()
        self._server = server
        self._reload = reload
        self._drain = drain
        self._stop_limit_s = stop_limit_s

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Serve and work until told to stop; an error of the work ends the program and is raised."""
        self._handle_signals()
        if self._server is not None:
            await self._server.start()
            _LOG.info("listening", addresses=[f"{host}:{port}" for host, port in self._server.addresses])
        working = asyncio.create_task(work(), name="work")
        stopping = asyncio.create_task(self.stopping.wait(), name="wait for the signal to stop")
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self._drain is not None and not working.done():
                draining = asyncio.ensure_future(self._drain())
                await asyncio.wait({working, draining}, return_when=asyncio.FIRST_COMPLETED)
                draining.cancel()
        finally:
            working.cancel()
            stopping.cancel()
            result, _ = await asyncio.gather(working, stopping, return_exceptions=True)
            if self._server is not None:
                await self._server.stop()
        if isinstance(result, Exception):
            raise result
        _LOG.info("stopped")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        if self._reload is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _stop(self) -> None:
        if self.stopping.is_set():
            return
        self.stopping.set()
        faulthandler.dump_traceback_later(self._stop_limit_s, exit=True, file=_STDERR)
        asyncio.get_running_loop().call_later(self._stop_limit_s * 0.9, self._warn)

    def _warn(self) -> None:
        tasks = sorted(task.get_name() for task in asyncio.all_tasks())
        _LOG.error("does not stop and is about to be ended by force", limit_s=self._stop_limit_s, tasks=tasks)


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all parts until they have ended. The first error cancels the others and is raised as it is, because a group
    of exceptions would hide the sentence that an error consists of."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def execute(main: Callable[[], Coroutine[Any, Any, None]], *, fast_loop: bool = True) -> None:
    """Run a program's coroutine on an event loop: uvloop where it is installed, requests then cost about half."""
    with asyncio.Runner(loop_factory=_fast_loop() if fast_loop else None) as runner:
        runner.run(main())


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
