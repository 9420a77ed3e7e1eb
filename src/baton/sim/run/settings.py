"""How a simulated cluster behaves, as far as neither the trace nor the policy says it."""

import msgspec

from baton.model.ids import NodeName
from baton.sim.run.sharing import SharingModel


class Outage(msgspec.Struct, frozen=True):
    """A node that is away for a while, at a known time."""

    node: NodeName
    at_s: float
    lasts_s: float


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the simulated cluster behaves."""

    seed: int = 42
    restart_s: float = 60.0
    """Card time that a stopped job pays before it goes on."""
    checkpoint_s: float = 1800.0
    """How often a job saves its progress; what came after the last save is lost when its node fails."""
    cycle_s: float = 0.0
    """Least time between two decisions; changes in between wait for the next."""
    visible_per_shape: int = 0
    """How many waiting jobs of one shape the engine sees, the first in the policy's order; 0 for all.

    Equal jobs behind them could not start before they do, so without preemption this changes nothing but the cost of a
    long backlog. Under backfill a short job may overtake an equal long one: there jobs of about the same expected
    duration stand in one line, which comes close."""
    slots_per_card: int = 1
    """More than one: cards are time-shared by that many jobs."""
    enforce_memory: bool = True
    """Tell the engine what shares of a card keep in its memory. Off: memory may be oversubscribed."""
    sharing: SharingModel = SharingModel()
    node_mtbf_s: float = 0.0
    """Mean time between failures of one node; 0 for none."""
    node_repair_s: float = 3600.0
    outages: tuple[Outage, ...] = ()
