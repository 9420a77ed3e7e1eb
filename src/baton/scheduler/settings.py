"""The scheduler's settings, each with its unit, default and reason; `baton scheduler` has an option for each."""

import math

import msgspec

from baton.errors import UsageError
from baton.model.names import SCHEDULER_NAMES


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the scheduler works; the scheduler configuration says *what* it decides."""

    scheduler_names: tuple[str, ...] = SCHEDULER_NAMES
    """The scheduler places pods with one of these names in `spec.schedulerName`."""
    slot_resources: tuple[str, ...] = ("nvshare.com/gpu",)
    """Resources whose units are time-shared slots of cards."""
    window_s: float = 0.02
    """How long a cycle waits after an event for more events. Pods arrive in bursts; one cycle per pod would cost
    more."""
    period_s: float = 1.0
    """Longest time between cycles while anything waits: deadlines and times of day cause no events."""
    explain_s: float = 1.0
    """The scheduler computes and writes why jobs wait at most this often."""
    cycle_limit_s: float = 3.75
    """A cycle ends after this long, between two jobs, and the next one continues with the remaining jobs. In between,
    the scheduler binds what it has decided, takes in events and renews the lease."""
    cycle_warning_s: float = 5.0
    """A cycle that still takes longer, because of a single large job, is logged and counted."""
    parallel_binds: int = 32
    """Bind requests in flight at once. More than about 30 only queue up in the API server."""
    bind_limit_s: float = 30.0
    """The scheduler gives up a bind that has not succeeded after this long, reads the pod and plans it again."""
    request_limit_s: float = 15.0
    """Deadline of a single request."""
    retry_first_s: float = 0.2
    """Pause before the first retry of a failed bind; it doubles with each retry."""
    retry_longest_s: float = 30.0
    """The longest such pause, and the longest time for which the scheduler leaves an unbindable pod alone."""
    evict_retry_s: float = 5.0
    """The scheduler withdraws an eviction that a disruption budget refuses after this long, and retries it no sooner
    than after the same time again; the second pause doubles with each refusal."""
    status_pause_s: float = 1.0
    """How long changes of counts in the status of groups and queues are collected; admissions are written at once."""
    reason_pause_s: float = 30.0
    """Shortest time between two messages for a pod or group whose cause stays the same."""
    qps: float = 0.0
    """Requests per second; 0 means no limit. The API server protects itself by priority and fairness."""
    burst: int = 500
    """Requests at once before `qps` applies."""
    event_qps: float = 50.0
    """Events per second; events wait while pods wait for their binding."""
    memory_overcommit: float = 1.0
    """How many times over the memory of a card may be allocated."""
    share_overcommit: float = 1.0
    """How many times over the cores of a card may be allocated."""
    volume_limit_s: float = 120.0
    """How long a pod waits for a volume to be provisioned for its node before the scheduler plans it again."""

    def check(self) -> None:
        """Refuse values that cannot work, naming the setting."""
        if not self.scheduler_names or not all(self.scheduler_names):
            raise UsageError("--scheduler-name is empty, expected at least one name such as volcano")
        for name in ("window_s", "qps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"--{_option(name)} is {getattr(self, name)}, expected zero or more")
        positive = (
            *(
                "period_s",
                "explain_s",
                "cycle_limit_s",
                "cycle_warning_s",
                "bind_limit_s",
                "request_limit_s",
                "retry_first_s",
                "retry_longest_s",
            ),
            *("evict_retry_s", "status_pause_s", "reason_pause_s", "volume_limit_s"),
            *("parallel_binds", "burst", "event_qps"),
        )
        for name in positive:
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"--{_option(name)} is {getattr(self, name)}, expected more than zero")
        if self.retry_longest_s < self.retry_first_s:
            raise UsageError(
                f"--retry-longest is {self.retry_longest_s}, expected at least --retry-first, {self.retry_first_s}"
            )
        for name in ("memory_overcommit", "share_overcommit"):
            if not 1 <= getattr(self, name) < math.inf:
                raise UsageError(f"--{_option(name)} is {getattr(self, name)}, expected 1 or more")


def _option(name: str) -> str:
    return name.removesuffix("_s").replace("_", "-")
