"""The results of a run: job times, card use over time, and fairness between tenants.

Definitions, because the literature has several of each:

- *JCT*: end minus submission. *Wait*: JCT minus the time the job was running. *Slowdown*: JCT divided by the job's own
  duration, which counts as at least ten seconds so that tiny jobs do not dominate the mean.
- *Jain's index* of the tenants' mean slowdowns: 1 when all tenants are slowed equally, 1/n when only one is.
- *Finish-time fairness* of a job: its JCT divided by the JCT that it would have had if each of the n tenants had 1/n of
  the cards to itself, first come, first served (a gang larger than that runs on the share, for longer). Above 1,
  sharing cost the job time. It is reported as median and mean over jobs, and as the mean per tenant.
- *Utilisation*: card time held by jobs divided by all card time until the last job ended. *Busy window*: the same until
  the last submission, which excludes the tail in which a long job keeps the run going.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from baton.sim.traces.workload import TraceJob

_SHORTEST_S = 10.0
POINTS = 300


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one job. Times count from the first submission; a job that never ran has no start."""

    name: str
    tenant: str
    gpus: float
    submit_s: float
    duration_s: float
    start_s: float | None = None
    end_s: float | None = None
    ran_s: float = 0.0
    preemptions: int = 0
    failures: int = 0

    @property
    def jct_s(self) -> float:
        assert self.end_s is not None
        return self.end_s - self.submit_s

    @property
    def wait_s(self) -> float:
        return max(0.0, self.jct_s - self.ran_s)

    @property
    def slowdown(self) -> float:
        return max(1.0, self.jct_s / max(self.duration_s, _SHORTEST_S))


class Distribution(msgspec.Struct, frozen=True):
    """The summary statistics of a sample."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Distribution":
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        sample = np.asarray(values, dtype=np.float64)
        p50, p95, p99 = (float(found) for found in np.percentile(sample, (50, 95, 99)))
        return cls(float(sample.mean()), p50, p95, p99, float(sample.max()))


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """The state of the cluster from one time until the next moment."""

    time_s: float
    held_milli: int
    pending: int
    running: int
    fragmented_milli: float


class Curve(msgspec.Struct, frozen=True):
    """Means over equal intervals of time; `time_h` is the middle of each."""

    time_h: list[float]
    utilisation: list[float]
    pending: list[float]
    running: list[float]
    fragmentation: list[float]


class Tenant(msgspec.Struct, frozen=True):
    """The results of one tenant."""

    name: str
    jobs: int
    gpu_hours: float
    jct_s: float
    wait_s: float
    slowdown: float
    finish_time_fairness: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run."""

    policy: str
    seed: int
    jobs: int
    finished: int
    unfinished: list[str]
    impossible: list[str]
    jct_s: Distribution
    wait_s: Distribution
    slowdown: Distribution
    makespan_s: float
    utilisation: float
    busy_utilisation: float
    preemptions: int
    node_failures: int
    job_failures: int
    lost_gpu_hours: float
    jain: float
    finish_time_fairness: Distribution
    tenants: list[Tenant]
    curve: Curve
    cycles: int
    jct_quantiles_s: list[float]
    wait_quantiles_s: list[float]


def summarise(
    jobs: Sequence[TraceJob],
    outcomes: Sequence[Outcome],
    moments: Sequence[Moment],
    *,
    policy: str,
    seed: int,
    impossible: Sequence[str],
    capacity_milli: int,
    node_failures: int,
    lost_gpu_s: float,
    cycles: int,
) -> Summary:
    """Compute the results of a run."""
    done = [outcome for outcome in outcomes if outcome.end_s is not None]
    fairness = finish_time_fairness(jobs, {outcome.name: outcome for outcome in done}, capacity_milli / 1000)
    by_tenant = tenants(done, fairness)
    end_s = max((outcome.end_s or 0.0 for outcome in done), default=0.0)
    last_submit_s = max((job.submit_s for job in jobs), default=0.0)
    jct_s = [outcome.jct_s for outcome in done]
    wait_s = [outcome.wait_s for outcome in done]
    return Summary(
        policy=policy,
        seed=seed,
        jobs=len(jobs) + len(impossible),
        finished=len(done),
        unfinished=[outcome.name for outcome in outcomes if outcome.end_s is None],
        impossible=list(impossible),
        jct_s=Distribution.of(jct_s),
        wait_s=Distribution.of(wait_s),
        slowdown=Distribution.of([outcome.slowdown for outcome in done]),
        makespan_s=end_s,
        utilisation=utilisation_until(moments, end_s, capacity_milli),
        busy_utilisation=utilisation_until(moments, min(last_submit_s, end_s) or end_s, capacity_milli),
        preemptions=sum(outcome.preemptions for outcome in outcomes),
        node_failures=node_failures,
        job_failures=sum(outcome.failures for outcome in outcomes),
        lost_gpu_hours=lost_gpu_s / 3600,
        jain=jain([tenant.slowdown for tenant in by_tenant]),
        finish_time_fairness=Distribution.of(list(fairness.values())),
        tenants=by_tenant,
        curve=curve(moments, end_s, capacity_milli),
        cycles=cycles,
        jct_quantiles_s=quantiles(jct_s),
        wait_quantiles_s=quantiles(wait_s),
    )


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index of these values."""
    squares = sum(value * value for value in values)
    if not squares:
        return 1.0
    return sum(values) ** 2 / (len(values) * squares)


def alone_jct(jobs: Sequence[TraceJob], share_gpus: float) -> dict[str, float]:
    """The JCT of each job if its tenant had `share_gpus` cards to itself, first come, first served."""
    found: dict[str, float] = {}
    running: list[tuple[float, float]] = []
    free, now = share_gpus, 0.0
    for job in sorted(jobs, key=lambda job: (job.submit_s, job.name)):
        assert job.duration_s is not None
        width = min(job.gpus, share_gpus)
        work_s = job.duration_s * (job.gpus / width if width else 1.0)
        now = max(now, job.submit_s)
        while free + 1e-9 < width or (running and running[0][0] <= now):
            end_s, back = heapq.heappop(running)
            now = max(now, end_s)
            free += back
        free -= width
        heapq.heappush(running, (now + work_s, width))
        found[job.name] = now + work_s - job.submit_s
    return found


def finish_time_fairness(
    jobs: Sequence[TraceJob], outcomes: Mapping[str, Outcome], total_gpus: float
) -> dict[str, float]:
    """The JCT of each finished job divided by its JCT with an equal share of the cards for each tenant."""
    by_tenant: dict[str, list[TraceJob]] = defaultdict(list)
    for job in jobs:
        if job.name in outcomes:
            by_tenant[job.tenant].append(job)
    found: dict[str, float] = {}
    for members in by_tenant.values():
        alone = alone_jct(members, total_gpus / len(by_tenant))
        found.update({name: outcomes[name].jct_s / max(jct_s, _SHORTEST_S) for name, jct_s in alone.items()})
    return found


def tenants(outcomes: Sequence[Outcome], fairness: Mapping[str, float]) -> list[Tenant]:
    """The results per tenant, sorted by name."""
    grouped: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        grouped[outcome.tenant].append(outcome)
    return [
        Tenant(
            name=name,
            jobs=len(group),
            gpu_hours=sum(outcome.gpus * outcome.ran_s for outcome in group) / 3600,
            jct_s=_mean([outcome.jct_s for outcome in group]),
            wait_s=_mean([outcome.wait_s for outcome in group]),
            slowdown=_mean([outcome.slowdown for outcome in group]),
            finish_time_fairness=_mean([fairness[outcome.name] for outcome in group]),
        )
        for name, group in sorted(grouped.items())
    ]


def curve(moments: Sequence[Moment], end_s: float, capacity_milli: int, points: int = POINTS) -> Curve:
    """Time-weighted means of the moments over equal intervals until `end_s`."""
    if not moments or end_s <= moments[0].time_s or not capacity_milli:
        return Curve([], [], [], [], [])
    start_s = moments[0].time_s
    edges = np.linspace(start_s, end_s, points + 1)
    times = np.array([moment.time_s for moment in moments] + [end_s])
    width = np.diff(edges)

    def means(values: Sequence[float]) -> list[float]:
        area = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64) * np.diff(times))])
        return [float(mean) for mean in np.diff(np.interp(edges, times, area)) / width]

    return Curve(
        time_h=[float(middle) for middle in (edges[:-1] + edges[1:]) / 2 / 3600],
        utilisation=[value / capacity_milli for value in means([moment.held_milli for moment in moments])],
        pending=means([moment.pending for moment in moments]),
        running=means([moment.running for moment in moments]),
        fragmentation=[value / capacity_milli for value in means([moment.fragmented_milli for moment in moments])],
    )


def utilisation_until(moments: Sequence[Moment], until_s: float, capacity_milli: int) -> float:
    """Held card time divided by all card time from the first moment to `until_s`."""
    if not moments or until_s <= moments[0].time_s or not capacity_milli:
        return 0.0
    held = 0.0
    for moment, following in zip(moments, [*moments[1:], None], strict=True):
        end_s = until_s if following is None else min(following.time_s, until_s)
        held += moment.held_milli * max(0.0, end_s - moment.time_s)
    return held / (capacity_milli * (until_s - moments[0].time_s))


def quantiles(values: Sequence[float], count: int = 101) -> list[float]:
    """Evenly spaced quantiles, for a plot of the distribution."""
    if not values:
        return []
    return [float(found) for found in np.percentile(np.asarray(values), np.linspace(0, 100, count))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
