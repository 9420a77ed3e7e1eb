"""The scheduler as its users run it: a process of its own against a real API server, with KWOK nodes."""

import contextlib
import itertools
import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.api import ApiError, Object
from testbed.bed import Bed, BedOptions
from testbed.processes import Component

CRDS = Path(__file__).parents[3] / "deploy" / "crds" / "crds.yaml"
SCHEDULING = "/apis/scheduling.volcano.sh/v1beta1"
GROUP_NAME = "scheduling.k8s.io/group-name"
BATON = str(Path(sys.executable).parent / "baton")

_ports = itertools.count(12000)


class SchedulerProcess(Component):
    """`baton scheduler` with its fault levers and its HTTP side."""

    url = ""

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def text(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            body: bytes = answer.read()
        return body.decode()

    def metric(self, line: str) -> float:
        """The value of the series that is written so."""
        for text in self.text("/metrics").splitlines():
            if text.startswith(f"{line} "):
                return float(text.rpartition(" ")[2])
        return 0.0


def scheduler_of(
    bed: Bed, *options: str, name: str = "baton-scheduler", kubeconfig: Path | None = None
) -> SchedulerProcess:
    """A scheduler of the bed, not started."""
    address = f"{bed.record.loopback_address}:{next(_ports)}"
    words = [BATON, "scheduler", f"--kubeconfig={kubeconfig or bed.kubeconfig}", f"--listen={address}", *options]
    made = SchedulerProcess(name, words, bed.id, bed.directory / "logs" / f"{name}.log")
    made.url = f"http://{address}"

    def ready() -> bool:
        with contextlib.suppress(OSError):
            return made.text("/readyz") in ("leading\n", "standby\n")
        return False

    made.is_ready = ready
    return made


@pytest.fixture(scope="package")
def scheduler_bed() -> Iterator[Bed]:
    """KWOK, controller-manager and Volcano's resources, without any scheduler."""
    with Bed(BedOptions(kwok=True, controller_manager=True)) as bed:
        install(bed)
        yield bed


def install(bed: Bed) -> None:
    bed.kubectl("apply", "--server-side", "-f", str(CRDS))
    bed.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")


class Field:
    """A namespace with nodes of its own, which nobody else's pods select."""

    def __init__(self, bed: Bed, namespace: str) -> None:
        self.bed = bed
        self.namespace = namespace
        self.nodes: list[str] = []
        self.classes: list[str] = []

    def add_nodes(
        self, count: int, resources: dict[str, Any] | None = None, *, annotations: dict[str, str] | None = None
    ) -> list[str]:
        """Nodes `NAMESPACE-N` with more or other resources than usual."""
        prefix = f"{self.namespace}-{len(self.nodes)}"
        names = self.bed.add_kwok_nodes(count, prefix=prefix, labels={"field": self.namespace}, resources=resources)
        for name in names if annotations else ():
            self.bed.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": annotations}})
        self.nodes += names
        return names

    def pod(
        self, name: str, *, cpu: str = "1", group: str = "", limits: dict[str, Any] | None = None, **more: Any
    ) -> str:
        metadata: Object = {"name": name, "labels": more.pop("labels", {})}
        annotations = dict(more.pop("annotations", {}))
        if group:
            annotations[GROUP_NAME] = group
        metadata["annotations"] = annotations
        resources = {"requests": {"cpu": cpu} if cpu else {}, "limits": limits or {}}
        spec = {
            "schedulerName": "volcano",
            "nodeSelector": {"field": self.namespace},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            **more,
        }
        path, body = f"/api/v1/namespaces/{self.namespace}/pods", {"metadata": metadata, "spec": spec}
        # Admission may not know a priority class yet that was made a moment ago.
        self.bed.create_when_accepted(path, body)
        return name

    def group(self, name: str, minimum: int, *, queue: str = "default", **more: Any) -> str:
        body = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": minimum, "queue": queue, **more},
        }
        self.bed.create_when_accepted(f"{SCHEDULING}/namespaces/{self.namespace}/podgroups", body, 90)
        return name

    def priority_class(self, name: str, value: int) -> str:
        """A class of this field's own, which goes with it."""
        full = f"{name}-{self.namespace}"
        self.bed.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": full}, "value": value})
        self.classes.append(full)
        return full

    def gang(
        self, name: str, size: int, *, minimum: int | None = None, queue: str = "default", **pod: Any
    ) -> list[str]:
        self.group(name, size if minimum is None else minimum, queue=queue)
        return [self.pod(f"{name}-{number}", group=name, **pod) for number in range(size)]

    def pods(self) -> dict[str, Object]:
        items = self.bed.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return {item["metadata"]["name"]: item for item in items}

    def bound(self) -> dict[str, str]:
        """The node of every pod that has one."""
        return {
            name: pod["spec"]["nodeName"]
            for name, pod in self.pods().items()
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        }

    def wait_bound(self, names: list[str], timeout_s: float = 90.0) -> dict[str, str]:
        wanted = set(names)
        self.bed.wait_for(
            lambda: wanted <= self.bound().keys(), f"pods {', '.join(names)[:200]} to be bound", timeout_s
        )
        return self.bound()

    def podgroup(self, name: str) -> Object:
        found: Object = self.bed.api.get(f"{SCHEDULING}/namespaces/{self.namespace}/podgroups/{name}")
        return found

    def condition(self, pod: str) -> Object:
        """PodScheduled of a pod; empty when it has none."""
        conditions = self.bed.pod(self.namespace, pod)["status"].get("conditions", [])
        return next((item for item in conditions if item["type"] == "PodScheduled"), {})

    def events(self, about: str) -> list[Object]:
        selector = f"fieldSelector=involvedObject.name%3D{about}"
        found: list[Object] = self.bed.api.get(f"/api/v1/namespaces/{self.namespace}/events?{selector}")["items"]
        return found

    def wait_event(self, about: str, *reasons: str, saying: str = "") -> None:
        """Wait for an event with these words; others may come before it, as while a node is not ready yet."""

        def there() -> bool:
            return any(event["reason"] in reasons and saying in event["message"] for event in self.events(about))

        self.bed.wait_for(there, f"an event {' or '.join(reasons)} about {about} with '{saying}'", 90)

    def wait_unschedulable(self, pod: str, saying: str = "") -> None:
        """Wait until a pod that cannot be placed says so, with these words in the reason."""

        def told() -> bool:
            condition = self.condition(pod)
            return condition.get("reason") == "Unschedulable" and saying in condition.get("message", "")

        self.bed.wait_for(told, f"pod {pod} to be unschedulable because '{saying}', not {self.condition(pod)}", 90)

    def binds(self) -> list[Object]:
        """Audit records of successful binds in this namespace, in the order of the log."""
        return [
            record
            for record in self.bed.plane.audited('"subresource":"binding"', f'"namespace":"{self.namespace}"')
            if record["verb"] == "create" and record["responseStatus"]["code"] == 201
        ]

    def remove(self) -> None:
        for name in self.nodes:
            self.bed.api.delete(f"/api/v1/nodes/{name}")
        for name in self.classes:
            self.bed.api.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


@pytest.fixture
def field(scheduler_bed: Bed) -> Iterator[Field]:
    with scheduler_bed.namespace("field") as namespace:
        made = Field(scheduler_bed, namespace)
        yield made
        with contextlib.suppress(ApiError):
            scheduler_bed.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_s=0)
        made.remove()


@pytest.fixture
def schedulers(scheduler_bed: Bed) -> Iterator[Callable[..., SchedulerProcess]]:
    """Starts schedulers that end with the test; by default one that needs no lease."""
    made: list[SchedulerProcess] = []

    def start(*options: str, name: str = "baton-scheduler", wait: bool = True) -> SchedulerProcess:
        process = scheduler_of(scheduler_bed, *(options or ("--no-leader-elect",)), name=name)
        made.append(process)
        process.start()
        if wait:
            process.wait_ready()
        return process

    yield start
    for process in made:
        process.kill()
