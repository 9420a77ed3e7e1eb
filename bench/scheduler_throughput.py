"""Scheduler: pods/s from the first create to the last bind on KWOK nodes: bare limit, Baton, kube-scheduler, Volcano.

One bed, one contender after the other, the same load generator; the bare limit is the generator binding each pod itself
right after creating it. Client limits are lifted on all sides. CPU is that of the scheduler's own process.
"""

import asyncio
import os

from bench import _scheduler as load
from testbed.bed import Bed
from testbed.errors import MissingError
from testbed.processes import Component
from testbed.programs import VOLCANO, locate

PODS = int(os.environ.get("BATON_BENCH_PODS", "5000"))
NODES = int(os.environ.get("BATON_BENCH_NODES", "1000"))
BARE_PODS = max(1, PODS // 2)
"""The bare limit is taken before and after the others, with half the pods each time."""
VOLCANO_PODS = max(1, PODS // 5)
"""Volcano is measured on fewer pods, at its best: its rate falls with their number."""


def run() -> None:
    """Measure and print."""
    results: dict[str, load.Result] = {}
    with load.plain_bed(NODES) as bed:
        results["bare limit"] = bare(bed, "bare-1")
        results["Baton"] = contender(bed, "baton", "baton", load.baton(bed), PODS)
        results["kube-scheduler"] = contender(bed, "kube", "default-scheduler", bed.plane.scheduler(None), PODS)
        try:
            volcano = volcano_scheduler(bed)
        except MissingError as error:
            print(f"without Volcano: {error}")
        else:
            results["Volcano 1.14.1"] = contender(bed, "volcano", "volcano", volcano, VOLCANO_PODS, group="all")
        again = bare(bed, "bare-2")
    limit = (results["bare limit"].rate + again.rate) / 2
    before = results["bare limit"].rate
    print(f"{NODES} nodes, {PODS} pods ({VOLCANO_PODS} for Volcano)")
    print(f"bare limit {before:.0f} pods/s before the others and {again.rate:.0f} after them: {limit:.0f}")
    print("who                pods/s   of the limit   CPU per pod   memory")
    for name, result in results.items():
        cpu_ms = 1e3 * result.client_cpu_s / result.pods
        print(f"{name:16} {result.rate:8.0f} {result.rate / limit:12.2f}x {cpu_ms:10.2f} ms {result.rss_mib:7.0f} MiB")
    if "Volcano 1.14.1" in results:
        print(f"Baton / Volcano: {results['Baton'].rate / results['Volcano 1.14.1'].rate:.1f}x  (budget 4x)")
    print(f"Baton / kube-scheduler: {results['Baton'].rate / results['kube-scheduler'].rate:.2f}x  (budget 1x)")
    print(f"Baton / bare limit: {results['Baton'].rate / limit:.2f}x  (budget 0.9x)")


def bare(bed: Bed, namespace: str) -> load.Result:
    load.new_namespace(bed, namespace)
    bodies = [(load.pod_path(namespace), load.pod_body(f"p{number}", "nobody")) for number in range(BARE_PODS)]
    nodes = sorted(bed.ready_nodes())
    asyncio.run(load.create(bed, namespace, bodies, nodes))
    span = load.wait_bound(bed, namespace, BARE_PODS, 300)
    load.clear(bed, namespace)
    return shown("bare limit", load.Result(BARE_PODS, max(span.binds.values()) - span.first_create, 0.0, 0.0))


def contender(bed: Bed, namespace: str, name: str, program: Component, pods: int, *, group: str = "") -> load.Result:
    load.new_namespace(bed, namespace)
    if group:
        asyncio.run(load.create(bed, namespace, [(load.group_path(namespace), load.group_body(group, 1))], None))
    program.start()
    program.wait_ready()
    try:
        before_s = load.cpu_s(program.pid)
        bodies = [(load.pod_path(namespace), load.pod_body(f"p{number}", name, group=group)) for number in range(pods)]
        asyncio.run(load.create(bed, namespace, bodies, None))
        span = load.wait_bound(bed, namespace, pods, 600)
        used_s, memory = load.cpu_s(program.pid) - before_s, load.rss_mib(program.pid)
    finally:
        program.kill()
    load.clear(bed, namespace)
    return shown(name, load.Result(pods, max(span.binds.values()) - span.first_create, used_s, memory))


def shown(name: str, result: load.Result) -> load.Result:
    """Said at once: the whole takes minutes."""
    print(f"  {name}: {result.pods} pods in {result.seconds:.1f} s", flush=True)
    return result


def volcano_scheduler(bed: Bed) -> Component:
    """Volcano's scheduler with its default configuration and without limits on its requests."""
    programs = locate(VOLCANO)
    for folder in ("volcano/bases", "jobflow/bases"):
        bed.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(programs / "crd" / folder))
    log = bed.directory / "logs" / "volcano.log"
    address = bed.record.loopback_address
    words = [
        *(str(programs / "vc-scheduler"), f"--kubeconfig={bed.kubeconfig}", "--leader-elect=false"),
        f"--scheduler-conf={programs / 'config' / 'volcano-scheduler.conf'}",
        *("--kube-api-qps=5000", "--kube-api-burst=10000", "--enable-healthz=true", "-v=1"),
        *(f"--healthz-address={address}:14251", f"--listen-address={address}:14080"),
    ]
    return Component("volcano", words, bed.id, log, is_ready=lambda: True)
