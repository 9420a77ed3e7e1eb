"""A run: discrete events around the engine.

Jobs arrive, run and end; nodes fail and return. After every change the simulator asks the engine for a plan and carries
it out at once. `agenda` holds the events to come; `waiting` holds the waiting jobs and tells the engine about them;
this module starts, stops and slows jobs.

A job is a gang: it runs while all of its tasks hold their cards and stops as a whole. A stopped job keeps its progress
(up to the last checkpoint when its node failed) and pays `restart_s` of card time before it continues. Jobs on one card
slow each other by the model in `sharing`; when a neighbour comes or goes, the progress so far is settled and the end
moves.

The loop keeps its own books of who holds which card. They measure utilisation and check the engine: a plan that
allocates more of a card than exists ends the run as a defect.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from baton.engine import events
from baton.engine.cards.fragmentation import WHOLE_CARD
from baton.engine.engine import Engine
from baton.engine.objects import Node, Pod, Queue
from baton.engine.plan import Binding, Plan
from baton.model.ids import CardId, GroupKey, NodeName, PodKey, QueueName
from baton.sim.run.agenda import Agenda, Entry, Kind
from baton.sim.run.books import CardBooks, DefectError
from baton.sim.run.feasibility import EmptyCluster
from baton.sim.run.jobs import Run
from baton.sim.run.metrics import Moment, Outcome, Summary, summarise
from baton.sim.run.settings import Settings
from baton.sim.run.sharing import Resident
from baton.sim.run.translation import running_pod
from baton.sim.run.waiting import QUEUE, Waiting
from baton.sim.scheduling_policies import Policy, next_level
from baton.sim.traces.workload import TraceJob

_ROUNDS_PER_CYCLE = 50
_FRAGMENT_SAMPLES = 2000


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
        self.engine = Engine(policy.parsed())
        self.cycles = 0
        self.node_failures = 0
        self.lost_gpu_s = 0.0
        self.moments: list[Moment] = []
        self._background = background
        self._agenda = Agenda()
        self._waiting = Waiting(self.engine, policy, settings, self.runs, self._agenda)
        self._rng = np.random.default_rng(settings.seed)
        self._running_levels: Counter[int] = Counter()
        self._running = 0
        self._unfinished = len(self.runs)
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
        """Run until the last job has ended or no event is left."""
        total = len(self.runs)
        self._open_cluster()
        for key, run in self.runs.items():
            self._agenda.enter(run.job.submit_s, Kind.ARRIVAL, key)
        while self._agenda and self._unfinished:
            entry = self._agenda.take()
            self._handle(entry)
            if progress is not None and entry.kind is Kind.END:
                progress(total - self._unfinished, total)
            if self._cycle_due and not self._agenda.more_now():
                self._decide()
        return self._summary()

    @property
    def now_s(self) -> float:
        return self._agenda.now_s

    def _open_cluster(self) -> None:
        queues = sorted({run.job.queue for run in self.runs.values()}) if self.policy.trace_queues else []
        strategy = "fifo" if self.policy.strict else "traverse"
        self.engine.apply(
            [
                *(
                    events.QueueChanged(Queue(name=QueueName(name), dequeue_strategy=strategy))
                    for name in dict.fromkeys([QUEUE, *queues])
                ),
                *(events.NodeChanged(node) for node in self.nodes.values()),
                *(events.PodChanged(pod) for pod in self._background),
            ]
        )
        for pod in self._background:
            self.books.reserve(pod.cards)
        for number, outage in enumerate(self.settings.outages, start=1):
            self._agenda.enter(outage.at_s, Kind.NODE_DOWN, outage.node, number)
        if self.settings.node_mtbf_s:
            for name in self.nodes:
                self._agenda.enter(self._until_failure_s(), Kind.NODE_DOWN, name)

    def _handle(self, entry: Entry) -> None:
        _, kind, _, subject, stamp = entry
        if subject is None:
            self._cycle_due = True
        elif kind is Kind.NODE_DOWN:
            self._fail(NodeName(subject), stamp)
        elif kind is Kind.NODE_UP:
            self._repair(NodeName(subject), stamp)
        else:
            run = self.runs[GroupKey(subject)]
            if kind is Kind.ARRIVAL:
                self._waiting.arrive(run)
                self._changed(room=False)
            elif kind is Kind.PATIENCE and run in self._waiting and stamp == run.waits:
                self._waiting.promote(run)
                self._changed(room=False)
            elif kind is Kind.END and run.running and stamp == run.ends_stamp:
                self._end(run)
            elif kind is Kind.LEVEL and run.running and stamp == run.attempt:
                self._demote(run)

    def _demote(self, run: Run) -> None:
        """The job has attained the next level of service, which lowers its priority."""
        self._settle(run)
        run.promoted = False
        self._running_levels[run.level] -= 1
        self._waiting.tell_priority(run)
        self._running_levels[run.level] += 1
        self._plan_level(run)
        self._changed(room=False)

    def _decide(self) -> None:
        """Ask the engine until it plans no more changes: it uses the room of its evictions in the next round."""
        self._cycle_due = False
        if self.now_s < self._next_cycle_s:
            self._agenda.enter(self._next_cycle_s, Kind.CYCLE, None)
            return
        self._look()
        if self._worth_asking():
            self._next_cycle_s = self.now_s + self.settings.cycle_s
            for _ in range(_ROUNDS_PER_CYCLE):
                self.cycles += 1
                again = self._carry_out(self.engine.schedule(self.now_s, explain=False))
                if not self._look() and not again:
                    break
            self._room_changed = False
        self._note()

    def _look(self) -> bool:
        return self._waiting.look((self.books.capacity_milli - self.books.held_milli) / WHOLE_CARD)

    def _worth_asking(self) -> bool:
        """Whether a waiting job could start: on a free card, without a card, or by preempting another job."""
        seen = self._waiting.seen
        if not seen:
            return False
        if self._room_changed or self.books.held_milli < self.books.capacity_milli:
            return True
        if any(not self.runs[key].job.cards for key in seen):
            return True
        if not self.policy.attained_levels:
            return self.policy.preemptive
        running = max((level for level, number in self._running_levels.items() if number), default=0)
        return min(self.runs[key].level for key in seen) < running

    def _carry_out(self, plan: Plan) -> bool:
        """Carry out the plan; true when it stopped a job, so that the engine should be asked again."""
        owner = self._waiting.owner
        stopped = dict.fromkeys(owner[eviction.pod] for eviction in plan.evictions if eviction.pod in owner)
        for key in stopped:
            run = self.runs[key]
            if run.running:
                run.preemptions += 1
                self._stop(run)
        for binding in plan.bindings:
            key = owner[binding.pod]
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
        self._waiting.leave(run)
        self._running_levels[run.level] += 1
        run.pods = tuple(running_pod(pod, bound[pod.key].node, bound[pod.key].cards, self.now_s) for pod in run.pods)
        self.engine.apply(events.PodChanged(pod) for pod in run.pods)
        self._set_speeds([run, *self._neighbours(run)])
        self._plan_level(run)

    def _stop(self, run: Run, *, failed: bool = False) -> None:
        """Take the job off its cards and put it back in line."""
        self._leave(run)
        if failed and self.settings.checkpoint_s and run.job.duration_s is not None:
            lost_s = (run.job.duration_s - run.work_left_s) % self.settings.checkpoint_s
            run.work_left_s += lost_s
            self.lost_gpu_s += lost_s * run.job.gpus
        run.overhead_left_s = self.settings.restart_s
        self._waiting.forget(run)
        self._waiting.join(run)
        self._changed(room=True)

    def _end(self, run: Run) -> None:
        self._leave(run)
        run.end_s = self.now_s
        self._unfinished -= 1
        self._waiting.ended(run)
        self._changed(room=True)

    def _leave(self, run: Run) -> None:
        """Remove the job from the books and speed up its neighbours."""
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
        """The node fails: at random, or in a planned outage (counted from 1)."""
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
        self._agenda.enter(self.now_s + lasts_s, Kind.NODE_UP, name, outage)
        self._changed(room=True)

    def _repair(self, name: NodeName, outage: int) -> None:
        self._away.discard(name)
        self.engine.apply([events.NodeChanged(self.nodes[name])])
        self.books.set_down(name, down=False)
        if not outage:
            self._agenda.enter(self.now_s + self._until_failure_s(), Kind.NODE_DOWN, name)
        self._changed(room=True)

    def _until_failure_s(self) -> float:
        return float(self._rng.exponential(self.settings.node_mtbf_s))

    def _neighbours(self, run: Run) -> list[Run]:
        keys = dict.fromkeys(key for card in run.cards for key in self.books.holders[card] if key != run.key)
        return [self.runs[key] for key in keys]

    def _set_speeds(self, runs: Iterable[Run]) -> None:
        """Settle these jobs at their old speed, compute the new one, and move their ends."""
        for run in runs:
            self._settle(run)
            run.speed = min((self._card_speed(card) for card in run.cards), default=1.0)
            run.ends_stamp += 1
            if run.job.duration_s is not None:
                end_s = self.now_s + run.overhead_left_s + run.work_left_s / run.speed
                self._agenda.enter(end_s, Kind.END, run.key, run.ends_stamp)

    def _card_speed(self, card: CardId) -> float:
        holders = self.books.holders[card]
        if len(holders) < 2:
            return 1.0
        residents = [
            Resident(run.job.utilisation, run.job.card_memory_mib) for run in map(self.runs.__getitem__, holders)
        ]
        return self.settings.sharing.speed(residents, self.books.memory_mib[card])

    def _settle(self, run: Run) -> None:
        self.lost_gpu_s += run.settle(self.now_s) * run.job.gpus

    def _plan_level(self, run: Run) -> None:
        """Schedule the event at which the job attains the next level of service."""
        if self.policy.attained_levels and run.job.gpus:
            ahead_gpu_s = next_level(run.attained_gpu_s) - run.attained_gpu_s
            self._agenda.enter(self.now_s + ahead_gpu_s / run.job.gpus, Kind.LEVEL, run.key, run.attempt)

    def _changed(self, *, room: bool) -> None:
        self._cycle_due = True
        self._room_changed |= room

    def _note(self) -> None:
        """Record the state of the cluster."""
        if self.now_s >= self._sample_due_s:
            self._sample_due_s = self.now_s + self._last_submit_s / _FRAGMENT_SAMPLES
            self._fragmented_milli = self.books.fragmented_milli()
        held, waiting = self.books.held_milli, len(self._waiting)
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
