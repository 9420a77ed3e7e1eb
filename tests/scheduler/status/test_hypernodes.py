"""The status of hyper nodes: counts, and members that were left out."""

from typing import Any

import msgspec

from baton.engine.events import HyperNodeChanged
from baton.mapping.cluster import hyper_node_of
from baton.model import volcano
from baton.scheduler.status.hypernodes import missing
from tests.engine.clusters import Cluster, node


def hyper_node(*nodes: str, status: dict[str, Any] | None = None) -> volcano.HyperNode:
    members = [{"type": "Node", "selector": {"exactMatch": {"name": name}}} for name in nodes]
    body = {"metadata": {"name": "rack"}, "spec": {"tier": 1, "members": members}, "status": status or {}}
    return msgspec.convert(body, volcano.HyperNode)


def said(made: volcano.HyperNode) -> dict[str, Any]:
    cluster = Cluster(nodes=[node("a"), node("b")])
    cluster.apply(HyperNodeChanged(hyper_node_of(made)))
    cluster.run()
    return missing(made, cluster.engine.state.forest)


def test_the_nodes_are_counted_and_nothing_is_said_of_what_is_right() -> None:
    assert said(hyper_node("a", "b")) == {"nodeCount": 2}
    assert said(hyper_node("a", "b", status={"nodeCount": 2})) == {}


def test_a_left_out_member_is_a_condition() -> None:
    change = said(hyper_node("a", "gone"))
    (condition,) = change["conditions"]
    assert change["nodeCount"] == 1
    assert (condition["type"], condition["status"]) == ("Valid", "False")
    assert condition["message"] == "node gone does not exist"
    assert said(hyper_node("a", "gone", status=change)) == {}


def test_a_condition_is_taken_back_and_those_of_others_stay() -> None:
    wrong = said(hyper_node("a", "gone"))["conditions"]
    other = {"type": "Seen", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "r"}
    change = said(hyper_node("a", status={"nodeCount": 1, "conditions": [other, *wrong]}))
    assert [(item["type"], item["status"], item.get("message", "")) for item in change["conditions"]] == [
        ("Seen", "True", ""),
        ("Valid", "True", ""),
    ]
