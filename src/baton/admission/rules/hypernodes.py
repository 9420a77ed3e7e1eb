"""Hyper nodes: the checks that their schema, which comes first, cannot express."""

from collections.abc import Mapping
from typing import Any

from baton.admission.findings import Field, Findings, Rule
from baton.engine.state.hypernodes import compiled

NO_MEMBERS = Rule(
    "hypernode-members",
    "{field} is {value}: member must have at least one member; name nodes or hyper nodes of a lower tier",
)
MEMBER_PATTERN = Rule(
    "hypernode-pattern",
    "{field} is {value}: member regexMatch pattern is invalid: {reason}; as in ^rack-1-node-.*",
)
MEMBER_LABELS = Rule(
    "hypernode-labels",
    "{field} selects hyper nodes by labels: labels can select only nodes; list hyper nodes by name or by pattern",
)
MEMBER_SELF = Rule(
    "hypernode-self",
    "{field} is {value}, the hyper node itself; list hyper nodes of a lower tier",
)


def check_hyper_node(hyper_node: Mapping[str, Any], findings: Findings) -> None:
    """Check a new or changed hyper node."""
    root = Field("", hyper_node)
    spec = root["spec"]
    spec.mapping(findings)
    if not spec["members"]:
        findings.add(NO_MEMBERS, spec["members"])
    for member in spec["members"].items(findings):
        member.mapping(findings)
        selector = member["selector"]
        pattern = selector["regexMatch"]["pattern"]
        try:
            compiled(pattern.text(findings))
        except ValueError as error:
            findings.add(MEMBER_PATTERN, pattern, reason=error)
        if member["type"].value == "HyperNode":
            if selector["labelMatch"]:
                findings.add(MEMBER_LABELS, selector["labelMatch"])
            name = selector["exactMatch"]["name"]
            if name and name.value == root["metadata"]["name"].value:
                findings.add(MEMBER_SELF, name)
