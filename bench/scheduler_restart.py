"""Scheduler: restart with 1,000 nodes and 20,000 pods: time to the first bind and memory, against a bare list.

The pods are created and bound without a scheduler, and one more pod waits. The benchmark measures the time from the
start of the process to the waiting pod's bind in the audit log. The baseline is the time in which a client lists and
decodes the pods once.
"""

import asyncio
import os
import time

from baton.kube import kubeconfig
from baton.kube.client import Client
from baton.model import core
from bench._scheduler import (
    baton,
    create,
    new_namespace,
    plain_bed,
    pod_body,
    pod_path,
    rss_mib,
    wait_bound,
)
from testbed.bed import Bed

PODS = int(os.environ.get("BATON_BENCH_PODS", "20000"))
NODES = int(os.environ.get("BATON_BENCH_NODES", "1000"))


def run() -> None:
    """Measure and print."""
    with plain_bed(NODES) as bed:
        full = new_namespace(bed, "full")
        bodies = [(pod_path(full), pod_body(f"p{number}", "baton")) for number in range(PODS)]
        asyncio.run(create(bed, full, bodies, sorted(bed.ready_nodes())))
        wait_bound(bed, full, PODS, 300)
        namespace = new_namespace(bed, "waiting")
        asyncio.run(create(bed, namespace, [(pod_path(namespace), pod_body("first", "baton"))], None))
        program = baton(bed)
        began = time.time()
        program.start()
        try:
            first = wait_bound(bed, namespace, 1, 120).binds["first"] - began
            memory = rss_mib(program.pid)
        finally:
            program.kill()
        listed = min(asyncio.run(_list(bed)) for _ in range(2))
    print(f"{NODES} nodes, {PODS} pods")
    print(f"start to first bind {first:.1f} s  (budget 10 s), {first / listed:.1f}x a bare list ({listed:.1f} s)")
    print(f"memory {memory:.0f} MiB, {1024 * memory / PODS:.1f} KiB per pod")


async def _list(bed: Bed) -> float:
    async with Client(kubeconfig.load([bed.kubeconfig])) as client:
        began = time.perf_counter()
        await client.list_all(core.PODS)
        return time.perf_counter() - began
