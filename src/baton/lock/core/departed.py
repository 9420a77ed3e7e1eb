"""What clients that are gone received, by tenant and by run.

A pod names its tenant itself, and every `baton run` is a run, so both numbers are bounded: the tenants that left
longest ago are added up under one name, the oldest runs are forgotten.
"""

from baton.lock.core.events import ClientId
from baton.lock.core.state import Client, Ledger

_REMEMBERED_RUNS = 256
"""Runs whose ledgers are kept after their last process has gone, for the summary of `baton run`."""
_REMEMBERED_TENANTS = 1024
OTHERS = "others"
"""The tenant that stands for all tenants beyond the limit."""


class Departed:
    """The ledgers of clients that are gone."""

    def __init__(self) -> None:
        self.tenants: dict[str, Ledger] = {}
        self.runs: dict[str, Ledger] = {}
        self.recalled: dict[ClientId, Ledger] = {}
        """Ledgers of an earlier daemon's clients, until each of them resumes."""

    def add(self, client: Client) -> None:
        """Keep the ledger of a client that leaves."""
        client.card.departed.add(client.ledger)
        self.add_to_tenant(client.tenant, client.ledger)
        if client.run:
            self.runs.setdefault(client.run, Ledger()).add(client.ledger)
            if len(self.runs) > _REMEMBERED_RUNS:
                del self.runs[next(iter(self.runs))]

    def add_to_tenant(self, tenant: str, ledger: Ledger) -> None:
        """Add a ledger to its tenant's."""
        total = self.tenants.pop(tenant, None) or Ledger()
        total.add(ledger)
        self.tenants[tenant] = total
        while len(self.tenants) > _REMEMBERED_TENANTS:
            eldest = next(name for name in self.tenants if name != OTHERS)
            self.tenants.setdefault(OTHERS, Ledger()).add(self.tenants.pop(eldest))
