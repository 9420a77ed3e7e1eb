"""Shared by the scheduler benchmarks: a bed, contenders as processes, load, and evaluation of the audit log.

All times come from the API server's audit log, with microseconds, in the same way for every contender. Client-side
request limits are disabled for all. Next to each rate is the total CPU time per pod: where all programs share a few
cores, the rate depends on it, and it does not change with other activity on the machine.
"""

import asyncio
import contextlib
import datetime
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from baton.kube import kubeconfig
from baton.kube.client import Client
from baton.model import core, volcano
from testbed.bed import Bed, BedOptions
from testbed.errors import BedError
from testbed.processes import Component

CRDS = Path(__file__).parents[1] / "deploy" / "crds" / "crds.yaml"
BATON = str(Path(sys.executable).parent / "baton")
GROUP = "scheduling.k8s.io/group-name"
CREATORS = 32
BURST = 100
"""Burst of requests for a program whose requests are limited."""
TELL_S = 15.0
"""How often a long step prints its progress."""
HIGH_LIMITS = (
    "--max-requests-inflight=4000",
    "--max-mutating-requests-inflight=2000",
    "--delete-collection-workers=32",
)
_TICKS = os.sysconf("SC_CLK_TCK")


class Result(NamedTuple):
    """One run of one contender."""

    pods: int
    seconds: float
    cost: "Cost"
    rss_mib: float = 0.0
    cut_off: bool = False

    @property
    def rate(self) -> float:
        return self.pods / self.seconds


class Cost(NamedTuple):
    """CPU milliseconds per pod: of the contender, of the control plane (API server and etcd), and in total."""

    programs: float
    control_plane: float
    total: float

    def __str__(self) -> str:
        return f"{self.programs:6.2f} {self.control_plane:8.2f} {self.total:7.2f} ms"


class Meter:
    """CPU time used from now on by the bed's programs, the contenders and the load generator (this process)."""

    def __init__(self, bed: Bed, *programs: Component) -> None:
        plane = [bed.etcd.pid, bed.api_server.pid]
        self._pids = {
            "programs": [program.pid for program in programs],
            "control_plane": plane,
            "others": [os.getpid(), *(item.pid for item in bed.components.values() if item.pid not in plane)],
        }
        self._before = self._used()

    def _used(self) -> dict[str, float]:
        return {name: sum(map(cpu_s, pids)) for name, pids in self._pids.items()}

    def cost(self, number: int) -> Cost:
        used = {name: 1e3 * (now - self._before[name]) / max(1, number) for name, now in self._used().items()}
        return Cost(used["programs"], used["control_plane"], sum(used.values()))


@contextlib.contextmanager
def plain_bed(nodes: int, resources: dict[str, int] | None = None) -> Iterator[Bed]:
    """API server, etcd and KWOK with `nodes` nodes; no controllers, no scheduler."""
    with Bed(BedOptions(kwok=True, api_server_flags=HIGH_LIMITS)) as bed:
        bed.kubectl("apply", "--server-side", "-f", str(CRDS))
        bed.add_kwok_nodes(nodes, resources=resources, timeout_s=240)
        yield bed


@contextlib.contextmanager
def control_plane_apart(bed: Bed) -> Iterator[str]:
    """Give API server and etcd their own core; KWOK, this process and the processes it starts later get the others.

    In a cluster they have their own machines. On a shared core, a client's CPU time would be mistaken for theirs.
    """
    cores = os.sched_getaffinity(0)
    theirs = {min(cores)}
    others = cores - theirs
    if not others:
        yield "everything on one core"
        return
    plane = (bed.etcd.pid, bed.api_server.pid)
    _hold_to(os.getpid(), others)
    for component in bed.components.values():
        _hold_to(component.pid, theirs if component.pid in plane else others)
    try:
        yield "API server and etcd on their own core"
    finally:
        _hold_to(os.getpid(), cores)


def _hold_to(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def baton(bed: Bed, *options: str, kubeconfig_file: Path | None = None) -> Component:
    """Our scheduler for pods with the scheduler name `baton`, not started."""
    address = f"{bed.record.loopback_address}:13251"
    words = [
        *(BATON, "scheduler", f"--kubeconfig={kubeconfig_file or bed.kubeconfig}", f"--listen={address}"),
        *("--no-leader-elect", "--scheduler-name=baton", *options),
    ]

    def ready() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as answer:
            return bool(answer.read() == b"leading\n")
        return False

    log = bed.directory / "logs" / "baton.log"
    return Component("baton", words, bed.id, log, is_ready=ready, ready_timeout_s=120)


def pod_body(name: str, scheduler: str, *, group: str = "", limits: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "annotations": {GROUP: group} if group else {}},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": limits or {}},
                }
            ],
        },
    }


def group_body(name: str, minimum: int) -> dict[str, Any]:
    return {
        "apiVersion": volcano.SCHEDULING,
        "kind": volcano.POD_GROUP_KIND,
        "metadata": {"name": name},
        "spec": {"minMember": minimum, "queue": "default"},
    }


def new_namespace(bed: Bed, name: str) -> str:
    bed.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    bed._furnish_namespace(name)
    return name


async def create(
    bed: Bed,
    namespace: str,
    bodies: list[tuple[str, dict[str, Any]]],
    bind_to: list[str] | None,
    *,
    qps: float = 0,
) -> None:
    """Create objects (path suffix, body) as fast as the API server or `qps` allows; with `bind_to`, bind each one."""
    where = kubeconfig.load([bed.kubeconfig])
    async with Client(where, connections=2 * CREATORS, qps=qps, burst=BURST) as client:
        encoded = [(path, msgspec.json.encode(body), body["metadata"]["name"]) for path, body in bodies]
        queue = iter(enumerate(encoded))
        told_at = time.monotonic()

        async def work() -> None:
            nonlocal told_at
            for number, (path, body, name) in queue:
                if time.monotonic() > told_at + TELL_S:
                    told_at = time.monotonic()
                    print(f"    {number} of {len(encoded)} objects of {namespace} created", flush=True)
                await client.request("POST", path, body=body, timeout_s=120)
                if bind_to is not None:
                    binding = {
                        "apiVersion": "v1",
                        "kind": "Binding",
                        "metadata": {"name": name},
                        "target": {"kind": "Node", "name": bind_to[number % len(bind_to)]},
                    }
                    to = core.PODS.path(namespace, name, "binding")
                    await client.request("POST", to, body=binding, timeout_s=120)

        await asyncio.gather(*(work() for _ in range(CREATORS)))


def pod_path(namespace: str) -> str:
    return core.PODS.path(namespace)


def group_path(namespace: str) -> str:
    return volcano.POD_GROUPS.path(namespace)


class Span:
    """The first create and each pod's successful bind, from the audit log. Reading continues where it stopped."""

    def __init__(self, bed: Bed, namespace: str) -> None:
        self._log = bed.plane.audit_log
        self._mark = f'"namespace":"{namespace}"'.encode()
        self._offset = 0
        self.first_create = float("inf")
        self.binds: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """From the first create to the last bind."""
        return max(self.binds.values()) - self.first_create

    def read_on(self) -> int:
        """Read new records; returns how many pods are bound."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if self._mark in line and b'"verb":"create"' in line and b'"pods"' in line:
                    self._take(json.loads(line))
        return len(self.binds)

    def _take(self, record: dict[str, Any]) -> None:
        if record.get("responseStatus", {}).get("code") != 201:
            return
        what = record["objectRef"]
        if what.get("subresource") == "binding":
            self.binds[what["name"]] = _seconds(record["stageTimestamp"])
        elif "subresource" not in what:
            self.first_create = min(self.first_create, _seconds(record["requestReceivedTimestamp"]))


def wait_bound(bed: Bed, namespace: str, number: int, timeout_s: float) -> Span:
    """Wait until `number` pods are bound. Reading the log is cheap and does not disturb the API server.

    If the time runs out, the pods bound so far are the result; none at all is an error.
    """
    span = Span(bed, namespace)
    deadline = time.monotonic() + timeout_s
    told_at = time.monotonic()
    while span.read_on() < number and time.monotonic() < deadline:
        if time.monotonic() > told_at + TELL_S:
            told_at = time.monotonic()
            print(f"    {len(span.binds)} of {number} pods of {namespace} bound", flush=True)
        time.sleep(0.5)
    if not span.binds:
        raise BedError(f"none of {number} pods of {namespace} was bound within {timeout_s:.0f} s")
    if len(span.binds) < number:
        print(f"  {namespace} cut off after {timeout_s:.0f} s: {len(span.binds)} of {number} pods bound", flush=True)
    return span


def cpu_s(pid: int) -> float:
    """CPU seconds used by a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def clear(bed: Bed, namespace: str) -> None:
    """Delete the pods of a run."""

    async def delete() -> None:
        async with Client(kubeconfig.load([bed.kubeconfig])) as client:
            await client.request("DELETE", pod_path(namespace), body={"gracePeriodSeconds": 0}, timeout_s=240)

    asyncio.run(delete())
    bed.wait_for(
        lambda: not bed.api.get(f"/api/v1/namespaces/{namespace}/pods?limit=1")["items"], "the pods to be gone", 240
    )


def _seconds(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp).timestamp()
