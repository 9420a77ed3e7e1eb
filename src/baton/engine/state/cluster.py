"""The cluster state between cycles: events and sessions change it, and it is never copied.

Every change of a task is one journalled move from one (status, node, cards) to another, and all sums, counts and caches
follow. `rollback` to a `checkpoint` undoes an attempt of a session: it restores node sums, job and queue sums, affinity
counts, ports, volumes and cards.
"""

from baton.engine.cards.choice import NOTHING, Assignment
from baton.engine.cards.demands import Needs
from baton.engine.cards.ledger import CardLedger
from baton.engine.objects import Budget, Pod, PodSpec, Quota
from baton.engine.state.affinity import PlacedPods
from baton.engine.state.changes import Change, Changes
from baton.engine.state.columns import FUTURE
from baton.engine.state.hypernodes import Forest
from baton.engine.state.jobs import HELD, ON_NODE, Job, QueueShare, Status, Task
from baton.engine.state.nodes import NodeTable
from baton.engine.state.resources import ResourceNames
from baton.engine.state.volumes import Attachments, SoleClaims
from baton.model.ids import GroupKey, PodKey, QueueName
from baton.model.names import PodGroupPhase, PodPhase

Checkpoint = tuple[int, int]

FORGET_FROM = 4096
_PLANES = {status: slice(0, 2) for status in HELD} | {Status.RELEASING: slice(0, 1), Status.PIPELINED: slice(1, 2)}
"""By status: the planes of a node's usage on which a task counts."""
_IN_FLUX = (PodGroupPhase.PENDING, PodGroupPhase.INQUEUE, PodGroupPhase.UNKNOWN)


class ClusterState:
    """Nodes, cards, tasks, jobs, queues, quotas and budgets, always current."""

    def __init__(self, *, memory_overcommit: float = 1.0, share_overcommit: float = 1.0) -> None:
        self.resources = ResourceNames()
        self.ledger = CardLedger(memory_overcommit=memory_overcommit, share_overcommit=share_overcommit)
        self.table = NodeTable(self.resources, self.ledger)
        self.placed = PlacedPods(self.table)
        self.tasks: dict[PodKey, Task] = {}
        self.jobs: dict[GroupKey, Job] = {}
        self.active: dict[GroupKey, Job] = {}
        """The jobs that a session considers: those with a pending task, those that wait for admission or for their
        pods, and gangs that lost pods."""
        self.queues: dict[QueueName, QueueShare] = {}
        self.ports: dict[int, dict[tuple[str, str, int], int]] = {}
        self.attachments = Attachments(self.table)
        self.quotas: dict[tuple[str, str], Quota] = {}
        self.budgets: dict[tuple[str, str], Budget] = {}
        self.refusing: dict[tuple[str, str], float] = {}
        """Budgets that refused an eviction, and the time until which none of their pods is evicted."""
        self.forest = Forest(self.table)
        self.changes = Changes()
        self.sole_claims = SoleClaims()
        self._needs: dict[PodSpec, Needs] = {}
        self._specs_seen = 0
        self._forget_at = FORGET_FROM
        self._journal: list[tuple[Task, Status, int]] = []
        self.resources.on_widen(self._widen)

    def settle(self) -> None:
        """Called when a session opens: sort rows by name, and drop caches of pods that are gone."""
        self.forget_unused()
        if self.table.settle():
            for row, tasks in enumerate(self.table.tasks):
                for task in tasks.values():
                    task.row = row
            self.ports = {}
            self.attachments.clear()
            for row, tasks in enumerate(self.table.tasks):
                for task in tasks.values():
                    if task.needs.spec.host_ports:
                        self._count_ports(task, row, 1)
                    if task.needs.spec.attachments:
                        self._count_volumes(task, task.status, row, 1)
        self.forest.settle()

    def checkpoint(self) -> Checkpoint:
        return len(self._journal), self.ledger.checkpoint()

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Undo every move since the checkpoint."""
        position, ledger_position = checkpoint
        journal = self._journal
        undone = journal[position:]
        del journal[position:]
        self.ledger.rollback(ledger_position)
        for task, status, row in reversed(undone):
            self.shift(task, status, row)

    def is_undecided(self) -> bool:
        """Whether something moved that is not committed yet, so that `changes` does not count it."""
        return bool(self._journal)

    def commit(self) -> None:
        if self._journal:
            self.changes.count(Change.PODS)
        self._journal.clear()
        self.ledger.commit()

    def move(self, task: Task, status: Status, row: int = -1, assignment: Assignment = NOTHING) -> None:
        """Move the task to a status on a node (`row` -1: on none); without an assignment it keeps its cards."""
        if status in HELD and task.status in HELD and row == task.row:
            self.relabel(task, status)
            return
        self._journal.append((task, task.status, task.row))
        ledger = self.ledger
        if status in HELD:
            if assignment.charges or assignment.grants:
                ledger.charge(task.key, row, assignment)
            else:
                ledger.stay(task.key)
        elif status is Status.PIPELINED:
            if assignment.charges:
                ledger.promise(task.key, row, assignment)
        elif status is Status.RELEASING:
            ledger.leave(task.key)
        else:
            row = -1
            ledger.release(task.key)
        self.shift(task, status, row)

    def relabel(self, task: Task, status: Status) -> None:
        """Change between two statuses that hold room: nothing moves, so no cached value becomes stale."""
        job = task.job
        if job is not None:
            ready = job.ready
            job.recount(task.status, status)
            if job.ready != ready:
                self.activate(job)
        task.status = status

    def room_for(self, task: Task, row: int, plane: int = FUTURE) -> bool:
        """Whether the node's resources suffice; the ledger checks cards."""
        table = self.table
        request = task.needs.request
        return all(
            table.used[plane, place, row] + request[place] <= table.allocatable[place, row]
            for place in task.needs.places
        )

    def copies_with_room(self, task: Task, row: int, most: int) -> int:
        """How many copies of the task the node's free resources allow, up to `most`."""
        table, request = self.table, task.needs.request
        for place in task.needs.places:
            free = int(table.allocatable[place, row]) - int(table.used[FUTURE, place, row])
            most = min(most, free // int(request[place]))
        return max(most, 0)

    def needs_of(self, spec: PodSpec) -> Needs:
        needs = self._needs.get(spec)
        if needs is None:
            self._specs_seen += 1
            needs = self._needs[spec] = Needs(self._specs_seen, spec, self.resources)
        return needs

    def forget_unused(self) -> None:
        """Drop specs and affinity terms that no pod uses, once their number has doubled since the last call."""
        if len(self._needs) + len(self.placed) <= self._forget_at:
            return
        alive = {task.needs.spec: task.needs for task in self.tasks.values()}
        self._needs = alive
        self.placed.forget_all_but((task.needs.spec, task.pod.namespace) for task in self.tasks.values())
        self._forget_at = max(FORGET_FROM, 2 * (len(self._needs) + len(self.placed)))

    def activate(self, job: Job) -> None:
        """Update `active` after a change of the job. An admitted job is active before its pods exist, and a job that
        lost pods before their replacements exist: those pods will come, and their room is not for other jobs."""
        if job.pending or (not job.implicit and (job.phase in _IN_FLUX or self._lost_its_minimum(job))):
            self.active[job.key] = job
        else:
            self.active.pop(job.key, None)

    def covering(self, pod: Pod) -> list[tuple[str, str]]:
        """The disruption budgets that cover the pod."""
        return [key for key, budget in self.budgets.items() if covers(budget, pod)]

    @staticmethod
    def _lost_its_minimum(job: Job) -> bool:
        return job.phase is PodGroupPhase.RUNNING and not job.is_ready()

    def shift(self, task: Task, status: Status, row: int) -> None:
        """Adapt task, node, job, queue and affinity counts to the new status; the ledger has already moved."""
        table = self.table
        before, from_row = task.status, task.row
        request = task.needs.request
        if from_row < 0 and row < 0:
            task.status = status
            if task.job is not None and before is not status:
                self._recount(task.job, task, before, status)
            return
        leaves_row = from_row >= 0 and (row != from_row or before not in ON_NODE)
        restaged = self.placed.counts_nodes and row == from_row and Status.RELEASING in (before, status)
        if leaves_row or restaged:
            self.placed.remove(task)
        if leaves_row:
            if task.needs.spec.host_ports:
                self._count_ports(task, from_row, -1)
            table.tasks[from_row].pop(task.key, None)
        if from_row >= 0:
            if before in ON_NODE:
                usage = table.used[_PLANES[before], :, from_row]
                usage -= request
                if task.needs.spec.attachments:
                    self._count_volumes(task, before, from_row, -1)
                if before not in HELD:
                    table.unsettled[from_row] -= 1
            table.touch(from_row)
        task.status = status
        task.row = row
        if row >= 0:
            usage = table.used[_PLANES[status], :, row]
            usage += request
            if task.needs.spec.attachments:
                self._count_volumes(task, status, row, 1)
            if status not in HELD:
                table.unsettled[row] += 1
            if restaged:
                self.placed.add(task)
            if row != from_row:
                table.tasks[row][task.key] = task
                self.placed.add(task)
                if task.needs.spec.host_ports:
                    self._count_ports(task, row, 1)
                table.touch(row)
        job = task.job
        if job is not None and before is not status:
            self._recount(job, task, before, status)

    def _recount(self, job: Job, task: Task, before: Status, status: Status) -> None:
        effect = job.recount(before, status)
        if before is Status.PENDING:
            job.pending.pop(task.key, None)
            if task.needs.best_effort:
                job.best_effort_pending -= 1
        elif status is Status.PENDING:
            job.pending[task.key] = task
            if task.needs.best_effort:
                job.best_effort_pending += 1
        if before is Status.PENDING or status is Status.PENDING or effect.ready:
            self.activate(job)
        charge = task.needs.charge
        if effect.allocated:
            change = charge if effect.allocated > 0 else -charge
            job.allocated += change
            for queue in job.lineage():
                queue.allocated += change
        if effect.requested:
            change = charge if effect.requested > 0 else -charge
            job.requested += change
            for queue in job.lineage():
                queue.requested += change

    def _count_ports(self, task: Task, row: int, amount: int) -> None:
        ports = self.ports.setdefault(row, {})
        for port in task.needs.spec.host_ports:
            ports[port] = ports.get(port, 0) + amount
            if not ports[port]:
                del ports[port]

    def _count_volumes(self, task: Task, status: Status, row: int, amount: int) -> None:
        self.attachments.count(task.needs.spec.attachments, row, _PLANES[status], amount)

    def _widen(self, width: int) -> None:
        for needs in self._needs.values():
            needs.widen(width)
        for job in self.jobs.values():
            job.widen(width)
        for share in self.queues.values():
            share.widen(width)


def covers(budget: Budget, pod: Pod) -> bool:
    return budget.namespace == pod.namespace and budget.selector.matches(dict(pod.labels))


def pod_status(pod: Pod) -> Status:
    if pod.phase is PodPhase.SUCCEEDED:
        return Status.SUCCEEDED
    if pod.phase is PodPhase.FAILED:
        return Status.FAILED
    if pod.node is None:
        return Status.GATED if pod.gated or pod.deleting or not pod.ours else Status.PENDING
    if pod.deleting:
        return Status.RELEASING
    if pod.phase is PodPhase.UNKNOWN:
        return Status.UNKNOWN
    return Status.RUNNING if pod.phase is PodPhase.RUNNING else Status.BOUND
