"""Node labels that describe the node's cards, so that a pod can select more than a number of cards.

They follow NVIDIA's GPU feature discovery, under Baton's own prefix by default; with the prefix `nvidia.com` the names
are identical. A node with different cards has the product `mixed`, and one label per model with its count.
"""

import re
from collections import Counter
from collections.abc import Mapping

from baton.agent.offers.offers import Offer, Role
from baton.gpu import vendors
from baton.gpu.cards import Card

_LONGEST = 63
_COUNTED = "gpu.model."
_OURS = (
    "gpu.count", "gpu.product", "gpu.memory", "gpu.compute.major", "gpu.compute.minor", "gpu.family", "gpu.replicas",
    "gpu.sharing-strategy",
)  # fmt: skip
"""All labels that the agent writes. Others write under `nvidia.com` too: NVIDIA's operator sets `gpu.present`."""


def gpu_labels(prefix: str, cards: tuple[Card, ...], offers: tuple[Offer, ...]) -> dict[str, str]:
    """All labels about cards; none without cards. Under a vendor's own prefix, only that vendor's cards count."""
    named = [vendor.name for vendor in vendors.VENDORS if vendor.domain == prefix]
    cards = tuple(card for card in cards if not named or card.vendor in named)
    if not cards:
        return {}
    models = Counter(card.model for card in cards)
    first = min(cards, key=lambda card: card.index)
    labels = {
        "gpu.count": str(len(cards)),
        "gpu.product": value_of(first.model) if len(models) == 1 else "mixed",
        "gpu.memory": str(min(card.memory_mib for card in cards)),
        "gpu.family": first.family or "unknown",
    }
    if first.compute_capability is not None:
        labels["gpu.compute.major"], labels["gpu.compute.minor"] = map(str, first.compute_capability)
    for model, count in models.items():
        labels[f"{_COUNTED}{value_of(model)}"[:_LONGEST].rstrip("-_.")] = str(count)
    counted = {card.id for card in cards}
    every = [terms for offer in offers if offer.role is Role.CARDS for terms in offer.terms.values()]
    if shared := [terms for terms in every if terms.card.id in counted]:
        replicas = {terms.slots for terms in shared}
        labels["gpu.replicas"] = str(replicas.pop()) if len(replicas) == 1 else "mixed"
        ways = {terms.sharing.value for terms in shared}
        labels["gpu.sharing-strategy"] = ways.pop() if len(ways) == 1 else "mixed"
    return {f"{prefix}/{name}": text for name, text in labels.items()}


def value_of(text: str) -> str:
    """Text as a label value: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_LONGEST].strip("-_.")


def change(present: Mapping[str, str], wanted: Mapping[str, str], prefix: str) -> dict[str, str | None]:
    """The patch: new values, and None for the agent's labels that are no longer true."""
    names = {f"{prefix}/{name}" for name in _OURS}
    ours = {name for name in present if name in names or name.startswith(f"{prefix}/{_COUNTED}")}
    patch: dict[str, str | None] = {name: text for name, text in wanted.items() if present.get(name) != text}
    return patch | dict.fromkeys(ours - wanted.keys())
