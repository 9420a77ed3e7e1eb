"""What clients received, and what was set with `baton lock`, kept over restarts of the daemon.

A client that resumes continues with its account. Some time after a start, the accounts of clients that have not resumed
are added to their tenants, and rules for pods without a client are forgotten.
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

log = structlog.get_logger("baton.lock")

_CLAIM_WITHIN_S = 60.0


class Accounts:
    """The file of this daemon, and the accounts of the earlier daemon's clients that have not resumed yet."""

    def __init__(self, path: Path, core: LockCore) -> None:
        self.overrides = Overrides()
        self.parked: set[ClientId] = set()
        """Clients that were parked when the earlier daemon ended, until they resume."""
        self.changed = False
        """Whether anything has changed since the last save."""
        self._core = core
        self._file = SnapshotFile(path)
        self._unclaimed: dict[ClientId, AccountRecord] = {}
        self._close_s: float | None = None

    def restore(self, now_s: float) -> list[CardSetting]:
        """Read the earlier daemon's file; returns the settings of cards, which the caller applies one by one."""
        snapshot = self._file.read()
        self._close_s = now_s + _CLAIM_WITHIN_S
        self.overrides = Overrides.restore(snapshot)
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
        overrides = self.overrides
        self._file.write(
            Snapshot(list(overrides.cards.values()), accounts, tenants, parked, overrides.rules, overrides.records())
        )

    def close_unclaimed(self, now_s: float) -> Iterable[Rule]:
        """Close the accounts of clients that have not resumed in time; returns the rules of pods without a client."""
        if self._close_s is None or now_s <= self._close_s:
            return ()
        self._close_s = None
        core = self._core
        for client, ledger in core.departed.recalled.items():
            core.departed.add_to_tenant(self._unclaimed[client].tenant, ledger)
        core.departed.recalled.clear()
        self._unclaimed.clear()
        return self.overrides.forget_pods({client.pod_uid for client in core.clients.values()})


def _ledger(record: AccountRecord | TenantRecord) -> Ledger:
    return Ledger(
        received_s=record.received_s,
        entitled_s=record.entitled_s,
        waited_s=record.waited_s,
        grants=record.grants,
        drops=record.drops,
        paged_bytes=record.paged_bytes,
    )
