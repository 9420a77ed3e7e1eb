"""The core's promises, over random stories of a million events in total."""

import random

import pytest

from baton.lock.core.events import Measure, Mode, Priority, Terms
from baton.lock.core.settings import Settings
from tests.lock.core.busy import GIB, Machine, Worker
from tests.lock.core.world import EVENTS, World

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


MACHINES = 60
PER_MACHINE = EVENTS // 2 // MACHINES


@pytest.mark.parametrize("seed", range(MACHINES))
def test_every_waiter_is_served_within_its_bound_and_quotas_are_kept(seed: int) -> None:
    """Random populations of busy, bursty, limited and weighted clients and gangs; no wait may exceed its bound."""
    pick = random.Random(seed)
    quantum_s = pick.choice([0.05, 1.0, 20.0])
    release_s = quantum_s * pick.choice([0.0, 0.01, 0.3])
    settings = Settings(quantum_s=quantum_s, mode=pick.choice(list(Mode)), window_s=4 * quantum_s)
    cards = pick.randint(1, 3)
    m = Machine(settings, cards)
    limited = seed % 3 == 0
    for _ in range(pick.randint(2, 5)):
        terms = Terms(
            pick.choice([1, 1, 2, 5]),
            pick.choice(list(Priority)) if seed % 2 else Priority.NORMAL,
            pick.choice([0, 20, 50]) if limited else 0,
        )
        burst_s = pick.choice([None, quantum_s * pick.random() + 0.001])
        m.add(terms, pick.randrange(cards), pick.choice([2, 12]) * GIB, release_s, burst_s, quantum_s * pick.random())
    for _ in range(pick.randint(0, 2) if cards > 1 else 0):
        m.add_gang(pick.sample(range(cards), 2), Terms(pick.choice([1, 3])), release_s)
    total = sum(core.weight for core in m.core.clients.values())
    worst_s = {
        worker.id: settings.patience_quanta * quantum_s * (1 + total / m.core.clients[worker.id].weight)
        + (2 * len(m.workers) + 2) * (quantum_s + release_s)
        for worker in m.workers.values()
    }

    def within_bound(worker: Worker) -> None:
        waited_s = worker.waits[-1] if worker.waits else 0.0
        limit = m.core.clients[worker.id].quota
        allowed_s = worst_s[worker.id]
        if limit is not None:
            # A throttled client waits for its next window; an overrun may cost it further windows.
            allowed_s = allowed_s / limit.share + 2 * m.core.cards[worker.card].window_s / limit.share
        assert waited_s <= allowed_s, f"seed {seed}: {worker.id} waited {waited_s}, bound {allowed_s}"

    m.on_grant = within_bound
    while m.events < PER_MACHINE:
        m.run(50 * quantum_s)
        for worker in m.workers.values():
            within_bound_now = m.now_s - worker.asked_s if worker.asked_s is not None else 0.0
            client = m.core.clients[worker.id]
            if client.quota is None:
                assert within_bound_now <= worst_s[worker.id], f"seed {seed}: {worker.id} still waits"
            else:
                window_s = m.core.cards[worker.card].window_s
                allowed_s = client.quota.share * (m.now_s + window_s) + release_s
                assert worker.received_s <= allowed_s + 1e-3, f"seed {seed}: {worker.id} broke its limit"
