"""Whole lives of jobs: random pods, commands, scalings and deaths of the controller, played through the phase machine.

The world below is the API server's part: it takes what a plan says in the order in which the controller sends it, and
may stop after any of the requests, as `kill -9` does.
"""

from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton.controllers.job.census import phase_of
from baton.controllers.job.lifecycle import PodView
from baton.controllers.job.phases import Order, Plan, World, decide
from baton.model.names import JobPhase
from baton.model.volcano import Job, JobStatus
from tests.controllers.job.worlds import NOW_S, a_group, a_job, on

P = JobPhase
LEGAL = {
    (P.PENDING, P.RUNNING),
    (P.PENDING, P.RESTARTING),
    (P.RUNNING, P.PENDING),
    (P.RUNNING, P.RESTARTING),
    (P.RUNNING, P.COMPLETED),
    (P.RUNNING, P.FAILED),
    (P.RESTARTING, P.PENDING),
    (P.RESTARTING, P.FAILED),
    (P.ABORTING, P.ABORTED),
    (P.TERMINATING, P.TERMINATED),
    (P.COMPLETING, P.COMPLETED),
    (P.ABORTING, P.RESTARTING),
    (P.ABORTED, P.RESTARTING),
    *((phase, end) for phase in (P.PENDING, P.RUNNING, P.RESTARTING) for end in (P.ABORTING, P.TERMINATING)),
    *((phase, P.COMPLETING) for phase in (P.PENDING, P.RUNNING, P.RESTARTING)),
}
ACTIONS = ("AbortJob", "RestartJob", "TerminateJob", "CompleteJob", "RestartTask", "RestartPod", "RestartPartition")
EVENTS = ("PodFailed", "PodEvicted", "TaskCompleted", "*")
OUTCOMES = ("Running", "Succeeded", "Failed", "Unknown")


class Life(RuleBasedStateMachine):
    """One job from its creation."""

    def __init__(self) -> None:
        super().__init__()
        self.job: Job = a_job("")
        self.pods: dict[str, PodView] = {}
        self.group: Any = None
        self.gone: list[tuple[str, str]] = []
        self.commands = 0
        self.made = 0
        self.phases: list[P] = []

    @rule(event=st.sampled_from(EVENTS), action=st.sampled_from(ACTIONS), task_level=st.booleans())
    @precondition(lambda self: not self.phases)
    def choose_a_policy(self, event: str, action: str, task_level: bool) -> None:
        policy = on(event, action)
        worker = {
            "name": "worker",
            "replicas": 4,
            "template": {},
            "partitionPolicy": {"totalPartitions": 2, "partitionSize": 2},
            "policies": [policy] if task_level else [],
        }
        self.job = a_job("", tasks=[worker], policies=[] if task_level else [policy], minAvailable=3)

    @rule(stop_after=st.one_of(st.none(), st.integers(0, 4)))
    def look(self, stop_after: int | None) -> None:
        self._carry_out(self._decide(None), stop_after)

    @rule(action=st.sampled_from((*ACTIONS, "ResumeJob")), stop_after=st.one_of(st.none(), st.integers(0, 4)))
    def command(self, action: str, stop_after: int | None) -> None:
        self.commands += 1
        order = Order(action, f"c{self.commands}", f"u{self.commands}")
        retries = self.job.status.retry_count
        self._carry_out(self._decide(order), stop_after)
        # The process died before it could delete the command, so the next one reads it again.
        once = self.job.status.retry_count
        self._carry_out(self._decide(order), None)
        assert self.job.status.retry_count <= max(once, retries + 1)

    @rule(index=st.integers(0, 5), outcome=st.sampled_from(OUTCOMES))
    def a_pod_moves_on(self, index: int, outcome: str) -> None:
        pod = self.pods.get(f"train-worker-{index}")
        if pod is not None and not pod.terminating and pod.alive:
            self.pods[pod.name] = msgspec.structs.replace(pod, phase=outcome, ready=outcome == "Running")

    @rule(index=st.integers(0, 5), at_once=st.booleans())
    def a_pod_is_deleted_by_others(self, index: int, at_once: bool) -> None:
        pod = self.pods.get(f"train-worker-{index}")
        if pod is None:
            return
        if at_once:
            del self.pods[pod.name]
            if pod.version == self.job.status.version and not pod.marked:
                self.gone.append((pod.task, pod.name))
        else:
            self.pods[pod.name] = msgspec.structs.replace(pod, terminating=True)

    @rule()
    def leaving_pods_are_gone(self) -> None:
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.terminating}

    @rule(phase=st.sampled_from(("Inqueue", "Running", "Unknown")))
    def the_scheduler_looks(self, phase: str) -> None:
        if self.group is not None:
            version = int(self.group.metadata.annotations["volcano.sh/job-version"])
            self.group = a_group(phase, version)

    @rule(replicas=st.integers(1, 6))
    def scale(self, replicas: int) -> None:
        first = msgspec.structs.replace(self.job.spec.tasks[0], replicas=replicas)
        spec = msgspec.structs.replace(self.job.spec, tasks=(first,), min_available=min(3, replicas))
        self.job = msgspec.structs.replace(self.job, spec=spec)

    def _decide(self, order: Order | None) -> Plan:
        world = World(
            job=self.job, pods=list(self.pods.values()), group=self.group, gone=self.gone, order=order, now_s=NOW_S
        )
        return decide(world)

    def _carry_out(self, plan: Plan, stop_after: int | None) -> None:
        """The order of the controller: intention, removal, group, pods, counts. It dies after `stop_after` requests."""
        requests: list[Any] = []
        if plan.reaction is not None:
            requests.append(lambda: self._store(plan.status))
        requests += [lambda name=name: self._mark(name) for name in sorted(plan.mark)]
        requests += [lambda pod=pod: self._delete(pod) for pod in plan.delete]
        requests.append(lambda: self._tend_group(plan))
        version = plan.status.version
        requests += [lambda slot=slot: self._create(slot.task.name, slot.index, version) for slot in plan.create]
        if plan.reaction is None:
            requests.append(lambda: self._store(plan.status))
        for request in requests if stop_after is None else requests[:stop_after]:
            request()
        if plan.reaction is not None and stop_after != 0:
            self.gone.clear()

    def _store(self, status: JobStatus) -> None:
        before, after = phase_of(self.job), P(status.state.phase)
        if self.phases and before != after:
            assert (before, after) in LEGAL, f"{before} -> {after}"
        assert status.version >= self.job.status.version
        if before == P.RESTARTING and after == P.PENDING and status.state.reason == "RestartJob":
            old = [pod for pod in self.pods.values() if not pod.terminating and pod.version < status.version]
            assert not old, "a new life begins beside pods of the old one"
        if after in (P.ABORTED, P.TERMINATED) and before != after:
            assert not [pod for pod in self.pods.values() if pod.alive]
        self.job = msgspec.structs.replace(self.job, status=status)
        self.phases.append(after)

    def _mark(self, name: str) -> None:
        self.pods[name] = msgspec.structs.replace(self.pods[name], marked=True)

    def _delete(self, pod: PodView) -> None:
        assert not pod.terminating
        self.pods[pod.name] = msgspec.structs.replace(self.pods[pod.name], terminating=True)

    def _tend_group(self, plan: Plan) -> None:
        if plan.group.value == "absent":
            self.group = None
        elif plan.group.value == "present" and self.group is None:
            self.group = a_group("Pending", plan.status.version)

    def _create(self, task: str, index: int, version: int) -> None:
        name = f"train-{task}-{index}"
        assert name not in self.pods, f"{name} is made twice"
        assert self.group is not None
        assert self.group.status.phase != "Pending"
        self.made += 1
        self.pods[name] = PodView(name=name, task=task, index=index, uid=f"p{self.made}", version=version)

    @invariant()
    def retries_have_a_limit(self) -> None:
        assert self.job.status.retry_count <= self.job.spec.max_retry + 1

    @invariant()
    def a_final_phase_is_final(self) -> None:
        finals = [place for place, phase in enumerate(self.phases) if phase.final]
        if finals:
            assert set(self.phases[finals[0] :]) == {self.phases[finals[0]]}

    def teardown(self) -> None:
        """Without further changes the job comes to rest: later syncs decide nothing new."""
        for _ in range(30):
            if self.group is not None and self.group.status.phase == "Pending":
                self.the_scheduler_looks("Inqueue")
            self.leaving_pods_are_gone()
            before = (self.job, dict(self.pods), self.group)
            self._carry_out(self._decide(None), None)
            if before == (self.job, self.pods, self.group):
                self._is_sound()
                return
            self.gone.clear()
        raise AssertionError(f"the job does not come to rest: {self.phases[-10:]}, {self.job.status}")

    def _is_sound(self) -> None:
        """Whether a job is at rest: in no transitional phase, and either complete or without a living pod."""
        phase = phase_of(self.job)
        assert phase in (P.PENDING, P.RUNNING, P.ABORTED) or phase.final
        living = [pod for pod in self.pods.values() if pod.alive]
        if phase in (P.PENDING, P.RUNNING):
            assert {pod.index for pod in self.pods.values()} == set(range(self.job.spec.total))
            assert not [pod for pod in self.pods.values() if pod.marked]
            assert all(pod.version == self.job.status.version for pod in living)
        else:
            assert not living
            assert self.group is None


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
