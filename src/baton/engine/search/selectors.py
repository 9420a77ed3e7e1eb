"""Node selector terms over the rows of a view."""

import numpy as np

from baton.engine.objects import NodeTerm, Requirement, requirement_holds
from baton.engine.state.columns import Bools
from baton.engine.state.nodes import NodeView
from baton.model.ids import NodeName


def terms_hold(terms: tuple[NodeTerm, ...], nodes: NodeView) -> Bools:
    """The rows where at least one term holds; as in Kubernetes, a term without expressions matches nothing."""
    result = np.zeros(nodes.size, dtype=np.bool_)
    for term in terms:
        result |= term_holds(term, nodes)
    return result


def term_holds(term: NodeTerm, nodes: NodeView) -> Bools:
    if not term.expressions and not term.names and not term.not_names:
        return np.zeros(nodes.size, dtype=np.bool_)
    ok = nodes.true()
    for requirement in term.expressions:
        ok &= _requirement(requirement, nodes)
    if term.names:
        ok &= _named(term.names, nodes)
    if term.not_names:
        ok &= ~_named(term.not_names, nodes)
    return ok


def _named(names: tuple[str, ...], nodes: NodeView) -> Bools:
    rows = [nodes.table.row_of.get(NodeName(name), -1) for name in names]
    own = np.arange(nodes.table.count) if nodes.rows is None else nodes.rows
    return np.isin(own, rows)


def _requirement(requirement: Requirement, nodes: NodeView) -> Bools:
    values = nodes.table.label_values(requirement.key)
    holds = np.zeros(len(values) + 1, dtype=np.bool_)
    holds[0] = requirement_holds(requirement, None)
    for value, number in values.items():
        holds[number] = requirement_holds(requirement, value)
    result: Bools = holds[nodes.label(requirement.key)]
    return result
