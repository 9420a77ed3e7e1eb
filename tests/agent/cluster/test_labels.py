"""Node labels: what a pod can select, and which labels are removed when they are no longer true."""

from baton.agent import config as configuration
from baton.agent.cluster import labels
from baton.agent.offers.offers import plan
from baton.gpu.cards import Card
from baton.gpu.nvidia import NVIDIA
from baton.model.ids import CardId


def card(index: int, model: str = "NVIDIA A100-SXM4-80GB", memory_mib: int = 81920) -> Card:
    return Card(CardId(f"GPU-{index}"), index, NVIDIA.name, model, memory_mib, (8, 0), "", family="ampere")


def test_equal_cards_are_described_once() -> None:
    cards = (card(0), card(1))
    found = labels.gpu_labels("baton.dev", cards, plan(configuration.AgentConfig(), cards))
    assert found == {
        "baton.dev/gpu.count": "2",
        "baton.dev/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "baton.dev/gpu.memory": "81920",
        "baton.dev/gpu.compute.major": "8",
        "baton.dev/gpu.compute.minor": "0",
        "baton.dev/gpu.family": "ampere",
        "baton.dev/gpu.model.NVIDIA-A100-SXM4-80GB": "2",
        "baton.dev/gpu.replicas": "10",
        "baton.dev/gpu.sharing-strategy": "auto",
    }


def test_different_cards_are_mixed_and_counted_by_model() -> None:
    found = labels.gpu_labels("nvidia.com", (card(0), card(1, "Tesla T4", 15360)), ())
    assert found["nvidia.com/gpu.product"] == "mixed"
    assert found["nvidia.com/gpu.memory"] == "15360", "what every card has"
    assert found["nvidia.com/gpu.model.Tesla-T4"] == "1"


def test_no_cards_no_labels() -> None:
    assert labels.gpu_labels("baton.dev", (), ()) == {}


def test_only_differences_are_written_and_only_own_labels_are_removed() -> None:
    present = {"baton.dev/gpu.count": "2", "baton.dev/gpu.replicas": "10", "baton.dev/other": "x", "a/gpu.count": "9"}
    wanted = {"baton.dev/gpu.count": "3"}
    assert labels.change(present, wanted, "baton.dev") == {"baton.dev/gpu.count": "3", "baton.dev/gpu.replicas": None}


def test_labels_of_others_under_the_same_prefix_stay() -> None:
    """NVIDIA's operator uses such labels to place its own programs."""
    operator = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.driver": "true"}
    ours = {"nvidia.com/gpu.family": "ampere", "nvidia.com/gpu.model.Tesla-T4": "1"}
    assert labels.change(operator | ours, {}, "nvidia.com") == dict.fromkeys(ours)
    cards = (card(0), card(1, "Tesla T4", 15360))
    every = labels.gpu_labels("nvidia.com", cards, plan(configuration.AgentConfig(), cards))
    assert labels.change(every, {}, "nvidia.com") == dict.fromkeys(every), "what is written can be taken back"


def test_any_text_becomes_a_label_value() -> None:
    assert labels.value_of("GeForce RTX 4090 (rev. A)") == "GeForce-RTX-4090-rev.-A"
    assert len(labels.value_of("x" * 100)) == 63
