"""Events become changes of the cluster state, in any order and any number of times.

A plan that the engine returned is *assumed*: its pods count as Binding until the cluster reports otherwise. An event
that confirms an assumption changes nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any

from baton.engine import events
from baton.engine.cards.choice import NOTHING
from baton.engine.objects import Budget, Node, Pod, PodGroup, Quota
from baton.engine.state.cluster import ClusterState, pod_status
from baton.engine.state.columns import FUTURE
from baton.engine.state.jobs import FINISHED, HELD, ON_NODE, READY, VALID, Job, Status, Task
from baton.engine.state.queues import QueueTree
from baton.model.ids import GroupKey, NodeName, PodKey
from baton.model.names import DEFAULT_QUEUE, PodGroupPhase


class Intake:
    """The only writer of the cluster state between sessions."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._tree = QueueTree(state)
        self._adrift: dict[NodeName, dict[PodKey, None]] = {}
        """Pods bound to a node that is not known (yet), in the order of their events."""
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            events.NodeChanged: lambda event: self._node_changed(event.node),
            events.NodeRemoved: lambda event: self._node_removed(event.name),
            events.PodChanged: lambda event: self._pod_changed(event.pod),
            events.PodRemoved: lambda event: self._pod_removed(event.key),
            events.GroupChanged: lambda event: self._group_changed(event.group),
            events.GroupRemoved: lambda event: self._group_removed(event.key),
            events.QueueChanged: lambda event: self._tree.put(event.queue),
            events.QueueRemoved: lambda event: self._tree.remove(event.name),
            events.QuotaChanged: lambda event: self._quota_changed(event.quota),
            events.QuotaRemoved: lambda event: self._forget(state.quotas, event),
            events.BudgetChanged: lambda event: self._budget_changed(event.budget),
            events.BudgetRemoved: self._budget_removed,
            events.NamespaceChanged: lambda event: self._namespace(event.namespace.name, dict(event.namespace.labels)),
            events.NamespaceRemoved: lambda event: self._namespace(event.name, None),
            events.HyperNodeChanged: lambda event: state.forest.put(event.hyper_node),
            events.HyperNodeRemoved: lambda event: state.forest.remove(event.name),
            events.BindFailed: lambda event: self._bind_failed(event.key),
            events.EvictFailed: lambda event: self._evict_failed(event.key, event.until_s),
        }

    def apply(self, happened: Iterable[events.Event]) -> None:
        """Apply the events. Only between sessions."""
        for event in happened:
            self._handlers[type(event)](event)
            self._state.changes.count_event(event)
        self._state.commit()

    def _node_changed(self, node: Node) -> None:
        row = self._state.table.row_of.get(node.name)
        previous = self._state.table.nodes[row] if row is not None else None
        if previous == node:
            return
        if previous is not None and previous.labels != node.labels:
            self._state.forest.labels_changed()
        lifted: list[tuple[Task, Status]] = []
        if (
            row is not None
            and previous is not None
            and (previous.cards != node.cards or previous.labels != node.labels)
        ):
            self._remember_cards(row)
            for task in list(self._state.table.tasks[row].values()):
                lifted.append((task, task.status))
                self._state.ledger.release(task.key)
                self._state.shift(task, Status.GATED, -1)
        row = self._state.table.put(node)
        self._state.attachments.set_limits(row, node.volume_limits)
        for task, status in lifted:
            self._settle_on(task, status, row)
        for key in self._adrift.pop(node.name, ()):
            # Use the latest report of the pod: it may have finished or gone in the meantime.
            afloat = self._state.tasks.get(key)
            if afloat is not None and afloat.pod.node == node.name:
                self._pod_changed(afloat.pod)

    def _remember_cards(self, row: int) -> None:
        """Record the cards of our own placements by card id, because positions are about to change."""
        for task in self._state.table.tasks[row].values():
            holding = self._state.ledger.holders.get(task.key)
            if holding is not None and not task.pod.cards:
                task.pod = _with_cards(
                    task.pod, self._state.ledger.card_grants(self._state.table.node(row).cards, holding.assignment)
                )

    def _settle_on(self, task: Task, status: Status, row: int) -> None:
        """Put a task that already runs onto the row, with its granted cards or, if they are unknown, any cards."""
        assignment = NOTHING
        plan = task.needs.cards
        if task.pod.cards:
            assignment = self._state.ledger.assignment_of(row, task.pod.cards, plan)
        elif plan.demands:
            assignment = self._state.ledger.pick(row, plan, FUTURE) or NOTHING
        if assignment.charges:
            self._state.ledger.charge(task.key, row, assignment)
            if status is Status.RELEASING:
                self._state.ledger.leave(task.key)
        self._state.shift(task, status, row)

    def _node_removed(self, name: NodeName) -> None:
        row = self._state.table.row_of.get(name)
        if row is None:
            return
        for task in list(self._state.table.tasks[row].values()):
            self._state.ledger.release(task.key)
            self._state.shift(task, Status.GATED, -1)
            if task.pod.node == name:
                self._adrift.setdefault(name, {})[task.key] = None
            # Otherwise its binding is in progress, and the result will be reported.
        self._state.table.remove(row)

    def _pod_changed(self, pod: Pod) -> None:
        task = self._state.tasks.get(pod.key)
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
            self._state.move(task, status)
        elif status in ON_NODE:
            assert pod.node is not None
            row = self._state.table.row_of.get(pod.node)
            if row is None:
                self._adrift.setdefault(pod.node, {})[pod.key] = None
                if task.row >= 0:
                    self._state.move(task, Status.GATED)
                return
            if task.row == row:
                if task.status is Status.RELEASING and status in HELD and not pod.deleting:
                    return
                if not self._has_other_cards(task):
                    self._state.move(task, status, row)
                    return
            if task.row >= 0:
                self._state.move(task, Status.GATED)
            self._settle_on(task, status, row)
        else:
            self._state.move(task, status)

    def _has_other_cards(self, task: Task) -> bool:
        """Whether the pod reports different cards than assumed. If it reported none before, ours were a guess."""
        plan = task.needs.cards
        if not task.pod.cards or len(task.pod.cards) < sum(demand.cards for demand in plan.demands):
            return False  # it does not report all of them, such as whole cards that kubelet chooses
        reported = self._state.ledger.assignment_of(task.row, task.pod.cards, plan)
        holding = self._state.ledger.holders.get(task.key)
        return sorted(reported.charges) != sorted(holding.assignment.charges if holding is not None else ())

    def _new_task(self, pod: Pod) -> Task:
        needs = self._state.needs_of(pod.spec)
        job = self._job_for(pod) if pod.ours or pod.group else None
        task = Task(pod, needs, job)
        task.status = Status.GATED
        self._state.tasks[pod.key] = task
        self._state.placed.learn(pod.spec, pod.namespace)
        self._state.sole_claims.add(task)
        if job is not None:
            job.tasks[pod.key] = task
            job.counts[Status.GATED] += 1
        return task

    def _update_task(self, task: Task, pod: Pod) -> Task:
        """The task for the changed pod: the same one, or a new one if the spec or the group changed."""
        if task.pod.spec != pod.spec or task.pod.group != pod.group:
            return self._replaced(task, pod)
        relabelled = task.pod.labels != pod.labels
        if relabelled and task.row >= 0:
            self._state.placed.remove(task)
        known_cards = task.pod.cards
        task.pod = pod if pod.cards or not known_cards else _with_cards(pod, known_cards)
        task.priority = pod.priority
        task._signature = None
        task.label_class = None
        if relabelled and task.row >= 0:
            self._state.placed.add(task)
        return task

    def _replaced(self, task: Task, pod: Pod) -> Task:
        """A new task for the pod. Only the engine knows that a binding or eviction is in progress, so the task keeps
        its place until the cluster confirms."""
        status, row, holding = task.status, task.row, self._state.ledger.holders.get(task.key)
        self._pod_removed(task.key)
        fresh = self._new_task(pod)
        if status in (Status.BINDING, Status.RELEASING):
            self._state.move(fresh, Status.BINDING, row, holding.assignment if holding is not None else NOTHING)
        if status is Status.RELEASING:
            self._state.move(fresh, status, row)
        return fresh

    def _pod_removed(self, key: PodKey) -> None:
        task = self._state.tasks.pop(key, None)
        if task is None:
            return
        if task.pod.node is not None:
            self._adrift.get(task.pod.node, {}).pop(key, None)
        self._state.sole_claims.remove(task)
        self._state.move(task, Status.SUCCEEDED if task.status in FINISHED else Status.GATED)
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
            self._state.activate(job)

    def _job_for(self, pod: Pod) -> Job:
        key = pod.group if pod.group is not None else GroupKey(f"pod:{pod.key}")
        job = self._state.jobs.get(key)
        if job is None:
            group = PodGroup(
                key=key,
                queue=pod.queue or DEFAULT_QUEUE,
                priority=pod.priority,
                created_s=pod.created_s,
                phase=PodGroupPhase.INQUEUE,
            )
            job = self._add_job(group, implicit=True)
        return job

    def _add_job(self, group: PodGroup, *, implicit: bool) -> Job:
        job = self._state.jobs[group.key] = Job(group, self._state.resources, implicit=implicit)
        self._tree.enlist(job, group.queue)
        return job

    def _drop_job(self, job: Job) -> None:
        self._tree.delist(job)
        self._state.jobs.pop(job.key, None)
        self._state.active.pop(job.key, None)

    def _group_changed(self, group: PodGroup) -> None:
        self._state.resources.learn(group.min_resources)
        job = self._state.jobs.get(group.key)
        if job is None:
            self._state.activate(self._add_job(group, implicit=False))
            return
        moved = job.group.queue != group.queue
        if moved:
            self._tree.delist(job)
        if job.implicit or group.phase is not job.group.phase:
            job.phase = group.phase
        job.implicit = False
        job.group = group
        if moved:
            self._tree.enlist(job, group.queue)
        self._state.activate(job)

    def _group_removed(self, key: GroupKey) -> None:
        job = self._state.jobs.get(key)
        if job is None:
            return
        if job.tasks:
            job.implicit = True
            self._state.activate(job)
        else:
            self._drop_job(job)

    def _quota_changed(self, quota: Quota) -> None:
        self._state.quotas[quota.namespace, quota.name] = quota

    def _budget_changed(self, budget: Budget) -> None:
        self._state.budgets[budget.namespace, budget.name] = budget
        if budget.disruptions_allowed > 0:
            self._state.refusing.pop((budget.namespace, budget.name), None)

    def _budget_removed(self, event: events.BudgetRemoved) -> None:
        self._forget(self._state.budgets, event)
        self._state.refusing.pop((event.namespace, event.name), None)

    @staticmethod
    def _forget(kept: dict[tuple[str, str], Any], event: events.QuotaRemoved | events.BudgetRemoved) -> None:
        kept.pop((event.namespace, event.name), None)

    def _namespace(self, name: str, labels: dict[str, str] | None) -> None:
        if labels is None:
            self._state.placed.namespace_labels.pop(name, None)
        else:
            self._state.placed.namespace_labels[name] = labels
        self._state.placed.forget_namespaces()

    def _bind_failed(self, key: PodKey) -> None:
        task = self._state.tasks.get(key)
        if task is not None and task.pod.node is None and task.status in (Status.BINDING, Status.GATED):
            self._state.move(task, pod_status(task.pod))

    def _evict_failed(self, key: PodKey, until_s: float) -> None:
        task = self._state.tasks.get(key)
        if task is None or task.status is not Status.RELEASING or task.pod.deleting:
            return
        self._state.move(task, pod_status(task.pod), task.row)
        # A single budget refuses for all pods that it covers. A pod with several budgets can never be evicted, which
        # reveals nothing about the other pods of these budgets.
        covering = self._state.covering(task.pod)
        if len(covering) == 1:
            self._state.refusing[covering[0]] = until_s
        else:
            task.stays_until_s = until_s


def _with_cards(pod: Pod, cards: tuple[Any, ...]) -> Pod:
    values = {name: getattr(pod, name) for name in pod.__struct_fields__}
    return Pod(**{**values, "cards": cards})
