"""Kubelet's choice of devices, without the rest of kubelet: sets, reuse of init containers' devices, chance.

`Chooser` follows the steps that kubelet 1.36 takes per container and resource when no NUMA hint is in force: take
the devices of the pod's init containers, ask for a preference for all, take the available part of the answer, and fill
up at random. Every iteration is in random order, because kubelet iterates over hash sets.
"""

import random
from collections.abc import Callable, Iterable

from baton.agent.offers.slots import SlotId

Ask = Callable[[list[SlotId], list[SlotId], int], list[SlotId]]
"""Available, must-include and size in; the preferred ids out."""


class NotEnoughError(Exception):
    """Fewer devices are free than requested: the pod fails admission."""


class Chooser:
    """Kubelet's records of one resource's devices."""

    def __init__(self, devices: Iterable[SlotId], chance: random.Random) -> None:
        self.healthy = set(devices)
        self.allocated: set[SlotId] = set()
        self.chance = chance

    def shuffled(self, ids: Iterable[SlotId]) -> list[SlotId]:
        listed = sorted(ids)
        self.chance.shuffle(listed)
        return listed

    def admit(self, size: int, ask: Ask, reusable: Iterable[SlotId] = ()) -> list[SlotId]:
        """The devices of one container."""
        taken = self.shuffled(set(reusable) & self.healthy)[:size]
        needed = size - len(taken)
        available = self.healthy - self.allocated
        if len(available) < needed:
            raise NotEnoughError(f"requested {size}, available {len(available)}")
        if needed:
            answer = set(ask(self.shuffled(available | set(taken)), list(taken), size))
            # Kubelet drops ids that are not available, takes a random part of too many, fills up too few at random.
            liked = self.shuffled(answer & (available - set(taken)))[:needed]
            taken += liked
            taken += self.shuffled(available - set(taken))[: size - len(taken)]
        self.allocated.update(taken)
        return taken

    def release(self, ids: Iterable[SlotId]) -> None:
        self.allocated.difference_update(ids)
