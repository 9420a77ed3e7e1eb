"""The numbers that shape the lock, each with its unit, its default and the reason for it."""

import msgspec

from baton.lock.core.events import Measure, Mode


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the core decides. Everything scales with the quantum, so that a simulated GPU in fast time behaves alike."""

    mode: Mode = Mode.AUTO
    """Mode of a card that nobody set one for."""

    quantum_s: float | None = None
    """A fixed quantum; None measures what a switch costs and adapts."""

    default_quantum_s: float = 30.0
    """Adaptive quantum while nothing is known about memory: nvshare's default."""

    min_quantum_s: float = 0.1
    """Shortest adaptive quantum, whatever a switch costs: waiting for a GPU's work takes some milliseconds."""

    max_quantum_s: float = 300.0
    """Longest adaptive quantum: a colleague who waits longer thinks that the machine hangs."""

    switch_share: float = 0.02
    """Share of the time that switching may cost between two clients: their quantum is the switch cost divided by it.
    Among more it is shorter by the root of the number of those who wait. The published two-job case with 15 GB
    working sets needs about 100 s of quantum at 2.5 s a switch to beat running serially."""

    handover_s: float = 0.002
    """What a switch costs when nothing has to be paged: two messages, two wake-ups, a GPU without work meanwhile."""

    link_bytes_per_s: float = 12.0e9
    """Paging speed assumed where nobody told it and before any is measured: a switch that moved 15.3 GB out and as
    much in took about 2.5 s over PCIe 3."""

    idle_s: float | None = None
    """Idle time after which a client gives the lock back; None follows the switch cost (waiting as long as coming
    back would cost is at most twice as bad as knowing the future)."""

    min_idle_s: float = 0.05
    max_idle_s: float = 5.0
    """Bounds of the adaptive idle time; the longer is nvshare's constant."""

    fits_below: float = 0.93
    """An exclusive card becomes concurrent when the working sets are below this share of its memory."""

    full_above: float = 0.98
    """A concurrent card becomes exclusive when they are above this one; the gap keeps it from flapping."""

    thrash_rate: float = 0.5
    """Paging above this share of the link's speed while several run, and their work slows down, is thrashing."""

    thrash_slowdown: float = 3.0
    """Synchronisation per launch, relative to the client alone and per client running, that counts as slowed down."""

    thrash_samples: int = 3
    """Consecutive observations before thrashing is believed."""

    thrash_penalty_quanta: float = 4.0
    """How long a card stays exclusive after thrashing before it is tried together again; doubles each time."""

    window_s: float = 2.0
    """Shortest window of a compute limit."""

    slice_switches: float = 10.0
    """No quantum, however many wait, and no turn of a light client is shorter than this many switches take. Neither is
    the smallest slice of a limited client, releases included; the window grows to allow it."""

    patience_quanta: float = 2.0
    """A waiter is overdue, and goes before everyone, after this many quanta (releases included) times its expected
    number of turns."""

    drop_grace_s: float = 30.0
    """A holder that has not released this long after DROP_LOCK is reported: a synchronisation may take that long."""

    revoke_s: float = 30.0
    """Time between the report and the measure."""

    measure: Measure = Measure.REPORT
    """What is done to a client that ignores DROP_LOCK."""

    gang_grace_s: float = 10.0
    """A gang with members missing this long is served with those it has."""

    holder_grace_s: float = 10.0
    """How long a restarted daemon waits for a holder that it knows to be alive."""
