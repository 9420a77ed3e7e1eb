"""The status of the lock: plain structs for the control socket, the command line and metrics."""

import msgspec

from baton.lock.core import precedence, quotas
from baton.lock.core.machine import LockCore
from baton.lock.core.state import Card, Client, Ledger


class Account(msgspec.Struct, frozen=True):
    """What a client, tenant or run received, was entitled to, and waited."""

    received_s: float
    entitled_s: float
    waited_s: float
    longest_wait_s: float
    grants: int
    drops: int
    early_releases: int
    ignored_drops: int
    paged_bytes: int


class ClientStatus(msgspec.Struct, frozen=True):
    """One client of a card."""

    id: str
    gpu: str
    state: str
    """idle, waiting, holding, dropping, throttled or parked."""
    name: str
    tenant: str
    pod: str
    namespace: str
    run: str
    pid: int
    weight: float
    priority: str
    cores_percent: float
    memory_limit_bytes: int
    working_set_bytes: int | None
    gang: str
    for_s: float
    """How long the client has been holding or waiting."""
    account: Account


class CardStatus(msgspec.Struct, frozen=True):
    """One card."""

    gpu: str
    on: bool
    mode: str
    """The mode set: auto, serial or concurrent."""
    exclusive: bool
    """Whether clients take turns now."""
    memory_bytes: int
    working_sets_bytes: int | None
    holders: list[str]
    waiters: list[str]
    recalled: int
    """Holders of an earlier daemon that have not resumed yet."""
    quantum_s: float
    quantum_fixed: bool
    switch_cost_s: float | None
    idle_s: float
    window_s: float
    switches: int
    mode_changes: int
    thrash_spells: int
    pcie_bytes_per_s: float
    fairness_error: float


class TenantStatus(msgspec.Struct, frozen=True):
    """One tenant over all cards, including clients that are gone."""

    tenant: str
    clients: int
    account: Account


class RunStatus(msgspec.Struct, frozen=True):
    """What the processes of one `baton run` received, including those that have ended."""

    run: str
    account: Account


class Status(msgspec.Struct, frozen=True):
    """The complete status of a daemon."""

    version: str
    pid: int
    epoch: str
    uptime_s: float
    gpus: list[CardStatus]
    clients: list[ClientStatus]
    tenants: list[TenantStatus]
    runs: list[RunStatus]
    fairness_error: float


def account(ledger: Ledger) -> Account:
    """A ledger as part of a status."""
    return Account(
        ledger.received_s,
        ledger.entitled_s,
        ledger.waited_s,
        ledger.longest_wait_s,
        ledger.grants,
        ledger.drops,
        ledger.early_releases,
        ledger.ignored_drops,
        ledger.paged_bytes,
    )


def fairness_error(ledgers: list[Ledger]) -> float:
    """The share of the time that clients were entitled to but did not receive: 0 is fair, 1 is entirely unfair."""
    entitled_s = sum(ledger.entitled_s for ledger in ledgers)
    if entitled_s <= 0:
        return 0.0
    missed_s = sum(max(0.0, ledger.entitled_s - ledger.received_s) for ledger in ledgers)
    return min(1.0, missed_s / entitled_s)


def state_of(client: Client) -> str:
    """The state of a client in one word."""
    if client.parked:
        return "parked"
    if client.id in client.card.waiters and not precedence.eligible(client.card, client):
        return "throttled"
    return client.phase.value


def client_status(client: Client, now_s: float) -> ClientStatus:
    """The status of one client; its card must have been advanced."""
    since_s = client.turn.granted_s if client.turn else client.requested_s
    busy = client.turn is not None or client.id in client.card.waiters
    return ClientStatus(
        id=f"{client.id:016x}",
        gpu=client.card.id,
        state=state_of(client),
        name=client.name,
        tenant=client.tenant,
        pod=client.pod,
        namespace=client.namespace,
        run=client.run,
        pid=client.pid,
        weight=client.terms.weight,
        priority=client.terms.priority.name.lower(),
        cores_percent=client.terms.cores_percent,
        memory_limit_bytes=client.terms.memory_bytes,
        working_set_bytes=client.working_set_bytes(),
        gang=client.gang.key[1] if client.gang else "",
        for_s=max(0.0, now_s - since_s) if busy else 0.0,
        account=account(client.ledger),
    )


def card_status(card: Card) -> CardStatus:
    """The status of one card."""
    sizes = [client.working_set_bytes() for client in card.active.values()]
    return CardStatus(
        gpu=card.id,
        on=card.on,
        mode=card.mode.value,
        exclusive=card.exclusive,
        memory_bytes=card.capacity_bytes,
        working_sets_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        holders=[f"{client:016x}" for client in card.holders],
        waiters=[f"{client:016x}" for client in card.waiters],
        recalled=len(card.ghosts),
        quantum_s=card.quantum_s,
        quantum_fixed=card.fixed_quantum_s is not None,
        switch_cost_s=card.cost_s,
        idle_s=card.idle_s,
        window_s=card.window_s if quotas.window_end_s(card) is not None else 0.0,
        switches=card.switches,
        mode_changes=card.mode_changes,
        thrash_spells=card.thrash_spells,
        pcie_bytes_per_s=card.pcie_rate,
        fairness_error=fairness_error([client.ledger for client in card.clients.values()]),
    )


def tenants(core: LockCore) -> dict[str, tuple[int, Ledger]]:
    """Number of clients and ledger by tenant, including clients that are gone."""
    found: dict[str, tuple[int, Ledger]] = {}
    for name, ledger in core.departed.tenants.items():
        total = Ledger()
        total.add(ledger)
        found[name] = (0, total)
    for client in core.clients.values():
        count, total = found.get(client.tenant, (0, Ledger()))
        total.add(client.ledger)
        found[client.tenant] = (count + 1, total)
    return found


def runs(core: LockCore) -> dict[str, Ledger]:
    """Ledgers of the latest runs."""
    found: dict[str, Ledger] = {}
    for run, ledger in [*core.departed.runs.items(), *((c.run, c.ledger) for c in core.clients.values() if c.run)]:
        found.setdefault(run, Ledger()).add(ledger)
    return found


def collect(core: LockCore, now_s: float, *, version: str, pid: int, epoch: str, started_s: float) -> Status:
    """The status as of now."""
    core.advance(now_s)
    by_tenant = tenants(core)
    return Status(
        version=version,
        pid=pid,
        epoch=epoch,
        uptime_s=now_s - started_s,
        gpus=[card_status(card) for card in core.cards.values()],
        clients=[client_status(client, now_s) for client in core.clients.values()],
        tenants=[TenantStatus(name, count, account(ledger)) for name, (count, ledger) in sorted(by_tenant.items())],
        runs=[RunStatus(run, account(ledger)) for run, ledger in runs(core).items()],
        fairness_error=fairness_error([client.ledger for client in core.clients.values()]),
    )
