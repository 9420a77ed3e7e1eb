"""The agent's use of the lock daemon: real load per card, sharing modes, and the limits of pods.

The daemon may be stopped, killed or hanging at any time; the answer is then None, within the limit. A restarted daemon
has lost its rules; the agent notices this by its epoch and sends them again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import structlog

from baton.agent.config import Sharing
from baton.agent.node.usage import LockUsage
from baton.agent.offers.slot_choice import CardLoad
from baton.errors import BatonError, UnavailableError
from baton.gpu.cards import Sample
from baton.lock.config import Rule
from baton.lock.control import AsyncControlClient, DropRule, SetCard, SetRule
from baton.lock.paths import Paths
from baton.model.ids import CardId, PodUid

_log = structlog.get_logger("baton.agent")


class PodLimits(msgspec.Struct, frozen=True):
    """What a pod may use of each of its cards. Zero means no limit."""

    pod_uid: PodUid
    memory_mib: int = 0
    cores_percent: int = 0
    oversubscribe: bool = True


class LockPort(Protocol):
    """The lock daemon, as the agent sees it."""

    usage: LockUsage
    """The lock time of containers, as of the last look."""

    async def look(self) -> bool:
        """Update `usage`; False if the daemon does not answer."""

    async def loads(self) -> Mapping[CardId, CardLoad] | None:
        """Load per card; None if the daemon does not answer in time."""

    async def limit(self, current: Callable[[], list[PodLimits]]) -> bool:
        """Put the limits of all pods of this node in force; False if the daemon did not accept them.

        `current` is called when it is this call's turn, so that it does not undo the limits of an earlier call.
        """

    async def share(self, modes: Mapping[CardId, Sharing]) -> bool:
        """Set how cards are shared; False if the daemon did not accept it."""


_COMMAND_LIMIT_S = 1.0
_MIB = 1 << 20
_MODES: Mapping[Sharing, Literal["serial", "concurrent"]] = {
    Sharing.EXCLUSIVE: "serial",
    Sharing.CONCURRENT: "concurrent",
}


class LockClient:
    """A `LockPort` over the daemon's control socket."""

    def __init__(self, socket_directory: Path, samples: Callable[[], Sequence[Sample]], load_limit_s: float) -> None:
        path = Paths(socket_directory).control
        self._load_limit_s = load_limit_s
        self._quick = AsyncControlClient(path, load_limit_s)
        self._patient = AsyncControlClient(path, _COMMAND_LIMIT_S)
        self._samples = samples
        self._epoch = ""
        self._told: dict[PodUid, PodLimits] = {}
        self._modes: dict[CardId, Sharing] = {}
        self._one_at_a_time = asyncio.Lock()
        self.usage = LockUsage()

    async def look(self) -> bool:
        try:
            self.usage.take(await self._patient.status())
        except (BatonError, OSError, msgspec.DecodeError):
            return False
        return True

    async def loads(self) -> Mapping[CardId, CardLoad] | None:
        try:
            async with asyncio.timeout(self._load_limit_s):
                status = await self._quick.status()
        except (BatonError, OSError, TimeoutError, msgspec.DecodeError) as error:
            reason = str(error) or f"no answer in {self._load_limit_s:g} s"
            _log.info("the lock daemon does not report the load; cards are chosen by their slots", reason=reason)
            return None
        samples = {sample.card: sample for sample in self._samples()}
        return {
            CardId(card.gpu): CardLoad(len(card.holders) + len(card.waiters), *_busy(samples.get(CardId(card.gpu))))
            for card in status.gpus
        }

    async def limit(self, current: Callable[[], list[PodLimits]]) -> bool:
        async with self._one_at_a_time:
            try:
                wanted = {one.pod_uid: one for one in current()}
                if not wanted and not self._told:
                    return True
                await self._notice_restart()
                for uid, one in wanted.items():
                    if self._told.get(uid) != one:
                        await self._patient.send(SetRule(_rule(one)))
                        self._told[uid] = one
                for uid in self._told.keys() - wanted.keys():
                    await self._drop(self._told[uid])
                    del self._told[uid]
            except (BatonError, OSError, msgspec.DecodeError) as error:
                _log.warning("limits are not in force yet", reason=str(error))
                return False
            return True

    async def share(self, modes: Mapping[CardId, Sharing]) -> bool:
        async with self._one_at_a_time:
            try:
                await self._notice_restart()
                for card, sharing in modes.items():
                    if sharing in _MODES and self._modes.get(card) != sharing:
                        await self._patient.send(SetCard(card, mode=_MODES[sharing]))
                        self._modes[card] = sharing
            except (BatonError, OSError, msgspec.DecodeError) as error:
                _log.warning("sharing modes are not in force yet", reason=str(error))
                return False
            return True

    async def _drop(self, limits: PodLimits) -> None:
        try:
            await self._patient.send(DropRule(_rule(limits)))
        except UnavailableError:
            raise
        except BatonError as error:
            # Dropped by hand, or by an earlier request whose answer came too late: it is no longer in force.
            _log.info("limits were gone already", pod_uid=limits.pod_uid, reason=str(error))

    async def _notice_restart(self) -> None:
        """Send a restarted daemon the limits that were in force, whatever the reason for the present request."""
        status = await self._patient.status()
        if status.epoch != self._epoch:
            self._modes.clear()
            for one in self._told.values():
                await self._patient.send(SetRule(_rule(one)))
            self._epoch = status.epoch


def _rule(limits: PodLimits) -> Rule:
    return Rule(
        pod_uid=limits.pod_uid,
        # A container with several cards may request more in total, but at most 100 percent of one card.
        cores_percent=float(min(limits.cores_percent, 100)),
        memory_bytes=limits.memory_mib * _MIB,
        oversubscribe=limits.oversubscribe,
    )


def _busy(sample: Sample | None) -> tuple[int, int]:
    if sample is None:
        return 0, 0
    total_mib = sample.memory_total_mib or 0
    return sample.utilisation_percent or 0, 100 * (sample.memory_used_mib or 0) // total_mib if total_mib else 0
