"""Philly jobs on 450 GPUs: six policies against the shortest-job-first oracle.

BATON_TRACES names the directory with the public traces; it must contain `philly/philly.csv.gz`. BATON_BENCH_THIN=8 uses
every eighth job and an eighth of the cards for a quick check. The trace has no priorities, so `priority` uses classes
derived from the job's name (one job in ten high, three normal, the rest low). Decisions are five minutes apart; a
stopped job needs one minute to restart.
"""

import os
import sys
import zlib
from pathlib import Path

import msgspec

from baton.cli.progress import progress_bar
from baton.sim.parallel import in_parallel
from baton.sim.report import duration
from baton.sim.run.metrics import Summary
from baton.sim.run.replay import Replay
from baton.sim.run.settings import Settings
from baton.sim.run.translation import engine_node
from baton.sim.scheduling_policies import POLICIES
from baton.sim.traces.readers import read_jobs
from baton.sim.traces.workload import TraceJob, uniform_cluster

_GPUS = 450
_POLICIES = ("fifo", "priority", "backfill", "sjf", "sjf-predicted", "las")
_ORACLE = "sjf"
_WITHIN = 1.3
_SETTINGS = Settings(cycle_s=300.0, restart_s=60.0, visible_per_shape=2)


def with_priority(job: TraceJob) -> TraceJob:
    """The job with a class that depends only on its name."""
    drawn = zlib.crc32(job.name.encode()) % 10
    return msgspec.structs.replace(job, priority=2 if drawn == 0 else 1 if drawn <= 3 else 0)


def measure(shared: tuple[tuple[TraceJob, ...], int], policy: str) -> Summary:
    """One policy on the whole trace."""
    jobs, gpus = shared
    nodes = [engine_node(node, 1) for node in uniform_cluster(gpus)]
    return Replay(jobs, nodes, POLICIES[policy], _SETTINGS).run()


_COLUMNS = (
    "policy",
    "mean JCT",
    "of oracle",
    "p95 JCT",
    "mean wait",
    "p95 wait",
    "max wait",
    "GPU use",
    "preempted",
    "Jain",
    "fairness p95",
    "unfinished",
)


def table(summaries: list[Summary]) -> list[str]:
    """One line per policy, each mean relative to the oracle's."""
    oracle = next(summary for summary in summaries if summary.policy == _ORACLE)
    rows = [
        (
            summary.policy,
            duration(summary.jct_s.mean),
            f"{summary.jct_s.mean / oracle.jct_s.mean:.2f}x",
            duration(summary.jct_s.p95),
            duration(summary.wait_s.mean),
            duration(summary.wait_s.p95),
            duration(summary.wait_s.max),
            f"{100 * summary.busy_utilisation:.1f} %",
            f"{summary.preemptions:,}",
            f"{summary.jain:.2f}",
            f"{summary.finish_time_fairness.p95:.2f}",
            str(len(summary.unfinished)),
        )
        for summary in summaries
    ]
    return ["".join(f"{cell:>14}" for cell in row) for row in (_COLUMNS, *rows)]


def run() -> None:
    path = Path(os.environ.get("BATON_TRACES", "")) / "philly" / "philly.csv.gz"
    if "BATON_TRACES" not in os.environ or not path.is_file():
        print(f"skipped: {path} does not exist; set BATON_TRACES to the directory with the public traces")
        return
    thin = int(os.environ.get("BATON_BENCH_THIN", "1"))
    jobs, gpus = tuple(with_priority(job) for job in read_jobs(path).jobs[::thin]), _GPUS // thin
    with progress_bar("policies") as progress:
        summaries = in_parallel(measure, (jobs, gpus), list(_POLICIES), progress=progress)
    print(f"{len(jobs):,} jobs on {gpus} GPUs; JCT of the oracle is 1")
    print("\n".join(table(summaries)))
    by_name = {summary.policy: summary for summary in summaries}
    best = min(by_name["sjf-predicted"].jct_s.mean, by_name["las"].jct_s.mean) / by_name[_ORACLE].jct_s.mean
    print(f"better of predicted shortest-first and least attained service: {best:.2f}x the oracle (limit {_WITHIN}x)")
    if best > _WITHIN or any(summary.unfinished for summary in summaries):
        sys.exit("philly_policies: too far from the oracle, or a job did not finish")
