"""The agent's annotations on the node for schedulers: `volcano.sh/node-vgpu-register` and `baton.dev/node-cards`.

The register has six fields per card, and a colon ends each card. The annotations on pods are in
`baton.model.card_annotations`, which schedulers and agents share. The handshake annotation of older versions is neither
read nor written.
"""

from collections.abc import Iterable

import msgspec

from baton.agent.config import Kind
from baton.agent.offers.offers import Offer, Role
from baton.model.card_annotations import NVIDIA, OfferedCard
from baton.model.ids import CardId

_MODE = "hami-core"


def register_text(offer: Offer, unhealthy: frozenset[CardId]) -> str:
    """The node's cards, in the order of their indices."""
    parts = []
    for terms in sorted(offer.terms.values(), key=lambda terms: (terms.card.index, terms.card.id)):
        card = terms.card
        fields = (
            card.id,
            str(terms.slots),
            str(terms.promised_memory_mib // offer.memory_unit_mib),
            f"{NVIDIA}-{card.model}".replace(",", " ").replace(":", " "),
            "false" if card.id in unhealthy else "true",
            _MODE,
        )
        parts.append(",".join(fields) + ":")
    return "".join(parts)


def offered_text(offers: Iterable[tuple[Offer, frozenset[CardId]]]) -> str | None:
    """The cards behind time-shared slots, so that a scheduler can choose among them; None if there are none. Each offer
    comes with its unhealthy cards."""
    cards = [
        OfferedCard(
            id=terms.card.id,
            resource=offer.name,
            slots=terms.slots,
            memory_mib=terms.card.memory_mib,
            model=terms.card.model,
            healthy=terms.card.id not in unhealthy,
            compute_capability=_two_digits(terms.card.compute_capability),
            numa=-1 if terms.card.numa_node is None else terms.card.numa_node,
            peers=terms.card.nvlink_peers,
        )
        for offer, unhealthy in offers
        if offer.kind is Kind.SLOTS and offer.role is Role.CARDS
        for terms in sorted(offer.terms.values(), key=lambda terms: (terms.card.index, terms.card.id))
    ]
    return msgspec.json.encode(cards).decode() if cards else None


def _two_digits(compute_capability: tuple[int, int] | None) -> int:
    """8.6 as 86; 0 for cards without CUDA."""
    major, minor = compute_capability or (0, 0)
    return major * 10 + minor
