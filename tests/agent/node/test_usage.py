"""The lock times and card use of containers: they never decrease, and belong to the right container."""

from baton.agent.kubelet.records import Holding, Recorded
from baton.agent.node.identity import PodProcess
from baton.agent.node.usage import LockTimes, LockUsage
from baton.agent.telemetry import container_rows, places_of
from baton.lock.status import Account, ClientStatus, Status
from baton.model.ids import CardId, PodUid

CARD = CardId("GPU-a")
MAIN, SIDE = PodProcess(PodUid("uid-1"), "1" * 64), PodProcess(PodUid("uid-1"), "2" * 64)
HOMES = {10: MAIN, 11: MAIN, 20: SIDE}


def client(pid: int, held_s: float, waited_s: float = 0.0, turns: int = 1) -> ClientStatus:
    account = Account(held_s, 0.0, waited_s, waited_s, turns, 0, 0, 0, 0)
    return ClientStatus(
        f"{pid:016x}", CARD, "idle", "", "", "", "", "", pid, 1.0, "normal", 0.0, 0, None, "", 0.0, account
    )


def status(*clients: ClientStatus, epoch: str = "one") -> Status:
    return Status("1", 1, epoch, 0.0, [], list(clients), [], [], 0.0)


def usage() -> LockUsage:
    return LockUsage(HOMES.get)


def test_processes_of_a_container_are_summed_and_a_process_that_ended_still_counts() -> None:
    seen = usage()
    seen.take(status(client(10, 2.0, 1.0, 3), client(11, 5.0, 4.0, 1), client(20, 7.0)))
    seen.take(status(client(11, 6.0, 4.0, 2), client(20, 7.5)))
    assert seen.totals[MAIN, CARD] == LockTimes(8.0, 5.0, 5, 4.0)
    assert seen.totals[SIDE, CARD].held_s == 7.5


def test_the_counts_of_a_restarted_daemon_are_added_to_the_previous_ones() -> None:
    seen = usage()
    seen.take(status(client(10, 2.0)))
    seen.take(status(client(10, 0.5), epoch="two"))
    seen.take(status(client(10, 0.75), epoch="two"))
    assert seen.totals[MAIN, CARD].held_s == 2.75


def test_processes_outside_of_pods_do_not_count_and_deleted_pods_are_dropped() -> None:
    seen = usage()
    seen.take(status(client(99, 2.0), client(10, 1.0)))
    assert set(seen.totals) == {(MAIN, CARD)}
    seen.keep({PodUid("uid-2")})
    assert seen.totals == {}


def values(
    metric: str, holdings: list[Holding], records: list[Recorded], names: dict[str, str]
) -> list[tuple[str, float]]:
    """One metric per container name, with one busy process in each of two containers."""
    locks = {(MAIN, CARD): LockTimes(8.0), (SIDE, CARD): LockTimes(3.0)}
    rows = container_rows(
        places_of(holdings, records, {"r/x"}),
        {(MAIN, CARD): (512, 40)},
        locks,
        lambda one: names.get(one, ""),
    )
    return [(row.labels[2], row.value) for row in rows if row.family.name == metric]


def held_by(names: dict[str, str], *containers: str) -> dict[str, float]:
    """The lock's time per container name, for a pod with these containers on the card."""
    holdings = [Holding("ml", "p", name, "r/x", frozenset({f"{CARD}__{n}"})) for n, name in enumerate(containers, 1)]
    records = [Recorded(PodUid("uid-1"), one.container, one.resource, one.slots) for one in holdings]
    return dict(values("baton_container_lock_held_seconds", holdings, records, names))


def test_two_containers_of_a_pod_on_one_card_have_their_own_numbers() -> None:
    names = {MAIN.container_id: "main", SIDE.container_id: "side"}
    assert held_by(names, "main", "side") == {"main": 8.0, "side": 3.0}


def test_without_names_several_containers_share_a_row() -> None:
    assert held_by({}, "main", "side") == {"main": 0.0, "side": 0.0, "": 11.0}
    assert held_by({}, "main") == {"main": 11.0}


def test_a_container_that_has_not_called_the_driver_is_listed_with_zeros() -> None:
    names = {MAIN.container_id: "main", SIDE.container_id: "side"}
    assert held_by(names, "main", "side", "late")["late"] == 0.0


def test_units_of_memory_are_no_slots_and_do_not_identify_owners() -> None:
    """A share's unit of memory may have the id of another pod's share: both count from 1."""
    first, second = frozenset({f"{CARD}__1"}), frozenset({f"{CARD}__2"})
    holdings = [
        Holding("ml", "p", "main", "r/x", first),
        Holding("ml", "p", "main", "r/x-memory", second),
        Holding("ml", "other", "other", "r/x", second),
        Holding("ml", "other", "other", "r/x-memory", first),
    ]
    uid, other = PodUid("uid-1"), PodUid("uid-2")
    records = [Recorded(uid if one.pod == "p" else other, one.container, one.resource, one.slots) for one in holdings]
    names = {MAIN.container_id: "main", SIDE.container_id: "main"}
    for ordered in (holdings, holdings[::-1]):
        assert sorted(values("baton_container_slots", ordered, records, names)) == [("main", 1), ("other", 1)]
        held = values("baton_container_lock_held_seconds", ordered, records[::-1], names)
        assert sorted(held) == [("main", 11.0), ("other", 0.0)]
