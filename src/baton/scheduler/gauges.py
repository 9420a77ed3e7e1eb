"""The cluster in numbers at the moment of a scrape: waiting jobs, queues and their shares, cards."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.engine.engine import Engine
from baton.engine.state.jobs import QueueShare, Status
from baton.scheduler.loop import Scheduler

_QUEUE = ["queue"]
_QUEUE_RESOURCE = ["queue", "resource"]


class ClusterGauges(Collector):
    """Reads the engine of the scheduler that leads, if any."""

    def __init__(self, scheduler: Callable[[], Scheduler | None]) -> None:
        self._scheduler = scheduler

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        scheduler = self._scheduler()
        leading = GaugeMetricFamily("baton_scheduler_leading", "Whether this replica leads.")
        leading.add_metric([], 1.0 if scheduler is not None else 0.0)
        yield leading
        if scheduler is None:
            return
        yield from self._waiting(scheduler)
        yield from self._queues(scheduler.engine)

    def _waiting(self, scheduler: Scheduler) -> Iterator[Metric]:
        engine = scheduler.engine
        tasks = GaugeMetricFamily("baton_scheduler_tasks", "Pods by status.", labels=["status"])
        counts = [0] * len(Status)
        for task in engine.state.tasks.values():
            counts[task.status] += 1
        for status in Status:
            tasks.add_metric([status.name.lower()], counts[status])
        yield tasks
        jobs = GaugeMetricFamily("baton_scheduler_waiting_jobs", "Jobs that wait, by cause.", labels=["cause"])
        causes: dict[str, int] = {}
        for verdict in scheduler.statuses.waiting().values():
            causes[verdict.cause.value] = causes.get(verdict.cause.value, 0) + 1
        for cause, number in sorted(causes.items()):
            jobs.add_metric([cause], number)
        yield jobs
        binding = GaugeMetricFamily("baton_scheduler_binds_on_the_way", "Bindings not settled yet.")
        binding.add_metric([], scheduler.binder.on_the_way)
        yield binding
        dropped = GaugeMetricFamily("baton_scheduler_events_dropped", "Events that could not be written.")
        dropped.add_metric([], scheduler.recorder.dropped + scheduler.good_news.dropped)
        yield dropped

    def _queues(self, engine: Engine) -> Iterator[Metric]:
        weight = GaugeMetricFamily("baton_queue_weight", "The queue's weight.", labels=_QUEUE)
        used = GaugeMetricFamily("baton_queue_allocated", "What the queue's pods hold.", labels=_QUEUE_RESOURCE)
        wanted = GaugeMetricFamily("baton_queue_requested", "What they hold and wait for.", labels=_QUEUE_RESOURCE)
        deserved = GaugeMetricFamily("baton_queue_deserved", "What the queue deserves now.", labels=_QUEUE_RESOURCE)
        limit = GaugeMetricFamily("baton_queue_capability", "What the queue may use at most.", labels=_QUEUE_RESOURCE)
        share = GaugeMetricFamily("baton_queue_share", "Largest used part of what is deserved.", labels=_QUEUE)
        for name, queue in sorted(engine.state.queues.items()):
            weight.add_metric([name], queue.queue.weight)
            for family, vector in ((used, queue.allocated), (wanted, queue.requested)):
                for resource, amount in engine.state.resources.amounts(vector):
                    family.add_metric([name, resource], in_base_units(resource, amount))
            for resource, amount in queue.queue.capability:
                limit.add_metric([name, resource], in_base_units(resource, amount))
            entitled = dict(_deserved(engine, queue))
            for resource, amount in sorted(entitled.items()):
                deserved.add_metric([name, resource], in_base_units(resource, amount))
            share.add_metric([name], _share(engine, queue, entitled))
        yield from (weight, used, wanted, deserved, limit, share)


def in_base_units(resource: str, amount: float) -> float:
    """Cores, bytes, pieces."""
    return amount / 1000 if resource == "cpu" else float(amount)


def _deserved(engine: Engine, queue: QueueShare) -> Iterable[tuple[str, int]]:
    """By the plugin that works it out; without one, by the queue's own spec."""
    for plugin in engine.tiers.plugins:
        found = plugin.deserved(queue.name)
        if found is not None:
            return [(name, int(amount)) for name, amount in zip(engine.state.resources.names, found, strict=False)]
    return queue.queue.deserved


def _share(engine: Engine, queue: QueueShare, entitled: dict[str, int]) -> float:
    used = dict(engine.state.resources.amounts(queue.allocated))
    parts = [used.get(resource, 0) / amount for resource, amount in entitled.items() if amount]
    return max(parts, default=0.0)
