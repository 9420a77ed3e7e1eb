"""Binpack and spread change the choice of node and of card, even without a weight."""

import pytest

from tests.engine.clusters import Cluster, milli, node, pod, slot, spec, vgpu

ASK = {"vgpu": [vgpu(memory_mib=2000)], "slot": [slot()], "fraction": [milli(100)]}


def conf(policy: str, more: str = "") -> str:
    return f"""
actions: "allocate"
tiers:
- plugins:
  - name: predicates
  - name: deviceshare
    arguments:
      deviceshare.VGPUEnable: true
      deviceshare.SchedulePolicy: {policy}
{more}
"""


@pytest.mark.parametrize("kind", ["vgpu", "fraction"])
def test_binpack_fills_one_card(kind: str) -> None:
    pods = [pod(f"p{i}", spec(ask=ASK[kind])) for i in range(4)]
    outcome = Cluster(nodes=[node("a", cards=4), node("b", cards=4)], pods=pods, conf=conf("binpack")).run()
    assert len({card for cards in outcome.cards.values() for card in cards}) == 1


@pytest.mark.parametrize("kind", sorted(ASK))
def test_spread_uses_every_card_once(kind: str) -> None:
    pods = [pod(f"p{i}", spec(ask=ASK[kind])) for i in range(8)]
    outcome = Cluster(nodes=[node("a", cards=4), node("b", cards=4)], pods=pods, conf=conf("spread")).run()
    assert len({card for cards in outcome.cards.values() for card in cards}) == 8


def test_binpack_prefers_the_node_whose_cards_are_fuller() -> None:
    from tests.engine.clusters import running

    outcome = Cluster(
        nodes=[node("a", cards=2), node("b", cards=2)],
        pods=[running("old", "b", spec(ask=[vgpu(memory_mib=6000)])), pod("p", spec(ask=[vgpu(memory_mib=2000)]))],
        conf=conf("binpack"),
    ).run()
    assert outcome.placed == {"p": "b"}


def test_a_weight_of_zero_leaves_only_the_order_of_cards() -> None:
    from tests.engine.clusters import running

    outcome = Cluster(
        nodes=[node("a", cards=2), node("b", cards=2)],
        pods=[running("old", "b", spec(ask=[vgpu(memory_mib=6000)])), pod("p", spec(ask=[vgpu(memory_mib=2000)]))],
        conf=conf("binpack", "      deviceshare.ScheduleWeight: 0"),
    ).run()
    assert outcome.placed == {"p": "a"}


def test_pods_of_one_exclusive_rule_never_share_a_card() -> None:
    rules = "      deviceshare.GPUExclusiveRules: [{app: llm}, {app: vision}]"
    llm = [pod(f"l{i}", spec(ask=[vgpu(memory_mib=100)]), labels={"app": "llm"}) for i in range(3)]
    vision = [pod("v", spec(ask=[vgpu(memory_mib=100)]), labels={"app": "vision"})]
    outcome = Cluster(nodes=[node("a", cards=2)], pods=[*llm, *vision], conf=conf("binpack", rules)).run()
    assert len([name for name in outcome.placed if name.startswith("l")]) == 2
    assert "v" in outcome.placed, "different rules may share"


def test_pods_with_an_exclusive_rule_are_distinguished_from_equal_pods_without_it() -> None:
    """Results computed for a run of equal pods do not apply to the next pod if a rule mentions its labels."""
    rules = "      deviceshare.GPUExclusiveRules: [{app: llm}]"
    what = spec(ask=[vgpu(memory_mib=100)])
    plain = [pod(f"p{at}", what, created_s=float(at)) for at in range(4)]
    llm = [pod(f"l{at}", what, labels={"app": "llm"}, created_s=10.0 + at) for at in range(3)]
    outcome = Cluster(nodes=[node("a", cards=2)], pods=[*plain, *llm], conf=conf("binpack", rules)).run()
    assert outcome.cards["l0"] != outcome.cards["l1"]
    assert "l2" not in outcome.placed
