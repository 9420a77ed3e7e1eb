"""The checker: what kubelet, the pods' annotations and the lock say of one node must not contradict each other.

Kubelet's word is PodResources (running pods, by name) and its checkpoint (by UID); the scheduler's and the agent's word
is on the pods; the lock's word is its status. Each problem is one sentence.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from baton.agent.kubelet.podresources import read_checkpoint
from baton.agent.kubelet.records import Holding, Recorded, over_committed
from baton.agent.offers.slots import card_of
from baton.gpu import simulated
from baton.model import card_annotations
from baton.model.ids import PodUid


class LockView(msgspec.Struct, frozen=True):
    """The lock's own view of a node; pods by their UIDs, found by the processes' cgroups."""

    pid: int = 0
    exclusive: list[str] = []
    holders: dict[str, list[str]] = {}
    clients: dict[str, list[str]] = {}
    turns: list[str] = []
    """Whose turn it was, one after the other, where turns were watched."""


LOOK = """
import sys
from pathlib import Path
import msgspec
from baton.agent.node.identity import pod_of_process
from baton.errors import UnavailableError
from baton.lock.control import ControlClient
from baton.lock.paths import Paths
from tests.cluster.agent.audit import LockView

directory, card, wanted = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
turns, view = [], LockView()
try:
    for status in ControlClient(Paths(directory).control, 30.0).follow(every_ms=20):
        homes = {client.id: pod_of_process(client.pid) for client in status.clients}
        pods = {client: home.uid if home else "" for client, home in homes.items()}
        view = LockView(
            status.pid,
            [one.gpu for one in status.gpus if one.exclusive],
            {one.gpu: [pods.get(client, "") for client in one.holders] for one in status.gpus},
            {one.gpu: [pods[client.id] for client in status.clients if client.gpu == one.gpu] for one in status.gpus},
            turns,
        )
        holders = view.holders.get(card, [])
        if len(holders) > 1 or len(turns) >= wanted:
            break
        turns += [pod for pod in holders if turns[-1:] != [pod]]
except UnavailableError:
    pass
print(msgspec.json.encode(view).decode())
"""
"""Runs in the node, whose processes have numbers of their own: directory, card and number of turns to watch."""


def problems(
    holdings: Iterable[Holding], pods: Iterable[dict[str, Any]], plugins: Path, lock: LockView, machine: Path
) -> list[str]:
    """Everything that is wrong on a node; empty when nothing is."""
    held = list(holdings)
    cards = {card.uuid: card.memory_bytes >> 20 for card in simulated.status(machine).cards}
    records = read_checkpoint(plugins)
    return [
        *over_committed(held),
        *_unknown(held, set(cards)),
        *_annotations(pods, records, cards),
        *_lock(lock, records),
    ]


def _unknown(held: Iterable[Holding], cards: set[str]) -> Iterator[str]:
    for holding in held:
        for slot in holding.slots:
            if card_of(slot) not in cards:
                yield f"{holding.pod} has slot {slot} of a card that the node does not have"


def _annotations(pods: Iterable[dict[str, Any]], records: Iterable[Recorded], cards: dict[str, int]) -> Iterator[str]:
    given = {record.pod_uid: Counter(map(card_of, record.slots)) for record in records if "number" in record.resource}
    promised: Counter[str] = Counter()
    for pod in pods:
        annotations = pod["metadata"].get("annotations", {})
        uid = PodUid(pod["metadata"]["uid"])
        if pod["status"].get("phase") != "Running" or uid not in given:
            continue
        lists = card_annotations.assigned_shares(annotations.get(card_annotations.ASSIGNED, ""), 1024)
        shares = [share for shares in lists for share in shares]
        if shares and Counter(share.card for share in shares) != given[uid]:
            yield f"{pod['metadata']['name']} is said to have {shares}, kubelet gave it {dict(given[uid])}"
        for share in shares:
            promised[share.card] += share.memory_mib
    for card, memory_mib in promised.items():
        if memory_mib > cards.get(card, 0):
            yield f"{card} has {cards.get(card, 0)} MiB, of which {memory_mib} MiB are promised"


def _lock(lock: LockView, records: Iterable[Recorded]) -> Iterator[str]:
    given: dict[str, set[str]] = {}
    for record in records:
        given.setdefault(record.pod_uid, set()).update(map(card_of, record.slots))
    for card, pods in lock.clients.items():
        for pod in pods:
            if pod in given and card not in given[pod]:
                yield f"pod {pod} takes turns on {card}, kubelet gave it {given[pod]}"
    for card in lock.exclusive:
        if len(lock.holders[card]) > 1:
            yield f"{card} is held by {lock.holders[card]} at once"
