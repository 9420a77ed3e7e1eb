"""What a policy knows of a job's duration: nothing, the true value, or a prediction from history.

Predictions come from the engine's own history of durations, as in a live scheduler. The family of a trace's job
replaces the job's name, by which a live cluster recognises recurring jobs. A job without any similar predecessor is
predicted to run for an hour, and a prediction that a job has outlived is doubled until it lies ahead again.
"""

from enum import StrEnum

from baton.engine.history import DurationHistory
from baton.model.ids import GroupKey
from baton.sim.traces.workload import TraceJob

FIRST_GUESS_S = 3600.0


class Foresight(StrEnum):
    """What a policy knows of a job's duration when the job arrives."""

    NONE = "none"
    PERFECT = "perfect"
    PREDICTED = "predicted"


class TraceHistory:
    """The engine's history of durations, for jobs of a trace."""

    def __init__(self) -> None:
        self._history = DurationHistory()

    def observe(self, job: TraceJob, duration_s: float) -> None:
        """Record that a job has ended after running for this long."""
        self._history.finished(self._name(job), job.total_milli, duration_s)

    def predict(self, job: TraceJob) -> float:
        """How long the job is expected to run, from its start."""
        predicted_s = self._history.predict_s(self._name(job), job.total_milli)
        return FIRST_GUESS_S if predicted_s is None else predicted_s

    @staticmethod
    def _name(job: TraceJob) -> GroupKey:
        # The dot ends the name, so that the history does not mistake the number of a family for that of a run.
        return GroupKey(f"{job.tenant}/{job.family}." if job.family else f"{job.tenant}/{job.name}")


def corrected(guess_s: float, ran_s: float) -> float:
    """The prediction for a job that has already run for `ran_s`, doubled until it lies ahead."""
    while guess_s <= ran_s:
        guess_s = max(2 * guess_s, 1.0)
    return guess_s
