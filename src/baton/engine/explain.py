"""Why a job waits, worked out on demand from the current state: cause, counts per predicate, nearest fit, remedy.

An explanation uses the same batched checks as placement, so it costs about as much as placing one pod from scratch,
whatever the number of nodes. Each node counts once, under the first predicate that rejected it.
"""

from typing import NamedTuple

import numpy as np

from baton.engine.cards.demands import Demand
from baton.engine.cards.ledger import CLAIMS
from baton.engine.objects import CardKind
from baton.engine.search.domains import DONE, Rank, Tried
from baton.engine.search.room import fitting_cards
from baton.engine.search.signatures import Key
from baton.engine.session import hooks
from baton.engine.session.plugin import Lack, Vote
from baton.engine.session.session import Session
from baton.engine.session.statement import Statement
from baton.engine.state.columns import FUTURE, Array, Bools
from baton.engine.state.jobs import Job, QueueShare, Task
from baton.engine.state.nodes import NodeView
from baton.engine.state.resources import CPU, MEMORY, Vector
from baton.engine.verdicts import Cause, NearestFit, NodeReason, Verdict
from baton.model.names import PodGroupPhase, QueueState

NEAREST_SHOWN = 2

_DETAILS = {
    Cause.NO_QUEUE: "there is no queue {queue}",
    Cause.QUEUE_CLOSED: "queue {queue} is closed",
    Cause.QUEUE_OVERUSED: "queue {queue} already uses everything that it deserves",
    Cause.NOT_ADMITTED: "the job is not admitted: its minimum does not fit into its queue, quota or cluster now",
    Cause.GATED: "its pods have scheduling gates",
    Cause.HELD_BACK: "a job ahead of it in the queue has to start first",
    Cause.PIPELINED: "a place is reserved for it, which becomes free when the evicted pods are gone",
    Cause.NEXT: "there is room for it now, and the next cycle places it unless a job that goes first takes the room",
}
_NO_PLACE = (Cause.NODES, Cause.GANG)
"""Most jobs of a backlog wait for one of these. Looking up members of an enum is slow before Python 3.12."""
_ABOUT_NODES = (*_NO_PLACE, Cause.PIPELINED)
_NEXT_TO_BE_ADMITTED = (
    "there is room for it now, and the next cycle admits it unless a job that goes first takes the room; its pods are"
    " created after that"
)
_REMEDIES = {
    Cause.NO_QUEUE: ("create queue {queue}, or name an existing one",),
    Cause.QUEUE_CLOSED: ("open queue {queue}, or use another one",),
    Cause.QUEUE_OVERUSED: ("wait for jobs of queue {queue} to end, or raise its weight or deserved amount",),
    Cause.QUEUE_SHARE: ("wait for jobs of queue {queue} to end, or raise its capability or deserved amount",),
    Cause.NOT_ADMITTED: ("lower the job's minimum", "wait until running jobs end"),
    Cause.GATED: ("remove the scheduling gates, or wait for the controller that set them",),
    Cause.NOT_VALID: ("create the missing pods, or lower minAvailable",),
}


class _Nodes(NamedTuple):
    reasons: tuple[NodeReason, ...]
    nearest: tuple[NearestFit, ...]
    would_help: tuple[str, ...]
    feasible: int


def first_refused(session: Session, attempt: Statement, job: Job) -> tuple[Cause, Task] | None:
    """Place the job's tasks until it can start; return the first task without a place and why, or None."""
    refused: tuple[Cause, Task] | None = None
    queue = job.queue
    assert queue is not None

    def place(task: Task) -> bool:
        nonlocal refused
        within = session.votes.allocatable(queue, task)
        placement = session.places.find(task) if within else None
        if placement is None or placement.later:
            refused = refused or (Cause.NODES if within else Cause.QUEUE_SHARE, task)
            return False
        attempt.place(task, placement)
        return True

    def everything() -> Rank | None:
        nonlocal refused
        refused = None
        waiting = sorted(job.pending.values(), key=session.votes.task_key, reverse=True)
        started = session.places.domains.fill(
            job, waiting, attempt, place, lambda _tasks: session.votes.job_ready(job), all_or_nothing=True
        )
        return DONE if started or refused is None else None

    if session.places.domains.attempt(job, attempt, everything) is not None:
        return None
    return refused or (Cause.NODES, min(job.pending.values(), key=session.votes.task_key))


class Explainer:
    """Verdicts of one session; equal tasks are examined once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[Key, _Nodes] = {}

    def explain(self, job: Job, cause: Cause | None = None, stuck: Task | None = None) -> Verdict:
        """The verdict on a job that an action left with a cause, or on any waiting job."""
        session = self._session
        if cause is None:
            cause = self.cause(job)
        held = _held(job, stuck) if cause is Cause.GATED else None
        if held is not None and held.pod.held is not None:
            hold = held.pod.held
            return self._verdict(job, hold.cause, held, hold.detail, hold.would_help)
        task = stuck or min(job.pending.values(), key=session.votes.task_key, default=None)
        if task is None and job.implicit:
            task = next(iter(job.tasks.values()), None)
        nodes = self._nodes(task) if task is not None and cause in _ABOUT_NODES else None
        lacks = self._lacks(job, cause)
        if cause is Cause.NODES and job.min_member > 1:
            cause = Cause.GANG
        return self._verdict(
            job,
            cause,
            task,
            _too_little(cause, lacks) if lacks else self._detail(job, cause, task, nodes),
            _make_room(cause, lacks) if lacks else self._remedies(job, cause, nodes),
            nodes,
        )

    def _verdict(
        self,
        job: Job,
        cause: Cause,
        task: Task | None,
        detail: str,
        would_help: tuple[str, ...],
        nodes: _Nodes | None = None,
    ) -> Verdict:
        return Verdict(
            group=job.key,
            cause=cause,
            pod=task.key if task is not None else None,
            queue=job.group.queue if cause is not Cause.NO_GROUP else None,  # the PodGroup would name it
            min_member=job.min_member,
            ready=job.ready_count(),
            placeable=self._session.decisions.placeable.get(job.key, 0),
            nodes=self._session.state.table.count,
            detail=detail,
            reasons=nodes.reasons if nodes else (),
            nearest=nodes.nearest if nodes else (),
            would_help=would_help,
        )

    def _lacks(self, job: Job, cause: Cause) -> list[Lack]:
        """The resources that are short according to the first plugin that keeps out the job or its pods."""
        tiers, queue = self._session.tiers, job.queue
        if cause is Cause.NOT_ADMITTED:
            for plugin in tiers.flat(hooks.JOB_ENQUEUEABLE):
                if plugin.job_enqueueable(job) is Vote.REJECT:
                    return list(plugin.lacks(job))
        elif cause is Cause.QUEUE_SHARE and queue is not None:
            charge = self._to_start(job)
            found = (list(plugin.share_lacks(queue, charge)) for plugin in tiers.flat(hooks.ALLOCATABLE))
            return next(filter(None, found), [])
        return []

    def _to_start(self, job: Job) -> Vector:
        """The charge of the first tasks: as many as the job still needs to start, at least one."""
        tasks = sorted(job.asking(), key=self._session.votes.task_key)
        missing = max(job.min_member - job.ready_count(), 1)
        return sum((task.needs.charge for task in tasks[:missing]), self._session.state.resources.zeros())

    def cause(self, job: Job) -> Cause:
        """The first gate that the job does not pass, when no action has recorded one."""
        session = self._session
        if job.queue is None:
            return Cause.NO_QUEUE
        if job.phase is PodGroupPhase.PENDING:
            if job.queue.queue.state is not QueueState.OPEN:
                return Cause.QUEUE_CLOSED
            if self._is_refused(job):
                return Cause.NOT_ADMITTED
            if not job.pending and not any(job.gated()):
                return Cause.NEXT
        if not job.pending and any(job.gated()):
            return Cause.GATED
        if session.votes.job_valid(job) is not None:
            return Cause.NOT_VALID
        if session.votes.overused(job.queue):
            return Cause.QUEUE_OVERUSED
        if job.queue.strict and self._is_behind(job, job.queue):
            return Cause.HELD_BACK
        task = min(job.pending.values(), key=session.votes.task_key, default=None)
        if task is not None and not session.votes.allocatable(job.queue, task):
            return Cause.QUEUE_SHARE
        return Cause.NODES

    def _is_refused(self, job: Job) -> bool:
        """Whether the action `enqueue` would refuse the job: its phase may be from before the first cycle."""
        session = self._session
        if "enqueue" not in session.tiers.configuration.actions or job.group.min_resources is None:
            return False
        return not session.votes.job_enqueueable(job)

    def _is_behind(self, job: Job, queue: QueueShare) -> bool:
        """Whether a job that goes first in the queue has not started yet."""
        session = self._session
        key = session.votes.job_key(job)
        return any(
            other.pending
            and other.phase is not PodGroupPhase.PENDING
            and not other.is_ready()
            and session.votes.job_valid(other) is None
            and session.votes.job_key(other) < key
            for other in queue.jobs.values()
        )

    def _detail(self, job: Job, cause: Cause, task: Task | None, nodes: _Nodes | None) -> str:
        if cause in _NO_PLACE:
            return self._no_place(job, task, nodes)
        queue = job.group.queue
        if cause is Cause.QUEUE_SHARE:
            return f"one more pod would take queue {queue} above its share or limit ({self._usage(job)})"
        if cause is Cause.NOT_VALID:
            return self._session.votes.job_valid(job) or "the job is not complete"
        if cause is Cause.NEXT and job.phase is PodGroupPhase.PENDING and not job.pending:
            return _NEXT_TO_BE_ADMITTED
        if cause is Cause.GATED and task is not None:
            return "it has scheduling gates"
        if cause in _DETAILS:
            return _DETAILS[cause].format(queue=queue)
        return self._no_place(job, task, nodes)

    def _no_place(self, job: Job, task: Task | None, nodes: _Nodes | None) -> str:
        tried = self._session.places.domains.tried.get(job.key)
        if tried is not None:
            return _network(tried, job)
        if nodes is not None and nodes.feasible:
            plural = "" if nodes.feasible == 1 else "s"
            return f"{nodes.feasible} node{plural} could take one more pod, but not as many as the gang needs"
        if not self._session.state.table.count:
            return "the cluster has no nodes"
        return f"no node can take {task.key if task else 'it'}"

    def _usage(self, job: Job) -> str:
        if job.queue is None:
            return ""
        names = self._session.state.resources.names
        parts = sorted(
            f"{names[place]} {_amount(int(place), int(job.queue.allocated[place]))} in use"
            for place in np.flatnonzero(job.queue.allocated)
            if names[place] != "pods"
        )
        return ", ".join(parts[:4]) or "nothing in use"

    def _nodes(self, task: Task) -> _Nodes:
        session = self._session
        # Differences between equal jobs (pods elsewhere) only matter where some node would take the task at all.
        apart = task.job is not None and session.tiers.calls(hooks.SEES_WORLD) and not session.places.is_hopeless(task)
        apart = apart or (task.job is not None and task.job.group.close)
        key = (*session.places.signature_key(task), task.job.key if apart and task.job is not None else None)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._look(task)
        return known

    def _look(self, task: Task) -> _Nodes:
        view = self._session.state.table.view()
        left = view.column(view.table.present).copy()
        soft = left.copy()
        counts: dict[str, list[int]] = {}
        for check in self._session.places.checks(task, view):
            turned_down = int(np.count_nonzero(left & ~check.ok))
            if turned_down:
                entry = counts.setdefault(check.reason, [0, int(check.resolvable)])
                entry[0] += turned_down
            left &= check.ok
            if not check.resolvable:
                soft &= check.ok
        reasons = sorted(
            (NodeReason(reason, number, bool(helped)) for reason, (number, helped) in counts.items()),
            key=lambda item: (-item.nodes, item.reason),
        )
        return _Nodes(tuple(reasons), self._nearest(task, view, soft), self._help(task, view, soft), int(left.sum()))

    def _nearest(self, task: Task, view: NodeView, soft: Bools) -> tuple[NearestFit, ...]:
        """Of the nodes that only lack room, the ones that lack least."""
        rows = np.flatnonzero(soft)
        if not len(rows):
            return ()
        lack = np.zeros(len(rows))
        request = task.needs.request
        for place in task.needs.places:
            short = view.used(place)[rows] + request[place] - view.allocatable(place)[rows]
            lack += np.maximum(short, 0) / max(int(request[place]), 1)
        for demand in task.needs.cards.demands:
            free = self._fitting_cards(task, demand, view)[rows]
            lack += np.maximum(demand.cards - free, 0) / demand.cards
        best = np.argsort(lack, kind="stable")[:NEAREST_SHOWN]
        fits = []
        for at in best:
            row = int(rows[at])
            missing = self._missing(task, view, row)
            if missing:
                fits.append(NearestFit(view.table.name(row), missing))
        return tuple(fits)

    def _fitting_cards(self, task: Task, demand: Demand, view: NodeView) -> Array:
        result: Array = fitting_cards(task, demand, view).sum(axis=0)
        return result

    def _missing(self, task: Task, view: NodeView, row: int) -> tuple[str, ...]:
        table, request = view.table, task.needs.request
        missing = []
        for place in task.needs.places:
            short = int(table.used[FUTURE, place, row] + request[place] - table.allocatable[place, row])
            if short > 0:
                missing.append(f"{_amount(place, short)} of {table.resources.names[place]} missing")
        one = table.view(np.array([row], dtype=np.intp))
        for demand in task.needs.cards.demands:
            free = int(self._fitting_cards(task, demand, one)[0])
            if free < demand.cards:
                missing.append(f"only {free} of {demand.cards} cards have room for {describe(demand)}")
        return tuple(missing)

    def _help(self, task: Task, view: NodeView, soft: Bools) -> tuple[str, ...]:
        """Remedies that concern the nodes."""
        helps = []
        rows = np.flatnonzero(soft)
        for demand in task.needs.cards.demands:
            if not len(rows):
                break
            free = self._fitting_cards(task, demand, view)[rows]
            most, total = int(free.max()), int(free.sum())
            if most < demand.cards <= total:
                helps.append(
                    f"{total} such cards are free, but at most {most} on one node: ask for {most} per pod or free"
                    f" {demand.cards - most} more on the nearest node"
                    if most
                    else f"{total} such cards are free, but none on one node"
                )
            elif total < demand.cards:
                claims = view.card_usage()[CLAIMS][:, rows]
                shared = int(((claims > 0) & (view.column(view.ledger.kinds)[:, rows] != 0)).sum())
                helps.append(
                    f"{demand.cards - total} more cards with room for {describe(demand)}"
                    + (f"; {shared} cards on suitable nodes are in use" if shared else "")
                )
        lower = self._lower_priority(task, rows.tolist())
        if lower:
            helps.append(f"{lower} running pods of lower priority on suitable nodes could be preempted")
        if not len(rows) and view.table.count:
            helps.append("a node that passes the predicates above, or a pod with other constraints")
        return tuple(helps)

    def _lower_priority(self, task: Task, rows: list[int]) -> int:
        tasks = self._session.state.table.tasks
        return sum(
            other.priority < task.priority and other.pod.preemptable and other.pod.ours
            for row in rows
            for other in tasks[row].values()
        )

    def _remedies(self, job: Job, cause: Cause, nodes: _Nodes | None) -> tuple[str, ...]:
        if nodes is not None and cause in (Cause.NODES, Cause.GANG):
            return nodes.would_help
        return tuple(text.format(queue=job.group.queue) for text in _REMEDIES.get(cause, ()))


def _held(job: Job, asked: Task | None) -> Task | None:
    """The pod that an adapter holds back: the one that was asked about, or the first of the job."""
    candidates = (asked,) if asked is not None else job.gated()
    return min((task for task in candidates if task.pod.held is not None), key=lambda task: task.key, default=None)


def _too_little(cause: Cause, lacks: list[Lack]) -> str:
    asks = "to start it needs" if cause is Cause.QUEUE_SHARE else "its minimum is"
    words = [
        f"{asks} {_in_words(lack, lack.wanted)} of {lack.resource}, and {lack.where} has"
        f" {_in_words(lack, lack.left)} of {_in_words(lack, lack.most)} left"
        + (", which is all there is in the cluster" if lack.everything else "")
        for lack in lacks[:NEAREST_SHOWN]
    ]
    return ("" if cause is Cause.QUEUE_SHARE else "the job is not admitted: ") + "; ".join(words)


def _make_room(cause: Cause, lacks: list[Lack]) -> tuple[str, ...]:
    """Remedies; waiting is one only where the resource would suffice without the other jobs."""
    too_small = [lack for lack in lacks if lack.wanted > lack.most]
    first = (too_small or lacks)[0]
    place = "the cluster" if first.everything else first.where.partition(",")[0]
    if cause is Cause.QUEUE_SHARE and not first.everything:
        wait = () if too_small else (f"wait for jobs of {place} to end",)
        return (*wait, f"raise the weight, capability or deserved amount of {place}")
    return (
        "lower the job's minimum",
        f"more {first.resource} for {place}" if too_small else "wait until running jobs end",
    )


def _in_words(lack: Lack, amount: int) -> str:
    return _amount({"cpu": CPU, "memory": MEMORY}.get(lack.resource, -1), amount)


def _network(tried: Tried, job: Job) -> str:
    """The outcome of the search through the hyper nodes, in words."""
    closeness = job.group.closeness
    assert closeness is not None
    if tried.highest == -1:
        return f"no hyper node has a tier named {closeness.highest_tier_name}"
    reach = "any tier" if tried.highest is None else f"tier {tried.highest} or lower"
    if tried.astray:
        return f"its running pods are not all in one hyper node of {reach}"
    if not tried.domains:
        return f"the cluster has no hyper node of {reach} with nodes"
    plural = "pod" if tried.needed == 1 else "pods"
    return (
        f"none of {tried.domains} hyper nodes of {reach} has room for {tried.needed} more {plural} at once;"
        f" the nearest, {tried.nearest}, has room for {min(tried.room, tried.needed)}"
    )


def describe(demand: Demand) -> str:
    """A demand in words."""
    if demand.kind is CardKind.WHOLE:
        return "a whole card"
    if demand.kind is CardKind.SLOT:
        return "a time-shared slot"
    parts = []
    if demand.memory_percent:
        parts.append(f"{demand.memory_percent} % of the memory")
    elif demand.memory_mib:
        parts.append(f"{demand.memory_mib} MiB")
    if demand.share_milli:
        parts.append(f"{demand.share_milli / 10:g} % of the cores")
    return " and ".join(parts) or "a share"


def _amount(place: int, amount: int) -> str:
    if place == CPU:
        return f"{amount}m"
    if place == MEMORY:
        return f"{amount / (1 << 20):.0f} MiB"
    return str(amount)
