"""Slot ids, and the exact size of the list that kubelet reads."""

import pytest

from baton.agent.offers.slots import CardSlots, Pool, card_of, slot_id
from baton.agent.proto import deviceplugin_pb2 as api
from baton.model.ids import CardId


def test_a_slot_id_leads_back_to_its_card() -> None:
    card = CardId("GPU-4f0c6a6e-3b7c-4f7e-9d68-0a6b1d9a2c11")
    assert slot_id(card, 12) == "GPU-4f0c6a6e-3b7c-4f7e-9d68-0a6b1d9a2c11__12"
    assert card_of(slot_id(card, 12)) == card


@pytest.mark.parametrize("slot", ["", "GPU-a", "GPU-a__", "GPU-a__x"])
def test_an_id_without_an_ordinal_is_its_own_card(slot: str) -> None:
    assert card_of(slot) == slot


@pytest.mark.parametrize("numa_node", [None, 0, 1, 300])
def test_the_size_of_the_list_is_what_is_sent(numa_node: int | None) -> None:
    pool = Pool(CardSlots.of(CardId(f"GPU-{'x' * length}"), length, 120, numa_node) for length in (1, 40, 130))
    message = api.ListAndWatchResponse(
        devices=[
            api.Device(
                ID=slot,
                health="Unhealthy",
                topology=None if numa_node is None else api.TopologyInfo(nodes=[api.NUMANode(ID=numa_node)]),
            )
            for slot in pool.slots
        ]
    )
    assert pool.list_bytes() == message.ByteSize()
