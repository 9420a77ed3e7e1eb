"""The cluster in numbers at the moment of a scrape: waiting jobs, queues and their shares, cards."""

from collections.abc import Iterable, Iterator

from baton.engine.engine import Engine
from baton.engine.state.jobs import QueueShare, Status
from baton.observe.metrics import Family, Row
from baton.scheduler.loop import Scheduler

_LEADING = Family("gauge", "baton_scheduler_leading", "Whether this replica leads.")
_TASKS = Family("gauge", "baton_scheduler_tasks", "Pods by status.", ("status",))
_WAITING = Family("gauge", "baton_scheduler_waiting_jobs", "Jobs that wait, by cause.", ("cause",))
_BINDING = Family("gauge", "baton_scheduler_binds_on_the_way", "Bindings not settled yet.")
_DROPPED = Family("gauge", "baton_scheduler_events_dropped", "Events that could not be written.")

_QUEUE = ("queue",)
_QUEUE_RESOURCE = ("queue", "resource")
_WEIGHT = Family("gauge", "baton_queue_weight", "The queue's weight.", _QUEUE)
_ALLOCATED = Family("gauge", "baton_queue_allocated", "What the queue's pods hold.", _QUEUE_RESOURCE)
_REQUESTED = Family("gauge", "baton_queue_requested", "What they hold and wait for.", _QUEUE_RESOURCE)
_DESERVED = Family("gauge", "baton_queue_deserved", "What the queue deserves now.", _QUEUE_RESOURCE)
_CAPABILITY = Family("gauge", "baton_queue_capability", "What the queue may use at most.", _QUEUE_RESOURCE)
_SHARE = Family("gauge", "baton_queue_share", "Largest used part of what is deserved.", _QUEUE)

FAMILIES = (
    *(_LEADING, _TASKS, _WAITING, _BINDING, _DROPPED),
    *(_WEIGHT, _ALLOCATED, _REQUESTED, _DESERVED, _CAPABILITY, _SHARE),
)


def rows(scheduler: Scheduler | None) -> Iterator[Row]:
    """The state of the scheduler that leads; a replica that does not lead has only that to report."""
    yield Row(_LEADING, (), 1.0 if scheduler is not None else 0.0)
    if scheduler is not None:
        yield from _waiting(scheduler)
        yield from _queues(scheduler.engine)


def _waiting(scheduler: Scheduler) -> Iterator[Row]:
    counts = [0] * len(Status)
    for task in scheduler.engine.state.tasks.values():
        counts[task.status] += 1
    for status in Status:
        yield Row(_TASKS, (status.name.lower(),), counts[status])
    causes: dict[str, int] = {}
    for verdict in scheduler.statuses.waiting().values():
        causes[verdict.cause.value] = causes.get(verdict.cause.value, 0) + 1
    for cause, number in sorted(causes.items()):
        yield Row(_WAITING, (cause,), number)
    yield Row(_BINDING, (), scheduler.binder.on_the_way)
    yield Row(_DROPPED, (), scheduler.recorder.dropped + scheduler.good_news.dropped)


def _queues(engine: Engine) -> Iterator[Row]:
    for name, queue in sorted(engine.state.queues.items()):
        yield Row(_WEIGHT, (name,), queue.queue.weight)
        for family, vector in ((_ALLOCATED, queue.allocated), (_REQUESTED, queue.requested)):
            for resource, amount in engine.state.resources.amounts(vector):
                yield Row(family, (name, resource), in_base_units(resource, amount))
        for resource, amount in queue.queue.capability:
            yield Row(_CAPABILITY, (name, resource), in_base_units(resource, amount))
        entitled = dict(_deserved(engine, queue))
        for resource, amount in sorted(entitled.items()):
            yield Row(_DESERVED, (name, resource), in_base_units(resource, amount))
        yield Row(_SHARE, (name,), _share(engine, queue, entitled))


def in_base_units(resource: str, amount: float) -> float:
    """Cores, bytes, pieces."""
    return amount / 1000 if resource == "cpu" else float(amount)


def _deserved(engine: Engine, queue: QueueShare) -> Iterable[tuple[str, int]]:
    """The share that a plugin worked out in the last cycle; without one, the share in the queue's spec."""
    for plugin in engine.tiers.plugins:
        found = plugin.deserved(queue.name)
        if found is not None:
            return [(name, int(amount)) for name, amount in zip(engine.state.resources.names, found, strict=False)]
    return queue.queue.deserved


def _share(engine: Engine, queue: QueueShare, entitled: dict[str, int]) -> float:
    used = dict(engine.state.resources.amounts(queue.allocated))
    parts = [used.get(resource, 0) / amount for resource, amount in entitled.items() if amount]
    return max(parts, default=0.0)
