"""Queue credit: how much the job controllers may admit without asking, while no job waits for admission.

Asking the scheduler costs a write for every job, and delays the creation of its pods. So the scheduler publishes in
advance how much it would admit into each queue; a job controller counts what it has admitted since then, and asks when
the credit is used up. Credit is a promise of admission, not of room on nodes: if two controllers spend it at once, more
pods wait for their places than otherwise, without further consequences. Capacity that queues share is divided among
them.
"""

import numpy as np

from baton.engine.session import hooks
from baton.engine.session.session import Session
from baton.engine.state.jobs import QueueShare
from baton.model.ids import QueueName
from baton.model.names import ROOT_QUEUE, PodGroupPhase, QueueState
from baton.model.quantities import Amounts


def credits_of(session: Session) -> dict[QueueName, Amounts]:
    """The credit of each open queue; empty if jobs wait for admission or a plugin must check each job."""
    state = session.state
    plugins = session.tiers.flat(hooks.JOB_ENQUEUEABLE)
    if "enqueue" not in session.tiers.configuration.actions or not all(map(hooks.CREDIT.taken_by, plugins)):
        return {}
    if any(job.phase is PodGroupPhase.PENDING and _is_open(job.queue) for job in state.active.values()):
        return {}
    takers = [
        share for name, share in state.queues.items() if name != ROOT_QUEUE and _is_open(share) and not share.children
    ]
    found: dict[QueueName, Amounts] = {}
    for share in takers:
        credit = state.table.capacity_total.copy()
        for plugin in plugins:
            limit = plugin.credit(share, len(takers))
            credit = np.zeros_like(credit) if limit is None else np.minimum(credit, limit)
        found[share.name] = state.resources.amounts(np.maximum(credit, 0))
    return found


def _is_open(share: QueueShare | None) -> bool:
    return share is not None and share.queue.state is QueueState.OPEN
