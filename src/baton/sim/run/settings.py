"""The behaviour of a simulated cluster that neither the trace nor the policy defines."""

import msgspec

from baton.model.ids import NodeName
from baton.sim.run.sharing import SharingModel


class Outage(msgspec.Struct, frozen=True):
    """A planned absence of a node."""

    node: NodeName
    at_s: float
    lasts_s: float


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the simulated cluster behaves."""

    seed: int = 42
    restart_s: float = 60.0
    """Card time that a stopped job pays before it continues."""
    checkpoint_s: float = 1800.0
    """How often a job saves its progress; a node failure loses the progress since the last save."""
    cycle_s: float = 0.0
    """Minimum time between two decisions; changes in between wait for the next one."""
    visible_per_shape: int = 0
    """How many waiting jobs of one shape the engine sees, in the policy's order; 0 for all.

    Equal jobs behind them cannot start earlier, so without preemption this affects only the cost of a long backlog.
    Under backfill a short job may overtake an equal long one; there, jobs of about the same expected duration share a
    line, which is a close approximation."""
    slots_per_card: int = 1
    """How many jobs share a card in turns; 1 for no sharing."""
    enforce_memory: bool = True
    """Tell the engine how much card memory a share uses. When off, memory may be oversubscribed."""
    sharing: SharingModel = SharingModel()
    node_mtbf_s: float = 0.0
    """Mean time between failures of one node; 0 for no failures."""
    node_repair_s: float = 3600.0
    outages: tuple[Outage, ...] = ()
