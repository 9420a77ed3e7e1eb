"""The agent's configuration: all mistakes are reported at once, each with its line and remedy."""

import pytest

from baton.agent import config as configuration
from baton.agent.config import AgentConfig, Kind, Sharing
from baton.agent.documents import DocumentError
from baton.agent.offers.slot_choice import Policy
from baton.gpu.cards import Card
from baton.gpu.nvidia import NVIDIA
from baton.model.ids import CardId


def card(index: int, model: str = "NVIDIA A100-SXM4-80GB") -> Card:
    return Card(CardId(f"GPU-{index}"), index, NVIDIA.name, model, 81920, (8, 0), f"0000:{index:02x}:00.0")


def test_an_empty_file_offers_ten_slots_per_card() -> None:
    assert configuration.parse("") == AgentConfig()
    (resource,) = AgentConfig().resources
    assert (resource.name, resource.replicas, resource.policy) == ("nvshare.com/gpu", 10, Policy.SPREAD)


def test_every_mistake_is_reported_at_once_with_its_line() -> None:
    text = """
resources:
  - name: nvshare.com/gpu
    replicas: 0
    polcy: spread
  - name: gpu
  - name: nvshare.com/gpu
    sharing: sometimes
    cards:
      - model: "*A100*"
        replicas: many
kubelet:
  registration: telepathy
"""
    with pytest.raises(DocumentError) as caught:
        configuration.parse(text, "agent.yaml")
    lines = str(caught.value).splitlines()
    assert lines[0] == "agent.yaml has 7 mistakes:"
    expected = [
        "line 4: resources[0].replicas is 0: expected `int` >= 1",
        "line 5: resources[0].polcy is not a field here; did you mean 'policy'?",
        "line 6: resources[1].name is 'gpu': expected DOMAIN/NAME, such as nvshare.com/gpu",
        "line 7: resources[2].name is 'nvshare.com/gpu', as in resources[0]; a resource name can be used once",
        "line 8: resources[2].sharing is 'sometimes': expected one of auto, exclusive, concurrent",
        "line 11: resources[2].cards[0].replicas is 'many': expected `int`, got `str`",
        "line 13: kubelet.registration is 'telepathy': expected one of register, registry",
    ]
    assert [line.strip() for line in lines[1:]] == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("resources: [{name: kubernetes.io/gpu}]", "the domain is reserved by Kubernetes"),
        ("resources: [{name: requests.me/gpu}]", "the domain is reserved by Kubernetes"),
        ("resources: [{name: Example.com/gpu}]", "must be lower-case DNS labels"),
        ("resources: [{name: 'example.com/-gpu'}]", "the part after / must be 1 to 63"),
        ("resources: [{name: a.b/c, cards: [{replicas: 2}]}]", "selects no card; give uuid, index or model"),
        ("resources: [{name: a.b/c, kind: whole, policy: load}]", "applies to shared cards only"),
        ("resources: [{name: a.b/c, kind: whole, cards: [{index: 0, replicas: 2}]}]", "gives out whole cards"),
        ("resources: [{name: a.b/c, kind: vgpu, cores-name: a.b/c}]", "a resource name can be used once"),
        ("resources: [{}]", "resources[0].name is missing"),
        ("resources: nothing", "resources is 'nothing'|resources must be a list, got text"),
        ("nodes: [{name: x, resources: [{name: gpu}]}]", "nodes[0].resources[0].name is 'gpu'"),
        ("lock: {socket-directory: run}", "expected an absolute path"),
        ("serving: {metrics-address: everywhere}", "expected HOST:PORT"),
        ("serving: {metrics-address: ':65536'}", "expected HOST:PORT"),
        ("serving: {metrics-address: ':\u0661'}", "expected HOST:PORT"),
        ('resources: [{name: "a.b/c\\n"}]', "the part after / must be 1 to 63"),
        ("api: {label-prefix: Baton.dev}", "api.label-prefix is 'Baton.dev': the part before / must be lower-case"),
        ("api: {label-prefix: ''}", "api.label-prefix is ''"),
        ("lock: {socket-directory: 2026-13-01}", "has a value that YAML cannot read: month must be in 1..12"),
        ("resources: &loop [*loop]", "resources[0] must be a mapping of fields, got a list"),
        ("a: " + "[" * 5000, "is nested too deeply|is not YAML"),
        ("- a", "must be a mapping of fields, got a list"),
        ("a: [", "is not YAML: line"),
    ],
)
def test_each_mistake_gives_one_clear_sentence(text: str, sentence: str) -> None:
    with pytest.raises(DocumentError) as caught:
        configuration.parse(text)
    assert any(part in str(caught.value) for part in sentence.split("|"))


def test_rules_pick_cards_by_uuid_index_and_model_and_the_first_match_counts() -> None:
    (resource,) = configuration.parse(
        """
resources:
  - name: nvshare.com/gpu
    cards:
      - {uuid: GPU-2, use: false}
      - {index: 1, replicas: 3}
      - {model: "*a100*", sharing: concurrent}
"""
    ).resources
    assert resource.rule_for(card(2)) is None
    by_index = resource.rule_for(card(1))
    assert by_index is not None
    assert (by_index.replicas, by_index.sharing) == (3, None)
    by_model = resource.rule_for(card(0))
    assert by_model is not None
    assert by_model.sharing is Sharing.CONCURRENT
    plain = resource.rule_for(card(0, "Tesla T4"))
    assert plain is not None
    assert plain.sharing is None


def test_a_node_may_differ() -> None:
    config = configuration.parse(
        """
resources: [{name: nvshare.com/gpu}]
nodes:
  - name: "big-*"
    resources: [{name: nvidia.com/gpu, kind: whole}]
"""
    )
    assert config.for_node("small-1").resources[0].name == "nvshare.com/gpu"
    assert config.for_node("big-1").resources[0].kind is Kind.WHOLE
