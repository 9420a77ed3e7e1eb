"""The core's promises, over random stories; `BATON_LOCK_EVENTS` sets how many events in total."""

import pytest

from baton.lock.events import Measure
from baton.lock.settings import Settings
from tests.lock.world import EVENTS, World

WORLDS = 40
PER_WORLD = EVENTS // 2 // WORLDS


@pytest.mark.parametrize("seed", range(WORLDS))
def test_no_story_raises_or_gives_an_exclusive_card_to_two(seed: int) -> None:
    settings = Settings(
        quantum_s=[None, 1.0, 0.02][seed % 3],
        drop_grace_s=3.0,
        revoke_s=2.0,
        measure=list(Measure)[seed % 2],
    )
    world = World(seed, cards=1 + seed % 4, settings=settings)
    while world.events < PER_WORLD:
        world.step()
        if world.events % 8 == 0:
            world.check_state()
