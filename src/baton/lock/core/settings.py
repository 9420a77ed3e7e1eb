"""The numbers that shape the lock, each with its unit, its default and the reason for it."""

import msgspec

from baton.lock.core.events import Measure, Mode


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the core decides. Everything scales with the quantum, so a simulated GPU in fast time behaves alike."""

    mode: Mode = Mode.AUTO
    """Mode of a card for which no mode was set."""

    quantum_s: float | None = None
    """A fixed quantum; None adapts it to the measured cost of a switch."""

    default_quantum_s: float = 30.0
    """Adaptive quantum while nothing is known about memory sizes: nvshare's default."""

    min_quantum_s: float = 0.1
    """Shortest adaptive quantum, whatever a switch costs: waiting for the GPU to finish takes some milliseconds."""

    max_quantum_s: float = 300.0
    """Longest adaptive quantum: a user who waits longer thinks that the machine hangs."""

    switch_share: float = 0.02
    """Share of the time that switching between two clients may cost: their quantum is the switch cost divided by it.
    With more clients the quantum is divided by the square root of the number of waiters. The published two-job case
    with 15 GB working sets needs a quantum of about 100 s at 2.5 s per switch to beat running serially."""

    handover_s: float = 0.002
    """Cost of a switch without paging: two messages and two wake-ups, during which the GPU has no work."""

    link_bytes_per_s: float = 12.0e9
    """Paging speed assumed when it was neither given nor measured yet: a switch that moved 15.3 GB out and as much in
    took about 2.5 s over PCIe 3."""

    idle_s: float | None = None
    """Idle time after which a client releases the lock; None follows the switch cost (waiting for as long as coming
    back would cost is at most twice as bad as knowing the future)."""

    min_idle_s: float = 0.05
    max_idle_s: float = 5.0
    """Bounds of the adaptive idle time; the upper one is nvshare's constant."""

    fits_below: float = 0.93
    """An exclusive card becomes concurrent when the working sets take less than this share of its memory."""

    full_above: float = 0.98
    """A concurrent card becomes exclusive when they take more than this share; the gap keeps it from flapping."""

    thrash_rate: float = 0.5
    """Paging above this share of the link's speed, while several clients run and slow down, is thrashing."""

    thrash_slowdown: float = 3.0
    """A client counts as slowed down when its synchronisation time per launch, divided by the number of running
    clients, exceeds this multiple of its time alone."""

    thrash_samples: int = 3
    """Consecutive observations before the lock concludes that a card thrashes."""

    thrash_penalty_quanta: float = 4.0
    """How long a card stays exclusive after thrashing before clients may run together again; doubles each time."""

    window_s: float = 2.0
    """Shortest window of a compute limit."""

    slice_switches: float = 10.0
    """No quantum, however many clients wait, and no turn of a client with a small weight is shorter than this number of
    switches. Neither is the smallest slice of a limited client, releases included; the window grows to allow it."""

    patience_quanta: float = 2.0
    """A waiter is overdue, and goes before all others, after this number of quanta (releases included) times the number
    of turns that it is expected to wait."""

    drop_grace_s: float = 30.0
    """A holder that has not released the lock this long after DROP_LOCK is reported: a synchronisation may take that
    long."""

    revoke_s: float = 30.0
    """Time between the report and the `measure`."""

    measure: Measure = Measure.REPORT
    """What the lock does about a client that ignores DROP_LOCK."""

    gang_grace_s: float = 10.0
    """A gang whose members are still missing after this time is served with the members that are there."""

    holder_grace_s: float = 10.0
    """How long a restarted daemon waits for a holder whose process is alive."""
