"""The plan that results from a session: its decisions, its promises, and why jobs still wait.

Bindings and evictions stay assumed in the state after the session. Promises (of room that becomes free when evicted
pods are gone) last until the session closes.
"""

from typing import TYPE_CHECKING

from baton.engine.plan import Binding, Eviction, Nomination, PhaseChange
from baton.engine.session import hooks
from baton.engine.session.tiers import Tiers
from baton.engine.session.turns import Turns
from baton.engine.session.votes import Votes
from baton.engine.state.changes import Change
from baton.engine.state.cluster import ClusterState, covers
from baton.engine.state.jobs import Job, Status, Task
from baton.engine.verdicts import Cause
from baton.model.ids import GroupKey, PodKey, QueueName
from baton.model.names import PodGroupPhase

if TYPE_CHECKING:
    from baton.engine.session.statement import Statement

EVICTABLE = frozenset({Status.BOUND, Status.RUNNING})
"""Without tasks that this plan or an unconfirmed one has bound: a plan must not both start and stop a pod."""


class Decisions:
    """Bindings, evictions, nominations, phases and blocked jobs of one session."""

    def __init__(self, state: ClusterState, tiers: Tiers, votes: Votes, turns: Turns, now_s: float) -> None:
        self._state = state
        self._votes = votes
        self._now_s = now_s
        self._job_enqueued = tiers.calls(hooks.JOB_ENQUEUED)
        self._job_started = tiers.calls(hooks.JOB_STARTED)
        self._job_blocked = tiers.calls(hooks.JOB_BLOCKED)
        self.bindings: list[Binding] = []
        self.evictions: list[Eviction] = []
        self.nominations: list[Nomination] = []
        self.phases: dict[GroupKey, PhaseChange] = {}
        self.blocked, self.placeable = turns.found_before(state)
        """For explanations: why an action left a job waiting, as the cause and the stuck task; and how many tasks of a
        blocked job found a place before one did not."""
        self.touched: set[GroupKey] = set()
        """Jobs with a binding in this session."""
        self.evicting: dict[PodKey, Task] = {}
        """Victims of this session, committed or about to be."""
        self._promised: list[Task] = []
        self._unbound: list[Task] = []
        self._evictable: dict[QueueName, dict[int, list[Task]]] | None = None
        self._refusing = [state.budgets[key] for key, until_s in state.refusing.items() if until_s > now_s]

    def cause(self, job: Job) -> Cause | None:
        """Why the job still waits, if an action has found a cause."""
        return self.blocked.get(job.key, (None, None))[0]

    def admit(self, job: Job) -> None:
        """Admit the job: from now on its pods may be created and placed."""
        self.set_phase(job, PodGroupPhase.INQUEUE)
        for job_enqueued in self._job_enqueued:
            job_enqueued(job)

    def set_phase(self, job: Job, phase: PodGroupPhase) -> None:
        if job.phase is not phase:
            job.phase = phase
            if not job.implicit:
                self.phases[job.key] = PhaseChange(job.key, phase)
            self._state.activate(job)
            self._state.changes.count(Change.GROUPS)

    def started(self, job: Job) -> None:
        """Record that tasks of the job were placed and committed."""
        for job_started in self._job_started:
            job_started(job)

    def block(self, job: Job, cause: Cause, stuck: Task | None) -> None:
        """Record that the job was tried and could not be placed, and notify the plugins."""
        self.blocked[job.key] = (cause, stuck)
        for job_blocked in self._job_blocked:
            job_blocked(job, stuck)

    def accept(self, statement: "Statement") -> None:
        """Make the attempt part of the plan. A gang that still waits for evictions is not bound yet."""
        table, ledger = self._state.table, self._state.ledger
        for task, row, assignment in statement.allocated:
            if task.job is not None and statement.pipelined and not self._votes.job_ready(task.job):
                self.nominations.append(Nomination(task.key, table.name(row)))
                task.nominated = table.name(row)
                self._unbound.append(task)
                continue
            self._state.relabel(task, Status.BINDING)
            task.nominated = None
            if task.job is not None:
                self.touched.add(task.job.key)
            node = table.node(row)
            self.bindings.append(Binding(task.key, node.name, ledger.card_grants(node.cards, assignment)))
        for task, row in statement.pipelined:
            self.nominations.append(Nomination(task.key, table.name(row)))
            task.nominated = table.name(row)
            self._promised.append(task)
        for victim, reason, for_task in statement.evicted:
            self.evictions.append(
                Eviction(victim.key, table.name(victim.row), reason, for_task.key if for_task else None)
            )

    def keep_promises(self, statement: "Statement") -> None:
        """Bind nothing, but keep the attempt's placements and evictions reserved until the session closes."""
        self._promised.extend(task for task, _ in statement.pipelined)
        self._unbound.extend(task for task, _, _ in statement.allocated)

    def commitments(self) -> tuple[int, int, int, int]:
        """Changes with every decision. As long as it is the same, an attempt that failed would fail again."""
        return len(self.bindings), len(self.evictions), len(self._promised), len(self._unbound)

    def evictable(self) -> dict[QueueName, dict[int, list[Task]]]:
        """Tasks that could be evicted at the first call, by queue and row; none becomes evictable during a session."""
        if self._evictable is None:
            self._evictable = {}
            for row, tasks in enumerate(self._state.table.tasks):
                for task in tasks.values():
                    queue = task.job.queue if task.job is not None else None
                    if queue is not None and self.may_go(task):
                        self._evictable.setdefault(queue.name, {}).setdefault(row, []).append(task)
        return self._evictable

    def may_go(self, task: Task) -> bool:
        """Whether the task could be evicted, judged only by its own state and its budgets."""
        if task.status not in EVICTABLE or not (task.pod.ours and task.pod.preemptable):
            return False
        if task.stays_until_s > self._now_s:
            return False
        return not self._refusing or not any(covers(budget, task.pod) for budget in self._refusing)

    def disruptions_left(self) -> dict[tuple[str, str], int]:
        """The evictions that each disruption budget still allows after those of this session."""
        left = {key: budget.disruptions_allowed for key, budget in self._state.budgets.items()}
        for victim in self.evicting.values():
            for key in self._state.covering(victim.pod):
                left[key] -= 1
        return left

    def give_back(self) -> None:
        """Release all promises, when the session closes."""
        for task in [*self._promised, *self._unbound]:
            if task.status in (Status.PIPELINED, Status.ALLOCATED):
                self._state.move(task, Status.PENDING)
