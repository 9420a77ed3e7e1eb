"""The state of the lock: cards, clients, turns, gangs.

A card keeps integrals over time rather than a counter per client. `Card.work_s` grows by one second per second divided
by the number of holders, so the time that a holder received is the difference between two readings. What each active
client is entitled to is computed the same way. An event therefore costs the same with two clients and with two
thousand.
"""

import enum
from dataclasses import dataclass, field

from baton.lock.core.events import ClientId, Mode, Terms
from baton.model.ids import CardId

CLASS_FACTOR = 4.0
"""The weight of one priority class where clients run together."""


class Phase(enum.Enum):
    """What a client is doing with respect to its card."""

    IDLE = "idle"
    WAITING = "waiting"
    HOLDING = "holding"
    DROPPING = "dropping"


@dataclass(slots=True)
class Ledger:
    """The time that one client, or one tenant, received and waited, and what it cost."""

    received_s: float = 0.0
    entitled_s: float = 0.0
    waited_s: float = 0.0
    longest_wait_s: float = 0.0
    grants: int = 0
    drops: int = 0
    early_releases: int = 0
    ignored_drops: int = 0
    paged_bytes: int = 0

    def add(self, other: "Ledger") -> None:
        """Add another ledger to this one."""
        self.received_s += other.received_s
        self.entitled_s += other.entitled_s
        self.waited_s += other.waited_s
        self.longest_wait_s = max(self.longest_wait_s, other.longest_wait_s)
        self.grants += other.grants
        self.drops += other.drops
        self.early_releases += other.early_releases
        self.ignored_drops += other.ignored_drops
        self.paged_bytes += other.paged_bytes


@dataclass(slots=True)
class Turn:
    """One stretch of holding, from LOCK_OK to LOCK_RELEASED."""

    granted_s: float
    work_mark_s: float
    due: float = 0.0
    """The virtual time at which the turn was due to begin."""
    debt_s: float = 0.0
    """The time that the client had already received beyond that."""
    dropped_s: float | None = None
    reported: bool = False
    paging: bool = True
    paged_bytes: int = 0
    quiet_samples: int = 0
    excess_sync_s: float = 0.0


@dataclass(slots=True)
class Quota:
    """A compute limit and its use in the card's current window; an overrun is carried into the next window."""

    share: float
    used_s: float = 0.0


@dataclass(slots=True, eq=False)
class Client:
    """One connection: a process on one card."""

    id: ClientId
    card: "Card"
    pid: int
    uid: int
    pod: str
    namespace: str
    tenant: str
    extended: bool
    terms: Terms
    joined_s: float
    pod_uid: str = ""
    name: str = ""
    run: str = ""
    phase: Phase = Phase.IDLE
    parked: bool = False
    weight: float = 1.0
    vtime: float = 0.0
    """The time it received, divided by its weight."""
    due: float = 0.0
    """The virtual time at which its next turn is due; `vtime` differs from it by the time that it overran."""
    entitle_mark: float = 0.0
    requested_s: float = 0.0
    """When the current wait began."""
    eligible_s: float = 0.0
    """Since when it waits only for other clients: time in which it was throttled or parked does not count."""
    last_active_s: float = float("-inf")
    turn: Turn | None = None
    quota: Quota | None = None
    gang: "Gang | None" = None
    allocated_bytes: int | None = None
    measured_bytes: int | None = None
    need_bytes: int | None = None
    launches: int = 0
    sync_s: float = 0.0
    reported_wait_s: float = 0.0
    solo_sync_s: float | None = None
    """Synchronisation time per launch while running alone, the reference for detecting thrashing."""
    slow_reports: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    def working_set_bytes(self) -> int | None:
        """The memory it needs on the card to run without paging; None if unknown."""
        return self.need_bytes

    def learn_memory(self, *, allocated_bytes: int | None = None, measured_bytes: int | None = None) -> None:
        """Take in how much memory the client reported, or telemetry measured; the larger value counts."""
        if allocated_bytes is not None:
            self.allocated_bytes = max(0, allocated_bytes)
        if measured_bytes is not None:
            # The resident memory of a client that does not report shrinks when others evict it; its need does not.
            least = 0 if self.extended else self.measured_bytes or 0
            self.measured_bytes = max(measured_bytes, least)
        if self.allocated_bytes is not None or self.measured_bytes is not None:
            self.need_bytes = max(self.allocated_bytes or 0, self.measured_bytes or 0)
        else:
            self.need_bytes = self.terms.memory_bytes if self.extended else None

    def owns(self) -> bool:
        """Whether it has the lock, including while it is asked to release it."""
        return self.turn is not None

    def set_terms(self, terms: Terms) -> None:
        """Apply new terms; what the client has used of a limit in this window stays used."""
        self.terms = terms
        active = self.id in self.card.active
        if active:
            self.card.active_weight -= self.weight
        self.weight = terms.weight * CLASS_FACTOR ** (int(terms.priority) - 1)
        if active:
            self.card.active_weight += self.weight
        self.learn_memory()
        if 0 < terms.cores_percent < 100:
            used_s = self.quota.used_s if self.quota else 0.0
            self.quota = Quota(terms.cores_percent / 100, used_s)
            self.card.limited[self.id] = self
        else:
            self.quota = None
            self.card.limited.pop(self.id, None)


@dataclass(slots=True, eq=False)
class Gang:
    """Connections of one process that get their cards together or not at all."""

    key: tuple[int, str]
    size: int
    formed_s: float
    members: dict[ClientId, Client] = field(default_factory=dict)
    ticket: int = 0
    requested: bool = False
    due: bool = False
    """Its turn has come on every card: each card is kept free for it once its holder releases."""


@dataclass(slots=True)
class Ghost:
    """A holder of an earlier daemon that is alive and has not resumed yet; client 0 stands for an unknown holder."""

    client: ClientId
    pid: int
    until_s: float


@dataclass(slots=True, eq=False)
class Card:
    """One physical GPU: who holds it, who waits for it, and what was measured."""

    id: CardId
    capacity_bytes: int
    mode: Mode
    fixed_quantum_s: float | None
    clock_s: float
    on: bool = True
    exclusive: bool = False
    clients: dict[ClientId, Client] = field(default_factory=dict)
    holders: dict[ClientId, Client] = field(default_factory=dict)
    waiters: dict[ClientId, Client] = field(default_factory=dict)
    active: dict[ClientId, Client] = field(default_factory=dict)
    active_weight: float = 0.0
    limited: dict[ClientId, Client] = field(default_factory=dict)
    ghosts: dict[ClientId, Ghost] = field(default_factory=dict)
    work_s: float = 0.0
    entitled: float = 0.0
    """Integral of the entitled rate per unit of weight, for clients without a limit."""
    unit_rate: float = 0.0
    limited_rates: list[tuple[Client, float]] = field(default_factory=list)
    vtime: float = 0.0
    window_start_s: float = 0.0
    window_s: float = 0.0
    deadline_s: float | None = None
    quantum_s: float = 0.0
    switch_cost_s: float | None = None
    """Measured cost of a switch, smoothed."""
    cost_s: float | None = None
    """The cost that the quantum is derived from: measured, or expected from memory sizes, or None."""
    release_s: float = 0.0
    """Smoothed time from DROP_LOCK to LOCK_RELEASED: a turn lasts that much longer than its quantum."""
    idle_s: float = 0.0
    told_idle_s: float = 0.0
    link_bytes_per_s: float = 0.0
    link_peak_bytes_per_s: float = 0.0
    pcie_bytes: int | None = None
    pcie_rate: float = 0.0
    sampled_s: float = 0.0
    thrash_count: int = 0
    thrash_until_s: float = 0.0
    thrash_spells: int = 0
    switches: int = 0
    mode_changes: int = 0
    departed: Ledger = field(default_factory=Ledger)
    last_holder: ClientId | None = None

    def advance(self, now_s: float) -> None:
        """Account for the time since the last event, in which the present holders held the card."""
        elapsed_s = now_s - self.clock_s
        if elapsed_s <= 0:
            return
        self.clock_s = now_s
        if self.holders:
            self.work_s += elapsed_s / len(self.holders)
        self.entitled += elapsed_s * self.unit_rate
        for client, rate in self.limited_rates:
            client.ledger.entitled_s += elapsed_s * rate

    def bill(self, client: Client) -> None:
        """Charge a holder for the time it received since it was last charged."""
        turn = client.turn
        if turn is None:
            return
        received_s = self.work_s - turn.work_mark_s
        turn.work_mark_s = self.work_s
        client.ledger.received_s += received_s
        client.vtime += received_s / client.weight
        if client.quota is not None:
            client.quota.used_s += received_s

    def vtime_of(self, client: Client) -> float:
        """The virtual time of a client now, including its current turn."""
        if client.turn is None:
            return client.vtime
        return client.vtime + (self.work_s - client.turn.work_mark_s) / client.weight

    def activate(self, client: Client) -> None:
        """Count the client among those that want the card."""
        if client.id in self.active:
            return
        self.lift(client)
        self.active[client.id] = client
        self.active_weight += client.weight
        client.entitle_mark = self.entitled
        self.share_out()

    def deactivate(self, client: Client) -> None:
        """The client does not want the card for now."""
        if client.id not in self.active:
            return
        self.settle_entitlement(client)
        del self.active[client.id]
        self.active_weight -= client.weight
        client.last_active_s = self.clock_s
        if not self.active:
            self.active_weight = 0.0
            self.vtime = max(self.vtime, client.vtime)
        self.share_out()

    def settle_entitlement(self, client: Client) -> None:
        """Add what an unlimited client was entitled to since the last reading to its ledger."""
        if client.quota is None and client.id in self.active:
            client.ledger.entitled_s += (self.entitled - client.entitle_mark) * client.weight
        client.entitle_mark = self.entitled

    def round(self) -> float:
        """The virtual time of a round: one quantum for every active client."""
        return self.quantum_s * len(self.active) / self.active_weight if self.active else 0.0

    def plan(self, client: Client) -> tuple[float, float]:
        """When the turn that begins now was due, and the time that its client received in advance."""
        due = client.due
        for other in self.active.values():
            if other.due < due and other.terms.priority == client.terms.priority:
                due = other.due
        return due, max(0.0, client.vtime - due) * client.weight

    def settle_due(self, client: Client) -> None:
        """Set when the next turn is due: a round after the last, or at the client's virtual time if that is far off."""
        turn = client.turn
        later = turn.due + self.round() if turn is not None else client.vtime
        client.due = later if 0 <= client.vtime - later <= self.round() / 2 else client.vtime

    def lift(self, client: Client) -> None:
        """A client that was inactive gets no credit for that time."""
        floor = self._floor(client)
        if client.vtime < floor:
            client.vtime = client.due = floor

    def _floor(self, client: Client) -> float:
        """Where a newcomer starts: the virtual time of the least served other client of its class, or of any class."""
        rank = client.terms.priority
        least = least_of_class = float("inf")
        for other in self.active.values():
            if other is client or (other.quota is not None and self.throttled(other)):
                continue
            vtime = other.vtime if other.turn is None else self.vtime_of(other)
            if vtime < least_of_class and other.terms.priority == rank:
                least_of_class = vtime
            if vtime < least:
                least = vtime
        if least_of_class != float("inf"):
            return least_of_class
        return least if least != float("inf") else self.vtime

    def throttled(self, client: Client) -> bool:
        """Whether a limited client has used up its share of this window."""
        quota = client.quota
        return quota is not None and quota.used_s >= quota.share * self.window_s * (1 - 1e-9)

    def rejoin(self, client: Client, now_s: float) -> None:
        """A waiter that was throttled can be served again; it gets no credit for the time before."""
        client.eligible_s = now_s
        self.lift(client)

    def share_out(self) -> None:
        """Set the rates that active clients are entitled to: by weight, up to their limits, the rest redistributed."""
        if not self.limited:
            self.unit_rate = 1.0 / self.active_weight if self.active else 0.0
            self.limited_rates = []
            return
        free_weight = 0.0
        capped: list[Client] = []
        for client in self.active.values():
            if client.quota is None:
                free_weight += client.weight
            else:
                capped.append(client)
        rest, weight = 1.0, free_weight + sum(client.weight for client in capped)
        capped.sort(key=lambda client: client.quota.share / client.weight if client.quota else 0.0)
        rates: list[tuple[Client, float]] = []
        for client in capped:
            share = client.quota.share if client.quota else 1.0
            rate = min(share, rest * client.weight / weight) if weight > 0 else share
            rates.append((client, rate))
            rest -= rate
            weight -= client.weight
        self.limited_rates = rates
        self.unit_rate = max(rest, 0.0) / free_weight if free_weight > 0 else 0.0
