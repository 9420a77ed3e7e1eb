"""What the agent wants of the lock daemon: real load per card, and that a pod's limits are in force.

The daemon may be stopped, killed or hanging at any time; the answer then is None, in time.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from baton.agent.podresources import PodUid
from baton.agent.policies import CardLoad
from baton.gpu.cards import CardId

LOAD_LIMIT_S = 0.05
"""Kubelet admits nothing while we wait."""


class PodLimits(msgspec.Struct, frozen=True):
    """What a pod may take of each of its cards. Zero is no limit."""

    pod_uid: PodUid
    namespace: str
    pod: str
    memory_mib: int = 0
    cores_percent: int = 0
    oversubscribe: bool = True


class LockPort(Protocol):
    """The lock daemon, as the agent sees it."""

    async def loads(self) -> Mapping[CardId, CardLoad] | None:
        """Load per card; None when the daemon does not answer within `LOAD_LIMIT_S`."""

    async def limit(self, limits: list[PodLimits]) -> bool:
        """Put the limits of all pods of this node in force; False when the daemon did not take them."""
