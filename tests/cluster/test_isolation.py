"""Beds do not touch each other, and a bed leaves nothing behind: not in order, not after a crash, not half-started."""

import json
import operator
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed import state
from testbed.bed import Bed, BedOptions
from testbed.errors import BedError
from testbed.programs import kubernetes, locate
from testbed.state import BedRecord
from testbed.teardown import collect_garbage, leftovers
from tests.cluster.manifests import pod
from tests.waiting import until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]


def mounts() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def test_two_beds_run_in_parallel_and_share_nothing(needs_kubelets: None) -> None:
    options = BedOptions(kubelets=1, controller_manager=True, scheduler=True)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: Bed(options), range(2))
    try:
        for bed in (first, second):
            with bed.namespace("same") as namespace:
                bed.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("same", ["true"]))
                bed.wait_for_pod(namespace, "same", "Succeeded")
        assert first.plane.server != second.plane.server
        assert not first.record.network.overlaps(second.record.network)
        first.stop()
        assert leftovers(first.record) == []
        with second.namespace() as namespace:
            second.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("still", ["true"]))
            second.wait_for_pod(namespace, "still", "Succeeded")
    finally:
        first.stop()
        second.stop()
    assert leftovers(second.record) == []


OWNER = """
import json, sys, time
from testbed import reaper, state
from testbed.bed import Bed, BedOptions
from tests.cluster.manifests import pod

create = state.create
def tell(name):
    record = create(name)
    print(record.id, flush=True)
    return record
state.create = tell
bed = Bed(BedOptions(kubelets=1, kwok_nodes=1))
with bed.namespace() as namespace:
    bed.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("left", ["sleep", sys.argv[1]], nodeName="node-1"))
    bed.wait_for_pod(namespace, "left", "Running")
    print(json.dumps({"init": bed.nodes["node-1"].init.pid}), flush=True)
    time.sleep(1000)
"""


class OwnedBed:
    """A bed that another process owns and that is about to lose its owner."""

    def __init__(self, duration: str) -> None:
        self.owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, duration], stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )
        bed_id = self.read_line().strip()
        self.record: BedRecord = next(record for record in state.beds() if record.id == bed_id)

    def read_line(self) -> str:
        assert self.owner.stdout is not None
        return self.owner.stdout.readline()

    def kill_owner(self) -> None:
        os.kill(self.owner.pid, signal.SIGKILL)
        self.owner.wait()

    def close(self) -> None:
        self.owner.kill()
        self.owner.wait()
        assert self.owner.stdout is not None
        self.owner.stdout.close()


@pytest.fixture
def owned_bed() -> Iterator[Callable[[str], OwnedBed]]:
    made: list[OwnedBed] = []

    def make(duration: str) -> OwnedBed:
        made.append(OwnedBed(duration))
        return made[-1]

    yield make
    for bed in made:
        bed.close()


def command_lines() -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found.append(
                    Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
            except OSError:
                continue
    return found


def namespaces_in_use() -> set[str]:
    found = set()
    for entry in os.listdir("/proc"):
        for kind in ("net", "mnt", "pid", "uts"):
            try:
                found.add(os.readlink(f"/proc/{entry}/ns/{kind}"))
            except OSError:
                continue
    return found


def test_kill_9_of_the_test_process_leaves_nothing(needs_kubelets: None, owned_bed: Callable[[str], OwnedBed]) -> None:
    before = mounts()
    bed = owned_bed("31536001")
    init = json.loads(bed.read_line())["init"]
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt", "pid", "uts")}
    theirs = {os.readlink(f"/proc/{init}/ns/{kind}") for kind in ("net", "mnt", "pid", "uts")} - own
    assert len(theirs) == 4
    assert "sleep 31536001" in command_lines()
    assert leftovers(bed.record) != []

    bed.kill_owner()

    until(lambda: not bed.record.directory.exists())
    assert leftovers(bed.record) == []
    assert "sleep 31536001" not in command_lines()
    until(lambda: theirs & namespaces_in_use(), operator.not_)
    assert mounts() - before == set()
    assert bed.record.id not in Path("/proc/net/unix").read_text()
    assert not any(bed.record.id in line for line in command_lines())
    network = subprocess.run("ip route; ip link; ip netns", shell=True, capture_output=True, text=True).stdout
    assert f"10.{128 + bed.record.slot}." not in network
    assert bed.record.id not in network
    cgroups = subprocess.run(["find", "/sys/fs/cgroup", "-name", f"*{bed.record.id}*"], capture_output=True, text=True)
    assert cgroups.stdout == ""


def test_kill_9_while_the_bed_is_starting_leaves_nothing(
    needs_kubelets: None, owned_bed: Callable[[str], OwnedBed]
) -> None:
    bed = owned_bed("31536002")
    until((bed.record.directory / "nodes" / "node-1" / "furnished").exists)
    bed.kill_owner()
    until(lambda: not bed.record.directory.exists())
    assert leftovers(bed.record) == []


def test_garbage_is_collected_when_even_the_reaper_was_killed(
    needs_kubelets: None, owned_bed: Callable[[str], OwnedBed]
) -> None:
    bed = owned_bed("31536003")
    until((bed.record.directory / "nodes" / "node-1" / "furnished").exists)
    reapers = [line for line in command_lines() if f"testbed.reaper {bed.record.id}" in line]
    assert len(reapers) == 1
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if b"testbed.reaper" in words and bed.record.id.encode() in words:
                os.kill(int(entry), signal.SIGKILL)
    bed.kill_owner()
    assert leftovers(bed.record) != []
    assert bed.record.name in collect_garbage()
    assert leftovers(bed.record) == []


def test_a_taken_port_is_one_sentence_and_nothing_is_left(new_bed: Callable[[BedOptions], Bed]) -> None:
    before = {record.id for record in state.beds()}
    with socket.socket() as squatter:
        squatter.bind(("0.0.0.0", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        with pytest.raises(
            BedError,
            match=rf"port {port} on .* for the API server is already in use; stop that server or choose another port",
        ):
            new_bed(BedOptions(port=port))
    assert {record.id for record in state.beds()} <= before


def test_a_program_that_dies_at_start_is_one_sentence_with_its_log_and_nothing_is_left(
    new_bed: Callable[[BedOptions], Bed],
) -> None:
    before = {record.id for record in state.beds()}
    with pytest.raises(BedError, match=r"kube-apiserver exited during startup; .*unknown flag: --no-such-flag"):
        new_bed(BedOptions(api_server_flags=["--no-such-flag"]))
    assert {record.id for record in state.beds()} <= before


def test_a_bed_from_the_shell_stays_until_down(tmp_path: Path) -> None:
    name = f"shell-{os.getpid()}"

    def shell(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "testbed", *words], capture_output=True, text=True, cwd=ROOT)

    started = shell("up", "--name", name, "--kwok-nodes", "2", "--kwok-resource", "nvidia.com/gpu=8")
    try:
        assert started.returncode == 0, started.stderr
        again = shell("up", "--name", name)
        assert again.returncode == 1
        assert (
            again.stderr
            == f"testbed: a bed '{name}' already exists; stop it with `python -m testbed down --name {name}`\n"
        )
        (row,) = [row for row in json.loads(shell("status", "-o", "json").stdout) if row["name"] == name]
        assert (row["state"], row["owner"]) == ("up", "none (runs until `down`)")
        kubeconfig = shell("kubeconfig", "--name", name).stdout.strip()
        words = [
            "kubectl",
            f"--kubeconfig={kubeconfig}",
            "get",
            "nodes",
            "-o",
            "jsonpath={.items[*].status.allocatable.nvidia\\.com/gpu}",
        ]
        words[0] = str(locate(kubernetes()) / "kubectl")
        assert subprocess.run(words, capture_output=True, text=True).stdout == "8 8"
    finally:
        ended = shell("down", "--name", name)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not Path(row["directory"]).exists()
    assert shell("down", "--name", name).stderr.startswith(f"testbed: there is no bed '{name}'; beds: ")
