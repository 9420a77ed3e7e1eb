"""The combined votes of the plugins on jobs, queues and victims, by Volcano's rules.

- order: keys in tier order, and the first difference decides; then creation time, then key;
- job_valid, may_start, job_ready, allocatable, preemptive: all must agree; overused: one is enough;
- job_enqueueable, job_pipelined: a rejection is final; after a tier with a permission, later tiers do not vote; without
  a rejection the result is yes;
- job_starving: the first tier with a plugin that implements the hook decides, and all of that tier must agree;
- preemptable, reclaimable: the victims that all plugins of a tier allow; if there are none, those of the next tier. A
  plugin may abstain.

`search.places` combines the results for nodes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from baton.engine.session import hooks
from baton.engine.session.hooks import Hook
from baton.engine.session.nominees import Nominees
from baton.engine.session.plugin import OrderKey, Vote
from baton.engine.session.rejections import Ends, Rejections
from baton.engine.session.tiers import AnyPlugin, Tiers
from baton.engine.state.changes import Change
from baton.engine.state.jobs import Job, QueueShare, Task

Victims = Sequence[Task] | None


class Votes:
    """Calls each hook on all plugins that implement it, and combines the results."""

    def __init__(self, tiers: Tiers, nominees: Nominees, rejections: Rejections) -> None:
        self._nominees = nominees
        self._rejections = rejections
        self._queue_key = tiers.calls(hooks.QUEUE_KEY)
        self._job_key = tiers.calls(hooks.JOB_KEY)
        self._task_key = tiers.calls(hooks.TASK_KEY)
        self._job_valid = tiers.calls(hooks.JOB_VALID)
        self._may_start = tiers.calls(hooks.MAY_START)
        self._job_ready = tiers.calls(hooks.JOB_READY)
        self._overused = tiers.calls(hooks.OVERUSED)
        self._allocatable = tiers.calls(hooks.ALLOCATABLE)
        self._preemptive = tiers.calls(hooks.PREEMPTIVE)
        self._job_pipelined = tiers.calls_by_tier(hooks.JOB_PIPELINED)
        self._job_enqueueable = _with_ends(tiers)
        self._job_starving = next(filter(None, tiers.calls_by_tier(hooks.JOB_STARVING)), None)
        self._preemptable = tiers.of(hooks.PREEMPTABLE)
        self._reclaimable = tiers.of(hooks.RECLAIMABLE)
        self._minds_blocked = [
            hooks.MINDS_BLOCKED.of(plugin) if hooks.MINDS_BLOCKED.taken_by(plugin) else _always
            for plugin in tiers.flat(hooks.JOB_BLOCKED)
        ]
        self.keys_change = any(plugin.keys_change for plugin in tiers.plugins)
        """Whether starting one job may change the keys of others."""

    def queue_key(self, queue: QueueShare) -> OrderKey:
        keys: list[Any] = [queue_key(queue) for queue_key in self._queue_key]
        return (*keys, queue.queue.created_s, queue.name)

    def job_key(self, job: Job) -> OrderKey:
        keys: list[Any] = [job_key(job) for job_key in self._job_key]
        return (*keys, job.group.created_s, job.group.uid, job.key)

    def task_key(self, task: Task) -> OrderKey:
        keys: list[Any] = [task_key(task) for task_key in self._task_key]
        if task.job is not None and task.job.group.parts:
            keys.append(task.job.part_of(task) or ())
        return (*keys, task.pod.index, task.pod.created_s, task.key)

    def job_valid(self, job: Job) -> str | None:
        """None, or the first reason of a plugin why the job is not valid."""
        for job_valid in self._job_valid:
            reason = job_valid(job)
            if reason is not None:
                return reason
        return None

    def may_start(self, job: Job) -> str | None:
        """None, or the first reason of a plugin why the job has to wait for another one."""
        for may_start in self._may_start:
            reason = may_start(job)
            if reason is not None:
                return reason
        return None

    def job_ready(self, job: Job) -> bool:
        return _all_agree(self._job_ready, job)

    def overused(self, queue: QueueShare) -> bool:
        return _one_agrees(self._overused, queue)

    def allocatable(self, queue: QueueShare, task: Task) -> bool:
        """Whether the queue may take the task, in addition to the nominated tasks."""
        if not self._nominees.held:
            return _all_agree(self._allocatable, queue, task)
        with self._nominees.charged():
            return _all_agree(self._allocatable, queue, task)

    def preemptive(self, queue: QueueShare, task: Task) -> bool:
        return _all_agree(self._preemptive, queue, task)

    def job_pipelined(self, job: Job) -> bool:
        for tier in self._job_pipelined:
            permitted = False
            for call in tier:
                vote = call(job)
                if vote is Vote.REJECT:
                    return False
                permitted = permitted or vote is Vote.PERMIT
            if permitted:
                return True
        return True

    def job_enqueueable(self, job: Job) -> bool:
        """By the same rule as `job_pipelined`; a job whose rejection stands is not asked about."""
        if self._rejections.stands(job):
            return False
        for tier in self._job_enqueueable:
            permitted = False
            for call, ends in tier:
                vote = call(job)
                if vote is Vote.REJECT:
                    self._rejections.note(job, ends)
                    return False
                permitted = permitted or vote is Vote.PERMIT
            if permitted:
                return True
        return True

    def job_starving(self, job: Job) -> bool:
        return self._job_starving is not None and _all_agree(self._job_starving, job)

    def preemptable(self, preemptor: Task, victims: Sequence[Task], *, besides: str = "") -> list[Task]:
        """The victims that may be evicted for a preemptor of their queue; `besides` names a plugin without a vote."""
        return _let_go(hooks.PREEMPTABLE, self._preemptable, preemptor, victims, besides)

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task], *, besides: str = "") -> list[Task]:
        """The victims that may be evicted for a reclaimer of another queue; `besides` names a plugin without a vote."""
        return _let_go(hooks.RECLAIMABLE, self._reclaimable, reclaimer, victims, besides)

    def minds_blocked(self, job: Job) -> bool:
        """Whether a plugin must be notified when this job is blocked."""
        return _one_agrees(self._minds_blocked, job)


def _with_ends(tiers: Tiers) -> list[list[tuple[Callable[[Job], Vote], Ends | None]]]:
    """The calls of each tier with the changes that can end a rejection by this call.

    It ends when the plugin changes its mind, or when an earlier tier permits the job.
    """
    result = []
    before: frozenset[Change] | None = frozenset()
    for tier in tiers.of(hooks.JOB_ENQUEUEABLE):
        calls: list[tuple[Callable[[Job], Vote], Ends | None]] = []
        for plugin in tier:
            own = plugin.rejections_end_with
            ends = None if own is None or before is None else tuple(sorted(own | before))
            calls.append((hooks.JOB_ENQUEUEABLE.of(plugin), ends))
        result.append(calls)
        for plugin in tier:
            own = plugin.rejections_end_with
            before = None if own is None or before is None else before | own
    return result


def _let_go(
    hook: Hook[..., Victims],
    tiers: Sequence[Sequence[AnyPlugin]],
    preemptor: Task,
    victims: Sequence[Task],
    besides: str,
) -> list[Task]:
    """The victims that may be evicted.

    A plugin votes on the victims that the earlier plugins of the tier allow. Some plugins name only as many victims as
    a gang or a queue can spare; if each voted on all victims, two plugins could name different ones and none would be
    left.
    """
    for tier in tiers:
        chosen, asked = list(victims), False
        for plugin in tier:
            candidates = hook.of(plugin)(preemptor, chosen) if chosen and plugin.name != besides else None
            if candidates is not None:
                keys = {task.key for task in candidates}
                chosen, asked = [task for task in chosen if task.key in keys], True
        if asked and chosen:
            return chosen
    return []


def _all_agree(calls: Sequence[Callable[..., bool]], *asked: object) -> bool:
    for call in calls:  # noqa: SIM110  # runs for every job, and a generator costs more than most calls
        if not call(*asked):
            return False
    return True


def _one_agrees(calls: Sequence[Callable[..., bool]], *asked: object) -> bool:
    for call in calls:  # noqa: SIM110  # runs for every queue, and a generator costs more than most calls
        if call(*asked):
            return True
    return False


def _always(_: Job) -> bool:
    return True
