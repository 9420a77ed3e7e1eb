"""Whatever dies, nothing is lost: no gang stays in parts, no pod is bound twice, no card is promised twice, all run.

`BATON_TEST_KILLS` sets how often the scheduler is killed in the middle of a gang, `BATON_TEST_OUTAGE_S` for how long
the API server is away.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.bed import Bed, BedOptions
from tests.cluster.scheduler.conftest import Field, SchedulerProcess, install, scheduler_of
from tests.cluster.scheduler.storm import Storm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("BATON_TEST_KILLS", "10"))
OUTAGE_S = float(os.environ.get("BATON_TEST_OUTAGE_S", "12"))
GANG = 6
SHARE = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 2000}
CARD_MIB, CARDS = 8000, 2
COUNTS = {"volcano.sh/vgpu-number": 20, "volcano.sh/vgpu-memory": CARD_MIB * CARDS, "volcano.sh/vgpu-cores": 200}
PLACES = CARDS * CARD_MIB // SHARE["volcano.sh/vgpu-memory"]
ALONE = ("--no-leader-elect", "--retry-first=0.05", "--retry-longest=1")


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed(BedOptions(kwok=True, controller_manager=True)) as made:
        install(made)
        yield made


@pytest.fixture
def ground(bed: Bed) -> Iterator[Field]:
    with bed.namespace("fault") as namespace:
        made = Field(bed, namespace)
        yield made
        bed.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_s=0)
        made.remove()


@pytest.fixture
def start(bed: Bed) -> Iterator[Callable[..., SchedulerProcess]]:
    made: list[SchedulerProcess] = []

    def begin(*options: str, name: str = "scheduler", kubeconfig: Path | None = None) -> SchedulerProcess:
        process = scheduler_of(bed, *options, name=name, kubeconfig=kubeconfig)
        made.append(process)
        process.start()
        process.wait_ready()
        return process

    yield begin
    for process in made:
        process.kill()


def add_gpu_nodes(ground: Field, places: int) -> None:
    """Nodes with two cards each, for at least so many shares."""
    for number in range(-(-places // PLACES)):
        cards = "".join(f"{ground.namespace}-{number}-{card},10,{CARD_MIB},T4,true,hami-core:" for card in range(CARDS))
        ground.add_nodes(1, COUNTS, annotations={"volcano.sh/node-vgpu-register": cards})


def check(ground: Field, pods: list[str]) -> None:
    """The four promises, from the API server's objects and its audit log."""
    found = ground.pods()
    assert {name for name in pods if found[name]["spec"].get("nodeName")} == set(pods), "every pod is placed"
    times = Counter(record["objectRef"]["name"] for record in ground.binds())
    assert {name for name, number in times.items() if number > 1} == set(), "no pod is bound twice"
    cards: Counter[str] = Counter()
    for name in pods:
        text = found[name]["metadata"]["annotations"].get("volcano.sh/vgpu-ids-new", "")
        for entry in filter(None, text.split(":")):
            card, _, memory, _ = entry.split(",")
            cards[card] += int(memory)
    assert {card for card, memory in cards.items() if memory > CARD_MIB} == set(), "no card is over-committed"


def test_a_scheduler_killed_in_the_middle_of_gangs(
    bed: Bed, ground: Field, start: Callable[..., SchedulerProcess], tmp_path: Path
) -> None:
    """After one bind, after two, and so on; the next life finishes what it finds before all else, even before pods of a
    higher priority that came while nobody was there."""
    add_gpu_nodes(ground, KILLS * (GANG + 1))
    urgent = ground.priority_class("urgent", 1000)
    pods: list[str] = []
    with Storm(bed.kubeconfig, tmp_path, raging=False) as wire:
        process = start(*ALONE, "--parallel-binds=1", kubeconfig=wire.kubeconfig)
        for number in range(KILLS):
            bound = 1 + number % (GANG - 1)
            wire.hold_after(bound)
            members = ground.gang(f"gang-{number}", GANG, limits=SHARE)
            bed.wait_for(lambda: wire.holds, "the scheduler to be in the middle of the gang")
            process.kill()
            assert len(ground.bound().keys() & set(members)) == bound
            wire.let_go()
            members.append(ground.pod(f"urgent-{number}", limits=SHARE, priorityClassName=urgent))
            process.start()
            process.wait_ready()
            ground.wait_bound(members)
            pods += members
    check(ground, pods)
    bed.wait_for(
        lambda: {record["objectRef"]["name"] for record in ground.binds()} >= set(pods), "the log to be written"
    )
    at = {record["objectRef"]["name"]: record["requestReceivedTimestamp"] for record in ground.binds()}
    for number in range(KILLS):
        finished = max(at[f"gang-{number}-{member}"] for member in range(GANG))
        assert finished < at[f"urgent-{number}"], f"gang-{number} was in parts while another pod was placed"


def test_two_replicas_and_the_death_of_the_one_that_leads(
    bed: Bed, ground: Field, start: Callable[..., SchedulerProcess]
) -> None:
    add_gpu_nodes(ground, 4 * GANG)
    lease = (f"--lease=kube-system/{ground.namespace}", "--lease-duration=8", "--retry-first=0.05")
    replicas = [start(*lease, name=f"replica-{number}") for number in range(2)]
    bed.wait_for(lambda: sorted(one.text("/readyz") for one in replicas) == ["leading\n", "standby\n"], "one to lead")
    leader = next(one for one in replicas if one.text("/readyz") == "leading\n")
    standby = next(one for one in replicas if one is not leader)
    pods = [name for number in range(2) for name in ground.gang(f"first-{number}", GANG, limits=SHARE)]
    ground.bed.wait_for(lambda: bool(ground.bound()), "the leader to begin")
    leader.kill()
    pods += [name for number in range(2) for name in ground.gang(f"second-{number}", GANG, limits=SHARE)]
    ground.wait_bound(pods)
    assert standby.text("/readyz") == "leading\n"
    check(ground, pods)


def test_the_api_server_stops_and_comes_back(bed: Bed, ground: Field, start: Callable[..., SchedulerProcess]) -> None:
    """Frozen, then killed: requests hang, then are refused; the outage is longer than a request or a bind may take."""
    add_gpu_nodes(ground, 4 * GANG)
    process = start(*ALONE, "--request-limit=2", "--bind-limit=4")
    pods = [name for number in range(2) for name in ground.gang(f"before-{number}", GANG, limits=SHARE)]
    bed.api_server.stop()
    frozen = threading.Timer(OUTAGE_S / 2, bed.api_server.kill)
    frozen.start()
    frozen.join()
    gone = threading.Timer(OUTAGE_S / 2, bed.api_server.start)
    gone.start()
    gone.join()
    bed.api_server.wait_ready()
    pods += [name for number in range(2) for name in ground.gang(f"after-{number}", GANG, limits=SHARE)]
    ground.wait_bound(pods, 120)
    assert process.is_running
    check(ground, pods)


def test_etcd_restarts(bed: Bed, ground: Field, start: Callable[..., SchedulerProcess]) -> None:
    add_gpu_nodes(ground, 2 * GANG)
    start(*ALONE)
    pods = ground.gang("before", GANG, limits=SHARE)
    bed.etcd.restart()
    bed.api_server.wait_ready()
    pods += ground.gang("after", GANG, limits=SHARE)
    ground.wait_bound(pods, 120)
    check(ground, pods)


def test_the_wire_is_cut_and_healed(bed: Bed, ground: Field, start: Callable[..., SchedulerProcess]) -> None:
    add_gpu_nodes(ground, 4 * GANG)
    proxy, kubeconfig = bed.proxy()
    process = start(*ALONE, "--request-limit=2", kubeconfig=kubeconfig)
    pods: list[str] = []
    for number in range(4):
        pods += ground.gang(f"gang-{number}", GANG, limits=SHARE)
        proxy.cut()
        proxy.heal()
    ground.wait_bound(pods, 120)
    assert process.is_running
    check(ground, pods)


def test_a_storm_of_refusals_and_lost_answers(
    bed: Bed, ground: Field, start: Callable[..., SchedulerProcess], tmp_path: Path
) -> None:
    add_gpu_nodes(ground, 6 * GANG)
    with Storm(bed.kubeconfig, tmp_path) as storm:
        start(*ALONE, "--bind-limit=3", kubeconfig=storm.kubeconfig)
        pods = [name for number in range(6) for name in ground.gang(f"gang-{number}", GANG, limits=SHARE)]
        ground.wait_bound(pods, 120)
        assert min(storm.count.get(kind, 0) for kind in ("conflict", "throttle", "lost", "late-conflict")) > 0
    check(ground, pods)


def test_a_node_is_deleted_under_load(bed: Bed, ground: Field, start: Callable[..., SchedulerProcess]) -> None:
    """What was on it is made anew by its owner and placed elsewhere; nobody else is touched."""
    ground.add_nodes(3, {"cpu": 8})
    process = start(*ALONE)
    template = {
        "metadata": {"labels": {"app": "load"}},
        "spec": {
            "schedulerName": "volcano",
            "nodeSelector": {"field": ground.namespace},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
        },
    }
    bed.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "load", "namespace": ground.namespace},
            "spec": {"replicas": 16, "selector": {"matchLabels": {"app": "load"}}, "template": template},
        }
    )
    bed.wait_for(lambda: bool(ground.bound()), "the load to begin")
    gone = next(iter(ground.bound().values()))
    bed.api.delete(f"/api/v1/nodes/{gone}")
    for name, pod in ground.pods().items():
        if pod["spec"].get("nodeName") == gone:
            bed.api.delete(f"/api/v1/namespaces/{ground.namespace}/pods/{name}", grace_s=0)
    left = set(ground.nodes) - {gone}

    def settled() -> bool:
        running = [node for node in ground.bound().values() if node in left]
        return len(running) == 16

    bed.wait_for(settled, "16 pods on the two nodes that are left", 120)
    assert process.is_running
    assert max(Counter(ground.bound().values()).values()) == 8
