"""Fragmentation on cases small enough to compute by hand."""

import numpy as np
import pytest

from baton.engine.cards.fragmentation import Amounts, Shape, TargetWorkload, descent, descent_score, fragments, typical

HALF = Shape(cpu_milli=1000, milli=500, cards=1)
WHOLE = Shape(cpu_milli=1000, milli=1000, cards=1)
PAIR = Shape(cpu_milli=1000, milli=1000, cards=2)
CPU_ONLY = Shape(cpu_milli=1000, milli=0, cards=0)


def rows(*values: object) -> Amounts:
    return np.array(values, dtype=np.int64)


def fragment(shape: Shape, cards: list[int], cpu_milli: int = 8000, model: str = "A") -> float:
    """The fragment on one node, in milli-cards, for a workload of a single shape."""
    workload = TargetWorkload.of([(shape, 1)], ["A", "B"])
    found = fragments(workload, rows(cpu_milli), rows(cards), rows(workload.models[model]))
    return float(found[0])


@pytest.mark.parametrize(
    ("shape", "cards", "expected"),
    [
        pytest.param(HALF, [1000, 500], 0, id="every card has room"),
        pytest.param(HALF, [1000, 400], 400, id="a remainder that is too small is a fragment"),
        pytest.param(WHOLE, [1000, 999, 1], 1000, id="a whole card uses only idle cards"),
        pytest.param(PAIR, [1000, 900], 1900, id="too few idle cards make the whole node a fragment"),
        pytest.param(PAIR, [1000, 1000, 300], 300, id="enough idle cards"),
        pytest.param(CPU_ONLY, [1000, 300], 1300, id="a shape without cards can use none"),
        pytest.param(HALF, [0, 0], 0, id="without free cards there is no fragment"),
    ],
)
def test_fragment_that_one_shape_sees(shape: Shape, cards: list[int], expected: int) -> None:
    assert fragment(shape, cards) == expected


def test_without_cpu_all_free_cards_are_fragments() -> None:
    assert fragment(HALF, [1000, 500], cpu_milli=999) == 1500


def test_a_model_that_is_not_allowed_is_a_fragment() -> None:
    picky = HALF._replace(models=("B",))
    assert fragment(picky, [1000, 500], model="A") == 1500
    assert fragment(picky, [1000, 500], model="B") == 0


def test_the_expectation_weighs_shapes_by_their_count() -> None:
    workload = TargetWorkload.of([(HALF, 3), (WHOLE, 1)], ["A"])
    # The 400 of the second card are a fragment for HALF and for WHOLE: (3 × 400 + 1 × 400) / 4.
    assert fragments(workload, rows(8000), rows([1000, 400]), rows(0)) / workload.weight == [400.0]
    # 600 is room for HALF and a fragment for WHOLE: (3 × 0 + 1 × 600) / 4.
    assert fragments(workload, rows(8000), rows([1000, 600]), rows(0)) / workload.weight == [150.0]


def test_typical_shapes_stop_when_enough_tasks_are_covered() -> None:
    tasks = [HALF] * 60 + [WHOLE] * 35 + [PAIR] * 5
    assert typical(tasks) == [(HALF, 60), (WHOLE, 35)]
    assert typical(tasks, share=0.5) == [(HALF, 60)]
    assert typical(tasks, share=1.0) == [(HALF, 60), (WHOLE, 35), (PAIR, 5)]


def test_typical_shapes_of_equal_count_put_the_larger_first() -> None:
    assert typical([WHOLE, PAIR, CPU_ONLY], share=1.0) == [(PAIR, 1), (WHOLE, 1), (CPU_ONLY, 1)]


def test_a_placement_that_changes_nothing_scores_exactly_the_middle() -> None:
    assert descent_score(np.array([0.0, 1e9, -1e9]), weight=7).tolist() == [50, 100, 0]


def test_a_share_goes_to_the_card_that_keeps_the_others_whole() -> None:
    workload = TargetWorkload.of([(WHOLE, 1)], ["A"])
    free = rows([1000, 700, 1000])
    before = fragments(workload, rows(8000), free, rows(0))
    found = descent(workload, HALF, rows(8000), free, rows(0), before)
    assert found.card.tolist() == [1]
    # The fragment of 700 shrinks to 200, a reduction of 500 milli-cards: 100 / (1 + exp(-0.5)) = 62.2.
    assert found.score.tolist() == [62]


def test_the_first_of_equally_good_cards_wins() -> None:
    workload = TargetWorkload.of([(WHOLE, 1)], ["A"])
    free = rows([0, 600, 600])
    found = descent(workload, HALF, rows(8000), free, rows(0), fragments(workload, rows(8000), free, rows(0)))
    assert found.card.tolist() == [1]


def test_a_task_without_requests_gets_the_best_score_everywhere() -> None:
    workload = TargetWorkload.of([(WHOLE, 1)], ["A"])
    free = rows([1000], [0])
    before = fragments(workload, rows(10, 10), free, rows(0, 0))
    found = descent(workload, Shape(0, 0, 0), rows(10, 10), free, rows(0, 0), before)
    assert found.score.tolist() == [100, 100]


def test_taking_the_last_cpu_turns_free_cards_into_fragments() -> None:
    workload = TargetWorkload.of([(WHOLE, 1)], ["A"])
    free = rows([1000, 1000], [1000, 1000])
    cpu = rows(1500, 8000)
    before = fragments(workload, cpu, free, rows(0, 0))
    found = descent(workload, CPU_ONLY, cpu, free, rows(0, 0), before)
    # On the first node 500 m CPU remain: two idle cards become fragments, 100 / (1 + exp(2)) = 11.9.
    assert found.score.tolist() == [11, 50]
