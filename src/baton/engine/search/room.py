"""Room on nodes and cards, for all rows of a view at once.

These checks are not a plugin, because no configuration may disable the rule that a card is never promised twice. If
several containers request cards, the arrays give a necessary condition; the ledger's `pick` on the chosen node decides.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from baton.engine.cards.demands import Demand
from baton.engine.cards.ledger import MEMORY, SHARE, SLOT
from baton.engine.objects import CardRules, LabelSelector
from baton.engine.session.plugin import Check
from baton.engine.state.affinity import PlacedPods, card_key
from baton.engine.state.columns import Array, Bools
from baton.engine.state.jobs import Task
from baton.engine.state.nodes import NodeView
from baton.engine.state.resources import PODS

NO_RULES = CardRules()
CARD_REASON = "no card combination with enough room"
TOO_FEW_CARDS = "fewer suitable cards than requested"


def room_checks(
    task: Task, nodes: NodeView, placed: PlacedPods, extra: tuple[LabelSelector, ...] = ()
) -> Iterator[Check]:
    """Checks of resources, then of cards. `extra` has card anti-affinities from the configuration."""
    request = task.needs.request
    names = nodes.table.resources.names
    for place in task.needs.places:
        free_enough = nodes.used(place) + request[place] <= nodes.allocatable(place)
        reason = "too many pods" if place == PODS else f"insufficient {names[place]}"
        yield Check(reason, free_enough)
    if task.needs.cards.demands:
        yield from _card_checks(task, nodes, placed, extra)


def fits_empty(task: Task, nodes: NodeView) -> Bools:
    """Whether each node would have room if it were empty; where it would not, no eviction helps."""
    request = task.needs.request
    ok = nodes.true()
    for place in task.needs.places:
        ok &= request[place] <= nodes.allocatable(place)
    return ok


def copies_at_most(task: Task, nodes: NodeView) -> Array:
    """Upper bound for the number of such tasks that each node has room for, by resources and cards."""
    copies = np.full(nodes.size, np.iinfo(np.int32).max, dtype=np.int64)
    for place in task.needs.places:
        free = np.maximum(nodes.allocatable(place) - nodes.used(place), 0)
        copies = np.minimum(copies, free // max(int(task.needs.request[place]), 1))
    for demand in task.needs.cards.demands:
        if demand.init is None:
            copies = np.minimum(copies, _units(task, demand, nodes).sum(axis=0) // max(demand.cards, 1))
    return copies


def _units(task: Task, demand: Demand, nodes: NodeView) -> Array:
    """How many units of the demand each card has room for, [cards, rows]."""
    fitting = fitting_cards(task, demand, nodes)
    if demand.exclusive:
        return fitting.astype(np.int64)
    free = nodes.card_capacity() - nodes.card_usage()[: len(nodes.card_capacity())]
    units = np.full(fitting.shape, np.iinfo(np.int32).max, dtype=np.int64)
    need = demand.memory_need(nodes.column(nodes.ledger.physical_mib))
    for quantity, amount in ((MEMORY, need), (SHARE, demand.share_milli), (SLOT, demand.slots)):
        if amount is not None:
            units = np.where(np.asarray(amount) > 0, np.minimum(units, free[quantity] // np.maximum(amount, 1)), units)
    return np.where(fitting, units, 0)


def fitting_cards(task: Task, demand: Demand, nodes: NodeView) -> npt.NDArray[np.bool_]:
    """Suitable cards with room for one unit of the demand, [cards, rows]; computed once per view."""
    known = nodes.memo.get(demand)
    if known is None:
        ledger = nodes.ledger
        fixed = nodes.column(ledger.fixed) if ledger.any_fixed else None
        known = ledger.fits(
            demand,
            nodes.card_usage(),
            nodes.card_capacity(),
            nodes.column(ledger.physical_mib),
            nodes.column(ledger.kinds),
            fixed,
        )
        suitable = suitable_cards(task, nodes)
        if suitable is not None:
            known &= suitable
        nodes.memo[demand] = known
    return known


def _card_checks(task: Task, nodes: NodeView, placed: PlacedPods, extra: tuple[LabelSelector, ...]) -> Iterator[Check]:
    suitable = suitable_cards(task, nodes)
    mates = neighbour_mask(task, nodes, placed, extra)
    for demand in task.needs.cards.demands:
        fitting = fitting_cards(task, demand, nodes)
        if suitable is not None:
            served = ((nodes.column(nodes.ledger.kinds) & demand.kind_bit) != 0) & suitable
            enough = served.sum(axis=0, dtype=np.int16) >= demand.cards
            yield Check(TOO_FEW_CARDS, enough, resolvable=False)
        if mates is not None:
            fitting = fitting & mates
        if demand.cards == 1:
            yield Check(CARD_REASON, np.logical_or.reduce(fitting, axis=0))
        else:
            yield Check(CARD_REASON, fitting.sum(axis=0, dtype=np.int16) >= demand.cards)


def suitable_cards(task: Task, nodes: NodeView) -> npt.NDArray[np.bool_] | None:
    """Cards by model, id, mode, memory and compute capability; None when the pod has no such rule."""
    rules = task.needs.spec.card_rules
    if rules == NO_RULES:
        return None
    ledger = nodes.ledger
    ok: npt.NDArray[np.bool_] = nodes.column(ledger.number) != 0
    if rules.models or rules.not_models:
        allowed = np.array([_model_allowed(rules, model) for model in ledger.models], dtype=np.bool_)
        ok &= allowed[nodes.column(ledger.model)]
    if rules.ids or rules.not_ids:
        numbers = nodes.column(ledger.number)
        if rules.ids:
            ok &= np.isin(numbers, [ledger.numbers.get(card, -1) for card in rules.ids])
        if rules.not_ids:
            ok &= ~np.isin(numbers, [ledger.numbers.get(card, -1) for card in rules.not_ids])
    if rules.mode:
        wanted = ledger.modes.index(rules.mode) if rules.mode in ledger.modes else -1
        ok &= nodes.column(ledger.mode) == wanted
    if rules.min_memory_mib:
        ok &= nodes.column(ledger.physical_mib) >= rules.min_memory_mib
    if rules.min_compute_capability:
        ok &= nodes.column(ledger.compute) >= rules.min_compute_capability
    return ok


def neighbour_mask(
    task: Task, nodes: NodeView, placed: PlacedPods, extra: tuple[LabelSelector, ...]
) -> npt.NDArray[np.bool_] | None:
    """Cards allowed by the pods already on them: card affinity, card anti-affinity, spread of the group."""
    rules = task.needs.spec.card_rules
    if not (rules.with_pods or rules.without_pods or rules.spread_group or extra):
        return None
    numbers: npt.NDArray[Any] = nodes.column(nodes.ledger.number)
    ok: npt.NDArray[np.bool_] = numbers != 0
    namespace = task.pod.namespace
    for selector in rules.with_pods:
        counts = placed.matching(card_key(selector, namespace))
        own = selector.matches(dict(task.pod.labels))
        if counts.total or not own:
            ok &= counts.at(numbers) > 0
    for selector in rules.without_pods:
        ok &= placed.matching(card_key(selector, namespace)).at(numbers) == 0
    for selector in extra:
        ok &= placed.matching(card_key(selector, None)).at(numbers) == 0
    if rules.spread_group and task.job is not None:
        ok &= ~np.isin(numbers, _cards_of_group(task, nodes))
    return ok


def allowed_positions(
    task: Task, nodes: NodeView, placed: PlacedPods, extra: tuple[LabelSelector, ...]
) -> list[bool] | None:
    """The same rules for one row, in the form for `CardLedger.pick`; `nodes` is a view of that row."""
    suitable = suitable_cards(task, nodes)
    mates = neighbour_mask(task, nodes, placed, extra)
    if suitable is None and mates is None:
        return None
    both = mates if suitable is None else suitable if mates is None else suitable & mates
    assert both is not None
    return [bool(item) for item in both[:, 0]]


def _cards_of_group(task: Task, nodes: NodeView) -> list[int]:
    ledger = nodes.ledger
    cards = []
    assert task.job is not None
    for other in task.job.tasks.values():
        holding = ledger.holders.get(other.key)
        if holding is not None:
            cards += [int(ledger.number[position, holding.row]) for position, *_ in holding.assignment.charges]
    return cards


def _model_allowed(rules: CardRules, model: str) -> bool:
    lowered = model.lower()
    if rules.models:
        return any(part.lower() in lowered for part in rules.models)
    return not any(part.lower() in lowered for part in rules.not_models)
