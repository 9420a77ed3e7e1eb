"""`baton why` for a pod of a gang on a full cluster of 500 x 8 GPUs, against `kubectl describe` of the same pod.

Complete commands, from start to end, minimum of several runs: once answered by the running scheduler, and once built
from the API server as happens when no scheduler answers.
"""

import asyncio
import subprocess
import time

from bench._scheduler import BATON, baton, create, group_body, group_path, new_namespace, plain_bed, pod_body, pod_path

NODES, CARDS, GANG = 500, 8, 10
GPU = "nvidia.com/gpu"
_ROUNDS = 5


def run() -> None:
    """Measure and print."""
    with plain_bed(NODES, {GPU: CARDS}) as bed:
        full = new_namespace(bed, "full")
        bodies = [(pod_path(full), pod_body(f"p{number}", "nobody", limits={GPU: CARDS})) for number in range(NODES)]
        asyncio.run(create(bed, full, bodies, sorted(bed.ready_nodes())))
        waiting = new_namespace(bed, "waiting")
        members = [(group_path(waiting), group_body("gang", GANG))]
        members += [
            (pod_path(waiting), pod_body(f"m{number}", "baton", group="gang", limits={GPU: CARDS}))
            for number in range(GANG)
        ]
        asyncio.run(create(bed, waiting, members, None))
        program = baton(bed)
        program.start()
        program.wait_ready()
        reach = (f"--kubeconfig={bed.kubeconfig}", "-n", waiting)
        url = f"--scheduler=http://{bed.record.loopback_address}:13251"
        try:
            asked_s, text = _least((BATON, "why", "m0", url, *reach))
            built_s, _ = _least((BATON, "why", "m0", *reach))
            described_s, _ = _least((str(bed.kubectl_program), "describe", "pod", "m0", *reach))
        finally:
            program.kill()
    print(f"kubectl describe pod        {described_s:6.2f} s")
    print(f"baton why, from scheduler   {asked_s:6.2f} s  {asked_s / described_s:.1f}x  (budget 1 s)")
    print(f"baton why, from API server  {built_s:6.2f} s  {built_s / described_s:.1f}x")
    print(text)


def _least(command: tuple[str, ...]) -> tuple[float, str]:
    """The minimum time of several runs, and the command's output."""
    best, output = float("inf"), ""
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        best = min(best, time.perf_counter() - began)
    return best, output
