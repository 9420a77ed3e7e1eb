"""Fill mode against the published results of the FGD study: six policies, eight pod lists, ten seeds.

BATON_TRACES names the directory with the public traces; its `openb` folder must contain the node list, the pod lists
and `published_allo.csv.gz`. BATON_BENCH_SEEDS (default 10) runs fewer seeds for a quick check; the tolerance is meant
for ten.
"""

import csv
import gzip
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from baton.cli.progress import progress_bar
from baton.sim.fill.filling import FillResult, fill
from baton.sim.parallel import in_parallel
from baton.sim.traces.readers import read_jobs, read_nodes
from baton.sim.traces.workload import TraceJob, TraceNode

_LISTS = ("default", "cpu100", "gpushare40", "gpushare80", "gpuspec10", "gpuspec25", "multigpu20", "multigpu40")
_PUBLISHED_NAMES = {
    "random": "01-Random",
    "dotprod": "02-DotProd",
    "clustering": "03-GpuClustering",
    "packing": "04-GpuPacking",
    "bestfit": "05-BestFit",
    "fgd": "06-FGD",
}
_TOLERANCE = {"clustering": 0.7, "packing": 0.7}
_DEFAULT_TOLERANCE = 0.4
_ARRIVED_PERCENT = 100
_FIRST_SEED = 42
_FGD_BUDGET_S = 10.0


class _Task(NamedTuple):
    pods: str
    policy: str
    seed: int


_Shared = tuple[dict[str, tuple[TraceJob, ...]], tuple[TraceNode, ...]]


def _fill(shared: _Shared, task: _Task) -> tuple[_Task, FillResult]:
    lists, nodes = shared
    return task, fill(lists[task.pods], nodes, task.policy, task.seed)


def _published(path: Path) -> dict[tuple[str, str], float]:
    """Mean over seeds of the allocated percentage at the evaluated arrival, by pod list and policy."""
    found = defaultdict(list)
    with gzip.open(path, "rt") as stream:
        for row in csv.DictReader(stream):
            pods = row["workload"].removeprefix("openb_pod_list_")
            found[pods, row["sc_policy"]].append(float(row[str(_ARRIVED_PERCENT)]))
    return {key: fmean(values) for key, values in found.items()}


def run() -> None:
    folder = Path(os.environ.get("BATON_TRACES", "")) / "openb"
    published = folder / "published_allo.csv.gz"
    if "BATON_TRACES" not in os.environ or not published.is_file():
        print(f"skipped: {published} does not exist; set BATON_TRACES to the directory with the public traces")
        return
    seeds = range(_FIRST_SEED, _FIRST_SEED + int(os.environ.get("BATON_BENCH_SEEDS", "10")))
    nodes, _ = read_nodes(folder / "openb_node_list_gpu_node.csv")
    lists = {name: read_jobs(folder / f"openb_pod_list_{name}.csv.gz").jobs for name in _LISTS}
    tasks = [_Task(pods, policy, seed) for pods in _LISTS for policy in _PUBLISHED_NAMES for seed in seeds]

    started = time.process_time()
    fill(lists["default"], nodes, "fgd", _FIRST_SEED)
    once_s = time.process_time() - started
    with progress_bar("fill") as progress:
        results = in_parallel(_fill, (lists, nodes), tasks, progress=progress)
    ours = defaultdict(list)
    for task, result in results:
        ours[task.pods, task.policy].append(result.allocated_at(_ARRIVED_PERCENT))

    reference = _published(published)
    outside = 0
    print(f"allocated % at arrival {_ARRIVED_PERCENT}, mean of {len(seeds)} seeds: ours (published, difference)")
    print("".join(f"{column:>24}" for column in ("pod list", *_PUBLISHED_NAMES)))
    for pods in _LISTS:
        cells = []
        for policy, name in _PUBLISHED_NAMES.items():
            mean, theirs = fmean(ours[pods, policy]), reference[pods, name]
            beyond = abs(mean - theirs) > _TOLERANCE.get(policy, _DEFAULT_TOLERANCE)
            outside += beyond
            cells.append(f"{mean:.2f} ({theirs:.2f}, {mean - theirs:+.2f}){'!' if beyond else ' '}")
        print("".join(f"{cell:>24}" for cell in (pods, *cells)))
    print(
        f"outside ±{_DEFAULT_TOLERANCE} (clustering, packing ±0.7): {outside} of {len(_LISTS) * len(_PUBLISHED_NAMES)}"
    )
    print(f"one FGD run: {once_s:.1f} s of CPU (budget {_FGD_BUDGET_S:.0f} s), {once_s / _FGD_BUDGET_S:.2f}x of it")
    if outside:
        sys.exit("fgd_fill: the reproduction is outside its tolerance")
