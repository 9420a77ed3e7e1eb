"""Selectors, affinities, tolerations and spread constraints."""

from collections.abc import Iterable, Mapping

from baton.engine.objects import (
    AffinityTerm,
    LabelSelector,
    NodeTerm,
    Pairs,
    PreferredAffinityTerm,
    PreferredNodeTerm,
    Requirement,
    SpreadConstraint,
    Toleration,
)
from baton.model import core

NOTHING = LabelSelector(expressions=(Requirement("baton.dev/nothing", "In", ()),))
"""Selects no object: in a term, an absent selector selects nothing, while an empty one selects everything."""


def pairs(labels: Mapping[str, str]) -> Pairs:
    return tuple(sorted(labels.items())) if labels else ()


def requirements(expressions: Iterable[core.MatchExpression]) -> tuple[Requirement, ...]:
    return tuple(Requirement(item.key, item.operator, tuple(item.values)) for item in expressions)


def label_selector(selector: core.LabelSelector | None, own: Mapping[str, str] | None = None) -> LabelSelector:
    """The selector; `own` are further labels that must match, from matchLabelKeys."""
    if selector is None:
        return NOTHING
    return LabelSelector(pairs({**selector.match_labels, **(own or {})}), requirements(selector.match_expressions))


def node_terms(selector: core.NodeSelector | None) -> tuple[NodeTerm, ...]:
    return tuple(node_term(term) for term in selector.node_selector_terms) if selector is not None else ()


def node_term(term: core.NodeSelectorTerm) -> NodeTerm:
    """An empty term selects no node; field selectors know one field, metadata.name."""
    names = tuple(value for item in term.match_fields for value in item.values if item.operator == "In")
    not_names = tuple(value for item in term.match_fields for value in item.values if item.operator == "NotIn")
    return NodeTerm(requirements(term.match_expressions), names, not_names)


def preferred_nodes(affinity: core.NodeAffinity | None) -> tuple[PreferredNodeTerm, ...]:
    if affinity is None:
        return ()
    return tuple(PreferredNodeTerm(item.weight, node_term(item.preference)) for item in affinity.preferred)


def affinity_term(term: core.PodAffinityTerm, labels: Mapping[str, str]) -> AffinityTerm:
    selector = label_selector(term.label_selector, {key: labels[key] for key in term.match_label_keys if key in labels})
    unlike = tuple(Requirement(key, "NotIn", (labels[key],)) for key in term.mismatch_label_keys if key in labels)
    if unlike:
        selector = LabelSelector(selector.labels, (*selector.expressions, *unlike))
    return AffinityTerm(
        selector=selector,
        topology_key=term.topology_key,
        namespaces=tuple(sorted(term.namespaces)),
        namespace_selector=None if term.namespace_selector is None else label_selector(term.namespace_selector),
    )


def required_terms(affinity: core.PodAffinity | None, labels: Mapping[str, str]) -> tuple[AffinityTerm, ...]:
    return tuple(affinity_term(term, labels) for term in affinity.required) if affinity is not None else ()


def preferred_terms(affinity: core.PodAffinity | None, labels: Mapping[str, str]) -> tuple[PreferredAffinityTerm, ...]:
    if affinity is None:
        return ()
    return tuple(
        PreferredAffinityTerm(item.weight, affinity_term(item.pod_affinity_term, labels)) for item in affinity.preferred
    )


def spread(constraint: core.SpreadConstraint, labels: Mapping[str, str]) -> SpreadConstraint:
    own = {key: labels[key] for key in constraint.match_label_keys if key in labels}
    return SpreadConstraint(
        selector=label_selector(constraint.label_selector, own),
        topology_key=constraint.topology_key,
        max_skew=constraint.max_skew,
        required=constraint.when_unsatisfiable == "DoNotSchedule",
        min_domains=constraint.min_domains or 1,
        honour_node_affinity=constraint.node_affinity_policy == "Honor",
        honour_taints=constraint.node_taints_policy == "Honor",
    )


def toleration(item: core.Toleration) -> Toleration:
    return Toleration(key=item.key, operator=item.operator, value=item.value, effect=item.effect)
