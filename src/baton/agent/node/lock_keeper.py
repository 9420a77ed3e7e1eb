"""Keeps a lock daemon running that outlives the agent.

The daemon is a separate process in a separate session, so neither the end nor a crash of the agent affects it. A daemon
that answers on the control socket is left alone, regardless of who started it. If none answers, the agent starts one,
with a growing pause between attempts. The agent does not kill a daemon that holds the directory but does not answer:
the next daemon refuses to start beside it, and the reason is logged.
"""

import asyncio
import contextlib
import subprocess
from pathlib import Path

import structlog

from baton.agent.daemon import Agent, Companion
from baton.agent.kubelet.podresources import read_checkpoint
from baton.agent.node.lock_port import LockPort
from baton.errors import UnavailableError
from baton.gpu import vendors
from baton.gpu.cards import Card
from baton.lock.process import start_daemon

_log = structlog.get_logger("baton.agent")

_LOOK_EVERY_S = 2.0
_LOOKS_TO_FORGET = 30
"""After this many looks, the sums of deleted pods are dropped, even if no client reads the metrics."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class LockKeeper(Companion):
    """Starts `baton lockd` if none answers, and tells it how cards are shared."""

    name = "lock daemon"

    def __init__(self, *, start: bool) -> None:
        self._start = start
        self._started: subprocess.Popen[bytes] | None = None

    async def run(self, agent: Agent) -> None:
        pause_s = _FIRST_PAUSE_S
        looks = 0
        while True:
            if agent.lock is not None and await agent.lock.look():
                pause_s = _FIRST_PAUSE_S
                looks += 1
                if looks % _LOOKS_TO_FORGET == 0:
                    self._forget_the_gone(agent, agent.lock)
                await self._tell_modes(agent)
                await asyncio.sleep(_LOOK_EVERY_S)
                continue
            if self._start:
                self._spawn(agent)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _forget_the_gone(self, agent: Agent, lock: LockPort) -> None:
        with contextlib.suppress(UnavailableError):
            records = read_checkpoint(Path(agent.config.kubelet.plugin_directory))
            lock.usage.keep(frozenset(record.pod_uid for record in records))

    async def _tell_modes(self, agent: Agent) -> None:
        if agent.lock is None:
            return
        terms = [one for offer in agent.gpu_offers for one in offer.terms.values() if _takes_turns(one.card)]
        await agent.lock.share({one.card.id: one.sharing for one in terms})

    def _spawn(self, agent: Agent) -> None:
        if self._started is not None and self._started.poll() is None:
            _log.warning("the lock daemon does not answer", pid=self._started.pid)
            return
        cards = filter(_takes_turns, agent.gpus.cards)
        options = [word for card in cards for word in ("--gpu", f"{card.id}={card.memory_mib}Mi")]
        self._started = start_daemon(Path(agent.config.lock.socket_directory), options)
        _log.info("lock daemon started", pid=self._started.pid)


def _takes_turns(card: Card) -> bool:
    """Only cards that work with the hook are known to the daemon."""
    return vendors.named(card.vendor).runs_hook
