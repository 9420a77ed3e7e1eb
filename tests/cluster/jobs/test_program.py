"""`baton controller` as a program: kinds that are missing, a server that is away, replicas that freeze and end."""

import signal
from collections.abc import Callable, Iterator

import pytest

from testbed.bed import Bed, BedOptions
from tests.cluster.installation import install_crds
from tests.cluster.jobs.conftest import ControllerProcess, create, path

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def bare_bed() -> Iterator[Bed]:
    """An API server of these tests' own, which they may take away."""
    with Bed(BedOptions()) as bed:
        yield bed


@pytest.fixture
def replica(bare_bed: Bed) -> Iterator[Callable[..., ControllerProcess]]:
    """Starts replicas that end with the test."""
    made: list[ControllerProcess] = []

    def start(number: int = 1, *words: str) -> ControllerProcess:
        one = ControllerProcess(bare_bed, number, *words)
        one.process.start()
        made.append(one)
        return one

    yield start
    for one in made:
        one.process.kill()


def state(bed: Bed, name: str) -> str:
    return str(bed.api.get(path("queues", name=name)).get("status", {}).get("state"))


def close(bed: Bed, name: str, action: str = "CloseQueue") -> None:
    uid = bed.api.get(path("queues", name=name))["metadata"]["uid"]
    target = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": name, "uid": uid}
    create(bed, "commands", {"metadata": {"generateName": "order-"}, "action": action, "target": target}, "default")


LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/baton-controller"


def holder(bed: Bed) -> str:
    return str(bed.api.get(LEASE)["spec"].get("holderIdentity"))


def test_it_waits_for_kinds_that_are_not_there_and_says_so(
    bare_bed: Bed, replica: Callable[..., ControllerProcess]
) -> None:
    one = replica()
    bare_bed.wait_for(lambda: "queues.scheduling.volcano.sh" in one.get("/readyz")[1], "the missing kinds to be named")
    assert one.get("/healthz") == (200, "ok\n")
    bare_bed.wait_for(lambda: one.leads, "it to lead all the same")
    install_crds(bare_bed)
    bare_bed.wait_for(lambda: state(bare_bed, "default") == "Open", "the default queue")
    bare_bed.wait_for(lambda: one.get("/readyz") == (200, "ok\n"), "the program to be ready")


def test_one_kind_that_is_missing_stops_only_those_who_read_it(
    bare_bed: Bed, replica: Callable[..., ControllerProcess]
) -> None:
    install_crds(bare_bed)
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/jobflows.flow.volcano.sh"
    bare_bed.api.delete(definition)
    bare_bed.wait_for(lambda: not bare_bed.api.exists(definition), "the kind to be gone")
    one = replica()
    create(bare_bed, "queues", {"metadata": {"name": "alive"}, "spec": {"weight": 1}})
    bare_bed.wait_for(lambda: state(bare_bed, "alive") == "Open", "queues to be looked after")
    status, words = one.get("/readyz")
    assert (status, "jobflows.flow.volcano.sh" in words) == (503, True)
    install_crds(bare_bed)
    bare_bed.wait_for(lambda: one.get("/readyz")[0] == 200, "the program to be ready")


def test_it_gives_up_the_lead_while_the_server_is_away_and_takes_it_again(
    bare_bed: Bed, replica: Callable[..., ControllerProcess]
) -> None:
    install_crds(bare_bed)
    one = replica()
    one.until_leading()
    create(bare_bed, "queues", {"metadata": {"name": "through"}, "spec": {"weight": 1}})
    bare_bed.wait_for(lambda: state(bare_bed, "through") == "Open", "the queue to be open")
    bare_bed.api_server.kill()
    bare_bed.wait_for(lambda: one.metric("baton_controller_leading") == 0, "the lead to be given up")
    assert one.get("/healthz")[0] == 200
    bare_bed.api_server.start()
    bare_bed.api_server.wait_ready()
    one.until_leading()
    close(bare_bed, "through")
    bare_bed.wait_for(lambda: state(bare_bed, "through") == "Closed", "the command to be carried out")


def test_a_frozen_leader_is_replaced_and_does_not_lead_when_it_wakes(
    bare_bed: Bed, replica: Callable[..., ControllerProcess]
) -> None:
    install_crds(bare_bed)
    first = replica(1)
    first.until_leading()
    second = replica(2)
    second.process.wait_ready()
    assert not second.leads
    first.process.stop()
    second.until_leading()
    assert holder(bare_bed) == "replica-2"
    first.process.resume()
    bare_bed.wait_for(lambda: first.metric("baton_controller_leading") == 0, "the first to stand back")
    assert holder(bare_bed) == "replica-2"
    create(bare_bed, "queues", {"metadata": {"name": "held"}, "spec": {"weight": 1}})
    bare_bed.wait_for(lambda: state(bare_bed, "held") == "Open", "the second to work")


def test_a_polite_end_frees_the_lease(bare_bed: Bed, replica: Callable[..., ControllerProcess]) -> None:
    install_crds(bare_bed)
    # So long that nobody would get it in this test's time if it were not given up; and nobody's at first.
    bare_bed.api.delete(LEASE)
    first = replica(1, "--lease-duration", "600")
    first.until_leading()
    second = replica(2)
    second.process.wait_ready()
    first.process.send(signal.SIGTERM)
    second.until_leading()
    bare_bed.wait_for(lambda: not first.process.is_running, "the first to end")
    assert "Traceback" not in first.process.log.read_text()
