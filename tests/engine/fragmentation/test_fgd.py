"""The fragmentation measure against a slow reference that follows the definition literally."""

import math
import random

import pytest

from baton.engine.cards.fragmentation import Shape
from baton.engine.cards.fragments import Workload, card_and_node_scores
from baton.engine.engine import Engine
from baton.engine.events import NodeChanged, PodChanged, QueueChanged
from baton.engine.objects import PodSpec
from baton.engine.plugins.places.fragmentation import FragmentationPlugin
from baton.engine.presets import configured
from tests.engine.clusters import milli, node, pod, queue, spec

PODS = [
    (Shape(4000, 1000, 1), 30),
    (Shape(2000, 300, 1), 20),
    (Shape(8000, 1000, 4), 10),
    (Shape(6000, 0, 0), 15),
    (Shape(2000, 500, 1, ("A100",)), 5),
]


def fragment(cpu: int, free: list[int], model: str) -> float:
    total = sum(count for _, count in PODS)
    result = 0.0
    for typical, count in PODS:
        allowed = not typical.models or model in typical.models
        enough = sum(share >= typical.milli for share in free) >= typical.cards
        if typical.cards == 0 or not allowed or cpu < typical.cpu_milli or not enough:
            result += count / total * sum(free)
        else:
            result += count / total * sum(share for share in free if share < typical.milli)
    return result


def expected_score(cpu: int, free: list[int], model: str, want_cpu: int, want: int, cards: int) -> float:
    before = fragment(cpu, free, model)
    options = []
    if cards == 0:
        options.append(free)
    elif cards == 1 and want < 1000:
        options += [[*free[:at], free[at] - want, *free[at + 1 :]] for at in range(len(free)) if free[at] >= want]
    else:
        left, missing = list(free), cards
        for at, share in enumerate(left):
            if missing and share >= want:
                left[at], missing = share - want, missing - 1
        options.append(left)
    drops = [before - fragment(cpu - want_cpu, option, model) for option in options]
    return max(math.floor(100 / (1 + math.exp(-drop / 1000))) for drop in drops)


@pytest.mark.parametrize("seed", range(30))
def test_scores_follow_the_definition(seed: int) -> None:
    chance = random.Random(seed)
    model = chance.choice(("A100", "T4"))
    taken = [chance.choice((0, 0, 200, 500, 1000)) for _ in range(4)]
    engine = Engine(configured("simple"))
    asks = ((2, 300, 1), (1, 500, 1), (4, 1000, 1), (4, 1000, 2), (3, 0, 0))
    fitting = [ask for ask in asks if sum(1000 - share >= ask[1] for share in taken) >= ask[2]]
    want_cpu, want, cards = chance.choice(fitting)
    what: PodSpec = spec(cpu=want_cpu, ask=[milli(want, cards)] if cards else [])
    free = [1000 - share for share in taken]
    engine.apply([QueueChanged(queue("default")), NodeChanged(node("a", cpu=20, cards=4, model=model))])
    for at, share in enumerate(taken):
        engine.state.ledger.usage[:, 1, at, 0] = share
    needs = engine.state.needs_of(what)
    scores, _ = card_and_node_scores(Workload(PODS, covered=1.0), needs, engine.state.table.view())
    assert scores[0] == expected_score(20_000, free, model, want_cpu * 1000, want, cards)


def test_the_workload_keeps_the_most_common_pods() -> None:
    workload = Workload(PODS, covered=0.5)
    assert workload.counted == PODS[:2]


def test_a_fraction_goes_to_the_card_that_no_other_shape_can_use() -> None:
    conf = 'actions: "allocate"\ntiers:\n- plugins: [{name: predicates}, {name: fragmentation}]\n'
    engine = Engine(configured(conf))
    plugin = next(item for item in engine.tiers.plugins if isinstance(item, FragmentationPlugin))
    assert isinstance(plugin, FragmentationPlugin)
    plugin.pin(Workload([(Shape(1000, 1000, 1), 1)]))
    engine.apply([QueueChanged(queue("default")), NodeChanged(node("a", cards=2)), NodeChanged(node("b", cards=2))])
    engine.apply([PodChanged(pod(f"p{i}", spec(ask=[milli(300)]))) for i in range(3)])
    cards = {grant.card for binding in engine.schedule(0.0).bindings for grant in binding.cards}
    assert len(cards) == 1
