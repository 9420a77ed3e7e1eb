"""From configuration and cards to offers, and what a container gets for its slots."""

from pathlib import Path

import pytest

from baton.agent import config as configuration
from baton.agent.kubelet.answers import HostFiles, answer, overridden
from baton.agent.node import hook_versions
from baton.agent.offers.offers import Offer, PlanError, Role, plan, unused_rules
from baton.errors import UnavailableError
from baton.gpu.cards import Card
from baton.gpu.containers import ContainerEdits, Mount
from baton.gpu.nvidia import NVIDIA
from baton.model.ids import CardId


def card(index: int, memory_mib: int = 16384, model: str = "Tesla T4", uuid: str = "") -> Card:
    name = CardId(uuid or f"GPU-{index:08x}-0000-4000-8000-00000000000{index}")
    return Card(
        name,
        index,
        NVIDIA.name,
        model,
        memory_mib,
        (7, 5),
        f"0000:{index:02x}:00.0",
        device_nodes=(f"/dev/nvidia{index}",),
    )


CARDS = (card(0), card(1, model="NVIDIA A100-SXM4-80GB", memory_mib=81920))


def offers(text: str, cards: tuple[Card, ...] = CARDS) -> dict[str, Offer]:
    return {offer.name: offer for offer in plan(configuration.parse(text), cards)}


def test_each_card_has_its_own_number_of_slots() -> None:
    offer = offers("resources: [{name: nvshare.com/gpu, replicas: 4, cards: [{model: '*A100*', replicas: 20}]}]")[
        "nvshare.com/gpu"
    ]
    assert [len(entry.slots) for entry in offer.pool.cards] == [4, 20]
    assert offer.pool.cards[0].slots[0] == f"{CARDS[0].id}__1"


def test_a_card_promised_under_two_names_is_refused_with_the_remedy() -> None:
    with pytest.raises(PlanError) as caught:
        offers(
            "resources: [{name: nvshare.com/gpu}, {name: nvidia.com/gpu, kind: whole, cards: [{index: 0, use: false}]}]"
        )
    assert f"card {CARDS[1].id} is offered as nvshare.com/gpu and as nvidia.com/gpu" in str(caught.value)
    assert str(caught.value).count("is offered as") == 1


def test_cards_can_be_divided_between_resources() -> None:
    found = offers(
        """
resources:
  - {name: nvshare.com/gpu, only-listed-cards: true, cards: [{index: 0}]}
  - {name: nvidia.com/gpu, kind: whole, cards: [{index: 0, use: false}]}
"""
    )
    assert len(found["nvshare.com/gpu"].pool) == 10
    assert list(found["nvidia.com/gpu"].pool.slots) == [f"{CARDS[1].id}__1"]


def test_a_vgpu_is_three_resources_over_the_same_cards() -> None:
    found = offers(
        "resources: [{name: volcano.sh/vgpu-number, kind: vgpu, memory-unit-mib: 1024, memory-overcommit: 2}]"
    )
    assert {name: (len(offer.pool), offer.role) for name, offer in found.items()} == {
        "volcano.sh/vgpu-number": (20, Role.CARDS),
        "volcano.sh/vgpu-memory": (2 * (16 + 80), Role.COUNT),
        "volcano.sh/vgpu-cores": (200, Role.COUNT),
    }


def test_more_than_kubelet_can_read_is_refused_with_the_number_that_would_do() -> None:
    cards = tuple(card(index, 81920) for index in range(8))
    with pytest.raises(PlanError) as caught:
        offers("resources: [{name: volcano.sh/vgpu-number, kind: vgpu}]", cards)
    assert "volcano.sh/vgpu-memory would have 655360 slots" in str(caught.value)
    assert "set memory-unit-mib to 17 or more" in str(caught.value)
    assert offers("resources: [{name: volcano.sh/vgpu-number, kind: vgpu, memory-unit-mib: 17}]", cards)


def test_a_device_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(PlanError, match="has 74 characters, more than 63"):
        offers("resources: [{name: nvshare.com/gpu}]", (card(0, uuid="G" * 70),))


def test_a_rule_without_a_card_is_noticed_but_not_an_error() -> None:
    config = configuration.parse("resources: [{name: nvshare.com/gpu, cards: [{model: '*H100*', replicas: 2}]}]")
    assert plan(config, CARDS)
    assert unused_rules(config, CARDS) == ["nvshare.com/gpu: cards[0] fits no card of this node"]


def test_the_answer_names_cards_hook_and_socket_directory() -> None:
    config = configuration.parse("")
    (offer,) = plan(config, CARDS)
    slots = [f"{CARDS[1].id}__3", f"{CARDS[0].id}__1"]
    got = answer(config, HostFiles("/var/lib/baton/hook/1-abc/libbaton.so"), offer, slots)
    assert got.environment["NVIDIA_VISIBLE_DEVICES"] == f"{CARDS[0].id},{CARDS[1].id}"
    assert got.environment["LD_PRELOAD"] == "/usr/lib/baton/libbaton.so"
    assert Mount("/var/lib/baton/hook/1-abc/libbaton.so", "/usr/lib/baton/libbaton.so") in got.mounts
    assert Mount("/run/baton/lock", "/run/baton/lock") in got.mounts


def test_the_same_slots_in_any_order_are_the_same_answer() -> None:
    config = configuration.parse("device-list: device-nodes")
    (offer,) = plan(config, CARDS)
    slots = [f"{CARDS[1].id}__3", f"{CARDS[0].id}__1", f"{CARDS[0].id}__2"]
    files = HostFiles("/hook")
    assert answer(config, files, offer, slots) == answer(config, files, offer, slots[::-1])


def test_cards_can_be_given_as_device_nodes_or_cdi_names() -> None:
    config = configuration.parse("device-list: device-nodes")
    (offer,) = plan(config, CARDS)
    nodes = answer(config, HostFiles(), offer, [f"{CARDS[1].id}__1"]).device_nodes
    assert [node.path for node in nodes] == [
        "/dev/nvidia1",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    config = configuration.parse("device-list: cdi")
    got = answer(config, HostFiles(), offer, [f"{CARDS[1].id}__1"])
    assert got.cdi_devices == (f"nvidia.com/gpu={CARDS[1].id}",)
    assert got.environment["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_counting_resources_give_nothing() -> None:
    config = configuration.parse("resources: [{name: volcano.sh/vgpu-number, kind: vgpu, memory-unit-mib: 1024}]")
    memory = {offer.name: offer for offer in plan(config, CARDS)}["volcano.sh/vgpu-memory"]
    assert answer(config, HostFiles("/hook"), memory, [f"{CARDS[0].id}__1"]) == ContainerEdits()


def test_a_pod_that_sets_its_own_cards_is_found_out() -> None:
    (offer,) = plan(configuration.parse(""), CARDS)
    given = [CARDS[0].id]
    sentence = overridden(offer, given, {"NVIDIA_VISIBLE_DEVICES": "all"}.get)
    assert f"the pod sets NVIDIA_VISIBLE_DEVICES=all itself, but kubelet gave it {CARDS[0].id}" in sentence
    for harmless in (None, "", "void", CARDS[0].id):
        assert not overridden(offer, given, {"NVIDIA_VISIBLE_DEVICES": harmless}.get)


def test_the_hook_is_installed_once_per_build_and_older_ones_stay(tmp_path: Path) -> None:
    library = tmp_path / "libbaton.so"
    library.write_bytes(b"one")
    first = hook_versions.install(library, tmp_path / "store")
    inode = first.stat().st_ino
    assert hook_versions.install(library, tmp_path / "store").stat().st_ino == inode, "not written a second time"
    library.write_bytes(b"two")
    second = hook_versions.install(library, tmp_path / "store")
    assert second != first
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")


def test_a_hook_that_cannot_be_installed_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file, not a directory")
    (tmp_path / "libbaton.so").write_bytes(b"x")
    with pytest.raises(UnavailableError, match=r"the hook cannot be installed in .*store"):
        hook_versions.install(tmp_path / "libbaton.so", tmp_path / "store")
