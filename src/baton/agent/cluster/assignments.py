"""Reconciles the scheduler's choice with kubelet's choice. Pure: pods and records in, decisions out.

Kubelet asks for a preference without naming the pod. *Before* a container is allocated, the candidates are therefore
the pods of this node that request this many slots and for which kubelet has recorded none. Kubelet admits pods in the
order of their creation, so the answer is for the oldest. *After* the allocation kubelet's checkpoint shows reliably
which pod has which slots, and before a container starts, they are compared with the scheduler's choice.

If they differ, the real cards are recorded on the pod. The container may start only if its limits fit on the cards that
it really has, together with all containers that come before it. Which ones these are must not depend on how often
kubelet asks: a refused container keeps its slots and tries again, and it neither wins by retrying nor blocks containers
that have the cards that the scheduler chose for them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from baton.agent.config import Kind
from baton.agent.kubelet.records import Recorded
from baton.agent.offers.offers import Offer
from baton.agent.offers.slots import card_of
from baton.model import card_annotations
from baton.model.card_annotations import Share
from baton.model.ids import CardId, PodUid
from baton.model.quantities import QuantityError, scaled

MEMORY_PERCENTAGE = "volcano.sh/vgpu-memory-percentage"


class Quantities(msgspec.Struct, frozen=True):
    """The resources that a container requests."""

    limits: dict[str, str | int] = {}
    requests: dict[str, str | int] = {}

    def count(self, resource: str) -> int:
        """In whole units; the API server may abbreviate: 3000 is `3k`."""
        try:
            return max(0, scaled(self.limits.get(resource, self.requests.get(resource, 0))))
        except QuantityError:
            return 0


class Variable(msgspec.Struct, frozen=True):
    """An entry of a container's environment."""

    name: str
    value: str = ""


class Container(msgspec.Struct, frozen=True):
    """The part of a container's specification that the agent reads."""

    name: str
    resources: Quantities = Quantities()
    env: tuple[Variable, ...] = ()


class NodePod(msgspec.Struct, frozen=True):
    """A pod of this node, reduced to the fields that the agent needs."""

    uid: PodUid
    namespace: str
    name: str
    created: str
    annotations: dict[str, str]
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    ended: bool = False
    started: frozenset[str] = frozenset()
    """The containers that run or have run."""

    def requesting(self, *resources: str) -> list[Container]:
        """The ordinary containers that request one of these resources."""
        return [one for one in self.containers if any(map(one.resources.count, resources))]

    def listed(self, offer: Offer) -> list[str]:
        """The containers in Volcano's lists, in their order; there, memory alone also counts as a request."""
        return [one.name for one in self.requesting(offer.name, offer.memory_name)]

    def own_variable(self, container: str, name: str) -> str | None:
        """The value that the pod itself sets a variable to; None if it sets none."""
        entries = (entry for one in self.containers if one.name == container for entry in one.env)
        return next((entry.value for entry in entries if entry.name == name), None)


def chosen_shares(pod: NodePod, container: str, offer: Offer) -> list[Share] | None:
    """The scheduler's cards for one container, with limits; None if it chose none."""
    names = pod.listed(offer)
    if offer.kind is Kind.VGPU and card_annotations.ASSIGNED in pod.annotations and container in names:
        lists = card_annotations.assigned_shares(pod.annotations[card_annotations.ASSIGNED], offer.memory_unit_mib)
        position = names.index(container)
        return lists[position] if position < len(lists) else None
    chosen = card_annotations.our_cards(pod.annotations.get(card_annotations.OUR_CARDS, "")).get(container)
    return None if chosen is None else [Share(card) for card in chosen]


def cards_for_next(
    pods: Iterable[NodePod], records: Sequence[Recorded], offer: Offer, size: int
) -> tuple[CardId, ...] | None:
    """The scheduler's cards for the container that kubelet is most likely admitting now; empty if it chose none, None
    if no known pod is a candidate."""
    recorded = {(record.pod_uid, record.container) for record in records if record.resource == offer.name}
    for pod in sorted(pods, key=lambda pod: (pod.created, pod.namespace, pod.name)):
        if pod.ended:
            continue
        for container in pod.requesting(offer.name):
            if (pod.uid, container.name) in recorded or container.resources.count(offer.name) != size:
                continue
            return tuple(share.card for share in chosen_shares(pod, container.name, offer) or ())
    return None


class Settlement(msgspec.Struct, frozen=True):
    """The result of comparing both choices for one container."""

    pod: NodePod
    container: str
    given: tuple[CardId, ...]
    """Kubelet's, one per slot, sorted."""
    shares: tuple[Share, ...]
    """The shares in force: kubelet's cards with the pod's limits."""
    mismatch: str = ""
    """A sentence for the pod if the scheduler chose other cards; else empty."""
    refusal: str = ""
    """Why the container must not start; empty if it may."""


ContainerKey = tuple[PodUid, str]


def decide(
    pods: Mapping[PodUid, NodePod],
    records: Iterable[Recorded],
    owner: Recorded,
    offer: Offer,
    admitted: Collection[ContainerKey] = (),
) -> Settlement:
    """Compare both choices for one container and decide whether it may start. `admitted` are those already allowed."""
    found = settle(pods[owner.pod_uid], owner.container, owner.slots, offer)
    before: list[Share] = []
    for record in records:
        key = (record.pod_uid, record.container)
        pod = pods.get(record.pod_uid)
        if record.resource != offer.name or pod is None or pod.ended or key == (owner.pod_uid, owner.container):
            continue
        other = settle(pod, record.container, record.slots, offer)
        if key in admitted or record.container in pod.started or (found.mismatch and not other.mismatch):
            before += other.shares
    return msgspec.structs.replace(found, refusal=_over(offer, found.shares, before))


def settle(pod: NodePod, container: str, slots: Iterable[str], offer: Offer) -> Settlement:
    """Compare both choices for one container."""
    given = tuple(sorted(card_of(slot) for slot in slots))
    wanted = chosen_shares(pod, container, offer) or []
    limits = _limits(pod, container, offer, wanted)
    by_card = {share.card: share for share in wanted}
    shares = tuple(
        Share(card, by_card[card].memory_mib, by_card[card].cores_percent)
        if card in by_card
        else Share(card, limits.memory_mib, limits.cores_percent)
        for card in given
    )
    mismatch = ""
    if wanted and sorted(share.card for share in wanted) != list(given):
        mismatch = (
            f"the scheduler chose {_names(share.card for share in wanted)} for container {container}, "
            f"kubelet gave {_names(given)}"
        )
    return Settlement(pod, container, given, shares, mismatch)


def _limits(pod: NodePod, container: str, offer: Offer, wanted: Sequence[Share]) -> Share:
    """The limits per card: the scheduler's, or else those that the container requests."""
    if wanted:
        return wanted[0]
    spec = next((one for one in pod.containers if one.name == container), None)
    if spec is None or offer.kind is not Kind.VGPU:
        return Share(CardId(""))
    memory_mib = spec.resources.count(offer.memory_name) * offer.memory_unit_mib
    percent = spec.resources.count(MEMORY_PERCENTAGE)
    if percent and offer.terms:
        smallest = min(terms.card.memory_mib for terms in offer.terms.values())
        memory_mib = smallest * min(percent, 100) // 100
    return Share(CardId(""), memory_mib, spec.resources.count(offer.cores_name))


def _over(offer: Offer, shares: Iterable[Share], others: Iterable[Share]) -> str:
    """A sentence if a card would be promised more memory than allowed."""
    promised: dict[CardId, int] = {}
    for share in (*shares, *others):
        promised[share.card] = promised.get(share.card, 0) + share.memory_mib
    for share in shares:
        terms = offer.terms.get(share.card)
        if terms is not None and share.memory_mib and promised[share.card] > terms.promised_memory_mib:
            return (
                f"kubelet gave this container {share.card}, where {share.memory_mib} MiB more would promise "
                f"{promised[share.card]} MiB of {terms.promised_memory_mib} MiB; delete the pod so that it is "
                "scheduled again"
            )
    return ""


def _names(cards: Iterable[CardId]) -> str:
    return ", ".join(sorted(cards)) or "no card"


def shares_in_force(
    pods: Mapping[PodUid, NodePod], records: Sequence[Recorded], offer: Offer
) -> dict[ContainerKey, tuple[Share, ...]]:
    """Every container's cards and limits, from kubelet's records and the pods; ended pods do not count."""
    found = {}
    for record in records:
        if record.resource != offer.name:
            continue
        pod = pods.get(record.pod_uid)
        if pod is None:
            shares = recorded_shares(record, records, offer)
        elif not pod.ended:
            shares = settle(pod, record.container, record.slots, offer).shares
        else:
            shares = ()
        if shares:
            found[record.pod_uid, record.container] = shares
    return found


def recorded_shares(record: Recorded, records: Iterable[Recorded], offer: Offer) -> tuple[Share, ...]:
    """A container's cards with limits from kubelet's records alone, for a pod that the API server has not reported yet:
    kubelet gave it as many units of memory and of cores as it requested. Empty if it requested none."""
    units = {
        other.resource: len(other.slots)
        for other in records
        if (other.pod_uid, other.container) == (record.pod_uid, record.container)
    }
    memory_mib = units.get(offer.memory_name, 0) * offer.memory_unit_mib
    cores_percent = units.get(offer.cores_name, 0)
    if not memory_mib and not cores_percent:
        return ()
    return tuple(Share(card, memory_mib, cores_percent) for card in sorted(map(card_of, record.slots)))
