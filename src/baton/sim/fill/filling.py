"""Fill mode: pods arrive until a cluster is full and never leave, as in the study of FGD (USENIX ATC'23).

Each part of the procedure follows the study exactly, because the published numbers depend on it:

- All pods of the trace arrive in a seeded random order, followed by pods drawn from the same list until the demand for
  cards reaches `load` times the capacity. Times in the trace are ignored. A pod that does not fit is dropped, not
  queued.
- Nodes are in a seeded random order, and every tie goes to the first of them.
- The target workload of the fragmentation measure is the trace as it was before pods were added.
- The curves run over the demand that has arrived, in whole per cent of the capacity; a point is the mean over the
  arrivals that round to it.

One fill is single-threaded and works on one set of arrays; only the chosen node's row changes.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from baton.engine.cards import fragmentation
from baton.engine.cards.fragmentation import TargetWorkload, Weighted
from baton.errors import BatonError, UsageError
from baton.sim.fill.cluster import Cluster, Pod
from baton.sim.fill.placement import POLICIES
from baton.sim.traces.workload import TraceJob, TraceNode

LOAD = 1.3


class FillResult(msgspec.Struct, frozen=True):
    """The curves of one fill, in per cent of the capacity, indexed by arrived demand in per cent of the capacity."""

    policy: str
    seed: int
    allocated_percent: list[float]
    fragmented_percent: list[float]
    fragmented_percent_of_free: list[float]
    pods: int
    failed: int

    def allocated_at(self, arrived_percent: int) -> float:
        """Allocated capacity when this much demand had arrived."""
        if not 0 <= arrived_percent < len(self.allocated_percent):
            raise UsageError(
                f"the fill did not reach {arrived_percent} % of demand; it ended at {len(self.allocated_percent) - 1} %"
            )
        return self.allocated_percent[arrived_percent]


def arrivals(jobs: Sequence[TraceJob], capacity_milli: int, load: float, rng: np.random.Generator) -> list[int]:
    """The indices of the pods that arrive, in order."""
    demand = np.array([job.total_milli for job in jobs], dtype=np.int64)
    target = load * capacity_milli
    order = [int(index) for index in rng.permutation(len(jobs))]
    total = int(demand.sum())
    if total > target:
        while order and total > target:
            total -= int(demand[order.pop()])
        return order
    if not total:
        raise BatonError(
            "no pod of the trace asks for a card, so the demand for cards cannot reach the load; use another trace"
        )
    while True:
        drawn = int(rng.integers(len(jobs)))
        # The study stops by the share of one card, not by the pod's whole demand.
        if total + (jobs[drawn].milli if jobs[drawn].cards else 0) > target:
            return order
        order.append(drawn)
        total += int(demand[drawn])


def fill(
    jobs: Sequence[TraceJob], nodes: Sequence[TraceNode], policy: str, seed: int, load: float = LOAD
) -> FillResult:
    """Fill the cluster once."""
    if policy not in POLICIES:
        raise UsageError(f"no fill policy {policy!r}; there are {', '.join(POLICIES)}")
    rng = np.random.default_rng(seed)
    cluster = Cluster.of(nodes, rng.permutation(len(nodes)))
    counted = fragmentation.typical(job.shape for job in jobs)
    workload = TargetWorkload.of(counted, cluster.model_names)
    pods = [Pod.of(job, cluster.model_names) for job in jobs]
    chooser = POLICIES[policy](cluster, workload, rng)
    sequence = arrivals(jobs, cluster.capacity_milli, load, rng)
    fragment = fragmentation.fragments(workload, cluster.cpu_free, cluster.card_free, cluster.model)
    allocated = np.zeros(len(sequence))
    fragmented = np.zeros(len(sequence))
    taken, broken, failed = 0, float(fragment.sum()), 0
    for step, index in enumerate(sequence):
        pod = pods[index]
        fits = cluster.with_room(pod)
        if fits.any():
            node, cards = chooser.choose(pod, fits)
            cluster.place(pod, node, cards)
            taken += pod.shape.milli * len(cards)
            changed = fragment_of(workload, cluster, node)
            broken += changed - fragment[node]
            fragment[node] = changed
            chooser.placed(pod, node, changed)
        else:
            failed += 1
        allocated[step] = taken
        fragmented[step] = broken
    arrived = np.cumsum([pods[index].shape.total_milli for index in sequence]) / cluster.capacity_milli
    bucket = np.rint(100 * arrived).astype(np.int64)
    fragmented /= workload.weight
    free = np.maximum(cluster.capacity_milli - allocated, 1)
    return FillResult(
        policy=policy,
        seed=seed,
        allocated_percent=_means(bucket, 100 * allocated / cluster.capacity_milli),
        fragmented_percent=_means(bucket, 100 * fragmented / cluster.capacity_milli),
        fragmented_percent_of_free=_means(bucket, 100 * fragmented / free),
        pods=len(sequence),
        failed=failed,
    )


def fill_task(shared: tuple[Sequence[TraceJob], Sequence[TraceNode]], task: tuple[str, int, float]) -> FillResult:
    """One fill, as a task for `in_parallel`."""
    jobs, nodes = shared
    policy, seed, load = task
    return fill(jobs, nodes, policy, seed, load)


def fragment_of(workload: TargetWorkload, cluster: Cluster, node: int) -> float:
    """The weighted fragmentation of one node."""
    here = slice(node, node + 1)
    return float(
        fragmentation.fragments(workload, cluster.cpu_free[here], cluster.card_free[here], cluster.model[here])[0]
    )


def _means(bucket: npt.NDArray[np.int64], values: Weighted) -> list[float]:
    counts = np.bincount(bucket)
    sums = np.bincount(bucket, weights=values)
    means = sums / np.maximum(counts, 1)
    for empty in np.flatnonzero(counts == 0):
        means[empty] = means[empty - 1] if empty else 0.0
    return [float(mean) for mean in means]
