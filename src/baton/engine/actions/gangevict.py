"""Preempt and reclaim for gangs: evict whole gangs when surplus pods are not enough.

With the gang plugin's vote, the plain actions never take a gang below its minimum, so a more important gang gets no
room in a cluster full of gangs; without that vote (`enablePreemptable: false`) they take any task and leave broken
gangs. These actions evict surplus pods first, whatever that flag says; if that is not enough, they evict whole gangs,
least important first, and then spare each gang whose room the job does not need. A gang goes as a whole or stays, so no
gang is left with members that cannot work. With `allowWholeBundle: false` in the action's arguments, only surplus pods
are evicted.
"""

from collections.abc import Sequence

from baton.engine.actions.preempt import between_jobs
from baton.engine.actions.reclaim import reclaim_for, reclaim_with
from baton.engine.search.domains import Rank
from baton.engine.search.evictions import (
    Allowed,
    Failures,
    evicting_tasks,
    keep_or_discard,
    place_starving,
    starving_jobs,
)
from baton.engine.session.session import Session
from baton.engine.session.statement import Statement
from baton.engine.session.surplus import surplus
from baton.engine.state.columns import Rows
from baton.engine.state.jobs import Job, QueueShare, Task

GANG = "gang"


def gangpreempt(session: Session) -> None:
    """Inside a queue, from jobs of lower priority."""
    failures = Failures(session)

    def spare(preemptor: Task, victims: Sequence[Task]) -> list[Task]:
        return surplus(session.votes.preemptable(preemptor, victims), last_ones=False)

    for job in session.turns.remaining(starving_jobs(session)):
        if failures.knows(job) or between_jobs(session, job, spare):
            continue
        assert job.queue is not None
        others = [other for other in job.queue.jobs.values() if other.priority < job.priority]
        if not _whole_gangs(session, job, others, "gangpreempt"):
            failures.add(job)


def gangreclaim(session: Session) -> None:
    """Across queues, from those that use more than they deserve."""

    def spare(reclaimer: Task, victims: Sequence[Task]) -> list[Task]:
        return surplus(session.votes.reclaimable(reclaimer, victims), last_ones=False)

    def reclaim_one(session: Session, job: Job, queue: QueueShare) -> bool:
        if reclaim_for(session, job, queue, spare):
            return True
        others = [
            other
            for theirs in session.state.queues.values()
            if theirs is not queue and theirs.queue.reclaimable
            for other in theirs.jobs.values()
        ]
        return _whole_gangs(session, job, others, "gangreclaim")

    reclaim_with(session, reclaim_one)


def _whole_gangs(session: Session, job: Job, others: Sequence[Job], action: str) -> bool:
    if str(session.tiers.action_arguments(action).get("allowWholeBundle", True)).lower() == "false":
        return False
    tasks = evicting_tasks(session, job)
    if not tasks:
        return False

    def allowed(preemptor: Task, victims: Sequence[Task]) -> list[Task]:
        """The victims that all plugins allow, except the gang plugin, whose minimum does not apply to whole gangs."""
        let_go = session.votes.preemptable if action == "gangpreempt" else session.votes.reclaimable
        return let_go(preemptor, victims, besides=GANG)

    session.nominees.make_way(job)
    statement = session.statement()
    bundles = _bundles(session, tasks[0], others, allowed)

    def attempt() -> Rank | None:
        mark = statement.checkpoint()
        within = session.places.domains.rows(tasks[0])
        gone = _enough(session, job, [bundle for bundle in bundles if _touches(bundle, within)], statement, action)
        if not session.votes.job_pipelined(job):
            return None
        for bundle in gone[:-1]:
            fewer = [other for other in gone if other is not bundle]
            statement.rollback(mark)
            if _without(session, job, fewer, statement, action):
                gone = fewer
            else:
                statement.rollback(mark)
                _without(session, job, gone, statement, action)
        return (1, sum(map(len, gone)))

    session.places.domains.attempt(job, statement, attempt, evicting=True)
    return keep_or_discard(session, job, statement)


def _touches(bundle: Sequence[Task], rows: Rows | None) -> bool:
    """Whether any task of the bundle is on a row that the job may use."""
    return rows is None or any(task.row in rows for task in bundle)


def _bundles(session: Session, preemptor: Task, others: Sequence[Job], allowed: Allowed) -> list[list[Task]]:
    """The placed members of each job that may be evicted as a whole, least important and youngest job first."""
    bundles = []
    for other in sorted(others, key=lambda other: (other.priority, -other.created_s, other.key)):
        placed = [task for task in other.tasks.values() if task.row >= 0]
        if not placed or not all(map(session.decisions.may_go, placed)):
            continue
        if len(allowed(preemptor, placed)) == len(placed):
            bundles.append(placed)
    return bundles


def _enough(
    session: Session, job: Job, bundles: Sequence[list[Task]], statement: Statement, action: str
) -> list[list[Task]]:
    """Evict bundles in order until the job has its places, or all of them if it never gets its places."""
    gone = []
    for bundle in bundles:
        _evict(statement, bundle, job, action)
        gone.append(bundle)
        mark = statement.checkpoint()
        if _place(session, job, statement, action):
            break
        statement.rollback(mark)
    return gone


def _without(session: Session, job: Job, bundles: Sequence[list[Task]], statement: Statement, action: str) -> bool:
    for bundle in bundles:
        _evict(statement, bundle, job, action)
    return _place(session, job, statement, action)


def _evict(statement: Statement, bundle: Sequence[Task], job: Job, action: str) -> None:
    preemptor = next(iter(job.pending.values()))
    for victim in bundle:
        statement.evict(victim, f"{action}: the whole gang makes room for {job.key}", preemptor)


def _place(session: Session, job: Job, statement: Statement, action: str) -> bool:
    queue = job.queue
    assert queue is not None

    def place(task: Task) -> bool:
        within = session.votes.allocatable(queue, task) and (
            action == "gangpreempt" or session.votes.preemptive(queue, task)
        )
        placement = session.places.find(task) if within else None
        if placement is not None:
            statement.place(task, placement)
        return placement is not None

    place_starving(session, job, statement, place)
    return session.votes.job_pipelined(job)
