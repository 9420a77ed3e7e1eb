"""The annotations on nodes and pods by which schedulers and node agents exchange information about cards.

Volcano's vGPU: the node lists its cards in `volcano.sh/node-vgpu-register`, six fields per card, each card ended by a
colon. The scheduler writes its decision in `volcano.sh/vgpu-ids-new`: four fields per card, each card ended by a colon,
containers separated by semicolons, one entry per *requesting* container.

Slots of other resources have Baton's annotations: on the node `baton.dev/node-cards` (JSON, `OfferedCard`), and on the
pod `baton.dev/cards`: `container=UUID,UUID;container=UUID`.
"""

from collections.abc import Iterable, Mapping

import msgspec

from baton.model.ids import CardId
from baton.model.numerals import whole_number

REGISTER = "volcano.sh/node-vgpu-register"
ASSIGNED = "volcano.sh/vgpu-ids-new"
TO_ALLOCATE = "volcano.sh/devices-to-allocate"
ASSIGNED_NODE = "volcano.sh/vgpu-node"
ASSIGNED_TIME = "volcano.sh/vgpu-time"
BIND_PHASE = "volcano.sh/bind-phase"
BIND_TIME = "volcano.sh/bind-time"
OFFERED_CARDS = "baton.dev/node-cards"
OUR_CARDS = "baton.dev/cards"
ACTUAL_CARDS = "baton.dev/cards-given"
"""Written by the agent if kubelet allocated other cards than the scheduler chose."""
LOAD = "baton.dev/load"
NODE_LOCK = "hamivgpu"
"""On a node: the time at which a scheduler locked it, until its device plugin has allocated."""
NODE_LOCK_OWNER = "baton.dev/node-lock-owner"
"""The owner of that lock, which the time alone does not tell: `scheduler uid namespace/pod`."""

NVIDIA = "NVIDIA"
_REGISTER_FIELDS = 6
_MOST = 2**24
"""More slots or MiB than any card has; sums of many such numbers still fit into 32 bits."""
_WHOLE_PERCENT = 100


class Share(msgspec.Struct, frozen=True):
    """One card of one container, with its limits. Zero is no limit."""

    card: CardId
    memory_mib: int = 0
    cores_percent: int = 0


class RegisteredCard(msgspec.Struct, frozen=True):
    """One entry of the node's register. `memory` is in the node's unit, usually MiB."""

    id: CardId
    slots: int
    memory: int
    model: str
    healthy: bool
    mode: str


class OfferedCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """One card behind the slots of a resource."""

    id: CardId
    resource: str
    slots: int
    memory_mib: int = 0
    model: str = ""
    healthy: bool = True
    compute_capability: int = 0
    numa: int = -1
    peers: tuple[CardId, ...] = ()


class CardLoad(msgspec.Struct, frozen=True):
    """The approximate load of a card."""

    utilisation: float = 0.0
    memory: float = 0.0
    temperature: float = 0.0
    power: float = 0.0


def lock_owner(text: str) -> tuple[str, str]:
    """Uid and `namespace/name` of the pod for which a node is locked; empty if the scheduler did not write them."""
    words = text.split()
    return (words[-2] if len(words) > 2 else "", words[-1] if words else "")


def registered_cards(text: str) -> list[RegisteredCard]:
    """The node's register; empty if an entry is invalid, because then none is reliable."""
    cards = []
    for entry in text.split(":"):
        if not entry:
            continue
        fields = entry.split(",")
        if len(fields) < _REGISTER_FIELDS:
            return []
        identity, _, _, model, health, mode = fields[:_REGISTER_FIELDS]
        slots, memory = whole_number(fields[1], _MOST), whole_number(fields[2], _MOST)
        if slots is None or memory is None:
            return []
        cards.append(RegisteredCard(CardId(identity), slots, memory, model, health == "true", mode))
    return cards


def offered_cards(text: str) -> list[OfferedCard]:
    """The cards of Baton's node annotation; empty if it cannot be parsed."""
    try:
        return msgspec.json.decode(text, type=list[OfferedCard])
    except msgspec.DecodeError:
        return []


def card_loads(text: str) -> dict[str, CardLoad]:
    """The load of each card, by its id."""
    try:
        return msgspec.json.decode(text, type=dict[str, CardLoad])
    except msgspec.DecodeError:
        return {}


def assigned_shares(text: str, memory_unit_mib: int = 1) -> list[list[Share]]:
    """The scheduler's decision, one list per requesting container; invalid parts are left out."""
    containers = []
    for container in text.split(";"):
        shares = []
        for entry in container.split(":"):
            fields = entry.split(",")
            if len(fields) < 4:
                continue
            memory, cores = whole_number(fields[2], _MOST), whole_number(fields[3], _WHOLE_PERCENT)
            if memory is not None and cores is not None:
                shares.append(Share(CardId(fields[0].partition("[")[0]), memory * memory_unit_mib, cores))
        containers.append(shares)
    return containers


def assigned_text(containers: Iterable[Iterable[Share]], memory_unit_mib: int = 1) -> str:
    """The inverse: the text that the scheduler would write for these shares."""
    return ";".join(
        "".join(
            f"{share.card},{NVIDIA},{share.memory_mib // memory_unit_mib},{share.cores_percent}:" for share in shares
        )
        for shares in containers
    )


def our_cards(text: str) -> dict[str, list[CardId]]:
    """The cards of each container by its name, from Baton's annotation."""
    found = {}
    for part in text.split(";"):
        name, equals, cards = part.partition("=")
        if equals and name.strip():
            found[name.strip()] = [CardId(card.strip()) for card in cards.split(",") if card.strip()]
    return found


def our_cards_text(containers: Mapping[str, Iterable[CardId]]) -> str:
    """The inverse of `our_cards`."""
    return ";".join(f"{name}={','.join(cards)}" for name, cards in containers.items())
