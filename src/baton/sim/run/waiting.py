"""The waiting jobs of a run, and what the engine knows about jobs.

The policy sets a job's priority and expected duration. Jobs of one shape wait in line in that order, and the engine
sees the heads of the lines (see `lines`). The engine keeps a visible job until the job ends or is stopped.
"""

import math
from collections.abc import Hashable, Mapping, Set

import msgspec

from baton.engine import events
from baton.engine.engine import Engine
from baton.model.ids import GroupKey, PodKey
from baton.sim.run.agenda import Agenda, Kind
from baton.sim.run.jobs import Run
from baton.sim.run.lines import Place, WaitingLines
from baton.sim.run.prediction import Foresight, TraceHistory, corrected
from baton.sim.run.settings import Settings
from baton.sim.run.translation import engine_group, engine_pods
from baton.sim.scheduling_policies import Policy, level_of

QUEUE = "default"


class Waiting:
    """The waiting lines and the jobs in them."""

    def __init__(
        self, engine: Engine, policy: Policy, settings: Settings, runs: Mapping[GroupKey, Run], agenda: Agenda
    ) -> None:
        self._engine, self._policy, self._settings = engine, policy, settings
        self._runs = runs
        self._agenda = agenda
        self._lines = WaitingLines()
        self._history = TraceHistory()
        self.owner: dict[PodKey, GroupKey] = {}
        """The job of every pod that the engine knows."""

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, run: Run) -> bool:
        return run.key in self._lines

    @property
    def seen(self) -> Set[GroupKey]:
        """The waiting jobs that the engine sees."""
        return self._lines.seen

    def arrive(self, run: Run) -> None:
        if self._policy.foresight is Foresight.PREDICTED:
            run.guess_s = self._history.predict(run.job)
        self.join(run)

    def join(self, run: Run) -> None:
        """Put the job in line with others of its shape."""
        job, policy = run.job, self._policy
        apart: tuple[object, ...] = (job.queue, job.tenant) if policy.trace_queues else ()
        if policy.lines_by_duration:
            apart += (round(math.log(max(self._expected_s(run) or 1.0, 1.0), 4)),)
        shape = (job.gpus, job.shape, job.tasks, job.memory_mib, job.card_memory_mib, *apart)
        self._lines.join(run.key, shape, self._place(run))
        run.waits += 1
        if policy.patience_s:
            self._agenda.enter(self._agenda.now_s + policy.patience_s, Kind.PATIENCE, run.key, run.waits)

    def leave(self, run: Run) -> None:
        """Remove a job that has started."""
        self._lines.leave(run.key)

    def promote(self, run: Run) -> None:
        """Let a job that has waited long enough go first."""
        run.promoted = True
        self._lines.hasten(run.key, (0, run.job.submit_s, run.key))
        if self._policy.attained_levels and run.key in self._lines.seen:
            self.tell_priority(run)

    def tell_priority(self, run: Run) -> None:
        """Tell the engine about the job's new priority."""
        run.level = -self._priority(run)
        run.pods = tuple(msgspec.structs.replace(pod, priority=-run.level) for pod in run.pods)
        self._tell(run)

    def look(self, free_gpus: float) -> bool:
        """Show the engine the heads of the lines; true when new jobs become visible."""
        least = self._settings.visible_per_shape

        def most(shape: Hashable) -> int:
            gpus = shape[0] if isinstance(shape, tuple) else 0.0
            return max(least, int(free_gpus / gpus) + 1) if least and gpus else len(self._runs)

        new = False
        for key, seen in self._lines.look(most):
            if seen:
                self._submit(self._runs[key])
                new = True
            else:
                self.forget(self._runs[key])
        return new

    def ended(self, run: Run) -> None:
        self._history.observe(run.job, run.job.duration_s or run.ran_s)
        self.forget(run)

    def forget(self, run: Run) -> None:
        """Remove the job from the engine."""
        for pod in run.pods:
            del self.owner[pod.key]
        self._engine.apply([*(events.PodRemoved(pod.key) for pod in run.pods), events.GroupRemoved(run.key)])

    def _submit(self, run: Run) -> None:
        """Submit the job to the engine, for the first time or again."""
        run.attempt += 1
        run.pods = engine_pods(
            run.job,
            priority=self._priority(run),
            attempt=run.attempt,
            slots=self._settings.slots_per_card > 1,
            enforce_memory=self._settings.enforce_memory,
        )
        for pod in run.pods:
            self.owner[pod.key] = run.key
        run.level = -self._priority(run)
        self._tell(run)

    def _tell(self, run: Run) -> None:
        group = engine_group(
            run.job,
            run.job.queue if self._policy.trace_queues else QUEUE,
            priority=self._priority(run),
            expected_s=self._expected_s(run),
            attained_gpu_s=run.attained_gpu_s,
        )
        self._engine.apply([events.GroupChanged(group), *(events.PodChanged(pod) for pod in run.pods)])

    def _place(self, run: Run) -> Place:
        """The job's place among jobs of its shape."""
        expected_s = 0.0 if self._policy.lines_by_duration else self._expected_s(run) or 0.0
        return (1, -self._priority(run), expected_s, run.job.submit_s, run.key)

    def _expected_s(self, run: Run) -> float | None:
        """The remaining duration that the policy expects."""
        if self._policy.foresight is Foresight.PERFECT:
            return run.work_left_s + run.overhead_left_s
        if run.guess_s is None:
            return None
        return corrected(run.guess_s, run.ran_s) - run.ran_s

    def _priority(self, run: Run) -> int:
        if self._policy.attained_levels:
            return 1 if run.promoted else -level_of(run.attained_gpu_s)
        return run.job.priority if self._policy.trace_priorities else 0
