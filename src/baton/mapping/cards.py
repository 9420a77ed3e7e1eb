"""Cards: which ones a node has, a container requests and a pod holds, and the annotations of a binding.

If a node does not say which cards are behind a countable resource (as with nvshare's own device plugin), every unit
becomes an anonymous card with one slot: counting is then correct, and no choice is written on the pod.
"""

from collections.abc import Iterable, Mapping, Sequence

from baton.engine.objects import WHOLE_CARD_MILLI, Card, CardGrant, CardKind, CardRequest, CardRules
from baton.engine.state.resources import SLOTS, VGPU_CORES, VGPU_MEMORY, VGPU_NUMBER
from baton.model import card_annotations, core
from baton.model.card_annotations import Share
from baton.model.ids import CardId
from baton.model.ids import CardId as GpuId
from baton.model.quantities import Quantity, scaled

VGPU_PERCENTAGE = "volcano.sh/vgpu-memory-percentage"
GPU_MEMORY, GPU_NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
GPU_INDEX, PREDICATE_TIME = "volcano.sh/gpu-index", "volcano.sh/predicate-time"
UNHEALTHY_INDEXES = "volcano.sh/gpu-unhealthy-ids"
USE_TYPES, AVOID_TYPES = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_CARDS, AVOID_CARDS = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"
MODE = "volcano.sh/vgpu-mode"
GROUP_POLICY = "volcano.sh/vgpu-podgroup-policy"
ALLOCATING = "allocating"

_ANONYMOUS = "#"
_NO_RULES = CardRules()
_MOST = 2**30
"""The most that a number of cards or MiB counts for: no card has more, and the engine counts in 32 bits."""
_MOST_CARDS = 2**16
"""The most cards or slots that a node counts for: kubelet accepts no longer list of devices."""
_CARD_NAMES = frozenset({VGPU_NUMBER, VGPU_MEMORY, GPU_MEMORY, GPU_NUMBER})


class CardWords:
    """The mapping for one choice of slot resource names."""

    def __init__(self, slot_resources: Sequence[str] = (SLOTS,)) -> None:
        self._slots = tuple(slot_resources)
        self._names = _CARD_NAMES | set(slot_resources)

    def wants_cards(self, containers: Iterable[core.Container]) -> bool:
        """Whether any container requests cards; most pods do not."""
        return any(not self._names.isdisjoint(container.resources.limits) for container in containers)

    def requests(self, container: core.Container) -> tuple[CardRequest, ...]:
        """The cards that one container requests. Limits decide; memory and cores may be in requests only."""
        limits, requests = container.resources.limits, container.resources.requests
        if self._names.isdisjoint(limits):
            return ()
        found = [CardRequest(kind=CardKind.SLOT, count=_count(limits[name])) for name in self._slots if name in limits]
        if VGPU_NUMBER in limits or VGPU_MEMORY in limits:

            def amount(name: str) -> int:
                return _count(limits.get(name, requests.get(name, 0)))

            found.append(
                CardRequest(
                    kind=CardKind.VGPU,
                    count=_count(limits.get(VGPU_NUMBER, 1)),
                    memory_mib=amount(VGPU_MEMORY),
                    memory_percent=min(100, amount(VGPU_PERCENTAGE)),
                    share_milli=min(WHOLE_CARD_MILLI, 10 * amount(VGPU_CORES)),
                )
            )
        if GPU_MEMORY in limits:
            found.append(CardRequest(kind=CardKind.MEMORY, memory_mib=_count(limits[GPU_MEMORY])))
        if GPU_NUMBER in limits:
            found.append(CardRequest(kind=CardKind.WHOLE, count=_count(limits[GPU_NUMBER])))
        return tuple(request for request in found if request.count > 0)

    def node_cards(self, node: core.Node, *, with_load: bool = False) -> tuple[Card, ...]:
        """The cards of a node, from its annotations and counts."""
        annotations, allocatable = node.metadata.annotations, node.status.allocatable
        cards: list[Card] = []
        if all(_count(allocatable.get(name, 0)) > 0 for name in (VGPU_NUMBER, VGPU_MEMORY, VGPU_CORES)):
            cards += _vgpu_cards(annotations.get(card_annotations.REGISTER, ""))
        offered = card_annotations.offered_cards(annotations.get(card_annotations.OFFERED_CARDS, "[]"))
        for resource in self._slots:
            if (count := _count(allocatable.get(resource, 0))) > 0:
                known = [card for card in offered if card.resource == resource]
                cards += [_slot_card(card) for card in known] or _anonymous_cards(resource, count)
        cards += _legacy_cards(allocatable, annotations.get(UNHEALTHY_INDEXES, ""))
        if with_load and (loads := card_annotations.card_loads(annotations.get(card_annotations.LOAD, "{}"))):
            cards = [_loaded(card, loads.get(card.id)) for card in cards]
        return tuple(cards)

    def grants(self, pod: core.Pod) -> tuple[CardGrant, ...]:
        """The cards that a bound pod holds, from its annotations; the agent's own annotation takes precedence."""
        annotations, containers = pod.metadata.annotations, pod.spec.containers
        if not annotations or not self.wants_cards(containers):
            return ()
        found: list[CardGrant] = []
        if assigned := annotations.get(card_annotations.ASSIGNED):
            names = [one.name for one in containers if _wants(one, VGPU_NUMBER) or _wants(one, VGPU_MEMORY)]
            for name, shares in zip(names, card_annotations.assigned_shares(assigned), strict=False):
                found += [
                    CardGrant(name, CardId(share.card), CardKind.VGPU, share.memory_mib, share.cores_percent * 10)
                    for share in shares
                ]
        chosen = card_annotations.our_cards(annotations.get(card_annotations.OUR_CARDS, ""))
        chosen |= card_annotations.our_cards(annotations.get(card_annotations.ACTUAL_CARDS, ""))
        for container in containers:
            if any(_wants(container, name) for name in self._slots):
                found += [
                    CardGrant(container.name, CardId(card), CardKind.SLOT, 0, 0)
                    for card in chosen.get(container.name, ())
                ]
        if indexes := annotations.get(GPU_INDEX):
            found += _legacy_grants(containers, [part for part in indexes.split(",") if part])
        return tuple(found)


def rules(annotations: Mapping[str, str]) -> CardRules:
    """Which cards the pod may use, by Volcano's annotations."""
    if not annotations:
        return _NO_RULES
    return CardRules(
        models=_listed(annotations, USE_TYPES),
        not_models=_listed(annotations, AVOID_TYPES),
        ids=tuple(CardId(card) for card in _listed(annotations, USE_CARDS)),
        not_ids=tuple(CardId(card) for card in _listed(annotations, AVOID_CARDS)),
        mode=annotations.get(MODE, ""),
        spread_group=annotations.get(GROUP_POLICY) == "spread",
    )


def binding_annotations(node: str, grants: Sequence[CardGrant], containers: Sequence[str], at_s: int) -> dict[str, str]:
    """The annotations of a binding for the cards it grants. `containers` are the pod's, in its order. `at_s` is the
    time, different for every pod of the node, by which a device plugin tells equal pods apart."""
    said: dict[str, str] = {}
    shares: dict[str, list[Share]] = {}
    slots: dict[str, list[GpuId]] = {}
    indexes: list[str] = []
    for grant in grants:
        if grant.kind is CardKind.VGPU:
            shares.setdefault(grant.container, []).append(
                Share(GpuId(grant.card), grant.memory_mib, grant.share_milli // 10)
            )
        elif grant.kind is CardKind.SLOT:
            if _ANONYMOUS not in grant.card:
                slots.setdefault(grant.container, []).append(GpuId(grant.card))
        elif _ANONYMOUS in grant.card:
            indexes.append(grant.card.partition(_ANONYMOUS)[2])
    if shares:
        text = card_annotations.assigned_text(shares[name] for name in containers if name in shares)
        said = {
            card_annotations.ASSIGNED_NODE: node,
            card_annotations.ASSIGNED_TIME: str(at_s),
            card_annotations.ASSIGNED: text,
            card_annotations.TO_ALLOCATE: text,
            card_annotations.BIND_PHASE: ALLOCATING,
            card_annotations.BIND_TIME: str(at_s),
        }
    if slots:
        ordered = {name: slots[name] for name in containers if name in slots}
        said[card_annotations.OUR_CARDS] = card_annotations.our_cards_text(ordered)
    if indexes:
        said[GPU_INDEX] = ",".join(dict.fromkeys(indexes))
        said[PREDICATE_TIME] = str(at_s * 10**9)
    return said


def _vgpu_cards(register: str) -> list[Card]:
    return [
        Card(
            id=CardId(card.id),
            memory_mib=card.memory,
            slots=card.slots,
            model=card.model,
            mode=card.mode,
            healthy=card.healthy,
            serves=(CardKind.VGPU,),
        )
        for card in card_annotations.registered_cards(register)
    ]


def _slot_card(card: card_annotations.OfferedCard) -> Card:
    return Card(
        id=CardId(card.id),
        memory_mib=card.memory_mib,
        slots=card.slots,
        model=card.model,
        healthy=card.healthy,
        compute_capability=card.compute_capability,
        numa=card.numa,
        links=tuple((CardId(peer), 1) for peer in card.peers),
        serves=(CardKind.SLOT,),
    )


def _anonymous_cards(resource: str, count: int) -> list[Card]:
    return [
        Card(id=CardId(f"{resource}{_ANONYMOUS}{number}"), memory_mib=0, slots=1, serves=(CardKind.SLOT,))
        for number in range(min(count, _MOST_CARDS))
    ]


def _legacy_cards(allocatable: Mapping[str, Quantity], unhealthy: str) -> list[Card]:
    """Legacy gpushare: a total of memory over a number of equal cards, told apart by their index."""
    number = min(_count(allocatable.get(GPU_NUMBER, 0)), _MOST_CARDS)
    memory = _count(allocatable.get(GPU_MEMORY, 0))
    bad = {part.strip() for part in unhealthy.split(",")}
    return [
        Card(
            id=_legacy_id(str(index)),
            memory_mib=memory // number,
            healthy=str(index) not in bad,
            serves=(CardKind.MEMORY, CardKind.WHOLE),
        )
        for index in range(number)
    ]


def _legacy_id(index: str) -> CardId:
    return CardId(f"{GPU_NUMBER}{_ANONYMOUS}{index}")


def _legacy_grants(containers: Iterable[core.Container], indexes: Sequence[str]) -> list[CardGrant]:
    found = []
    for container in containers:
        if _wants(container, GPU_MEMORY):
            need = _count(container.resources.limits[GPU_MEMORY])
            found.append(CardGrant(container.name, _legacy_id(indexes[0]), CardKind.MEMORY, need, 0))
        elif _wants(container, GPU_NUMBER):
            found += [CardGrant(container.name, _legacy_id(index), CardKind.WHOLE, 0, 0) for index in indexes]
    return found


def _loaded(card: Card, load: card_annotations.CardLoad | None) -> Card:
    if load is None:
        return card
    values = {name: getattr(card, name) for name in card.__struct_fields__}
    values |= {
        "utilisation_percent": load.utilisation,
        "memory_used_percent": load.memory,
        "temperature_c": load.temperature,
        "power_percent": load.power,
    }
    return Card(**values)


def _wants(container: core.Container, name: str) -> bool:
    return name in container.resources.limits


def _count(quantity: Quantity) -> int:
    return min(_MOST, max(0, scaled(quantity)))


def _listed(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = annotations.get(key, "")
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()
