"""Scheduler: pods/s from the first create to the last bind on KWOK nodes: bare limit, Baton, kube-scheduler, Volcano.

One bed, one contender after the other, the same load generator; for the bare limit, the generator binds each pod itself
right after creating it. Client limits are disabled for all. A contender that has not bound all pods when its time is up
is rated by the pods it has bound.
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
"""The bare limit is measured before and after the others, with half the pods each time."""
PATIENCE_S = float(os.environ.get("BATON_BENCH_PATIENCE", "150"))
"""Seconds after the last create until a contender is stopped."""


def run() -> None:
    """Measure and print."""
    results: dict[str, load.Result] = {}
    with load.plain_bed(NODES) as bed:
        before = bare(bed, "bare-1")
        results["Baton"] = contender(bed, "baton", "baton", load.baton(bed))
        results["kube-scheduler"] = contender(bed, "kube", "default-scheduler", bed.plane.scheduler(None))
        after = bare(bed, "bare-2")
        report(before, after, results)
        try:
            volcano = volcano_scheduler(bed)
        except MissingError as error:
            print(f"skipping Volcano: {error}")
            return
        results["Volcano 1.14.1"] = contender(bed, "volcano", "volcano", volcano, group="all")
    report(before, after, results)


def report(before: load.Result, after: load.Result, results: dict[str, load.Result]) -> None:
    """Print the table of the results so far."""
    limit = (before.rate + after.rate) / 2
    total = (before.cost.total + after.cost.total) / 2
    print(f"{NODES} nodes, {PODS} pods; CPU per pod: scheduler, API server and etcd, total")
    print(f"{'scheduler':24} {'pods/s':>7} {'of the limit':>13}   {'own':>6} {'control':>8} {'total':>7}       memory")
    for name, result in {"no scheduler, before": before, "no scheduler, after": after, **results}.items():
        note = f"  cut off at {result.pods} pods" if result.cut_off else ""
        share = f"{result.rate / limit:12.2f}x"
        print(f"{name:24} {result.rate:7.0f} {share}   {result.cost} {result.rss_mib:7.0f} MiB{note}")
    ours = results["Baton"]
    print(f"Baton / bare limit: {ours.rate / limit:.2f}x  (budget 0.9x); by CPU {total / ours.cost.total:.2f}x")
    for name, budget in (("kube-scheduler", "1x"), ("Volcano 1.14.1", "4x")):
        if name in results:
            theirs = results[name]
            by_cpu = theirs.cost.total / ours.cost.total
            print(f"Baton / {name}: {ours.rate / theirs.rate:.2f}x  (budget {budget}); by CPU {by_cpu:.2f}x")


def bare(bed: Bed, namespace: str) -> load.Result:
    load.new_namespace(bed, namespace)
    bodies = [(load.pod_path(namespace), load.pod_body(f"p{number}", "nobody")) for number in range(BARE_PODS)]
    nodes = sorted(bed.ready_nodes())
    meter = load.Meter(bed)
    asyncio.run(load.create(bed, namespace, bodies, nodes))
    span = load.wait_bound(bed, namespace, BARE_PODS, 60)
    cost = meter.cost(len(span.binds))
    load.clear(bed, namespace)
    return shown("no scheduler", load.Result(len(span.binds), span.seconds, cost))


def contender(bed: Bed, namespace: str, name: str, program: Component, *, group: str = "") -> load.Result:
    load.new_namespace(bed, namespace)
    if group:
        asyncio.run(load.create(bed, namespace, [(load.group_path(namespace), load.group_body(group, 1))], None))
    program.start()
    program.wait_ready()
    try:
        bodies = [(load.pod_path(namespace), load.pod_body(f"p{number}", name, group=group)) for number in range(PODS)]
        meter = load.Meter(bed, program)
        asyncio.run(load.create(bed, namespace, bodies, None))
        span = load.wait_bound(bed, namespace, PODS, PATIENCE_S)
        bound = len(span.binds)
        result = load.Result(bound, span.seconds, meter.cost(bound), load.rss_mib(program.pid), bound < PODS)
    finally:
        program.kill()
    shown(name, result)
    load.clear(bed, namespace)
    return result


def shown(name: str, result: load.Result) -> load.Result:
    """Prints a result at once, because the whole benchmark takes minutes."""
    print(f"  {name}: {result.pods} pods in {result.seconds:.1f} s", flush=True)
    return result


def volcano_scheduler(bed: Bed) -> Component:
    """Volcano's scheduler with its default configuration and without request limits."""
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
