"""One cycle of decisions: the plugins of the tiers, combined by Volcano's rules, over the live state.

Combination rules:

- order: keys in tier order, the first difference decides; then creation time, then key;
- filters, job_valid, job_ready, allocatable, preemptive: all must agree; overused: one is enough;
- job_enqueueable, job_pipelined: a rejection ends it at once; after a tier with a permission later tiers are not asked;
  nobody against is acceptance;
- job_starving: the first tier that has an opinion decides, all of it must agree;
- preemptable, reclaimable: those that all plugins of a tier let go; if nobody, the next tier; abstaining is skipped;
- scores add up; equal scores go to the first node name.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from baton.engine.cards.choice import NOTHING, Assignment
from baton.engine.objects import GroupPhase, LabelSelector
from baton.engine.plan import Binding, Eviction, Nomination, PhaseChange
from baton.engine.search.domains import Domains, DomainView, tightness
from baton.engine.search.room import allowed_positions, room_checks
from baton.engine.session.hooks import AnyPlugin, Framework
from baton.engine.session.nominees import Nominees
from baton.engine.session.plugin import Check, OrderKey, Scope, Vote, overrides
from baton.engine.session.signatures import NEVER, Key, Signature, SignatureCache
from baton.engine.session.turns import Turns
from baton.engine.state.cluster import ClusterState, covers
from baton.engine.state.columns import BOTH, FUTURE, Array, Bools, Floats, Rows
from baton.engine.state.jobs import Job, QueueShare, Status, Task
from baton.engine.state.nodes import NodeView
from baton.engine.state.resources import PODS, Vector
from baton.engine.state.statement import Statement
from baton.engine.verdicts import Cause
from baton.model.ids import GroupKey, PodKey, QueueName

EVICTABLE = frozenset({Status.BOUND, Status.RUNNING})
"""Not what this or an unconfirmed plan has just bound: a plan must not both start and stop a pod."""


OUTSIDE = "outside the hyper nodes that the job may use"


class Placement(NamedTuple):
    row: int
    assignment: Assignment
    later: bool
    """The room is there only once evicted pods are gone."""


class Session:
    """What actions and plugins see of a cycle."""

    def __init__(
        self,
        state: ClusterState,
        framework: Framework,
        cache: SignatureCache,
        now_s: float,
        ports: Mapping[str, Any] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.state = state
        self.framework = framework
        self._calls = framework.calls
        self.now_s = now_s
        self.ports: Mapping[str, Any] = ports or {}
        """What plugins may ask outside, brought by the caller."""
        self._cache = cache
        self.bindings: list[Binding] = []
        self.evictions: list[Eviction] = []
        self.nominations: list[Nomination] = []
        self.phases: dict[GroupKey, PhaseChange] = {}
        self.promised: list[Task] = []
        self.unbound: list[Task] = []
        self.turns = turns or Turns()
        self.blocked, self.placeable = self.turns.found_before(state)
        """Why an action left a job waiting, for the explanation: a word of `Cause`, and the task that was stuck; and
        how many tasks of a blocked job found a place before one did not."""
        self.touched: set[GroupKey] = set()
        """Jobs with a binding in this session."""
        self.evicting: dict[PodKey, Task] = {}
        """Victims of this session, committed or about to be."""
        self._evictable: dict[QueueName, dict[int, list[Task]]] | None = None
        self._refusing = [state.budgets[key] for key, until_s in state.refusing.items() if until_s > now_s]
        self.foreseeing = False
        """Whether those that are leaving count as gone, see `foreseen`."""
        state.settle()
        self.domains = Domains(self)
        for plugin in framework.plugins:
            plugin.open(self)
        cache.start_session(tuple(plugin.revision(self) for plugin in framework.plugins))
        self._card_order = next((plugin.card_order for plugin in framework.plugins if plugin.card_order), "")
        self._card_scorers = framework.flat("card_scores")
        self._card_rules = framework.card_exclusions
        for rule in self._card_rules:
            state.placed.watch_labels(rule.keys())
        self._filters = framework.flat("filters")
        self._scorers = framework.flat("scores")
        self._world_filters = framework.flat("world_filters")
        self._world_scorers = framework.flat("world_scores")
        self._world_watchers = framework.flat("sees_world")
        self._mind_blocked: list[Callable[[Job], bool]] = [
            plugin.minds_blocked if overrides(plugin, "minds_blocked") else _always
            for plugin in framework.flat("job_blocked")
        ]
        self.keys_change = any(plugin.keys_change for plugin in framework.plugins)
        self._scopes = {plugin.scope for plugin in framework.plugins}
        self.nominees = Nominees(self)

    def action_arguments(self, action: str) -> dict[str, Any]:
        return self.framework.action_arguments.get(action, {})

    def statement(self) -> Statement:
        return Statement(self)

    def queue_key(self, queue: QueueShare) -> OrderKey:
        keys: list[Any] = [queue_key(queue) for queue_key in self._calls["queue_key"]]
        return (*keys, queue.queue.created_s, queue.name)

    def job_key(self, job: Job) -> OrderKey:
        keys: list[Any] = [job_key(job) for job_key in self._calls["job_key"]]
        return (*keys, job.group.created_s, job.group.uid, job.key)

    def task_key(self, task: Task) -> OrderKey:
        keys: list[Any] = [task_key(task) for task_key in self._calls["task_key"]]
        if task.job is not None and task.job.group.parts:
            keys.append(task.job.part_of(task) or ())
        return (*keys, task.pod.index, task.pod.created_s, task.key)

    def job_valid(self, job: Job) -> str | None:
        """None, or the first plugin's reason against."""
        for job_valid in self._calls["job_valid"]:
            reason: str | None = job_valid(job)
            if reason is not None:
                return reason
        return None

    def may_start(self, job: Job) -> str | None:
        for may_start in self._calls["may_start"]:
            reason: str | None = may_start(job)
            if reason is not None:
                return reason
        return None

    def job_ready(self, job: Job) -> bool:
        return _all_say_so(self._calls["job_ready"], job)

    def overused(self, queue: QueueShare) -> bool:
        return _one_says_so(self._calls["overused"], queue)

    def allocatable(self, queue: QueueShare, task: Task) -> bool:
        if not self.nominees.held:
            return _all_say_so(self._calls["allocatable"], queue, task)
        with self.nominees.charged():
            return _all_say_so(self._calls["allocatable"], queue, task)

    def preemptive(self, queue: QueueShare, task: Task) -> bool:
        return _all_say_so(self._calls["preemptive"], queue, task)

    def job_pipelined(self, job: Job) -> bool:
        return self._vote("job_pipelined", job)

    def job_enqueueable(self, job: Job) -> bool:
        return self._vote("job_enqueueable", job)

    def job_starving(self, job: Job) -> bool:
        for tier in self.framework.tiers("job_starving"):
            if tier:
                return all(plugin.job_starving(job) for plugin in tier)
        return False

    def preemptable(self, preemptor: Task, victims: Sequence[Task]) -> list[Task]:
        return self.victims("preemptable", preemptor, victims)

    def reclaimable(self, reclaimer: Task, victims: Sequence[Task]) -> list[Task]:
        return self.victims("reclaimable", reclaimer, victims)

    def enqueue(self, job: Job) -> None:
        """Admit the job: its pods may be made and placed."""
        self.set_phase(job, GroupPhase.INQUEUE)
        for job_enqueued in self._calls["job_enqueued"]:
            job_enqueued(job)

    def set_phase(self, job: Job, phase: GroupPhase) -> None:
        if job.phase is not phase:
            job.phase = phase
            if not job.implicit:
                self.phases[job.key] = PhaseChange(job.key, phase)
            self.state.activate(job)

    def find(self, task: Task) -> Placement | None:
        """The best node with room now, else the best one with room later, else None."""
        signature = self._cache.of(task, self)
        self._cache.refresh(signature, task, self)
        worldly = self._sees_world(task)
        within = self.domains.rows(task) if task.job is not None and task.job.group.close else None
        if len(signature.score):
            placement = self._best(task, signature, signature.score, worldly, within, later=False)
            if placement is not None:
                return placement
        later = self._later(signature, worldly)
        if later is None or not len(later):
            return None
        with self.foreseen():
            return self._best(task, signature, later, worldly, within, later=True)

    def _later(self, signature: Signature, worldly: bool) -> Floats | None:
        """Scores where there will be room. A node that has room now is among them when pods elsewhere matter: what
        forbids it may be leaving."""
        table = self.state.table
        if not worldly or not table.unsettled[: table.count].any():
            return signature.later
        if signature.later is None or not len(signature.later):
            return signature.score.copy()
        return np.maximum(signature.score, signature.later)

    def _best(
        self, task: Task, signature: Signature, scores: Floats, worldly: bool, within: Rows | None, *, later: bool
    ) -> Placement | None:
        seen = scores if within is None and not worldly else self._seen(task, scores, within)
        while True:
            row = signature.best() if seen is signature.score else int(seen.argmax())
            if seen[row] == NEVER:
                return None
            assignment = None if later else self._cache.next_cards(signature, row)
            if assignment is None:
                assignment = self.pick_cards(task, row, FUTURE if later else BOTH)
            if assignment is not None:
                return Placement(row, assignment, later)
            # The arrays promised room that several containers together do not have.
            scores[row] = NEVER
            seen[row] = NEVER
            signature.best_row = -1

    @contextlib.contextmanager
    def foreseen(self) -> Iterator[None]:
        """Pods elsewhere are asked about as if those that are leaving had left; room has a plane for that."""
        table, placed = self.state.table, self.state.placed
        unsettled = np.flatnonzero(table.unsettled[: table.count]) if len(placed) else ()
        leaving = [task for row in unsettled for task in table.tasks[row].values() if task.status is Status.RELEASING]
        for task in leaving:
            placed.remove(task)
        self.foreseeing = True
        try:
            yield
        finally:
            self.foreseeing = False
            for task in leaving:
                placed.add(task)

    def is_hopeless(self, task: Task) -> bool:
        """No node would take such a task, whatever pods elsewhere say; cheap while no node changes."""
        signature = self._cache.of(task, self)
        self._cache.refresh(signature, task, self)
        return signature.is_nowhere()

    def would_take(self, task: Task) -> Bools:
        """Which nodes would take such a task, now or once evicted pods are gone, whatever pods elsewhere say."""
        signature = self._cache.of(task, self)
        self._cache.refresh(signature, task, self)
        fits: Bools = signature.score > NEVER
        return fits if signature.later is None else fits | (signature.later > NEVER)

    def domain_scores(self, need: Vector, domains: DomainView) -> Floats:
        """How well the need fits into each domain: by plugins, else the fuller the better."""
        plugins = self.framework.flat("domain_scores")
        if not plugins:
            return tightness(need, domains, lambda place: place != PODS)
        total = np.zeros(domains.size)
        for plugin in plugins:
            total += plugin.domain_scores(need, domains)
        return total

    def note_placed(self, task: Task, row: int) -> None:
        if task._signature is not None:
            self._cache.placed(task._signature, row)

    def copies_that_fit(self, task: Task, row: int, most: int = 64) -> int:
        """How many such tasks the node would take, once evicted pods are gone."""
        room = self.state.copies_with_room(task, row, most)
        if not room or not task.needs.cards.demands:
            return room
        allowed = self._allowed_cards(task, row)
        return len(self.state.ledger.foresee(row, task.needs.cards, room, allowed=allowed)[0])

    def pretend_ended(self, task: Task) -> None:
        """As if the task were gone; the caller rolls back."""
        self.state.move(task, Status.FAILED)

    def job_started(self, job: Job) -> None:
        for job_started in self._calls["job_started"]:
            job_started(job)

    def job_blocked(self, job: Job, cause: Cause, stuck: Task | None) -> None:
        self.blocked[job.key] = (cause, stuck)
        for job_blocked in self._calls["job_blocked"]:
            job_blocked(job, stuck)

    def minds_blocked(self, job: Job) -> bool:
        """Whether a plugin must hear of it when this job is blocked."""
        return _one_says_so(self._mind_blocked, job)

    def evictable(self) -> "dict[QueueName, dict[int, list[Task]]]":
        """Who could be evicted as the session began, by queue and row; nobody becomes evictable in a session."""
        if self._evictable is None:
            self._evictable = {}
            for row, tasks in enumerate(self.state.table.tasks):
                for task in tasks.values():
                    queue = task.job.queue if task.job is not None else None
                    if queue is not None and self.may_go(task):
                        self._evictable.setdefault(queue.name, {}).setdefault(row, []).append(task)
        return self._evictable

    def may_go(self, task: Task) -> bool:
        """Whether the task could be evicted, as far as that is its own matter."""
        if task.status not in EVICTABLE or not (task.pod.ours and task.pod.preemptable):
            return False
        if task.stays_until_s > self.now_s:
            return False
        return not self._refusing or not any(covers(budget, task.pod) for budget in self._refusing)

    def commitments(self) -> tuple[int, int, int, int]:
        """Grows with everything that is decided; as long as it is the same, an attempt that failed would fail again."""
        return len(self.bindings), len(self.evictions), len(self.promised), len(self.unbound)

    def disruptions_left(self) -> dict[tuple[str, str], int]:
        """What every disruption budget still allows after the evictions of this session."""
        left = {key: budget.disruptions_allowed for key, budget in self.state.budgets.items()}
        for victim in self.evicting.values():
            for key in self.state.covering(victim.pod):
                left[key] -= 1
        return left

    def checks(self, task: Task, nodes: NodeView) -> Iterable[Check]:
        """Every predicate, in the order they count in explanations."""
        within = self.domains.rows(task)
        if within is not None:
            allowed = np.zeros(nodes.table.count, dtype=np.bool_)
            allowed[within] = True
            yield Check(OUTSIDE, nodes.column(allowed), resolvable=False)
        for plugin in self._filters:
            yield from plugin.filters(task, nodes)
        if self._sees_world(task):
            for plugin in self._world_filters:
                yield from plugin.world_filters(task, nodes)
        yield from room_checks(task, nodes, self.state.placed, self._exclusions(task))

    def fit_and_score(self, task: Task, nodes: NodeView) -> Floats:
        """Filters and room on the view's plane, and the sum of scores where all agree."""
        ok = nodes.column(nodes.table.present).copy()
        for plugin in self._filters:
            for check in plugin.filters(task, nodes):
                ok &= check.ok
        for check in room_checks(task, nodes, self.state.placed, self._exclusions(task)):
            ok &= check.ok
        total = np.where(ok, 0.0, NEVER)
        for plugin in self._scorers:
            scores = plugin.scores(task, nodes)
            if scores is not None:
                total += scores
        return total

    def fit_now(self, task: Task, nodes: NodeView) -> npt.NDArray[np.bool_]:
        """On the view's plane, of rows that would do once evicted pods are gone; these may hold a port or a volume
        still."""
        ok, spec = nodes.true(), task.needs.spec
        for plugin in self._filters if spec.host_ports or spec.attachments else ():
            for check in plugin.filters(task, nodes):
                ok &= check.ok
        for check in room_checks(task, nodes, self.state.placed, self._exclusions(task)):
            ok &= check.ok
        return ok

    def pick_cards(self, task: Task, row: int, plane: int) -> Assignment | None:
        """Cards of the row in the configured order; the answer is empty for a task that wants none."""
        plan = task.needs.cards
        if not plan.demands:
            return NOTHING
        given = [scores for plugin in self._card_scorers if (scores := plugin.card_scores(task, row)) is not None]
        scores = [sum(one) for one in zip(*given, strict=True)] if len(given) > 1 else next(iter(given), None)
        allowed = self._allowed_cards(task, row)
        return self.state.ledger.pick(row, plan, plane, order=self._card_order, allowed=allowed, scores=scores)

    def foresee_cards(self, task: Task, row: int, steps: int) -> tuple[list[Assignment], Array]:
        """See `CardLedger.foresee`; plugins that score cards look at the ledger, so they are foreseen nothing."""
        if self._card_scorers and task.needs.cards.demands:
            steps = 0
        allowed = self._allowed_cards(task, row)
        return self.state.ledger.foresee(row, task.needs.cards, steps, order=self._card_order, allowed=allowed)

    def signature_key(self, task: Task) -> Key:
        job = task.job
        by_role = Scope.JOB in self._scopes
        by_job = by_role or task.needs.spec.card_rules.spread_group
        by_queue = Scope.QUEUE in self._scopes
        return (
            task.needs.number,
            self.state.placed.label_class(task),
            (job.key, task.pod.role if by_role else "") if by_job and job is not None else None,
            job.group.queue if by_queue and job is not None else None,
            (task.pod.namespace, task.pod.labels) if Scope.LABELS in self._scopes else None,
        )

    def repeatable(self, task: Task) -> bool:
        """Whether placing one such task changes nothing for the next but the room on its node. One of equal spec uses
        the same volumes, so it can attach them where the first one could."""
        if task.needs.spec.host_ports or task.needs.ruled or Scope.JOB in self._scopes:
            return False
        return not self._exclusions(task)

    def accept(self, statement: Statement) -> None:
        """A committed statement becomes part of the plan. A gang that still waits for evictions binds nobody yet."""
        table, ledger = self.state.table, self.state.ledger
        for task, row, assignment in statement.allocated:
            if task.job is not None and statement.pipelined and not self.job_ready(task.job):
                self.nominations.append(Nomination(task.key, table.name(row)))
                task.nominated = table.name(row)
                self.unbound.append(task)
                continue
            self.state.relabel(task, Status.BINDING)
            task.nominated = None
            if task.job is not None:
                self.touched.add(task.job.key)
            node = table.node(row)
            self.bindings.append(Binding(task.key, node.name, ledger.card_grants(node.cards, assignment)))
        for task, row in statement.pipelined:
            self.nominations.append(Nomination(task.key, table.name(row)))
            task.nominated = table.name(row)
            self.promised.append(task)
        for victim, reason, for_task in statement.evicted:
            self.evictions.append(
                Eviction(victim.key, table.name(victim.row), reason, for_task.key if for_task else None)
            )

    def close(self) -> None:
        """Give promises back; what is bound or evicted stays as assumed."""
        self.nominees.close()
        for task in [*self.promised, *self.unbound]:
            if task.status in (Status.PIPELINED, Status.ALLOCATED):
                self.state.move(task, Status.PENDING)
        for plugin in self.framework.plugins:
            plugin.close(self)
        self.state.commit()

    def _allowed_cards(self, task: Task, row: int) -> list[bool] | None:
        exclusions = self._exclusions(task)
        if not task.needs.ruled and not exclusions:
            return None
        view = self.state.table.view(np.array([row], dtype=np.intp))
        return allowed_positions(task, view, self.state.placed, exclusions)

    def _exclusions(self, task: Task) -> tuple[LabelSelector, ...]:
        if not self._card_rules:
            return ()
        labels = dict(task.pod.labels)
        return tuple(rule for rule in self._card_rules if rule.matches(labels))

    def _sees_world(self, task: Task) -> bool:
        if task.needs.worldly or self.state.placed.concerns(task):
            return True
        return _one_says_so(self._calls["sees_world"], task)

    def _seen(self, task: Task, scores: Floats, within: Rows | None) -> Floats:
        """The scores in the light of pods elsewhere, and only of the rows where the task may be."""
        view = self.state.table.view(within)
        seen = scores.copy() if within is None else scores[within]
        for plugin in self._world_plugins(task, self._world_filters):
            for check in plugin.world_filters(task, view):
                seen[~check.ok] = NEVER
        for plugin in self._world_plugins(task, self._world_scorers):
            more = plugin.world_scores(task, view)
            if more is not None:
                seen += more
        if within is None:
            return seen
        confined = np.full(len(scores), NEVER)
        confined[within] = seen
        return confined

    def _world_plugins(self, task: Task, plugins: Sequence[AnyPlugin]) -> Sequence[AnyPlugin]:
        """Those with something to say: all of them where other pods' labels matter, else those that ask for it."""
        if task.needs.worldly or self.state.placed.concerns(task):
            return plugins
        return [plugin for plugin in plugins if plugin in self._world_watchers and plugin.sees_world(task)]

    def _vote(self, hook: str, job: Job) -> bool:
        for tier in self.framework.tiers(hook):
            permitted = False
            for plugin in tier:
                vote: Vote = getattr(plugin, hook)(job)
                if vote is Vote.REJECT:
                    return False
                permitted = permitted or vote is Vote.PERMIT
            if permitted:
                return True
        return True

    def victims(self, hook: str, preemptor: Task, victims: Sequence[Task], *, besides: str = "") -> list[Task]:
        """Those that may go, by the tiers of the hook; `besides` names a plugin that is not asked.

        A plugin is asked about those that the ones before it in the tier let go. Some name only so many as a gang or a
        queue can spare; asked about everybody, two of them could name different ones, and nobody were left.
        """
        for tier in self.framework.tiers(hook):
            chosen, asked = list(victims), False
            for plugin in tier:
                candidates = getattr(plugin, hook)(preemptor, chosen) if chosen and plugin.name != besides else None
                if candidates is not None:
                    keys = {task.key for task in candidates}
                    chosen, asked = [task for task in chosen if task.key in keys], True
            if asked and chosen:
                return chosen
        return []


def _all_say_so(calls: Sequence[Callable[..., bool]], *asked: object) -> bool:
    for call in calls:  # noqa: SIM110  # asked for every job, and a generator costs more than most answers
        if not call(*asked):
            return False
    return True


def _one_says_so(calls: Sequence[Callable[..., bool]], *asked: object) -> bool:
    for call in calls:  # noqa: SIM110  # asked for every queue, and a generator costs more than most answers
        if call(*asked):
            return True
    return False


def _always(_: Job) -> bool:
    return True
