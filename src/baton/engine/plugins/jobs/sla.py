"""A job that has waited long enough is admitted and may keep its promised room; earlier deadlines come first."""

import msgspec

from baton.engine.framework import Job, OrderKey, Plugin, QueueShare, SessionView, Vector, Vote
from baton.model.durations import parse_duration_s


class SlaArguments(msgspec.Struct, frozen=True):
    waiting: str = msgspec.field(default="", name="sla-waiting-time")
    """Such as 30m or 1h30m; empty: only jobs with their own annotation have a deadline."""

    def problems(self) -> list[str]:
        if self.waiting and parse_duration_s(self.waiting) is None:
            return [f"sla-waiting-time is {self.waiting!r}, expected a duration such as 90s, 30m or 1h30m"]
        return []


class SlaPlugin(Plugin[SlaArguments]):
    name = "sla"
    arguments_type = SlaArguments

    def open(self, session: SessionView) -> None:
        self._now_s = session.now_s
        self._unlimited = session.state.resources.limits(())
        self._default_s = parse_duration_s(self.arguments.waiting) if self.arguments.waiting else None

    def _deadline_s(self, job: Job) -> float:
        waiting_s = job.group.sla_waiting_s if job.group.sla_waiting_s is not None else self._default_s
        return float("inf") if waiting_s is None else job.created_s + waiting_s

    def job_key(self, job: Job) -> OrderKey:
        return (self._deadline_s(job),)

    def job_enqueueable(self, job: Job) -> Vote:
        return Vote.PERMIT if self._now_s >= self._deadline_s(job) else Vote.ABSTAIN

    def credit(self, queue: QueueShare, queues: int) -> Vector:
        return self._unlimited  # a deadline only ever admits more

    def job_pipelined(self, job: Job) -> Vote:
        return Vote.PERMIT if self._now_s >= self._deadline_s(job) else Vote.ABSTAIN
