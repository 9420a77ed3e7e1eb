"""What a container gets: the answer to kubelet's Allocate, as a pure function of the slots.

Kubelet stores the answer and replays it whenever the container starts again, after any restart or upgrade of the agent,
for as long as the pod lives. So the answer holds nothing that may move: the hook under a path that contains its own
digest and is never overwritten, the directory of the lock's sockets instead of a socket (a mounted socket file would
still point at a former daemon), cards by UUID instead of index.

Two kinds of environment are deliberate. The variable of the card's vendor, such as `NVIDIA_VISIBLE_DEVICES`, makes the
cards visible; a pod can set it itself and then overrides the agent, which the admission webhook prevents. `BATON_CARDS`
and `BATON_SLOTS` say what kubelet really gave, so that such a pod can be recognised.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import msgspec

from baton.agent.config import AgentConfig
from baton.agent.offers.offers import Offer, Role
from baton.agent.offers.slots import SlotId
from baton.gpu import vendors
from baton.gpu.cards import Card, VendorName
from baton.gpu.containers import ContainerEdits, Mount
from baton.model.ids import CardId

_HIDING = frozenset({"void", "none", ""})


class HostFiles(msgspec.Struct, frozen=True):
    """What the agent has installed on the host for containers."""

    hook_path: str = ""
    """The immutable hook; empty when workloads run without it."""
    drivers: Mapping[VendorName, ContainerEdits] = {}
    """What a vendor's driver needs in a container besides the cards; nothing with the vendor's container runtime."""


def answer(config: AgentConfig, files: HostFiles, offer: Offer, slots: Sequence[str]) -> ContainerEdits:
    """What the container gets for `slots`, which exist."""
    if offer.role is Role.COUNT:
        return ContainerEdits()
    # Sorted, because kubelet passes the slots in random order and equal slots must give equal answers.
    cards = _cards(offer, [offer.pool.slots[SlotId(slot)].card for slot in slots])
    edits = ContainerEdits({"BATON_CARDS": ",".join(card.id for card in cards), "BATON_SLOTS": ",".join(sorted(slots))})
    for name, group in itertools.groupby(sorted(cards, key=_vendor), _vendor):
        vendor = vendors.named(name)
        cdi_kind = config.cdi_kind or vendor.cdi_kind
        edits = edits.merged(vendor.container_edits(list(group), config.device_list, cdi_kind))
        if vendor.runs_hook and config.hook.enabled and files.hook_path:
            edits = edits.merged(_sharing(config, files.hook_path))
        edits = edits.merged(files.drivers.get(name, ContainerEdits()))
    return edits


def _cards(offer: Offer, ids: Sequence[CardId]) -> list[Card]:
    return sorted((offer.terms[card].card for card in set(ids)), key=lambda card: (card.index, card.id))


def _vendor(card: Card) -> VendorName:
    return card.vendor


def _sharing(config: AgentConfig, hook_path: str) -> ContainerEdits:
    library = f"{config.hook.container_directory}/libbaton.so"
    return ContainerEdits(
        {"LD_PRELOAD": library, "BATON_SOCKET_DIR": config.lock.container_directory},
        (
            Mount(hook_path, library),
            # A read-only mount still lets a workload connect, but not remove the sockets.
            Mount(config.lock.socket_directory, config.lock.container_directory),
        ),
    )


def overridden(offer: Offer, given: Sequence[CardId], own_variable: Callable[[str], str | None]) -> str:
    """A sentence when a pod makes other cards visible to itself than kubelet gave it; else empty.

    `own_variable` is what the pod itself sets a variable to, None if it does not.
    """
    names = {offer.terms[card].card.vendor for card in given if card in offer.terms}
    for variable in [variable for one in vendors.VENDORS if one.name in names for variable in one.variables]:
        visible = own_variable(variable)
        if visible is not None and not set(visible.split(",")) <= {*given, *_HIDING}:
            return (
                f"the pod sets {variable}={visible} itself, but kubelet gave it {','.join(given)}; "
                "remove the variable from the pod, or let Baton's admission webhook refuse it"
            )
    return ""
