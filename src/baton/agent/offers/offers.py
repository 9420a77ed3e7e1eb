"""From configuration and cards to offers: the resources that this node reports to kubelet.

An offer is one resource name with its slots. A card belongs to one offer; offering it under two names would promise it
twice, so that is refused. A vGPU entry becomes three offers over the same cards: shares (which carry the allocation),
memory and cores (which only count, so that a scheduler that knows no cards cannot overfill a node).
"""

import enum

import msgspec

from baton.agent.config import AgentConfig, Kind, Resource, Sharing
from baton.agent.offers.slot_choice import Policy
from baton.agent.offers.slots import MAX_ID_LENGTH, MAX_LIST_BYTES, MAX_SLOTS, CardSlots, Pool
from baton.errors import BatonError
from baton.gpu.cards import Card
from baton.model.ids import CardId


class Role(enum.StrEnum):
    """What an allocated slot of an offer means."""

    CARDS = "cards"
    """The container gets the slot's card."""
    COUNT = "count"
    """Only an amount; the container gets its cards from another offer of the same entry."""


class Terms(msgspec.Struct, frozen=True):
    """How one card is offered."""

    card: Card
    slots: int
    sharing: Sharing
    memory_overcommit: float

    @property
    def promised_memory_mib(self) -> int:
        """The most memory that may be promised to all containers on the card together."""
        return int(self.card.memory_mib * self.memory_overcommit)


class Offer(msgspec.Struct, frozen=True):
    """One resource as kubelet sees it."""

    name: str
    role: Role
    kind: Kind
    pool: Pool
    policy: Policy
    max_per_container: int
    terms: dict[CardId, Terms]
    memory_unit_mib: int = 1
    memory_name: str = ""
    """For a vGPU: the resource through which a container asks for memory."""
    cores_name: str = ""

    def describe(self) -> str:
        """One line for logs and `--check`."""
        per_card = ", ".join(f"{terms.card.id}: {terms.slots}" for terms in self.terms.values())
        return f"{self.name}: {len(self.pool)} ({per_card or 'no cards'}), policy {self.policy}"


class PlanError(BatonError):
    """The configuration does not fit the cards of this node; the text lists every reason."""


def plan(config: AgentConfig, cards: tuple[Card, ...]) -> tuple[Offer, ...]:
    """The offers of this node; `PlanError` lists everything that is impossible."""
    problems: list[str] = []
    offers: list[Offer] = []
    owners: dict[CardId, str] = {}
    for resource in config.resources:
        terms = _terms(resource, cards)
        for card in terms:
            if card in owners:
                problems.append(
                    f"card {card} is offered as {owners[card]} and as {resource.name}; a card can be offered once: "
                    f"leave it out of one of them (`cards: [{{uuid: {card}, use: false}}]`)"
                )
            owners.setdefault(card, resource.name)
        offers += _offers(resource, terms)
    for offer in offers:
        problems += _size_problems(offer)
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise PlanError(f"the configuration does not fit this node's {len(cards)} cards:{listed}")
    return tuple(offers)


def unused_rules(config: AgentConfig, cards: tuple[Card, ...]) -> list[str]:
    """Rules that match no card of this node: valid in a file for many nodes, but worth a log line."""
    return [
        f"{resource.name}: cards[{number}] matches no card of this node"
        for resource in config.resources
        for number, rule in enumerate(resource.cards)
        if not any(card.vendor == resource.vendor and rule.fits(card) for card in cards)
    ]


def _terms(resource: Resource, cards: tuple[Card, ...]) -> dict[CardId, Terms]:
    terms = {}
    for card in cards:
        rule = resource.rule_for(card)
        if rule is not None:
            whole = resource.kind is Kind.WHOLE
            terms[card.id] = Terms(
                card,
                1 if whole else (rule.replicas or resource.replicas),
                rule.sharing or resource.sharing,
                1.0 if whole else (rule.memory_overcommit or resource.memory_overcommit),
            )
    return terms


def _offers(resource: Resource, terms: dict[CardId, Terms]) -> list[Offer]:
    def offer(name: str, role: Role, counts: dict[CardId, int]) -> Offer:
        return Offer(
            name=name,
            role=role,
            kind=resource.kind,
            pool=Pool(_slots(terms[card].card, count) for card, count in counts.items()),
            policy=resource.policy,
            max_per_container=resource.max_per_container if role is Role.CARDS else 0,
            terms=terms,
            memory_unit_mib=resource.memory_unit_mib,
            memory_name=resource.memory_name,
            cores_name=resource.cores_name,
        )

    cards = offer(resource.name, Role.CARDS, {card: entry.slots for card, entry in terms.items()})
    if resource.kind is not Kind.VGPU:
        return [cards]
    unit_mib = resource.memory_unit_mib
    memory = {card: entry.promised_memory_mib // unit_mib for card, entry in terms.items()}
    return [
        cards,
        offer(resource.memory_name, Role.COUNT, memory),
        offer(resource.cores_name, Role.COUNT, dict.fromkeys(terms, 100)),
    ]


def _slots(card: Card, count: int) -> CardSlots:
    return CardSlots.of(card.id, card.index, count, card.numa_node, card.nvlink_peers)


def _size_problems(offer: Offer) -> list[str]:
    problems = []
    slots, list_bytes = len(offer.pool), offer.pool.list_bytes()
    if slots > MAX_SLOTS or list_bytes > MAX_LIST_BYTES:
        problem = (
            f"{offer.name} would have {slots} slots, a list of {list_bytes / 1024 / 1024:.1f} MiB; kubelet reads at "
            f"most 4 MiB and never retries, so the limit is {MAX_SLOTS} slots: "
        )
        if offer.role is Role.COUNT:
            factor = -(-slots * offer.memory_unit_mib // MAX_SLOTS)
            problem += f"set memory-unit-mib to {factor} or more"
        else:
            problem += "set replicas lower"
        problems.append(problem)
    if offer.pool.cards:
        longest = max((card.slots[-1] for card in offer.pool.cards if card.slots), key=len, default="")
        if len(longest) > MAX_ID_LENGTH:
            problems.append(
                f"{offer.name}: the slot id {longest!r} has {len(longest)} characters, more than {MAX_ID_LENGTH}; "
                "give the device a shorter id"
            )
    return problems
