"""The words in which Volcano's vGPU parts talk: node annotation, pod annotations, and nothing else of it.

The node says what it has in `volcano.sh/node-vgpu-register`: six fields per card, each card ended by a colon. The
scheduler says what it decided in `volcano.sh/vgpu-ids-new`: four fields per card, each ended by a colon, containers
separated by semicolons, one entry per *requesting* container. The handshake annotation of older versions is neither
read nor written.

Slots of other resources have an annotation of our own, `baton.dev/cards`: `container=UUID,UUID;container=UUID`.
"""

from collections.abc import Iterable, Mapping

import msgspec

from baton.agent.resources import Offer
from baton.gpu.cards import CardId

REGISTER = "volcano.sh/node-vgpu-register"
ASSIGNED = "volcano.sh/vgpu-ids-new"
BIND_PHASE = "volcano.sh/bind-phase"
OUR_CARDS = "baton.dev/cards"
ACTUAL_CARDS = "baton.dev/cards-given"
"""Written by the agent when kubelet gave other cards than the scheduler chose."""

_MODE = "hami-core"
_NVIDIA = "NVIDIA"


class Share(msgspec.Struct, frozen=True):
    """One card of one container, with its limits. Zero is no limit."""

    card: CardId
    memory_mib: int = 0
    cores_percent: int = 0


def register_text(offer: Offer, unhealthy: frozenset[CardId]) -> str:
    """The node's cards, in the order of their indices."""
    parts = []
    for terms in sorted(offer.terms.values(), key=lambda terms: (terms.card.index, terms.card.id)):
        card = terms.card
        fields = (
            card.id,
            str(terms.slots),
            str(terms.promised_memory_mib // offer.memory_unit_mib),
            f"{_NVIDIA}-{card.model}".replace(",", " ").replace(":", " "),
            "false" if card.id in unhealthy else "true",
            _MODE,
        )
        parts.append(",".join(fields) + ":")
    return "".join(parts)


def assigned_shares(text: str, memory_unit_mib: int = 1) -> list[list[Share]]:
    """The scheduler's decision, one list per requesting container; parts that make no sense are left out."""
    containers = []
    for container in text.split(";"):
        shares = []
        for entry in container.split(":"):
            fields = entry.split(",")
            if len(fields) >= 4 and fields[2].isdigit() and fields[3].isdigit():
                shares.append(
                    Share(CardId(fields[0].partition("[")[0]), int(fields[2]) * memory_unit_mib, int(fields[3]))
                )
        containers.append(shares)
    return containers


def assigned_text(containers: Iterable[Iterable[Share]], memory_unit_mib: int = 1) -> str:
    """The inverse: what the scheduler would have written for these shares."""
    return ";".join(
        "".join(
            f"{share.card},{_NVIDIA},{share.memory_mib // memory_unit_mib},{share.cores_percent}:" for share in shares
        )
        for shares in containers
    )


def our_cards(text: str) -> dict[str, list[CardId]]:
    """Our own annotation: the cards of each container, by its name."""
    found = {}
    for part in text.split(";"):
        name, equals, cards = part.partition("=")
        if equals and name.strip():
            found[name.strip()] = [CardId(card.strip()) for card in cards.split(",") if card.strip()]
    return found


def our_cards_text(containers: Mapping[str, Iterable[CardId]]) -> str:
    """The inverse of `our_cards`."""
    return ";".join(f"{name}={','.join(cards)}" for name, cards in containers.items())
