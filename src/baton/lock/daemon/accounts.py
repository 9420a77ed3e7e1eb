"""What was received and what was set by hand, kept over restarts of the daemon.

A client that comes back goes on with its account. What belongs to those who do not come back goes to their tenants some
time after a start, and rules for pods of which nobody came back are forgotten.
"""

from collections.abc import Iterable
from pathlib import Path

import structlog

from baton.lock.config import Rule
from baton.lock.core.events import ClientId
from baton.lock.core.machine import LockCore
from baton.lock.core.state import Ledger
from baton.lock.daemon.journal import AccountRecord, CardSetting, Snapshot, SnapshotFile, TenantRecord
from baton.lock.daemon.overrides import Overrides

log = structlog.get_logger()

_CLAIM_WITHIN_S = 60.0


class Accounts:
    """The file of one daemon, and the accounts of the one before it that nobody has claimed yet."""

    def __init__(self, path: Path, core: LockCore) -> None:
        self.by_hand = Overrides()
        self.parked: set[ClientId] = set()
        """Those who were parked when the earlier daemon ended, until they are back."""
        self.changed = False
        """Whether there is something to save."""
        self._core = core
        self._file = SnapshotFile(path)
        self._unclaimed: dict[ClientId, AccountRecord] = {}
        self._close_s: float | None = None

    def restore(self, now_s: float) -> list[CardSetting]:
        """Take up what the earlier daemon left; returns the cards' settings, which are to be set one by one."""
        snapshot = self._file.read()
        self._close_s = now_s + _CLAIM_WITHIN_S
        self.by_hand = Overrides.restore(snapshot)
        for account in snapshot.accounts:
            self._core.departed.recalled[ClientId(account.client)] = _ledger(account)
            self._unclaimed[ClientId(account.client)] = account
        for tenant in snapshot.tenants:
            self._core.departed.tenants[tenant.tenant] = _ledger(tenant)
        self.parked = {ClientId(client) for client in snapshot.parked}
        return list(snapshot.cards)

    def save(self, now_s: float) -> None:
        """Write accounts and settings."""
        core = self._core
        core.advance(now_s)
        self.changed = False
        accounts = [
            AccountRecord(client.id, ledger.received_s, ledger.entitled_s, ledger.waited_s, ledger.grants,
                          ledger.drops, ledger.paged_bytes, client.tenant)
            for client in core.clients.values() if (ledger := client.ledger).grants
        ]  # fmt: skip
        tenants = [
            TenantRecord(name, ledger.received_s, ledger.entitled_s, ledger.waited_s, ledger.grants, ledger.drops,
                         ledger.paged_bytes)
            for name, ledger in core.departed.tenants.items()
        ]  # fmt: skip
        accounts += [self._unclaimed[client] for client in core.departed.recalled]
        parked = [int(client.id) for client in core.clients.values() if client.parked]
        by_hand = self.by_hand
        self._file.write(
            Snapshot(list(by_hand.cards.values()), accounts, tenants, parked, by_hand.rules, by_hand.records())
        )

    def close_unclaimed(self, now_s: float) -> Iterable[Rule]:
        """Whoever has not come back in time will not: its account goes to its tenant; returns its pod's rules."""
        if self._close_s is None or now_s <= self._close_s:
            return ()
        self._close_s = None
        core = self._core
        for client, ledger in core.departed.recalled.items():
            core.departed.add_to_tenant(self._unclaimed[client].tenant, ledger)
        core.departed.recalled.clear()
        self._unclaimed.clear()
        return self.by_hand.forget_pods({client.pod_uid for client in core.clients.values()})


def _ledger(record: AccountRecord | TenantRecord) -> Ledger:
    return Ledger(
        received_s=record.received_s,
        entitled_s=record.entitled_s,
        waited_s=record.waited_s,
        grants=record.grants,
        drops=record.drops,
        paged_bytes=record.paged_bytes,
    )
