"""Beds and their names: unique addresses, owners, garbage, and finding processes by their mark."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from testbed import state
from testbed.errors import BedError
from testbed.processes import MARK, Component, ProcessKey, marked_processes, process_key
from testbed.teardown import collect_garbage, kill_processes, tear_down
from tests.waiting import until


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_TESTBED_STATE", str(tmp_path / "state"))


def test_every_bed_has_its_own_names_and_addresses() -> None:
    first, second = state.create("first"), state.create(None)
    assert first.slot != second.slot
    assert not first.network.overlaps(second.network)
    assert first.loopback_address != second.loopback_address
    assert first.link_prefix != second.link_prefix
    assert len(f"{first.link_prefix}n60") <= 15
    assert second.name == second.id
    assert [record.name for record in state.beds()] == sorted(
        [first.name, second.name], key=lambda n: state.find_bed(n).id
    )


def test_a_name_cannot_be_used_twice() -> None:
    state.create("mine")
    with pytest.raises(
        BedError, match="a bed 'mine' already exists; stop it with `python -m testbed down --name mine`"
    ):
        state.create("mine")


def test_an_unknown_bed_is_rejected_with_a_list_of_known_ones() -> None:
    state.create("mine")
    with pytest.raises(BedError, match="there is no bed 'yours'; beds: mine;"):
        state.find_bed("yours")


def test_pods_of_a_node_and_services_share_no_address_with_nodes() -> None:
    record = state.create("one")
    nodes = {record.node_address(number) for number in range(1, state.MAX_KUBELETS + 1)}
    assert len(nodes) == state.MAX_KUBELETS
    ranges = [record.pod_range(number) for number in range(1, state.MAX_KUBELETS + 1)]
    for one in ranges:
        assert one.subnet_of(record.network)
        assert not one.overlaps(record.service_range)
        assert not any(node in {str(host) for host in one} for node in nodes)


def test_a_bed_is_garbage_when_its_owner_is_gone_or_the_machine_was_restarted() -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    key = process_key(owner.pid)
    assert key is not None
    record = msgspec.structs.replace(state.create("owned"), owner=state.Owner(key.pid, key.start_ticks))
    state.write(record)
    assert not record.is_garbage
    assert collect_garbage() == []
    owner.communicate(b"\n")
    orphan = state.find_bed("owned")
    assert orphan.is_garbage
    assert msgspec.structs.replace(state.disown(record), boot_id="another").is_garbage
    assert not state.disown(record).is_garbage
    state.write(record)
    assert collect_garbage() == ["owned"]
    assert state.beds() == []


def test_a_process_number_that_was_reused_is_not_the_owner() -> None:
    mine = process_key(os.getpid())
    assert mine is not None
    other = ProcessKey(mine.pid, mine.start_ticks + 1)
    record = msgspec.structs.replace(state.create("old"), owner=state.Owner(*other))
    assert record.is_garbage


def test_a_foreign_state_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(BedError, match="is not a directory owned by this user"):
        state.state_root()


def component(bed_id: str, tmp_path: Path, *argv: str, **settings: int) -> Component:
    return Component("toy", argv, bed_id, tmp_path / "toy.log", **settings)  # type: ignore[arg-type]  # fields by name


def test_processes_are_found_by_their_mark_with_all_their_descendants(tmp_path: Path) -> None:
    mark = secrets.token_hex(3)
    program = component(mark, tmp_path, "sh", "-c", "sleep 1000 & sleep 1000 & wait")
    program.start()
    try:
        until(lambda: len(list(marked_processes(mark))), lambda count: count == 3)
        assert list(marked_processes(mark[:-1])) == []
    finally:
        kill_processes(mark)
    assert list(marked_processes(mark)) == []
    assert not program.is_running


def test_the_caller_is_never_among_the_processes_to_kill() -> None:
    script = (
        "import os; from testbed.processes import marked_processes; "
        "print([key.pid for key in marked_processes('feed00')].count(os.getpid()))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, MARK: "feed00"},
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert answer.stdout == "0\n"


def test_the_error_for_a_program_that_exits_at_startup_quotes_its_log(tmp_path: Path) -> None:
    program = component("abc124", tmp_path, "sh", "-c", "echo cannot open the door; exit 1")
    program.is_ready = lambda: False
    program.start()
    with pytest.raises(BedError, match=r"toy exited during startup; end of its log .*: cannot open the door"):
        program.wait_ready()


def test_a_program_that_sometimes_crashes_at_startup_is_started_again(tmp_path: Path) -> None:
    flag, ready = tmp_path / "flag", tmp_path / "ready"
    program = component(
        "abc125",
        tmp_path,
        "sh",
        "-c",
        f"[ -e {flag} ] || {{ touch {flag}; exit 1; }}; touch {ready}; sleep 1000",
        attempts=3,
    )
    program.is_ready = ready.exists
    program.start()
    program.wait_ready()
    assert program.is_running
    program.kill()


def test_tearing_down_twice_is_harmless() -> None:
    record = state.create("twice")
    tear_down(record)
    tear_down(record)
    assert state.beds() == []
