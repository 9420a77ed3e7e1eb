"""A job of the trace during a run: its place, its progress and its speed."""

from dataclasses import dataclass, field

from baton.engine.objects import Pod
from baton.model.ids import CardId, GroupKey, NodeName
from baton.sim.traces.workload import TraceJob


@dataclass(slots=True, eq=False)
class Run:
    """A job and its progress. `attempt` counts submissions to the engine; `ends_stamp` counts changes of its end."""

    job: TraceJob
    key: GroupKey
    work_left_s: float
    overhead_left_s: float = 0.0
    settled_s: float = 0.0
    speed: float = 1.0
    ran_s: float = 0.0
    attempt: int = 0
    ends_stamp: int = 0
    level: int = 0
    waits: int = 0
    promoted: bool = False
    running: bool = False
    start_s: float | None = None
    end_s: float | None = None
    guess_s: float | None = None
    preemptions: int = 0
    failures: int = 0
    pods: tuple[Pod, ...] = ()
    cards: list[CardId] = field(default_factory=list)
    nodes: set[NodeName] = field(default_factory=set)

    @classmethod
    def of(cls, job: TraceJob) -> "Run":
        work_s = job.duration_s if job.duration_s is not None else float("inf")
        return cls(job, GroupKey(f"{job.tenant}/{job.name}"), work_s)

    @property
    def attained_gpu_s(self) -> float:
        return self.ran_s * self.job.gpus

    def settle(self, now_s: float) -> float:
        """Account for the job's progress since the last call; returns the time that it spent on a restart."""
        elapsed_s = now_s - self.settled_s
        self.settled_s = now_s
        if not self.running or elapsed_s <= 0:
            return 0.0
        self.ran_s += elapsed_s
        paid_s = min(elapsed_s, self.overhead_left_s)
        self.overhead_left_s -= paid_s
        self.work_left_s = max(0.0, self.work_left_s - (elapsed_s - paid_s) * self.speed)
        return paid_s
