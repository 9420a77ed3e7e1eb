"""No interleaving of charges, promises, evictions, releases, rollbacks and rebuilds promises a card twice.

The test runs a million random operations; after each one it checks both planes of the changed node, and from time to
time it compares the whole ledger with its holders.
"""

import random

import numpy as np
import pytest

from baton.engine.cards.demands import CardPlan, Needs
from baton.engine.cards.ledger import CLAIMS, EXCLUSIVE, MEMORY, SHARE, SLOT, CardLedger, Holding, Stage
from baton.engine.objects import Card, CardKind, CardRequest, Container, ContainerRole, PodSpec
from baton.engine.state.columns import BOTH, FUTURE, NOW, Array
from baton.engine.state.resources import ResourceNames
from baton.model.ids import CardId, PodKey
from tests.effort import scaled

ROWS = 12
OPERATIONS = scaled(250_000)
ORDERS = ("", "binpack", "spread")


def _request(chance: random.Random) -> CardRequest:
    kind = chance.choice(list(CardKind))
    count = chance.choice((1, 1, 1, 2, 3))
    if kind is CardKind.VGPU:
        return CardRequest(
            kind=kind,
            count=count,
            memory_mib=chance.choice((0, 1000, 5000)),
            memory_percent=chance.choice((0, 0, 33, 100)),
            share_milli=chance.choice((0, 100, 500, 1000)),
        )
    if kind is CardKind.MEMORY:
        return CardRequest(kind=kind, memory_mib=chance.choice((500, 4000)))
    if kind is CardKind.FRACTION:
        return CardRequest(kind=kind, count=count, share_milli=chance.choice((100, 300, 810, 1000)))
    return CardRequest(kind=kind, count=count)


def _plans(chance: random.Random) -> list[CardPlan]:
    plans = []
    for number in range(60):
        roles = chance.choice(
            (
                (ContainerRole.APP,),
                (ContainerRole.APP,),
                (ContainerRole.APP, ContainerRole.APP),
                (ContainerRole.INIT, ContainerRole.APP),
                (ContainerRole.SIDECAR, ContainerRole.INIT, ContainerRole.APP),
            )
        )
        containers = tuple(
            Container(name=f"c{place}", role=role, cards=(_request(chance),)) for place, role in enumerate(roles)
        )
        plans.append(Needs(number, PodSpec(containers=containers), ResourceNames()).cards)
    return plans


def _ledger(chance: random.Random) -> tuple[CardLedger, list[tuple[Card, ...]]]:
    ledger = CardLedger()
    ledger.grow(ROWS)
    machines = []
    for row in range(ROWS):
        cards = tuple(
            Card(
                id=CardId(f"{row}/{position}"),
                memory_mib=chance.choice((10_000, 16_001)),
                slots=chance.choice((1, 3, 10)),
                fixed=chance.random() < 0.1,
                healthy=chance.random() > 0.05,
            )
            for position in range(chance.choice((1, 2, 4, 8)))
        )
        ledger.set_cards(row, cards)
        machines.append(cards)
    return ledger, machines


def _check_row(ledger: CardLedger, row: int) -> None:
    usage = ledger.usage[:, :, :, row]
    assert (usage >= 0).all(), f"row {row} gave back more than it had"
    assert (usage[:, (MEMORY, SHARE, SLOT)] <= ledger.capacity[np.newaxis, :, :, row]).all(), (
        f"row {row} over-committed"
    )
    assert (usage[:, EXCLUSIVE] <= 1).all()
    assert not ((usage[:, EXCLUSIVE] > 0) & (usage[:, CLAIMS] > 1)).any(), f"row {row} shares an exclusive card"


def _check_all(ledger: CardLedger) -> None:
    expected = np.zeros_like(ledger.usage)
    for holding in ledger.holders.values():
        planes = {Stage.HELD: (NOW, FUTURE), Stage.LEAVING: (NOW,), Stage.PROMISED: (FUTURE,)}[holding.stage]
        for plane in planes:
            for position, *amounts in holding.assignment.charges:
                expected[plane, :, position, holding.row] += [*amounts, 1]
    assert np.array_equal(expected, ledger.usage)


@pytest.mark.parametrize("seed", range(4))
def test_no_interleaving_overcommits_a_card(seed: int) -> None:
    chance = random.Random(seed)
    plans = _plans(chance)
    ledger, _ = _ledger(chance)
    transaction: tuple[int, Array, dict[PodKey, Holding]] | None = None
    serial = 0
    done = 0
    while done < OPERATIONS:
        done += 1
        action = chance.random()
        holders = ledger.holders
        if action < 0.5 or not holders:
            plan, row = chance.choice(plans), chance.randrange(ROWS)
            later = chance.random() < 0.2
            assignment = ledger.pick(row, plan, FUTURE if later else BOTH, order=chance.choice(ORDERS))
            if assignment is not None:
                serial += 1
                key = PodKey(f"p{serial}")
                if later:
                    ledger.promise(key, row, assignment)
                else:
                    ledger.charge(key, row, assignment)
                _check_row(ledger, row)
        elif action < 0.9:
            key = next(iter(holders)) if chance.random() < 0.5 else chance.choice(list(holders)[:50])
            holding = holders[key]
            if holding.stage is Stage.HELD and chance.random() < 0.3:
                ledger.leave(key)
            else:
                ledger.release(key)
            _check_row(ledger, holding.row)
        elif action < 0.94:
            if transaction is None:
                transaction = (ledger.checkpoint(), ledger.usage.copy(), dict(holders))
        elif transaction is not None:
            mark, usage, before = transaction
            if chance.random() < 0.7:
                ledger.rollback(mark)
                assert np.array_equal(usage, ledger.usage), "a rollback left a trace"
                assert ledger.holders == before
            transaction = None
            ledger.commit()
        if done % 10_000 == 0:
            _check_all(ledger)
    _check_all(ledger)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_pod_holds_is_the_same_after_a_rebuild_from_its_grants(seed: int) -> None:
    chance = random.Random(seed)
    plans = _plans(chance)
    ledger, machines = _ledger(chance)
    for number in range(300):
        plan, row = chance.choice(plans), chance.randrange(ROWS)
        assignment = ledger.pick(row, plan, BOTH, order="binpack")
        if assignment is None:
            continue
        grants = ledger.card_grants(machines[row], assignment)
        assert sorted(ledger.assignment_of(row, grants, plan).charges) == sorted(assignment.charges)
        ledger.charge(PodKey(f"p{number}"), row, assignment)
