"""Scheduler: 500 gangs of 20 pods on 1,000 KWOK nodes, in pods/s, against the same objects without a scheduler.

The baseline creates the same PodGroups and pods and binds each pod itself. A gang is complete when its last pod is
bound; the tests check that no gang starts before it can be completed.
"""

import asyncio
import os
import statistics
from typing import Any

from bench import _scheduler as load
from testbed.bed import Bed
from testbed.processes import Component

GANGS = int(os.environ.get("BATON_BENCH_GANGS", "500"))
SIZE = 20
NODES = int(os.environ.get("BATON_BENCH_NODES", "1000"))
PATIENCE_S = 150.0


def run() -> None:
    """Measure and print."""
    with load.plain_bed(NODES) as bed:
        limit, _ = _measured(bed, "bare", None)
        ours, span = _measured(bed, "gangs", load.baton(bed))
    times: dict[str, list[float]] = {}
    for name, at_s in span.binds.items():
        times.setdefault(name.rpartition("-")[0], []).append(at_s)
    spread = [max(gang) - min(gang) for gang in times.values()]
    print(f"{GANGS} gangs of {SIZE} on {NODES} nodes; CPU per pod: scheduler, API server and etcd, total")
    print(f"no scheduler {limit.rate:6.0f} pods/s            {limit.cost}")
    print(f"Baton        {ours.rate:6.0f} pods/s  {ours.rate / limit.rate:.2f}x     {ours.cost}")
    print(f"by CPU {limit.cost.total / ours.cost.total:.2f}x the limit")
    print(f"first to last bind of a gang: median {statistics.median(spread):.2f} s, longest {max(spread):.2f} s")
    print(f"memory      {ours.rss_mib:6.0f} MiB")


def _measured(bed: Bed, namespace: str, program: Component | None) -> tuple[load.Result, load.Span]:
    """One run with a scheduler, or with binding by the load generator."""
    load.new_namespace(bed, namespace)
    nodes = sorted(bed.ready_nodes()) if program is None else None
    programs = [program] if program is not None else []
    for each in programs:
        each.start()
        each.wait_ready()
    try:
        meter = load.Meter(bed, *programs)
        asyncio.run(load.create(bed, namespace, _groups(namespace), None))
        asyncio.run(load.create(bed, namespace, _pods(namespace, "baton" if programs else "nobody"), nodes))
        span = load.wait_bound(bed, namespace, GANGS * SIZE, PATIENCE_S)
        memory = sum(load.rss_mib(each.pid) for each in programs)
        result = load.Result(len(span.binds), span.seconds, meter.cost(len(span.binds)), memory)
    finally:
        for each in programs:
            each.kill()
    print(f"  {namespace}: {result.pods} pods in {result.seconds:.1f} s", flush=True)
    if program is None:
        load.clear(bed, namespace)
    return result, span


def _groups(namespace: str) -> list[tuple[str, dict[str, Any]]]:
    return [(load.group_path(namespace), load.group_body(f"g{number}", SIZE)) for number in range(GANGS)]


def _pods(namespace: str, scheduler: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (load.pod_path(namespace), load.pod_body(f"g{number}-{member}", scheduler, group=f"g{number}"))
        for number in range(GANGS)
        for member in range(SIZE)
    ]
