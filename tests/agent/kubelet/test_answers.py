"""What a container gets for its slots."""

from baton.agent import config as configuration
from baton.agent.kubelet.answers import HostFiles, answer, overridden
from baton.agent.offers.offers import plan
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


def test_a_pod_that_sets_its_own_cards_is_detected() -> None:
    (offer,) = plan(configuration.parse(""), CARDS)
    given = [CARDS[0].id]
    sentence = overridden(offer, given, {"NVIDIA_VISIBLE_DEVICES": "all"}.get)
    assert f"the pod sets NVIDIA_VISIBLE_DEVICES=all itself, but kubelet gave it {CARDS[0].id}" in sentence
    for harmless in (None, "", "void", CARDS[0].id):
        assert not overridden(offer, given, {"NVIDIA_VISIBLE_DEVICES": harmless}.get)
