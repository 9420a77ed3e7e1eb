"""Jobs: single-GPU Jobs through controller and scheduler, from first create to last bind, against bare creation.

The bare time is the API server's time for the same pods with PodGroups as the controllers would create them, when the
load generator creates and binds them itself. Through the controllers, the Job, its status and the group's status are
added. Each round is between two rounds of bare creation, which show how fast the machine was at that time.

Client limits are disabled for all, and API server and etcd have their own core, so their CPU time decides; with
BATON_BENCH_SHARED=1 all programs share all cores. With BATON_BENCH_QPS each program is limited to that many requests
per second, where CPU time is not the limit; the load generator of the bare rounds then counts as two programs: one
creates the groups, one creates and binds the pods.
"""

import asyncio
import collections
import contextlib
import datetime
import json
import os
import statistics
import time
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from baton.controllers.job import group
from baton.controllers.job import pods as job_pods
from baton.kube import kubeconfig
from baton.kube.client import Client
from baton.kube.errors import NotFoundError
from baton.model import core, volcano
from baton.model.resource import Resource
from bench._scheduler import (
    BATON,
    BURST,
    CREATORS,
    Meter,
    Result,
    baton,
    control_plane_apart,
    cpu_s,
    create,
    group_path,
    new_namespace,
    plain_bed,
    pod_body,
    pod_path,
    rss_mib,
    wait_bound,
)
from testbed.bed import Bed
from testbed.processes import Component

JOBS = int(os.environ.get("BATON_BENCH_JOBS", "4000"))
NODES = int(os.environ.get("BATON_BENCH_NODES", "500"))
QPS = float(os.environ.get("BATON_BENCH_QPS", "0"))
ROUNDS = int(os.environ.get("BATON_BENCH_ROUNDS", "3"))
SHARED = os.environ.get("BATON_BENCH_SHARED", "") == "1"
PATIENCE_S = 240.0
QUIET_S = 3.0
ONE_GPU = {"nvidia.com/gpu": 1}
BUDGET = 1.5


def run() -> None:
    """Measure and print."""
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(plain_bed(NODES, {"nvidia.com/gpu": 8}))
        cores = "all on the same cores" if SHARED else stack.enter_context(control_plane_apart(bed))
        alone, ours = [bare(bed, "bare-0")], []
        for number in range(1, ROUNDS + 1):
            clear(bed, f"bare-{number - 1}")
            ours.append(through_controllers(bed, f"jobs-{number}"))
            clear(bed, f"jobs-{number}")
            alone.append(bare(bed, f"bare-{number}"))
    limits = f"{QPS:.0f} requests/s per program" if QPS else "no client limits"
    print(
        f"{JOBS} one-GPU Jobs on {NODES} nodes x 8, {limits}, {cores};"
        " CPU per pod: our programs, API server and etcd, total"
    )
    ratios = []
    for number, (before, jobs, after) in enumerate(zip(alone, ours, alone[1:], strict=False), 1):
        ratios.append((before.rate + after.rate) / 2 / jobs.rate)
        by_cpu = jobs.cost.total / ((before.cost.total + after.cost.total) / 2)
        for name, result in (("bare, before", before), (f"Jobs, round {number}", jobs), ("bare, after", after)):
            note = f"  cut off at {result.pods} pods" if result.cut_off else ""
            print(f"{name:14} {result.seconds:6.1f} s {result.rate:6.0f} pods/s   {result.cost}{note}")
        print(f"{ratios[-1]:.2f}x of bare creation; by CPU {by_cpu:.2f}x")
    print(f"{statistics.median(ratios):.2f}x of bare creation in the median of {ROUNDS} rounds  (budget {BUDGET}x)")


def bare(bed: Bed, namespace: str) -> Result:
    """PodGroup, pod and binding by the load generator, all concurrently."""
    new_namespace(bed, namespace)
    nodes = sorted(bed.ready_nodes())
    jobs = [made_job(namespace, f"j{number}") for number in range(JOBS)]
    groups = [(group_path(namespace), group.group_body(job, group.group_spec(job, {}))) for job in jobs]
    pods = [(pod_path(namespace), job_pods.pod_body(job, job.spec.tasks[0], 0)) for job in jobs]

    async def both() -> None:
        await asyncio.gather(
            create(bed, namespace, groups, None, qps=QPS), create(bed, namespace, pods, nodes, qps=QPS)
        )

    offset = bed.plane.audit_log.stat().st_size
    meter = Meter(bed)
    asyncio.run(both())
    span = wait_bound(bed, namespace, JOBS, PATIENCE_S)
    cost = meter.cost(len(span.binds))
    span.first_create = min(span.first_create, first_create(bed, namespace, "podgroups", offset))
    print(f"bare: {span.seconds:.1f} s", flush=True)
    return Result(len(span.binds), span.seconds, cost)


def through_controllers(bed: Bed, namespace: str) -> Result:
    """The same pods as Jobs."""
    new_namespace(bed, namespace)
    programs = [baton(bed, f"--qps={QPS}", f"--burst={BURST}"), controller_program(bed)]
    for program in programs:
        program.start()
        program.wait_ready()
    try:
        jobs = [(volcano.JOBS.path(namespace), job_body(f"j{number}")) for number in range(JOBS)]
        offset = bed.plane.audit_log.stat().st_size
        meter = Meter(bed, *programs)
        used_s = {program.name: cpu_s(program.pid) for program in programs}
        asyncio.run(create(bed, namespace, jobs, None, qps=QPS))
        span = wait_bound(bed, namespace, JOBS, PATIENCE_S)
        cost = meter.cost(len(span.binds))
        span.first_create = first_create(bed, namespace, "jobs", offset)
        print(f"Jobs: {span.seconds:.1f} s", flush=True)
        for program in programs:
            cpu_ms = 1e3 * (cpu_s(program.pid) - used_s[program.name]) / len(span.binds)
            print(f"  {program.name}: {cpu_ms:.2f} ms CPU per job, {rss_mib(program.pid):.0f} MiB")
        print(f"  per job until the last bind: {requests(bed, offset, max(span.binds.values()), len(span.binds))}")
    finally:
        for program in reversed(programs):
            program.kill()
    return Result(len(span.binds), span.seconds, cost, cut_off=len(span.binds) < JOBS)


def clear(bed: Bed, namespace: str) -> None:
    """Remove everything of a round, a limited number at a time: the API server takes minutes for thousands at once.

    The next round begins when the last pod is gone and KWOK has finished with it: KWOK ends pods at its own pace, which
    slows everything down.
    """
    kinds: tuple[Resource[Any], ...] = (volcano.JOBS, volcano.POD_GROUPS, core.PODS)

    async def remove() -> None:
        async with Client(kubeconfig.load([bed.kubeconfig]), connections=2 * CREATORS) as client:
            for kind in kinds:
                names = iter([item.metadata.name for item in await client.list_all(kind, namespace)])

                async def work(kind: Resource[Any] = kind, names: Iterator[str] = names) -> None:
                    for name in names:
                        with contextlib.suppress(NotFoundError):
                            await client.delete(kind, name, namespace, options={"gracePeriodSeconds": 0})

                await asyncio.gather(*(work() for _ in range(CREATORS)))

    asyncio.run(remove())
    bed.wait_for(lambda: not bed.api.get(f"{pod_path(namespace)}?limit=1")["items"], "the pods to be gone", PATIENCE_S)
    about = f'"namespace":"{namespace}"'.encode()
    with bed.plane.audit_log.open("rb") as log:
        log.seek(0, os.SEEK_END)
        while True:
            time.sleep(QUIET_S)
            if not any(about in line for line in log.readlines()):
                break


def controller_program(bed: Bed) -> Component:
    """Our controllers, without request limits and without leader election."""
    address = f"{bed.record.loopback_address}:18081"
    limits = [f"--qps={QPS}", f"--burst={BURST}", "--workers=64"]
    words = [BATON, "controller", "--no-leader-elect", *limits, f"--listen={address}"]
    log = bed.directory / "logs" / "controller.log"

    def ready() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    environment = {"KUBECONFIG": str(bed.kubeconfig)}
    return Component("controller", words, bed.id, log, is_ready=ready, environment=environment, ready_timeout_s=120)


def job_body(name: str) -> dict[str, Any]:
    template = {"spec": pod_body("", "baton", limits=ONE_GPU)["spec"]}
    return {
        "apiVersion": volcano.BATCH,
        "kind": volcano.JOB_KIND,
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "baton",
            "minAvailable": 1,
            "queue": "default",
            "tasks": [{"name": "main", "replicas": 1, "minAvailable": 1, "template": template}],
        },
    }


def made_job(namespace: str, name: str) -> volcano.Job:
    """A job as the API server would return it."""
    body = job_body(name)
    body["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4())}
    return msgspec.convert(body, volcano.Job)


def first_create(bed: Bed, namespace: str, plural: str, offset: int) -> float:
    """When the first object of a kind was requested."""
    mark = f'"resource":"{plural}","namespace":"{namespace}"'.encode()
    with bed.plane.audit_log.open("rb") as log:
        log.seek(offset)
        mine = [raw for raw in log if mark in raw and b'"verb":"create"' in raw]
    times = [json.loads(raw)["requestReceivedTimestamp"] for raw in mine]
    return min(datetime.datetime.fromisoformat(text).timestamp() for text in times)


def requests(bed: Bed, offset: int, until_s: float, number: int) -> str:
    """The requests per job, by kind, which explain the ratio."""
    counts: collections.Counter[str] = collections.Counter()
    with bed.plane.audit_log.open("rb") as log:
        log.seek(offset)
        for raw in log:
            with contextlib.suppress(ValueError, KeyError):
                record = json.loads(raw)
                about = record["objectRef"]
                what = "/".join(filter(None, (about["resource"], about.get("subresource"))))
                agent = record.get("userAgent", "").split("/")[0]
                ended_s = datetime.datetime.fromisoformat(record["stageTimestamp"]).timestamp()
                if record["verb"] not in ("get", "list", "watch") and ended_s <= until_s:
                    counts[f"{agent} {record['verb']} {what}"] += 1
    return ", ".join(f"{name} {count / number:.2f}" for name, count in counts.most_common(12))
