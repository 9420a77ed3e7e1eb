"""Baton's programs as processes beside a bed: what an installation runs as Deployments, with the bed's fault levers.

    with BatonPrograms(bed) as baton:
        baton.apply(namespace, "examples/gang.yaml")
        baton.until_phase(namespace, "gang", "Running")

They run on the machine and not in pods, because the bed has no registry for our image; everything else is as in a
cluster: the API server is all they share.
"""

import contextlib
import http.client
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import yaml

from baton.engine import records
from baton.engine.events import PodChanged
from testbed.bed import Bed
from testbed.processes import Component, bed_environment
from tests.cluster.admission.webhooks import called, free_port, install_webhooks
from tests.cluster.installation import install_crds

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SYSTEM = "baton-system"
"""The namespace of an installation."""
CONFIG_MAP = "baton-scheduler"

WITHOUT_SHARES = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
  - name: nodeorder
"""
"""Jobs are admitted whatever there is room for: their pods are there, and only the gang keeps them back."""

JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{}/jobs"
POD_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups"

Object = dict[str, Any]


class Request(msgspec.Struct, frozen=True):
    """One request that the API server carried out, from its audit log."""

    at: str
    """When it came in, with microseconds; texts of times compare as the times do."""
    agent: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int


def command(bed: Bed, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours as an administrator of the bed's cluster."""
    return subprocess.run(
        [Path(sys.executable).with_name(program), *words],
        capture_output=True,
        text=True,
        env=bed_environment(bed.id, {"KUBECONFIG": str(bed.kubeconfig)}),
        timeout=120,
    )


class BatonPrograms:
    """Scheduler, controllers and admission of one bed."""

    def __init__(self, bed: Bed, programs: Sequence[str] = ("controller", "scheduler", "admission")) -> None:
        self.bed = bed
        install_crds(bed)
        self._create_namespace(SYSTEM)
        self._webhooks = free_port()
        self.components = {name: self._component(name) for name in programs}

    def __enter__(self) -> "BatonPrograms":
        try:
            for component in self.components.values():
                component.start()
            for component in self.components.values():
                component.wait_ready()
            if "admission" in self.components:
                install_webhooks(self.bed, self._webhooks)
                self.bed.wait_for(lambda: called(self.bed), "the API server to call the webhooks")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for component in self.components.values():
            component.kill()

    @property
    def scheduler(self) -> Component:
        return self.components["scheduler"]

    @property
    def controller(self) -> Component:
        return self.components["controller"]

    @property
    def admission(self) -> Component:
        return self.components["admission"]

    def _component(self, name: str) -> Component:
        return Component(
            f"baton-{name}",
            [sys.executable, "-m", "baton.cli.main", name, *self._words(name)],
            self.bed.id,
            self.bed.directory / "logs" / f"baton-{name}.log",
            is_ready=lambda: self._answers(name),
            environment={"KUBECONFIG": str(self.bed.kubeconfig)},
        )

    def address(self, name: str) -> str:
        """Where a program shows itself: the bed's own loopback address, which no other bed has."""
        port = {"controller": 8081, "scheduler": 8082, "admission": 8083}[name]
        return f"{self.bed.record.loopback_address}:{port}"

    def _words(self, name: str) -> list[str]:
        if name == "controller":
            return ["--listen", self.address(name), "--no-leader-elect", "--qps", "0"]
        if name == "scheduler":
            return ["--listen", self.address(name), "--no-leader-elect", "--config-map", f"{SYSTEM}/{CONFIG_MAP}"]
        webhooks = ["--host", "127.0.0.1", "--listen", f"127.0.0.1:{self._webhooks}"]
        return [
            *webhooks,
            "--observe",
            self.address(name),
            "--namespace",
            SYSTEM,
            "--drain",
            "0",
            "--certificate-check",
            "1",
        ]

    def _answers(self, name: str) -> bool:
        try:
            self.ask(name, "/readyz")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def _create_namespace(self, name: str) -> None:
        if not self.bed.api.exists(f"/api/v1/namespaces/{name}"):
            self.bed.api.create("/api/v1/namespaces", {"metadata": {"name": name}})

    def baton(self, *words: str) -> str:
        """Run the `baton` command against the bed; what it printed."""
        return self._run("baton", *words)

    def vcctl(self, *words: str) -> str:
        return self._run("vcctl", *words)

    def _run(self, *words: str) -> str:
        done = command(self.bed, *words)
        assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stderr or done.stdout}"
        return done.stdout

    def apply(self, namespace: str, manifest: str | Path) -> None:
        """`kubectl apply` of a manifest, given as a path or as text."""
        if isinstance(manifest, Path):
            self.bed.kubectl("apply", "-n", namespace, "-f", str(manifest))
        else:
            self.bed.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)

    def job(self, namespace: str, name: str) -> Object:
        found: Object = self.bed.api.get(f"{JOBS.format(namespace)}/{name}")
        return found

    def phase(self, namespace: str, name: str) -> str:
        return str(self.job(namespace, name).get("status", {}).get("state", {}).get("phase", ""))

    def until_phase(self, namespace: str, name: str, phase: str, timeout_s: float = 90.0) -> Object:
        """Wait until a job is in a phase."""
        try:
            self.bed.wait_for(lambda: self.phase(namespace, name) == phase, f"job {name} to be {phase}", timeout_s)
        except Exception as error:
            error.add_note(self._story(namespace, name))
            raise
        return self.job(namespace, name)

    def _story(self, namespace: str, name: str) -> str:
        """What a person would look at when a job is not where it should be."""
        words = [("get", "vcjob,podgroup,pods", "-o", "wide"), ("get", "events", "--sort-by=.lastTimestamp")]
        told = [self.bed.kubectl("-n", namespace, *each) for each in words]
        for component in self.components.values():
            tail = component.log.read_text(errors="replace").splitlines()[-8:]
            told.append("\n".join([f"{component.name}:", *tail]))
        return "\n".join([f"job {namespace}/{name} is {self.phase(namespace, name) or 'in no phase'}", *told])

    def pods(self, namespace: str, job: str) -> list[Object]:
        """The pods of a job, by name."""
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=volcano.sh/job-name={job}"
        items: list[Object] = self.bed.api.get(path)["items"]
        return sorted(items, key=lambda pod: str(pod["metadata"]["name"]))

    def until_pods(self, namespace: str, job: str, count: int, phase: str, timeout_s: float = 90.0) -> list[Object]:
        """Wait until exactly so many pods of a job are in a phase."""

        def found() -> list[Object]:
            return [pod for pod in self.pods(namespace, job) if pod["status"].get("phase") == phase]

        try:
            self.bed.wait_for(lambda: len(found()) == count, f"{count} pods of {job} to be {phase}", timeout_s)
        except Exception as error:
            error.add_note(self._story(namespace, job))
            raise
        return found()

    def empty(self, namespace: str) -> None:
        """Delete the jobs of a namespace and wait until none of its pods is left."""
        self.bed.api.delete(JOBS.format(namespace))
        self.bed.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_s=0)
        pods = f"/api/v1/namespaces/{namespace}/pods"
        self.bed.wait_for(lambda: not self.bed.api.get(pods)["items"], f"the pods of {namespace} to be gone", 90.0)

    @contextlib.contextmanager
    def cordoned(self) -> Iterator[None]:
        """No node takes pods meanwhile, so that several jobs can be there before the first pod is placed."""
        names = sorted(self.bed.ready_nodes())
        for name in names:
            self.bed.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
        try:
            yield
        finally:
            for name in names:
                self.bed.api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})

    def configure(self, text: str) -> None:
        """Give the scheduler another configuration and wait until it is in force."""
        path = f"/api/v1/namespaces/{SYSTEM}/configmaps"
        body = {"metadata": {"name": CONFIG_MAP}, "data": {"volcano-scheduler.conf": text}}
        if self.bed.api.exists(f"{path}/{CONFIG_MAP}"):
            self.bed.api.patch(f"{path}/{CONFIG_MAP}", body)
        else:
            self.bed.api.create(path, body)
        wanted = yaml.safe_load(text)["actions"]
        self.bed.wait_for(lambda: self.state().about.configuration == text, f"actions {wanted} to be in force")

    def state(self) -> records.Record:
        """What the scheduler sees."""
        return records.read(self.ask("scheduler", "/state"), "the scheduler's state")

    def scheduled_cards(self, namespace: str) -> dict[str, list[str]]:
        """The cards that the scheduler charges the pods of a namespace for."""
        return {
            event.pod.name: [str(grant.card) for grant in event.pod.cards]
            for event in self.state().events
            if isinstance(event, PodChanged)
            and event.pod.namespace == namespace
            and event.pod.node is not None
            and event.pod.phase not in ("Succeeded", "Failed")
        }

    def ask(self, name: str, path: str) -> bytes:
        """A page of a program's listener."""
        connection = http.client.HTTPConnection(self.address(name), timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise ConnectionError(f"{name} answered {answer.status} to {path}: {body[:200]!r}")
            return body
        finally:
            connection.close()

    def group(self, namespace: str, job: str) -> Object:
        """The PodGroup of a job."""
        uid = self.job(namespace, job)["metadata"]["uid"]
        found: Object = self.bed.api.get(f"{POD_GROUPS.format(namespace)}/{job}-{uid}")
        return found

    def finish(self, namespace: str, job: str, outcome: str = "succeed", task: str = "") -> None:
        """Let the running pods of a job, or of one task of it, end; on KWOK nodes."""
        for pod in self.pods(namespace, job):
            of_task = not task or pod["metadata"]["labels"].get("volcano.sh/task-spec") == task
            if of_task and pod["status"].get("phase") == "Running":
                self.bed.finish_pod(namespace, pod["metadata"]["name"], outcome)

    def requests(self, namespace: str) -> list[Request]:
        """What was asked of the API server about a namespace and carried out, in the order of arrival."""
        found = []
        for event in self.bed.plane.audited(f'"namespace":"{namespace}"'):
            target, code = event.get("objectRef", {}), event.get("responseStatus", {}).get("code", 0)
            if event["stage"] == "ResponseComplete" and code < 300:
                found.append(
                    Request(
                        event["requestReceivedTimestamp"],
                        event.get("userAgent", ""),
                        event["verb"],
                        target.get("resource", ""),
                        target.get("subresource", ""),
                        namespace,
                        target.get("name", ""),
                        code,
                    )
                )
        return sorted(found, key=lambda request: request.at)

    def bindings(self, namespace: str, prefix: str = "") -> list[Request]:
        """The binds of pods whose names begin so, in order."""
        return [
            request
            for request in self.requests(namespace)
            if request.subresource == "binding" and request.verb == "create" and request.name.startswith(prefix)
        ]
