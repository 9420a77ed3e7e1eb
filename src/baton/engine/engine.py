"""The entry point of the engine: events in, plans and explanations out.

    engine = Engine(configured("simple"))
    engine.apply([NodeChanged(node), QueueChanged(queue), PodChanged(pod)])
    plan = engine.schedule(now_s)

A plan is assumed to succeed: the next cycle counts its bindings and evictions. If one of them fails, report it with
`BindFailed` or `EvictFailed`; if it succeeds, the events of the cluster confirm it and change nothing.
"""

from collections.abc import Iterable

import msgspec

from baton.engine.actions import ACTIONS
from baton.engine.configuration import Configuration
from baton.engine.events import Event
from baton.engine.explain import Explainer, first_refused
from baton.engine.plan import Plan
from baton.engine.search.signatures import SignatureCache
from baton.engine.session.credit import credits_of
from baton.engine.session.phases import update_phases
from baton.engine.session.rejections import Rejections
from baton.engine.session.session import Session
from baton.engine.session.tiers import Tiers
from baton.engine.session.turns import OutOfTime, Turns
from baton.engine.state.cluster import ClusterState
from baton.engine.state.intake import Intake
from baton.engine.state.jobs import Status
from baton.engine.verdicts import Cause, UnknownWorkloadError, Verdict
from baton.model.ids import GroupKey, PodKey, QueueName
from baton.model.quantities import Amounts


class Engine:
    """The scheduler of one cluster, with one configuration."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        memory_overcommit: float = 1.0,
        share_overcommit: float = 1.0,
    ) -> None:
        self.state = ClusterState(memory_overcommit=memory_overcommit, share_overcommit=share_overcommit)
        self._intake = Intake(self.state)
        self.tiers = Tiers(configuration)
        self._cache = SignatureCache(self.state)
        self._turns = Turns()
        self._rejections = Rejections(self.state)

    def configure(self, configuration: Configuration) -> None:
        """Continue with another configuration; the state stays."""
        self.tiers = Tiers(configuration)
        self._cache = SignatureCache(self.state)
        self._turns = Turns()
        self._rejections = Rejections(self.state)

    def has_work(self) -> bool:
        """Whether a cycle could decide anything: a job waits, or an action has work even when no job waits."""
        actions = self.tiers.configuration.actions
        return bool(self.state.active) or any(ACTIONS[name].works_when_idle for name in actions)

    def apply(self, events: Iterable[Event]) -> None:
        self._intake.apply(events)

    def schedule(self, now_s: float, *, explain: bool = True, out_of_time: OutOfTime | None = None) -> Plan:
        """Run the configured actions once. Without `explain` the plan has no verdicts, which saves time.

        `out_of_time` is called between jobs; once it returns true, the plan has the decisions made so far (`turns`).
        """
        turns = self._turns
        turns.start_cycle(out_of_time)
        session = Session(self.state, self.tiers, self._cache, now_s, turns, self._rejections)
        for action in self.tiers.configuration.actions:
            turns.start_action(action)
            ACTIONS[action].run(session)
            if turns.cut:
                break
        verdicts = self._verdicts(session) if explain and not turns.cut else ()
        update_phases(session)
        session.close()
        turns.end_cycle(session.decisions.blocked, session.decisions.placeable)
        return Plan(
            now_s=now_s,
            bindings=tuple(session.decisions.bindings),
            evictions=tuple(session.decisions.evictions),
            nominations=tuple(session.decisions.nominations),
            phases=tuple(session.decisions.phases.values()),
            verdicts=verdicts,
            refused=any(cause is Cause.NOT_ADMITTED for cause, _ in session.decisions.blocked.values()),
            cut=turns.cut,
        )

    def explain(self, key: PodKey | GroupKey, now_s: float) -> Verdict:
        """Why this pod or group waits, from the current state, which does not change."""
        task = self.state.tasks.get(PodKey(key))
        # A pod of another scheduler, which has no job here, may have the name of a group.
        job = (task.job if task is not None else None) or self.state.jobs.get(GroupKey(key))
        if job is None:
            raise UnknownWorkloadError(key)
        session = self.session(now_s)
        session.nominees.hold(in_use=False)
        session.nominees.make_way(job)
        attempt = session.statement()
        try:
            explainer, stuck, ready = Explainer(session), None, job.ready_count()
            if task is not None and task.status is Status.GATED and task.pod.gated:
                return explainer.explain(job, Cause.GATED, task)
            if task is not None and task.status is Status.PENDING:
                stuck = task
            cause = explainer.cause(job)
            if cause is Cause.NODES and job.pending:
                # Place as many members of the gang as fit, so that the nodes are judged by the room that is then left.
                refused = first_refused(session, attempt, job)
                session.decisions.placeable[job.key] = len(attempt.allocated)
                cause, stuck = refused if refused is not None else (Cause.NEXT, stuck)
                if (
                    stuck is not None
                    and stuck.nominated is not None
                    and cause is Cause.NODES
                    and session.places.find(stuck)
                ):
                    cause = Cause.PIPELINED
                if cause is Cause.QUEUE_SHARE:
                    attempt.discard()  # the queue is judged by its real usage, and the job by its whole request
            return msgspec.structs.replace(explainer.explain(job, cause, stuck), ready=ready)
        finally:
            attempt.discard()
            session.close()

    def credits(self, now_s: float) -> dict[QueueName, Amounts]:
        """The amounts that each queue may admit without asking, from the current state (see `credit`)."""
        session = self.session(now_s)
        try:
            return credits_of(session)
        finally:
            session.close()

    @staticmethod
    def _verdicts(session: Session) -> tuple[Verdict, ...]:
        explainer = Explainer(session)
        found = []
        for key, (cause, stuck) in sorted(session.decisions.blocked.items()):
            job = session.state.jobs.get(key)
            if job is not None:
                found.append(explainer.explain(job, cause, stuck))
        return tuple(found)

    def session(self, now_s: float) -> Session:
        """An open session, for questions and for tests; close it before the next event."""
        return Session(self.state, self.tiers, self._cache, now_s)
