"""Records of which container has which slots, as values, and what follows from them. Pure."""

from collections.abc import Iterable

import msgspec

from baton.model.ids import PodUid


class Holding(msgspec.Struct, frozen=True):
    """Slots of one resource in one container."""

    namespace: str
    pod: str
    container: str
    resource: str
    slots: frozenset[str]


class Recorded(msgspec.Struct, frozen=True):
    """The same from the checkpoint: by UID, without names."""

    pod_uid: PodUid
    container: str
    resource: str
    slots: frozenset[str]


def owners_of(slots: Iterable[str], resource: str, records: Iterable[Recorded]) -> list[Recorded]:
    """The containers that have exactly these slots: one, or several of a pod whose init containers pass them on."""
    wanted = frozenset(slots)
    return [record for record in records if record.resource == resource and record.slots == wanted]


def over_committed(holdings: Iterable[Holding]) -> list[str]:
    """Slots that two containers have at once, which must never happen; a sentence for each.

    A pod's ordinary init containers pass their slots on and do not appear in PodResources, so a slot that is listed
    twice belongs to two containers.
    """
    seen: dict[tuple[str, str], Holding] = {}
    problems = []
    for holding in holdings:
        for slot in sorted(holding.slots):
            first = seen.setdefault((holding.resource, slot), holding)
            if first is not holding:
                problems.append(
                    f"slot {slot} of {holding.resource} is in {first.namespace}/{first.pod}/{first.container} "
                    f"and in {holding.namespace}/{holding.pod}/{holding.container}"
                )
    return problems
