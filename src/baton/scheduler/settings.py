"""The scheduler's settings, each with its unit, default and reason; `baton scheduler` has an option for each."""

import math

import msgspec

from baton.errors import UsageError
from baton.model.names import SCHEDULER_NAMES


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the scheduler works; *what* it decides is in the scheduler configuration."""

    scheduler_names: tuple[str, ...] = SCHEDULER_NAMES
    """Pods with one of these in `spec.schedulerName` are ours."""
    slot_resources: tuple[str, ...] = ("nvshare.com/gpu",)
    """Resources whose units are time-shared slots of cards."""
    window_s: float = 0.02
    """How long a cycle waits after an event for more of them. Pods come in crowds; a cycle for each would cost more."""
    period_s: float = 1.0
    """A cycle at least this often while anything waits: deadlines and hours of the day make no events."""
    explain_s: float = 1.0
    """Why jobs wait is worked out, and written, at most this often."""
    cycle_limit_s: float = 3.75
    """A cycle ends after this long, between two jobs, and the next one goes on with those that had no turn. Meanwhile
    what is decided is bound, events are taken in, and the lease is renewed."""
    cycle_warning_s: float = 5.0
    """A cycle that takes longer even so, because of a single large job, is logged and counted."""
    parallel_binds: int = 32
    """Bind requests on their way at once. More than about 30 only queue up in the API server."""
    bind_limit_s: float = 30.0
    """A bind that has not succeeded after this long is given up, read back, and planned anew."""
    request_limit_s: float = 15.0
    """Deadline of a single request."""
    retry_first_s: float = 0.2
    """Pause before the first repetition of a failed bind; it doubles."""
    retry_longest_s: float = 30.0
    """The longest such pause, and the longest time a pod that cannot be bound is left alone."""
    evict_retry_s: float = 5.0
    """An eviction that a disruption budget refuses is taken back after this long, and tried again no sooner than after
    this long again; the second pause doubles with each refusal."""
    status_pause_s: float = 1.0
    """Counts in the status of groups and queues are gathered this long before they are written; admissions are not."""
    reason_pause_s: float = 30.0
    """A pod's or group's message is not rewritten more often while the cause stays the same."""
    qps: float = 0.0
    """Requests per second; 0: no limit. The API server's own priority and fairness protects it."""
    burst: int = 500
    """Requests that may go out at once before `qps` counts."""
    event_qps: float = 50.0
    """Events per second; they wait while pods wait for their binding."""
    memory_overcommit: float = 1.0
    """How many times its memory a card may be promised."""
    share_overcommit: float = 1.0
    """How many times its cores a card may be promised."""
    volume_limit_s: float = 120.0
    """How long a pod waits on its node for a volume to be provisioned, before it is planned anew."""

    def check(self) -> None:
        """Refuse what cannot work, naming the setting."""
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
