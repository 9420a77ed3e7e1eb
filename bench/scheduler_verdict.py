"""Scheduler: how soon an 80-GPU gang on a full cluster of 500 x 8 learns why it waits, against a read of its PodGroup.

Measured from the audit log: from the last pod's creation to the PodGroup's Unschedulable condition. Also measured: the
answer to `/why` for one of its pods, against a plain read of the PodGroup from the API server.
"""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable

from bench._scheduler import (
    baton,
    create,
    group_body,
    group_path,
    new_namespace,
    plain_bed,
    pod_body,
    pod_path,
    wait_bound,
)

NODES, CARDS, GANG = 500, 8, 10
GPU = "nvidia.com/gpu"


def run() -> None:
    """Measure and print."""
    with plain_bed(NODES, {GPU: CARDS}) as bed:
        full = new_namespace(bed, "full")
        bodies = [(pod_path(full), pod_body(f"p{number}", "nobody", limits={GPU: CARDS})) for number in range(NODES)]
        asyncio.run(create(bed, full, bodies, sorted(bed.ready_nodes())))
        wait_bound(bed, full, NODES, 120)
        program = baton(bed)
        program.start()
        program.wait_ready()
        try:
            namespace = new_namespace(bed, "waiting")
            asyncio.run(create(bed, namespace, [(group_path(namespace), group_body("gang", GANG))], None))
            members = [
                (pod_path(namespace), pod_body(f"m{number}", "baton", group="gang", limits={GPU: CARDS}))
                for number in range(GANG)
            ]
            asyncio.run(create(bed, namespace, members, None))
            created = time.time()
            path = f"{group_path(namespace)}/gang"

            def explained() -> bool:
                conditions = bed.api.get(path).get("status", {}).get("conditions", [])
                return any(f"Of {NODES} nodes" in item.get("message", "") for item in conditions)

            bed.wait_for(explained, "the gang's Unschedulable condition", 60, poll_s=0.02)
            took_s = time.time() - created
            address = f"http://{bed.record.loopback_address}:13251/why/{namespace}/m0"
            asked = min(_timed(lambda: urllib.request.urlopen(address, timeout=30).read()) for _ in range(5))
            read = min(_timed(lambda: bed.api.get(path)) for _ in range(5))
            verdict = json.loads(urllib.request.urlopen(address, timeout=30).read())
        finally:
            program.kill()
    print(f"{GANG} x {CARDS} GPUs requested on {NODES} full nodes")
    print(f"last pod created to verdict on the PodGroup: {took_s:.2f} s  (budget 1 s)")
    print(f"/why: {1e3 * asked:.1f} ms, {asked / read:.1f}x a read of the PodGroup ({1e3 * read:.1f} ms)")
    print(verdict["paragraph"])


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
