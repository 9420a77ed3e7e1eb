"""`baton controller` as a process on the shared KWOK bed, and what tests of controllers ask of it."""

import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from testbed.bed import Bed
from testbed.processes import Component
from tests.cluster.installation import install_crds

KINDS = {
    "jobs": ("batch.volcano.sh/v1alpha1", "Job"),
    "cronjobs": ("batch.volcano.sh/v1alpha1", "CronJob"),
    "podgroups": ("scheduling.volcano.sh/v1beta1", "PodGroup"),
    "queues": ("scheduling.volcano.sh/v1beta1", "Queue"),
    "commands": ("bus.volcano.sh/v1alpha1", "Command"),
    "jobflows": ("flow.volcano.sh/v1alpha1", "JobFlow"),
    "jobtemplates": ("flow.volcano.sh/v1alpha1", "JobTemplate"),
}
NODES = {"testbed.baton.dev/for": "jobs"}
"""Selects the nodes that are there for jobs."""
_PORT = 8081


def path(plural: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Where objects of one of Volcano's kinds are."""
    parts = ["/apis", KINDS[plural][0], *(("namespaces", namespace) if namespace else ()), plural, name, subresource]
    return "/".join(part for part in parts if part)


def create(bed: Bed, plural: str, body: Mapping[str, Any], namespace: str = "") -> dict[str, Any]:
    """Create an object of one of Volcano's kinds."""
    version, kind = KINDS[plural]
    return bed.api.create(path(plural, namespace), {"apiVersion": version, "kind": kind, **body})


class ControllerProcess:
    """One replica."""

    def __init__(self, bed: Bed, number: int, *words: str) -> None:
        self.bed = bed
        self.url = f"http://{bed.record.loopback_address}:{_PORT + number}"
        listen = self.url.removeprefix("http://")
        argv = [sys.executable, "-m", "baton.cli.main", "controller", "-v", "--listen", listen, "--lease-duration", "8"]
        self.process = Component(
            f"baton-controller-{number}",
            [*argv, "--identity", f"replica-{number}", *words],
            bed.id,
            bed.directory / "logs" / f"baton-controller-{number}.log",
            is_ready=lambda: self.get("/readyz")[0] == 200,
            environment={"KUBECONFIG": str(bed.kubeconfig)},
        )

    def get(self, where: str) -> tuple[int, str]:
        """A page of the replica; status 0 when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + where, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, series: str) -> float | None:
        for line in self.get("/metrics")[1].splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return None

    @property
    def leads(self) -> bool:
        return self.metric("baton_controller_leading") == 1

    def until_leading(self) -> None:
        self.bed.wait_for(lambda: self.leads and self.get("/readyz")[0] == 200, f"{self.url} to lead")


@pytest.fixture(scope="session")
def crd_bed(kwok_bed: Bed) -> Bed:
    """The shared KWOK bed with Volcano's kinds."""
    install_crds(kwok_bed)
    return kwok_bed


@pytest.fixture(scope="session")
def job_bed(crd_bed: Bed) -> Bed:
    """The bed with nodes for jobs."""
    crd_bed.add_kwok_nodes(4, prefix="jobs", labels=NODES)
    return crd_bed


@pytest.fixture(scope="session")
def controllers(crd_bed: Bed) -> Iterator[Callable[..., ControllerProcess]]:
    """Starts replicas; a number names the same one again. They end with the session."""
    made: dict[int, ControllerProcess] = {}

    def replica(number: int = 1) -> ControllerProcess:
        if number not in made:
            made[number] = ControllerProcess(crd_bed, number)
        if not made[number].process.is_running:
            made[number].process.start()
            made[number].process.wait_ready()
        return made[number]

    yield replica
    for each in made.values():
        each.process.kill()


@pytest.fixture
def controller(controllers: Callable[..., ControllerProcess]) -> ControllerProcess:
    """A replica that leads, shared by the session."""
    one = controllers()
    one.until_leading()
    return one


@pytest.fixture
def namespace(crd_bed: Bed) -> Iterator[str]:
    """A namespace of the test's own."""
    with crd_bed.namespace("jobs") as name:
        yield name


def events(bed: Bed, namespace: str, name: str) -> list[dict[str, Any]]:
    """The events about an object."""
    found = bed.api.get(f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}")
    items: list[dict[str, Any]] = found["items"]
    return items
