"""Credit of queues: what may be let in without asking, while nobody waits to be let in.

To be asked costs a write for every job, and its pods are not made before. So the scheduler says beforehand how much it
would let into each queue; whoever makes jobs counts what it has let in since, and asks when that is used up. It is a
promise of room before the gate, not on nodes: where two spend at once, more pods wait for their place than would else,
and nothing else happens. What all queues have in common is divided among them.
"""

import numpy as np

from baton.engine.session import hooks
from baton.engine.session.session import Session
from baton.engine.state.jobs import QueueShare
from baton.model.ids import QueueName
from baton.model.names import ROOT_QUEUE, PodGroupPhase, QueueState
from baton.model.quantities import Amounts


def credits_of(session: Session) -> dict[QueueName, Amounts]:
    """What each open queue may let in; none when jobs wait before the gate or a plugin must see each of them."""
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
