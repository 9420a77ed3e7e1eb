"""The order of jobs in a queue: first come, priority, shortest, least attained service, or tenant by tenant."""

from collections.abc import Iterator

import msgspec

from baton.engine.framework import Job, OrderKey, Plugin, SessionView

POLICIES = ("fcfs", "priority", "sjf", "las", "round-robin")
HOUR_S = 3600.0


class JobOrderArguments(msgspec.Struct, frozen=True):
    policy: str = msgspec.field(default="fcfs", name="job-order.policy")
    levels_gpu_s: list[float] = msgspec.field(default_factory=lambda: [HOUR_S, 5 * HOUR_S], name="job-order.las.levels")
    """las: card-seconds after which a job drops to the next level; inside a level first come, first served."""
    promote_s: float = msgspec.field(default=24 * HOUR_S, name="job-order.promote-after")
    """A job that has waited this long goes before all others; 0 disables this. It reserves no room for the job: a gang
    that never finds all its places at once also needs `easy-backfill`, before this plugin."""

    def problems(self) -> Iterator[str]:
        if self.policy not in POLICIES:
            yield f"job-order.policy is {self.policy!r}, expected one of {', '.join(POLICIES)}"


class JobOrderPlugin(Plugin[JobOrderArguments]):
    name = "job-order"
    arguments_type = JobOrderArguments
    keys_change = True

    def open(self, session: SessionView) -> None:
        self._now_s = session.now_s
        self._started: dict[str, int] = {}
        if self.arguments.policy == "round-robin":
            for job in session.state.jobs.values():
                if job.ready:
                    self._started[job.group.namespace] = self._started.get(job.group.namespace, 0) + 1
        self._baseline = {job.key: job.ready > 0 for job in session.state.active.values()}

    def job_key(self, job: Job) -> OrderKey:
        promoted = bool(self.arguments.promote_s) and self._now_s - job.created_s >= self.arguments.promote_s
        return (0 if promoted else 1, *(() if promoted else self._rank(job)), job.created_s)

    def _rank(self, job: Job) -> tuple[float, ...]:
        policy = self.arguments.policy
        if policy == "priority":
            return (-job.priority,)
        if policy == "sjf":
            expected_s = job.group.expected_duration_s
            return (expected_s if expected_s is not None else float("inf"),)
        if policy == "las":
            return (sum(job.group.attained_gpu_s >= level for level in self.arguments.levels_gpu_s),)
        if policy == "round-robin":
            return (self._tenant_jobs(job),)
        return ()

    def _tenant_jobs(self, job: Job) -> int:
        return self._started.get(job.group.namespace, 0)

    def job_started(self, job: Job) -> None:
        """Count the start once, when the first tasks of the job are placed."""
        if not self._baseline.get(job.key, False):
            self._baseline[job.key] = True
            namespace = job.group.namespace
            self._started[namespace] = self._started.get(namespace, 0) + 1
