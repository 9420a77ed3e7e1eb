"""The cluster between cycles: events change it, a session decides on it, nothing ever copies it.

This is what events do to the books that `moves` keeps. A plan that was handed out is *assumed*: its pods count as
Binding until the cluster says otherwise, and an event that repeats what is assumed changes nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any

from baton.engine import events
from baton.engine.cards.choice import NOTHING
from baton.engine.objects import Budget, GroupPhase, Node, Pod, PodGroup, PodPhase, Queue, Quota
from baton.engine.state.columns import FUTURE
from baton.engine.state.hypernodes import Forest
from baton.engine.state.jobs import FINISHED, HELD, ON_NODE, READY, VALID, Job, QueueShare, Status, Task
from baton.engine.state.moves import Moves
from baton.engine.state.volumes import SoleClaims
from baton.model.ids import GroupKey, NodeName, PodKey, QueueName

ROOT_QUEUE = QueueName("root")
DEFAULT_QUEUE = QueueName("default")


class ClusterState(Moves):
    """Nodes, cards, tasks, jobs, queues, quotas and budgets, always current."""

    def __init__(self, *, memory_overcommit: float = 1.0, share_overcommit: float = 1.0) -> None:
        super().__init__(memory_overcommit=memory_overcommit, share_overcommit=share_overcommit)
        self.quotas: dict[tuple[str, str], Quota] = {}
        self.budgets: dict[tuple[str, str], Budget] = {}
        self.refusing: dict[tuple[str, str], float] = {}
        """Budgets that have refused an eviction, and until when nobody of theirs is asked to go."""
        self.adrift: dict[NodeName, dict[PodKey, None]] = {}
        """Who is bound to a node that is not known (yet), in the order of hearing of them."""
        self.forest = Forest(self.table)
        self.sole_claims = SoleClaims()
        self._unqueued: dict[QueueName, dict[GroupKey, Job]] = {}
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            events.NodeChanged: lambda event: self._node_changed(event.node),
            events.NodeRemoved: lambda event: self._node_removed(event.name),
            events.PodChanged: lambda event: self._pod_changed(event.pod),
            events.PodRemoved: lambda event: self._pod_removed(event.key),
            events.GroupChanged: lambda event: self._group_changed(event.group),
            events.GroupRemoved: lambda event: self._group_removed(event.key),
            events.QueueChanged: lambda event: self._queue_changed(event.queue),
            events.QueueRemoved: lambda event: self._queue_removed(event.name),
            events.QuotaChanged: lambda event: self._quota_changed(event.quota),
            events.QuotaRemoved: lambda event: self._forget(self.quotas, event),
            events.BudgetChanged: lambda event: self._budget_changed(event.budget),
            events.BudgetRemoved: self._budget_removed,
            events.NamespaceChanged: lambda event: self._namespace(event.namespace.name, dict(event.namespace.labels)),
            events.NamespaceRemoved: lambda event: self._namespace(event.name, None),
            events.HyperNodeChanged: lambda event: self.forest.put(event.hyper_node),
            events.HyperNodeRemoved: lambda event: self.forest.remove(event.name),
            events.BindFailed: lambda event: self._bind_failed(event.key),
            events.EvictFailed: lambda event: self._evict_failed(event.key, event.until_s),
        }

    def apply(self, happened: Iterable[events.Event]) -> None:
        """Take in what happened. Between sessions only."""
        for event in happened:
            self._handlers[type(event)](event)
        self.commit()

    def settle(self) -> None:
        super().settle()
        self.forest.settle()

    def _node_changed(self, node: Node) -> None:
        row = self.table.row_of.get(node.name)
        previous = self.table.nodes[row] if row is not None else None
        if previous == node:
            return
        if previous is not None and previous.labels != node.labels:
            self.forest.labels_changed()
        lifted: list[tuple[Task, Status]] = []
        if (
            row is not None
            and previous is not None
            and (previous.cards != node.cards or previous.labels != node.labels)
        ):
            self._remember_cards(row)
            for task in list(self.table.tasks[row].values()):
                lifted.append((task, task.status))
                self.ledger.release(task.key)
                self._shift(task, Status.GATED, -1)
        row = self.table.put(node)
        self.attachments.set_limits(row, node.volume_limits)
        for task, status in lifted:
            self._settle_on(task, status, row)
        for key in self.adrift.pop(node.name, ()):
            # What was heard of the pod last counts: meanwhile it may be done, or gone.
            afloat = self.tasks.get(key)
            if afloat is not None and afloat.pod.node == node.name:
                self._pod_changed(afloat.pod)

    def _remember_cards(self, row: int) -> None:
        """Tasks we placed ourselves learn their grants by id, because positions are about to change."""
        for task in self.table.tasks[row].values():
            holding = self.ledger.holders.get(task.key)
            if holding is not None and not task.pod.cards:
                task.pod = _with_cards(
                    task.pod, self.ledger.card_grants(self.table.node(row).cards, holding.assignment)
                )

    def _settle_on(self, task: Task, status: Status, row: int) -> None:
        """Put a task that already runs on the row, with its granted cards or, when none are known, with any."""
        assignment = NOTHING
        plan = task.needs.cards
        if task.pod.cards:
            assignment = self.ledger.assignment_of(row, task.pod.cards, plan)
        elif plan.demands:
            assignment = self.ledger.pick(row, plan, FUTURE) or NOTHING
        if assignment.charges:
            self.ledger.charge(task.key, row, assignment)
            if status is Status.RELEASING:
                self.ledger.leave(task.key)
        self._shift(task, status, row)

    def _node_removed(self, name: NodeName) -> None:
        row = self.table.row_of.get(name)
        if row is None:
            return
        for task in list(self.table.tasks[row].values()):
            self.ledger.release(task.key)
            self._shift(task, Status.GATED, -1)
            if task.pod.node == name:
                self.adrift.setdefault(name, {})[task.key] = None
            # Else we are binding it, and hear whether that went well.
        self.table.remove(row)

    def _pod_changed(self, pod: Pod) -> None:
        task = self.tasks.get(pod.key)
        if task is not None and pod.uid != task.pod.uid:
            self._pod_removed(pod.key)
            task = None
        if task is None:
            task = self._new_task(pod)
        elif task.pod == pod and task.status is not Status.GATED:
            return
        else:
            task = self._update_task(task, pod)
        status = pod_status(pod)
        if status in (Status.PENDING, Status.GATED):
            if task.status in (Status.BINDING, Status.ALLOCATED):
                return
            self.move(task, status)
        elif status in ON_NODE:
            assert pod.node is not None
            row = self.table.row_of.get(pod.node)
            if row is None:
                self.adrift.setdefault(pod.node, {})[pod.key] = None
                if task.row >= 0:
                    self.move(task, Status.GATED)
                return
            if task.row == row:
                if task.status is Status.RELEASING and status in HELD and not pod.deleting:
                    return
                if not self._has_other_cards(task):
                    self.move(task, status, row)
                    return
            if task.row >= 0:
                self.move(task, Status.GATED)
            self._settle_on(task, status, row)
        else:
            self.move(task, status)

    def _has_other_cards(self, task: Task) -> bool:
        """Whether the pod says that it has other cards than we think: those of a pod that came without were guessed."""
        plan = task.needs.cards
        if not task.pod.cards or len(task.pod.cards) < sum(demand.cards for demand in plan.demands):
            return False  # it does not say it of all, such as of whole cards that kubelet chooses
        told = self.ledger.assignment_of(task.row, task.pod.cards, plan)
        holding = self.ledger.holders.get(task.key)
        return sorted(told.charges) != sorted(holding.assignment.charges if holding is not None else ())

    def _new_task(self, pod: Pod) -> Task:
        needs = self.needs_of(pod.spec)
        job = self._job_for(pod) if pod.ours or pod.group else None
        task = Task(pod, needs, job)
        task.status = Status.GATED
        self.tasks[pod.key] = task
        self.placed.learn(pod.spec, pod.namespace)
        self.sole_claims.add(task)
        if job is not None:
            job.tasks[pod.key] = task
            job.counts[Status.GATED] += 1
        return task

    def _update_task(self, task: Task, pod: Pod) -> Task:
        """The task for the changed pod: the same one, or a new one when another spec or group makes it another task."""
        if task.pod.spec != pod.spec or task.pod.group != pod.group:
            return self._replaced(task, pod)
        relabelled = task.pod.labels != pod.labels
        if relabelled and task.row >= 0:
            self.placed.remove(task)
        known_cards = task.pod.cards
        task.pod = pod if pod.cards or not known_cards else _with_cards(pod, known_cards)
        task.priority = pod.priority
        task._signature = None
        task.label_class = None
        if relabelled and task.row >= 0:
            self.placed.add(task)
        return task

    def _replaced(self, task: Task, pod: Pod) -> Task:
        """Another task for the pod. That it is being bound or evicted only we know, so it keeps its place until the
        echo."""
        status, row, holding = task.status, task.row, self.ledger.holders.get(task.key)
        self._pod_removed(task.key)
        fresh = self._new_task(pod)
        if status in (Status.BINDING, Status.RELEASING):
            self.move(fresh, Status.BINDING, row, holding.assignment if holding is not None else NOTHING)
        if status is Status.RELEASING:
            self.move(fresh, status, row)
        return fresh

    def _pod_removed(self, key: PodKey) -> None:
        task = self.tasks.pop(key, None)
        if task is None:
            return
        if task.pod.node is not None:
            self.adrift.get(task.pod.node, {}).pop(key, None)
        self.sole_claims.remove(task)
        self.move(task, Status.SUCCEEDED if task.status in FINISHED else Status.GATED)
        job = task.job
        if job is None:
            return
        del job.tasks[key]
        job.counts[task.status] -= 1
        job.ready -= task.status in READY
        job.valid -= task.status in VALID
        if not job.tasks and job.implicit:
            self._drop_job(job)
        else:
            self.activate(job)

    def _job_for(self, pod: Pod) -> Job:
        key = pod.group if pod.group is not None else GroupKey(f"pod:{pod.key}")
        job = self.jobs.get(key)
        if job is None:
            group = PodGroup(
                key=key,
                queue=pod.queue or DEFAULT_QUEUE,
                priority=pod.priority,
                created_s=pod.created_s,
                phase=GroupPhase.INQUEUE,
            )
            job = self._add_job(group, implicit=True)
        return job

    def _add_job(self, group: PodGroup, *, implicit: bool) -> Job:
        job = self.jobs[group.key] = Job(group, self.resources, implicit=implicit)
        self._enlist(job, group.queue)
        return job

    def _enlist(self, job: Job, name: QueueName) -> None:
        """Into its queue, with its sums; a queue that is not known yet takes it when it comes."""
        queue = self.queues.get(name)
        job.queue = queue
        if queue is None:
            self._unqueued.setdefault(name, {})[job.key] = job
            return
        queue.jobs[job.key] = job
        for line in queue.lineage():
            line.allocated += job.allocated
            line.requested += job.requested

    def _delist(self, job: Job) -> None:
        self._unqueued.get(job.group.queue, {}).pop(job.key, None)
        if job.queue is not None:
            job.queue.jobs.pop(job.key, None)
            for line in job.queue.lineage():
                line.allocated -= job.allocated
                line.requested -= job.requested
            job.queue = None

    def _drop_job(self, job: Job) -> None:
        self._delist(job)
        self.jobs.pop(job.key, None)
        self.active.pop(job.key, None)

    def _group_changed(self, group: PodGroup) -> None:
        self.resources.learn(group.min_resources)
        job = self.jobs.get(group.key)
        if job is None:
            self.activate(self._add_job(group, implicit=False))
            return
        moved = job.group.queue != group.queue
        if moved:
            self._delist(job)
        if job.implicit or group.phase is not job.group.phase:
            job.phase = group.phase
        job.implicit = False
        job.group = group
        if moved:
            self._enlist(job, group.queue)
        self.activate(job)

    def _group_removed(self, key: GroupKey) -> None:
        job = self.jobs.get(key)
        if job is None:
            return
        if job.tasks:
            job.implicit = True
            self.activate(job)
        else:
            self._drop_job(job)

    def _queue_changed(self, queue: Queue) -> None:
        for amounts in (queue.capability, queue.guarantee, queue.deserved):
            self.resources.learn(amounts)
        share = self.queues.get(queue.name)
        if share is None:
            share = self.queues[queue.name] = QueueShare(queue, self.resources)
            self._relink()
            for job in self._unqueued.pop(queue.name, {}).values():
                self._enlist(job, queue.name)
            return
        moved = share.queue.parent != queue.parent
        share.queue = queue
        if moved:
            self._relink()

    def _queue_removed(self, name: QueueName) -> None:
        share = self.queues.get(name)
        if share is None:
            return
        for job in list(share.jobs.values()):
            self._delist(job)
            self._unqueued.setdefault(name, {})[job.key] = job
        del self.queues[name]
        self._relink()

    def _relink(self) -> None:
        """Parents, children and all sums, after the tree changed."""
        for share in self.queues.values():
            share.children = {}
            share.line = None
            share.allocated = self.resources.zeros()
            share.requested = self.resources.zeros()
        for share in self.queues.values():
            parent = share.queue.parent
            if parent is None and share.name != ROOT_QUEUE:
                parent = ROOT_QUEUE
            share.parent = self.queues.get(parent) if parent is not None and parent != share.name else None
        for share in self.queues.values():
            if share.parent is not None:
                share.parent.children[share.name] = share
        for share in self.queues.values():
            for job in share.jobs.values():
                for line in share.lineage():
                    line.allocated += job.allocated
                    line.requested += job.requested

    def _quota_changed(self, quota: Quota) -> None:
        self.quotas[quota.namespace, quota.name] = quota

    def _budget_changed(self, budget: Budget) -> None:
        self.budgets[budget.namespace, budget.name] = budget
        if budget.disruptions_allowed > 0:
            self.refusing.pop((budget.namespace, budget.name), None)

    def _budget_removed(self, event: events.BudgetRemoved) -> None:
        self._forget(self.budgets, event)
        self.refusing.pop((event.namespace, event.name), None)

    @staticmethod
    def _forget(kept: dict[tuple[str, str], Any], event: events.QuotaRemoved | events.BudgetRemoved) -> None:
        kept.pop((event.namespace, event.name), None)

    def _namespace(self, name: str, labels: dict[str, str] | None) -> None:
        if labels is None:
            self.placed.namespace_labels.pop(name, None)
        else:
            self.placed.namespace_labels[name] = labels
        self.placed.forget_namespaces()

    def _bind_failed(self, key: PodKey) -> None:
        task = self.tasks.get(key)
        if task is not None and task.pod.node is None and task.status in (Status.BINDING, Status.GATED):
            self.move(task, pod_status(task.pod))

    def _evict_failed(self, key: PodKey, until_s: float) -> None:
        task = self.tasks.get(key)
        if task is None or task.status is not Status.RELEASING or task.pod.deleting:
            return
        self.move(task, pod_status(task.pod), task.row)
        # A budget refuses for all that it covers. A pod of several is evicted by nobody, which says nothing of others.
        covering = self.covering(task.pod)
        if len(covering) == 1:
            self.refusing[covering[0]] = until_s
        else:
            task.stays_until_s = until_s

    def covering(self, pod: Pod) -> list[tuple[str, str]]:
        """The disruption budgets that the pod counts for."""
        return [key for key, budget in self.budgets.items() if covers(budget, pod)]


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


def _with_cards(pod: Pod, cards: tuple[Any, ...]) -> Pod:
    values = {name: getattr(pod, name) for name in pod.__struct_fields__}
    return Pod(**{**values, "cards": cards})
