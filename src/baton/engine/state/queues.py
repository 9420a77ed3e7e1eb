"""The tree of queues: which job is in which queue, and the sums of every queue and its ancestors."""

from baton.engine.objects import Queue
from baton.engine.state.cluster import ClusterState
from baton.engine.state.jobs import Job, QueueShare
from baton.model.ids import GroupKey, QueueName
from baton.model.names import ROOT_QUEUE


class QueueTree:
    """Maintains `ClusterState.queues`, and keeps jobs whose queue does not exist yet."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._unqueued: dict[QueueName, dict[GroupKey, Job]] = {}

    def put(self, queue: Queue) -> None:
        for amounts in (queue.capability, queue.guarantee, queue.deserved):
            self._state.resources.learn(amounts)
        share = self._state.queues.get(queue.name)
        if share is None:
            share = self._state.queues[queue.name] = QueueShare(queue, self._state.resources)
            self._relink()
            for job in self._unqueued.pop(queue.name, {}).values():
                self.enlist(job, queue.name)
            return
        moved = share.queue.parent != queue.parent
        share.queue = queue
        if moved:
            self._relink()

    def remove(self, name: QueueName) -> None:
        share = self._state.queues.get(name)
        if share is None:
            return
        for job in list(share.jobs.values()):
            self.delist(job)
            self._unqueued.setdefault(name, {})[job.key] = job
        del self._state.queues[name]
        self._relink()

    def _relink(self) -> None:
        """Recompute parents, children and all sums after a change of the tree."""
        queues = self._state.queues
        for share in queues.values():
            share.children = {}
            share.line = None
            share.allocated = self._state.resources.zeros()
            share.requested = self._state.resources.zeros()
        for share in queues.values():
            parent = share.queue.parent
            if parent is None and share.name != ROOT_QUEUE:
                parent = ROOT_QUEUE
            share.parent = queues.get(parent) if parent is not None and parent != share.name else None
        for share in queues.values():
            if share.parent is not None:
                share.parent.children[share.name] = share
        for share in queues.values():
            for job in share.jobs.values():
                for line in share.lineage():
                    line.allocated += job.allocated
                    line.requested += job.requested

    def enlist(self, job: Job, name: QueueName) -> None:
        """Add the job and its sums to its queue, or as soon as the queue exists."""
        queue = self._state.queues.get(name)
        job.queue = queue
        if queue is None:
            self._unqueued.setdefault(name, {})[job.key] = job
            return
        queue.jobs[job.key] = job
        for line in queue.lineage():
            line.allocated += job.allocated
            line.requested += job.requested

    def delist(self, job: Job) -> None:
        self._unqueued.get(job.group.queue, {}).pop(job.key, None)
        if job.queue is not None:
            job.queue.jobs.pop(job.key, None)
            for line in job.queue.lineage():
                line.allocated -= job.allocated
                line.requested -= job.requested
            job.queue = None
