"""Admit waiting jobs: a PodGroup in phase Pending becomes Inqueue when every vote allows it.

Admission comes before pods are created, so a cluster is not flooded with pods that cannot run.
"""

import heapq
from typing import Any

from baton.engine.session.session import Session
from baton.engine.state.jobs import Job
from baton.engine.verdicts import Cause
from baton.model.names import PodGroupPhase, QueueState


def enqueue(session: Session) -> None:
    lanes: dict[str, list[tuple[Any, str, Job]]] = {}
    for job in session.state.active.values():
        if job.phase is not PodGroupPhase.PENDING:
            continue
        if job.queue is None:
            session.decisions.blocked[job.key] = (Cause.NO_QUEUE, None)
        elif job.queue.queue.state is not QueueState.OPEN:
            session.decisions.blocked[job.key] = (Cause.QUEUE_CLOSED, None)
        elif session.turns.had(job):
            session.decisions.blocked[job.key] = (Cause.NOT_ADMITTED, None)
        else:
            lanes.setdefault(job.queue.name, []).append((session.votes.job_key(job), job.key, job))
    queues = session.state.queues
    order = [(session.votes.queue_key(share), name) for name, share in queues.items() if name in lanes]
    heapq.heapify(order)
    for lane in lanes.values():
        heapq.heapify(lane)
    while order and not session.turns.time_is_up():
        _, name = heapq.heappop(order)
        lane = lanes[name]
        job = heapq.heappop(lane)[2]
        if job.group.min_resources is None or session.votes.job_enqueueable(job):
            session.decisions.admit(job)
        else:
            session.decisions.blocked[job.key] = (Cause.NOT_ADMITTED, None)
        session.turns.looked_at(job, more=False)
        if lane:
            heapq.heappush(order, (session.votes.queue_key(queues[job.group.queue]), name))
