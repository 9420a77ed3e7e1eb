"""Jobs: one-GPU Jobs through controller and scheduler, from the first create to the last bind, against bare creation.

The bare time is what the API server needs for the same pods with their PodGroups when the load generator makes and
binds them itself. Through the controllers there are more requests: the Job, the group's way into the queue and the
job's status. Both are measured twice, in turns, in one run; client limits are lifted on all sides.
"""

import asyncio
import collections
import contextlib
import datetime
import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

from baton.kube import core, kubeconfig, volcano
from baton.kube.client import Client, Resource
from baton.kube.errors import NotFoundError
from bench._scheduler import (
    BATON,
    CREATORS,
    baton,
    cpu_s,
    create,
    group_body,
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
ROUNDS = int(os.environ.get("BATON_BENCH_ROUNDS", "2"))
ONE_GPU = {"nvidia.com/gpu": 1}
BUDGET = 1.5


def run() -> None:
    """Measure and print."""
    bare_s: list[float] = []
    ours_s: list[float] = []
    with plain_bed(NODES, {"nvidia.com/gpu": 8}) as bed:
        for number in range(ROUNDS):
            bare_s.append(bare(bed, f"bare-{number}"))
            print(f"bare: {bare_s[-1]:.1f} s, {JOBS / bare_s[-1]:.0f} pods/s", flush=True)
            ours_s.append(through_controllers(bed, f"jobs-{number}"))
            print(f"Jobs: {ours_s[-1]:.1f} s, {JOBS / ours_s[-1]:.0f} jobs/s", flush=True)
    ratio = sum(ours_s) / sum(bare_s)
    print(f"{JOBS} one-GPU Jobs on {NODES} nodes x 8: {ratio:.2f}x of bare creation  (budget {BUDGET}x)")


def bare(bed: Bed, namespace: str) -> float:
    """PodGroup, pod and binding by the load generator, everything side by side."""
    new_namespace(bed, namespace)
    nodes = sorted(bed.ready_nodes())
    groups = [(group_path(namespace), group_body(f"g{number}", 1)) for number in range(JOBS)]
    pods = [
        (pod_path(namespace), pod_body(f"p{number}", "nobody", group=f"g{number}", limits=ONE_GPU))
        for number in range(JOBS)
    ]

    async def both() -> None:
        await asyncio.gather(create(bed, namespace, groups, None), create(bed, namespace, pods, nodes))

    offset = bed.plane.audit_log.stat().st_size
    asyncio.run(both())
    span = wait_bound(bed, namespace, JOBS, 600)
    began = min(span.first_create, first_create(bed, namespace, "podgroups", offset))
    clear(bed, namespace)
    return max(span.binds.values()) - began


def through_controllers(bed: Bed, namespace: str) -> float:
    """The same as Jobs."""
    new_namespace(bed, namespace)
    scheduler, controller = baton(bed), controller_program(bed)
    for program in (scheduler, controller):
        program.start()
        program.wait_ready()
    try:
        jobs = [(volcano.JOBS.path(namespace), job_body(f"j{number}")) for number in range(JOBS)]
        offset = bed.plane.audit_log.stat().st_size
        asyncio.run(create(bed, namespace, jobs, None))
        span = wait_bound(bed, namespace, JOBS, 900)
        began = first_create(bed, namespace, "jobs", offset)
        for program in (scheduler, controller):
            cpu_ms = 1e3 * cpu_s(program.pid) / JOBS
            print(f"  {program.name}: {cpu_ms:.2f} ms CPU per job, {rss_mib(program.pid):.0f} MiB")
        print(f"  {requests(bed, offset)}")
        assert set(span.binds) == {f"j{number}-main-0" for number in range(JOBS)}
    finally:
        for program in (controller, scheduler):
            program.kill()
    clear(bed, namespace)
    return max(span.binds.values()) - began


def clear(bed: Bed, namespace: str) -> None:
    """Remove everything of a round, a bounded number at a time: the API server takes minutes for thousands at once."""
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


def controller_program(bed: Bed) -> Component:
    """Our controllers, without limits on requests and without an election."""
    address = f"{bed.record.loopback_address}:18081"
    words = [BATON, "controller", "--no-leader-elect", "--qps=0", "--workers=64", f"--listen={address}"]
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


def first_create(bed: Bed, namespace: str, plural: str, offset: int) -> float:
    """When the first object of a kind was asked for."""
    mark = f'"resource":"{plural}","namespace":"{namespace}"'.encode()
    with bed.plane.audit_log.open("rb") as log:
        log.seek(offset)
        mine = [raw for raw in log if mark in raw and b'"verb":"create"' in raw]
    times = [json.loads(raw)["requestReceivedTimestamp"] for raw in mine]
    return min(datetime.datetime.fromisoformat(text).timestamp() for text in times)


def requests(bed: Bed, offset: int) -> str:
    """Which requests there were, per job: what the ratio is made of."""
    counts: collections.Counter[str] = collections.Counter()
    with bed.plane.audit_log.open("rb") as log:
        log.seek(offset)
        for raw in log:
            with contextlib.suppress(ValueError, KeyError):
                record = json.loads(raw)
                about = record["objectRef"]
                what = "/".join(filter(None, (about["resource"], about.get("subresource"))))
                agent = record.get("userAgent", "").split("/")[0]
                if record["verb"] not in ("get", "list", "watch"):
                    counts[f"{agent} {record['verb']} {what}"] += 1
    return ", ".join(f"{name} {number / JOBS:.2f}" for name, number in counts.most_common(12))
