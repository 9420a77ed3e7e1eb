"""Scheduler: 500 gangs of 20 pods on 1,000 KWOK nodes, pods/s against the same objects with no scheduler at all.

The baseline creates the same PodGroups and pods and binds each pod itself. A gang is complete when its last pod is
bound; that no gang was begun before it could be completed is what the tests show.
"""

import asyncio
import os
import statistics
from typing import Any

from bench import _scheduler as load
from testbed.bed import Bed

GANGS = int(os.environ.get("BATON_BENCH_GANGS", "500"))
SIZE = 20
NODES = int(os.environ.get("BATON_BENCH_NODES", "1000"))


def run() -> None:
    """Measure and print."""
    with load.plain_bed(NODES) as bed:
        limit = _bare(bed)
        program = load.baton(bed)
        namespace = load.new_namespace(bed, "gangs")
        program.start()
        program.wait_ready()
        try:
            before_s = load.cpu_s(program.pid)
            asyncio.run(load.create(bed, namespace, _groups(namespace), None))
            asyncio.run(load.create(bed, namespace, _pods(namespace, "baton"), None))
            span = load.wait_bound(bed, namespace, GANGS * SIZE, 300)
            used_s, memory = load.cpu_s(program.pid) - before_s, load.rss_mib(program.pid)
        finally:
            program.kill()
    rate = len(span.binds) / (max(span.binds.values()) - span.first_create)
    times: dict[str, list[float]] = {}
    for name, at_s in span.binds.items():
        times.setdefault(name.rpartition("-")[0], []).append(at_s)
    spread = [max(gang) - min(gang) for gang in times.values()]
    print(f"{GANGS} gangs of {SIZE} on {NODES} nodes")
    print(f"bare limit  {limit:6.0f} pods/s")
    print(f"Baton       {rate:6.0f} pods/s  {rate / limit:.2f}x   CPU per pod {1e3 * used_s / len(span.binds):.2f} ms")
    print(f"first to last bind of a gang: median {statistics.median(spread):.2f} s, longest {max(spread):.2f} s")
    print(f"memory      {memory:6.0f} MiB")


def _bare(bed: Bed) -> float:
    namespace = load.new_namespace(bed, "bare")
    asyncio.run(load.create(bed, namespace, _groups(namespace), None))
    asyncio.run(load.create(bed, namespace, _pods(namespace, "nobody"), sorted(bed.ready_nodes())))
    span = load.wait_bound(bed, namespace, GANGS * SIZE, 300)
    load.clear(bed, namespace)
    return len(span.binds) / (max(span.binds.values()) - span.first_create)


def _groups(namespace: str) -> list[tuple[str, dict[str, Any]]]:
    return [(load.group_path(namespace), load.group_body(f"g{number}", SIZE)) for number in range(GANGS)]


def _pods(namespace: str, scheduler: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (load.pod_path(namespace), load.pod_body(f"g{number}-{member}", scheduler, group=f"g{number}"))
        for number in range(GANGS)
        for member in range(SIZE)
    ]
