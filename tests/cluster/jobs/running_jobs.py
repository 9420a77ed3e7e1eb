"""Jobs on the bed, for tests: make one, let it into the queue, wait for what becomes of it."""

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any

from testbed.api import ApiError
from testbed.bed import Bed
from testbed.images import BUSYBOX
from tests.cluster.jobs.conftest import NODES, create, path
from tests.volcano_jobs import container, manifest, task


class RunningJob:
    """One job and everything that belongs to it."""

    def __init__(self, bed: Bed, namespace: str, body: Mapping[str, Any]) -> None:
        self.bed = bed
        self.namespace = namespace
        self.made = create(bed, "jobs", body, namespace)
        self.name = str(self.made["metadata"]["name"])
        self.uid = str(self.made["metadata"]["uid"])
        self.group = f"{self.name}-{self.uid}"

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = self.bed.api.get(path("jobs", self.namespace, self.name))
        return found

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get().get("status", {})
        return found

    @property
    def phase(self) -> str:
        return str(self.status.get("state", {}).get("phase", ""))

    @property
    def phases(self) -> list[str]:
        """Every phase that the job has been in."""
        return [condition["status"] for condition in self.status.get("conditions", [])]

    def pods(self) -> dict[str, dict[str, Any]]:
        chosen = f"labelSelector=volcano.sh/job-name={self.name}"
        items = self.bed.api.get(f"/api/v1/namespaces/{self.namespace}/pods?{chosen}")["items"]
        return {item["metadata"]["name"]: item for item in items}

    def pod_group(self) -> dict[str, Any] | None:
        where = path("podgroups", self.namespace, self.group)
        return self.bed.api.get(where) if self.bed.api.exists(where) else None

    def until(self, phase: str, **counts: int) -> None:
        def there() -> bool:
            status = self.status
            right = all(status.get(name, 0) == number for name, number in counts.items())
            return bool(status.get("state", {}).get("phase") == phase and right)

        try:
            self.bed.wait_for(there, f"job {self.name} to be {phase} {counts or ''}", 90)
        except Exception as error:
            raise AssertionError(f"{error}; it is {self.status}") from None

    def until_pods(self, condition: Callable[[dict[str, dict[str, Any]]], bool], what: str) -> None:
        self.bed.wait_for(lambda: condition(self.pods()), f"{what} of job {self.name}", 90)

    def let_in(self, phase: str = "Inqueue") -> None:
        """Do the scheduler's part: put the group into the queue."""
        self.bed.wait_for(lambda: self.pod_group() is not None, f"the group of job {self.name}", 90)
        self.bed.api.patch(path("podgroups", self.namespace, self.group), {"status": {"phase": phase}})

    def end(self, pod: str, outcome: str) -> None:
        self.bed.wait_for_pod(self.namespace, pod, "Running", 90)
        self.bed.finish_pod(self.namespace, pod, outcome)

    def order(self, action: str) -> str:
        """A Command as vcctl sends it; returns its name."""
        target = {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }
        body = {"metadata": {"generateName": f"{self.name}-"}, "action": action, "target": target}
        return str(create(self.bed, "commands", body, self.namespace)["metadata"]["name"])

    def scale(self, task: int, replicas: int, min_available: int) -> None:
        job = self.get()
        job["spec"]["tasks"][task]["replicas"] = replicas
        job["spec"]["tasks"][task]["minAvailable"] = min_available
        changes = {"spec": {"tasks": job["spec"]["tasks"], "minAvailable": min_available}}
        self.bed.api.patch(path("jobs", self.namespace, self.name), changes)


def small_task(name: str = "worker", replicas: int = 2, **more: Any) -> dict[str, Any]:
    """A task of small pods on the tests' own nodes, which the bed's kube-scheduler binds."""
    small = container(image=BUSYBOX, resources={"requests": {"cpu": "100m", "memory": "64Mi"}})
    template = {"spec": {"containers": [small], "nodeSelector": NODES, "restartPolicy": "Never"}}
    return task(name, replicas, template=template, **more)


def small_job(*tasks: dict[str, Any], name: str = "", **spec: Any) -> dict[str, Any]:
    """A job that kube-scheduler places."""
    name = name or f"job-{secrets.token_hex(3)}"
    return manifest(*(tasks or (small_task(),)), name=name, schedulerName="default-scheduler", **spec)


class Doorman:
    """Stands in for the scheduler's enqueue action: lets every PodGroup of a namespace into the queue."""

    def __init__(self, bed: Bed, namespace: str) -> None:
        self._bed, self._namespace = bed, namespace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="doorman", daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            try:
                for group in self._bed.api.get(path("podgroups", self._namespace))["items"]:
                    if group.get("status", {}).get("phase", "Pending") == "Pending":
                        where = path("podgroups", self._namespace, group["metadata"]["name"])
                        self._bed.api.patch(where, {"status": {"phase": "Inqueue"}})
            except (OSError, ApiError):
                continue  # the group is gone, or the server is away; the next round will tell

    def __enter__(self) -> "Doorman":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
