"""A run: discrete events around the engine.

Jobs arrive, run and end; nodes fail and return; after every change the engine is asked what to do, and what it plans
happens at once. The heap orders events by time, then by kind (an end frees a card before an arrival at the same second
asks for one), then by a sequence number, so a run is a function of its inputs.

A job is a gang: it runs while all of its tasks hold their cards and stops as a whole. A stopped job keeps its progress
(to the last checkpoint when its node failed) and pays `restart_s` of card time before it goes on. Jobs on one card slow
each other by the model in `sharing`; when a neighbour comes or goes, progress so far is settled and the end moves.

The loop keeps its own books of who holds which card. They are how utilisation is measured, and they check the engine:
a plan that gives out more of a card than there is ends the run as a defect.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count

import msgspec
import numpy as np

from baton.engine import events
from baton.engine.engine import Engine
from baton.engine.fragmentation import WHOLE_CARD
from baton.engine.objects import CardId, GroupKey, Node, NodeName, Pod, PodKey, Queue, QueueName
from baton.engine.plan import Binding, Plan
from baton.engine.presets import configured
from baton.sim.books import CardBooks, DefectError
from baton.sim.feasibility import EmptyCluster
from baton.sim.lines import Place, WaitingLines
from baton.sim.metrics import Moment, Outcome, Summary, summarise
from baton.sim.policies import Policy, level_of, next_level
from baton.sim.prediction import Foresight, TraceHistory, corrected
from baton.sim.sharing import Resident, SharingModel
from baton.sim.translation import engine_group, engine_pods, running_pod
from baton.sim.workload import TraceJob

_QUEUE = "default"
_ROUNDS_PER_CYCLE = 50
_FRAGMENT_SAMPLES = 2000


class Outage(msgspec.Struct, frozen=True):
    """A node that is away for a while, at a known time."""

    node: NodeName
    at_s: float
    lasts_s: float


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How the simulated cluster behaves."""

    seed: int = 42
    restart_s: float = 60.0
    """Card time that a stopped job pays before it goes on."""
    checkpoint_s: float = 1800.0
    """How often a job saves its progress; what came after the last save is lost when its node fails."""
    cycle_s: float = 0.0
    """Least time between two decisions; changes in between wait for the next."""
    visible_per_shape: int = 0
    """How many waiting jobs of one shape the engine sees, the first in the policy's order; 0 for all.

    Equal jobs behind them could not start before they do, so without preemption this changes nothing but the cost of a
    long backlog. Under backfill a short job may overtake an equal long one: there jobs of about the same expected
    duration stand in one line, which comes close."""
    slots_per_card: int = 1
    """More than one: cards are time-shared by that many jobs."""
    enforce_memory: bool = True
    """Tell the engine what shares of a card keep in its memory. Off: memory may be oversubscribed."""
    sharing: SharingModel = SharingModel()
    node_mtbf_s: float = 0.0
    """Mean time between failures of one node; 0 for none."""
    node_repair_s: float = 3600.0
    outages: tuple[Outage, ...] = ()


class Kind(IntEnum):
    """Order of events at the same time."""

    END = 0
    NODE_UP = 1
    NODE_DOWN = 2
    ARRIVAL = 3
    LEVEL = 4
    PATIENCE = 5
    CYCLE = 6


@dataclass(slots=True, eq=False)
class Run:
    """A job and how far it is. `attempt` counts its starts, `ends_stamp` the times its end was moved."""

    job: TraceJob
    key: GroupKey
    work_left_s: float
    overhead_left_s: float = 0.0
    settled_s: float = 0.0
    speed: float = 1.0
    ran_s: float = 0.0
    attempt: int = 0
    ends_stamp: int = 0
    level: int = 0
    waits: int = 0
    promoted: bool = False
    running: bool = False
    start_s: float | None = None
    end_s: float | None = None
    guess_s: float | None = None
    preemptions: int = 0
    failures: int = 0
    pods: tuple[Pod, ...] = ()
    cards: list[CardId] = field(default_factory=list)
    nodes: set[NodeName] = field(default_factory=set)

    @classmethod
    def of(cls, job: TraceJob) -> "Run":
        work_s = job.duration_s if job.duration_s is not None else float("inf")
        return cls(job, GroupKey(f"{job.tenant}/{job.name}"), work_s)

    @property
    def attained_gpu_s(self) -> float:
        return self.ran_s * self.job.gpus


class Replay:
    """One run of one trace on one cluster under one policy."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        nodes: Sequence[Node],
        policy: Policy,
        settings: Settings,
        background: Sequence[Pod] = (),
    ) -> None:
        self.policy, self.settings = policy, settings
        self.nodes = {node.name: node for node in nodes}
        origin_s = min((job.submit_s for job in jobs), default=0.0)
        moved = [msgspec.structs.replace(job, submit_s=job.submit_s - origin_s) for job in jobs]
        empty = EmptyCluster(nodes, slots_per_card=settings.slots_per_card)
        self.impossible = [job.name for job in moved if not empty.fits(job)]
        self.runs = {run.key: run for run in map(Run.of, (job for job in moved if empty.fits(job)))}
        self.books = CardBooks(
            nodes,
            (run.job.shape for run in self.runs.values() for _ in range(run.job.tasks)),
            slots_per_card=settings.slots_per_card,
        )
        self.engine = Engine(configured(policy.configuration, where=policy.name))
        self.history = TraceHistory()
        self.now_s = 0.0
        self.cycles = 0
        self.node_failures = 0
        self.lost_gpu_s = 0.0
        self.moments: list[Moment] = []
        self._background = background
        self._heap: list[tuple[float, Kind, int, GroupKey | NodeName | None, int]] = []
        self._sequence = count()
        self._rng = np.random.default_rng(settings.seed)
        self._lines = WaitingLines()
        self._running_levels: Counter[int] = Counter()
        self._running = 0
        self._unfinished = len(self.runs)
        self._owner: dict[PodKey, GroupKey] = {}
        self._bound: dict[GroupKey, dict[PodKey, Binding]] = defaultdict(dict)
        self._node_jobs: dict[NodeName, set[GroupKey]] = defaultdict(set)
        self._away: set[NodeName] = set()
        self._next_cycle_s = 0.0
        self._cycle_due = False
        self._room_changed = True
        self._fragmented_milli = 0.0
        self._last_submit_s = max((run.job.submit_s for run in self.runs.values()), default=0.0)
        self._sample_due_s = 0.0

    def run(self, progress: Callable[[int, int], None] | None = None) -> Summary:
        """Until the last job has ended, or nothing can happen any more."""
        total = len(self.runs)
        self._open_cluster()
        for key, run in self.runs.items():
            self._push(run.job.submit_s, Kind.ARRIVAL, key)
        while self._heap and self._unfinished:
            self.now_s, kind, _, subject, stamp = heapq.heappop(self._heap)
            self._handle(kind, subject, stamp)
            if progress is not None and kind is Kind.END:
                progress(total - self._unfinished, total)
            if self._cycle_due and (not self._heap or self._heap[0][0] > self.now_s):
                self._decide()
        return self._summary()

    def _open_cluster(self) -> None:
        queues = sorted({run.job.queue for run in self.runs.values()}) if self.policy.trace_queues else []
        strategy = "fifo" if self.policy.strict else "traverse"
        self.engine.apply(
            [
                *(
                    events.QueueChanged(Queue(name=QueueName(name), dequeue_strategy=strategy))
                    for name in dict.fromkeys([_QUEUE, *queues])
                ),
                *(events.NodeChanged(node) for node in self.nodes.values()),
                *(events.PodChanged(pod) for pod in self._background),
            ]
        )
        for pod in self._background:
            self.books.reserve(pod.cards)
        for number, outage in enumerate(self.settings.outages, start=1):
            self._push(outage.at_s, Kind.NODE_DOWN, outage.node, number)
        if self.settings.node_mtbf_s:
            for name in self.nodes:
                self._push(self._until_failure_s(), Kind.NODE_DOWN, name)

    def _handle(self, kind: Kind, subject: GroupKey | NodeName | None, stamp: int) -> None:
        if subject is None:
            self._cycle_due = True
        elif kind is Kind.NODE_DOWN:
            self._fail(NodeName(subject), stamp)
        elif kind is Kind.NODE_UP:
            self._repair(NodeName(subject), stamp)
        else:
            run = self.runs[GroupKey(subject)]
            if kind is Kind.ARRIVAL:
                self._arrive(run)
            elif kind is Kind.PATIENCE and run.key in self._lines and stamp == run.waits:
                self._promote(run)
            elif kind is Kind.END and run.running and stamp == run.ends_stamp:
                self._end(run)
            elif kind is Kind.LEVEL and run.running and stamp == run.attempt:
                self._demote(run)

    def _demote(self, run: Run) -> None:
        """The job has attained the next level of service and counts for less from now on."""
        self._settle(run)
        run.promoted = False
        self._running_levels[run.level] -= 1
        self._tell_priority(run)
        self._running_levels[run.level] += 1
        self._plan_level(run)
        self._changed(room=False)

    def _arrive(self, run: Run) -> None:
        if self.policy.foresight is Foresight.PREDICTED:
            run.guess_s = self.history.predict(run.job)
        self._wait(run)
        self._changed(room=False)

    def _wait(self, run: Run) -> None:
        """The job stands in line with others of its shape."""
        job = run.job
        apart: tuple[object, ...] = (job.queue, job.tenant) if self.policy.trace_queues else ()
        if self.policy.lines_by_duration:
            apart += (round(math.log(max(self._expected_s(run) or 1.0, 1.0), 4)),)
        shape = (job.gpus, job.shape, job.tasks, job.memory_mib, job.card_memory_mib, *apart)
        self._lines.join(run.key, shape, self._place(run))
        run.waits += 1
        if self.policy.patience_s:
            self._push(self.now_s + self.policy.patience_s, Kind.PATIENCE, run.key, run.waits)

    def _promote(self, run: Run) -> None:
        """The job has waited long enough to go first."""
        run.promoted = True
        self._lines.hasten(run.key, (0, run.job.submit_s, run.key))
        if self.policy.attained_levels and run.key in self._lines.seen:
            self._tell_priority(run)
        self._changed(room=False)

    def _tell_priority(self, run: Run) -> None:
        run.level = -self._priority(run)
        run.pods = tuple(msgspec.structs.replace(pod, priority=-run.level) for pod in run.pods)
        self.engine.apply([self._group_event(run), *(events.PodChanged(pod) for pod in run.pods)])

    def _place(self, run: Run) -> Place:
        """Where the policy puts the job among its equals."""
        expected_s = 0.0 if self.policy.lines_by_duration else self._expected_s(run) or 0.0
        return (1, -self._priority(run), expected_s, run.job.submit_s, run.key)

    def _look(self) -> bool:
        """Show the engine the heads of the lines; true when it sees new jobs."""
        least = self.settings.visible_per_shape
        free_gpus = (self.books.capacity_milli - self.books.held_milli) / WHOLE_CARD

        def most(shape: Hashable) -> int:
            gpus = shape[0] if isinstance(shape, tuple) else 0.0
            return max(least, int(free_gpus / gpus) + 1) if least and gpus else len(self.runs)

        new = False
        for key, seen in self._lines.look(most):
            if seen:
                self._submit(self.runs[key])
                new = True
            else:
                self._forget(self.runs[key])
        return new

    def _submit(self, run: Run) -> None:
        """Hand the job to the engine, for the first time or again."""
        run.attempt += 1
        run.pods = engine_pods(
            run.job,
            priority=self._priority(run),
            attempt=run.attempt,
            slots=self.settings.slots_per_card > 1,
            enforce_memory=self.settings.enforce_memory,
        )
        for pod in run.pods:
            self._owner[pod.key] = run.key
        run.level = -self._priority(run)
        self.engine.apply([self._group_event(run), *(events.PodChanged(pod) for pod in run.pods)])

    def _group_event(self, run: Run) -> events.GroupChanged:
        return events.GroupChanged(
            engine_group(
                run.job,
                run.job.queue if self.policy.trace_queues else _QUEUE,
                priority=self._priority(run),
                expected_s=self._expected_s(run),
                attained_gpu_s=run.attained_gpu_s,
            )
        )

    def _expected_s(self, run: Run) -> float | None:
        """What the policy believes is left of the job."""
        if self.policy.foresight is Foresight.PERFECT:
            return run.work_left_s + run.overhead_left_s
        if run.guess_s is None:
            return None
        return corrected(run.guess_s, run.ran_s) - run.ran_s

    def _priority(self, run: Run) -> int:
        if self.policy.attained_levels:
            return 1 if run.promoted else -level_of(run.attained_gpu_s)
        return run.job.priority if self.policy.trace_priorities else 0

    def _decide(self) -> None:
        """Ask the engine until it has nothing more to move; its evictions make room that it fills in the next round."""
        self._cycle_due = False
        if self.now_s < self._next_cycle_s:
            self._push(self._next_cycle_s, Kind.CYCLE, None)
            return
        self._look()
        if self._lines.seen and self._worth_asking():
            self._next_cycle_s = self.now_s + self.settings.cycle_s
            for _ in range(_ROUNDS_PER_CYCLE):
                self.cycles += 1
                again = self._carry_out(self.engine.schedule(self.now_s, explain=False))
                if not self._look() and not again:
                    break
            self._room_changed = False
        self._note()

    def _worth_asking(self) -> bool:
        """Whether anything that waits could move: a free card, no need of one, or somebody who counts for less."""
        if self._room_changed or self.books.held_milli < self.books.capacity_milli:
            return True
        if any(not self.runs[key].job.cards for key in self._lines.seen):
            return True
        if not self.policy.attained_levels:
            return self.policy.preemptive
        waiting = min((self.runs[key].level for key in self._lines.seen), default=0)
        running = max((level for level, number in self._running_levels.items() if number), default=0)
        return waiting < running

    def _carry_out(self, plan: Plan) -> bool:
        """Make the plan happen; true when it stopped something, so that the engine should be asked again."""
        stopped = dict.fromkeys(self._owner[eviction.pod] for eviction in plan.evictions if eviction.pod in self._owner)
        for key in stopped:
            run = self.runs[key]
            if run.running:
                run.preemptions += 1
                self._stop(run)
        for binding in plan.bindings:
            key = self._owner[binding.pod]
            bound = self._bound[key]
            bound[binding.pod] = binding
            if len(bound) == self.runs[key].job.tasks:
                self._start(self.runs[key], self._bound.pop(key))
        return bool(stopped)

    def _start(self, run: Run, bound: dict[PodKey, Binding]) -> None:
        run.settled_s = self.now_s
        if run.start_s is None:
            run.start_s = self.now_s
        for pod in run.pods:
            binding = bound[pod.key]
            if len(binding.cards) != run.job.cards:
                raise DefectError(
                    f"{pod.key} asked for {run.job.cards} cards and got {len(binding.cards)} on {binding.node}"
                )
            run.nodes.add(binding.node)
            self._node_jobs[binding.node].add(run.key)
            run.cards.extend(grant.card for grant in binding.cards)
        self.books.take(run.key, run.cards, run.job.milli)
        run.running = True
        self._running += 1
        self._lines.leave(run.key)
        self._running_levels[run.level] += 1
        run.pods = tuple(running_pod(pod, bound[pod.key].node, bound[pod.key].cards, self.now_s) for pod in run.pods)
        self.engine.apply(events.PodChanged(pod) for pod in run.pods)
        self._set_speeds([run, *self._neighbours(run)])
        self._plan_level(run)

    def _stop(self, run: Run, *, failed: bool = False) -> None:
        """Take the job off its cards and queue it again."""
        self._leave(run)
        if failed and self.settings.checkpoint_s and run.job.duration_s is not None:
            lost_s = (run.job.duration_s - run.work_left_s) % self.settings.checkpoint_s
            run.work_left_s += lost_s
            self.lost_gpu_s += lost_s * run.job.gpus
        run.overhead_left_s = self.settings.restart_s
        self._forget(run)
        self._wait(run)
        self._changed(room=True)

    def _end(self, run: Run) -> None:
        self._leave(run)
        run.end_s = self.now_s
        self._unfinished -= 1
        self.history.observe(run.job, run.job.duration_s or run.ran_s)
        self._forget(run)
        self._changed(room=True)

    def _forget(self, run: Run) -> None:
        """Take the job out of the engine."""
        for pod in run.pods:
            del self._owner[pod.key]
        self.engine.apply([*(events.PodRemoved(pod.key) for pod in run.pods), events.GroupRemoved(run.key)])

    def _leave(self, run: Run) -> None:
        """Strike the job from the books and let its neighbours run freer."""
        self._settle(run)
        run.running = False
        self._running -= 1
        self._running_levels[run.level] -= 1
        neighbours = self._neighbours(run)
        self.books.give_back(run.key, run.cards, run.job.milli)
        for node in run.nodes:
            self._node_jobs[node].discard(run.key)
        run.cards.clear()
        run.nodes.clear()
        self._set_speeds(neighbours)

    def _fail(self, name: NodeName, outage: int) -> None:
        """The node goes away: by chance, or in an outage that was announced (counted from 1)."""
        if name in self._away:
            return
        self._away.add(name)
        self.node_failures += 1
        self.engine.apply([events.NodeRemoved(name)])
        self.books.set_down(name, down=True)
        for key in sorted(self._node_jobs[name]):
            self.runs[key].failures += 1
            self._stop(self.runs[key], failed=True)
        lasts_s = self.settings.outages[outage - 1].lasts_s if outage else self.settings.node_repair_s
        self._push(self.now_s + lasts_s, Kind.NODE_UP, name, outage)
        self._changed(room=True)

    def _repair(self, name: NodeName, outage: int) -> None:
        self._away.discard(name)
        self.engine.apply([events.NodeChanged(self.nodes[name])])
        self.books.set_down(name, down=False)
        if not outage:
            self._push(self.now_s + self._until_failure_s(), Kind.NODE_DOWN, name)
        self._changed(room=True)

    def _until_failure_s(self) -> float:
        return float(self._rng.exponential(self.settings.node_mtbf_s))

    def _neighbours(self, run: Run) -> list[Run]:
        keys = dict.fromkeys(key for card in run.cards for key in self.books.holders[card] if key != run.key)
        return [self.runs[key] for key in keys]

    def _set_speeds(self, runs: Iterable[Run]) -> None:
        """Settle these jobs at their old speed, find the new one, and move their ends."""
        for run in runs:
            self._settle(run)
            run.speed = min((self._card_speed(card) for card in run.cards), default=1.0)
            run.ends_stamp += 1
            if run.job.duration_s is not None:
                end_s = self.now_s + run.overhead_left_s + run.work_left_s / run.speed
                self._push(end_s, Kind.END, run.key, run.ends_stamp)

    def _card_speed(self, card: CardId) -> float:
        holders = self.books.holders[card]
        if len(holders) < 2:
            return 1.0
        residents = [
            Resident(run.job.utilisation, run.job.card_memory_mib) for run in map(self.runs.__getitem__, holders)
        ]
        return self.settings.sharing.speed(residents, self.books.memory_mib[card])

    def _settle(self, run: Run) -> None:
        """Count what the job did since it was last looked at."""
        elapsed_s = self.now_s - run.settled_s
        run.settled_s = self.now_s
        if not run.running or elapsed_s <= 0:
            return
        run.ran_s += elapsed_s
        paid_s = min(elapsed_s, run.overhead_left_s)
        run.overhead_left_s -= paid_s
        self.lost_gpu_s += paid_s * run.job.gpus
        run.work_left_s = max(0.0, run.work_left_s - (elapsed_s - paid_s) * run.speed)

    def _plan_level(self, run: Run) -> None:
        """When the job will have attained the next level of service."""
        if self.policy.attained_levels and run.job.gpus:
            ahead_gpu_s = next_level(run.attained_gpu_s) - run.attained_gpu_s
            self._push(self.now_s + ahead_gpu_s / run.job.gpus, Kind.LEVEL, run.key, run.attempt)

    def _changed(self, *, room: bool) -> None:
        self._cycle_due = True
        self._room_changed |= room

    def _push(self, time_s: float, kind: Kind, subject: GroupKey | NodeName | None, stamp: int = 0) -> None:
        heapq.heappush(self._heap, (time_s, kind, next(self._sequence), subject, stamp))

    def _note(self) -> None:
        """Write down how the cluster stands."""
        if self.now_s >= self._sample_due_s:
            self._sample_due_s = self.now_s + self._last_submit_s / _FRAGMENT_SAMPLES
            self._fragmented_milli = self.books.fragmented_milli()
        held, waiting = self.books.held_milli, len(self._lines)
        self.moments.append(Moment(self.now_s, held, waiting, self._running, self._fragmented_milli))

    def _summary(self) -> Summary:
        outcomes = [
            Outcome(
                name=run.job.name,
                tenant=run.job.tenant,
                gpus=run.job.gpus,
                submit_s=run.job.submit_s,
                duration_s=run.job.duration_s or run.ran_s,
                start_s=run.start_s,
                end_s=run.end_s,
                ran_s=run.ran_s,
                preemptions=run.preemptions,
                failures=run.failures,
            )
            for run in self.runs.values()
        ]
        return summarise(
            [run.job for run in self.runs.values()],
            outcomes,
            self.moments,
            policy=self.policy.name,
            seed=self.settings.seed,
            impossible=self.impossible,
            capacity_milli=self.books.capacity_milli,
            node_failures=self.node_failures,
            lost_gpu_s=self.lost_gpu_s,
            cycles=self.cycles,
        )
