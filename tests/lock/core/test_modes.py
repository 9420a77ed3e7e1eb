"""Whether clients run together or in turns, how long a turn lasts, and what the lock learns from measurements."""

import pytest

from baton.lock.core import events as ev
from baton.lock.core.events import ClientId, Grant, Mode, Terms
from baton.lock.core.machine import LockCore
from baton.lock.core.settings import Settings
from baton.lock.core.state import Phase
from baton.model.ids import CardId
from tests.lock.core.busy import GIB, Machine

CARD = CardId("GPU-0")
LINK = 12.0e9


def one_card(*sizes_gib: float | None, settings: Settings = Settings()) -> tuple[LockCore, list[ClientId]]:
    """A card of 16 GiB and clients that all ask; None is a client that reports no memory."""
    core = LockCore(settings)
    core.handle(ev.CardAdded(CARD, 16 * GIB), 0.0)
    clients = []
    for number, size in enumerate(sizes_gib, 1):
        client = ClientId(number)
        core.handle(ev.Joined(client, CARD, 100 + number, extended=size is not None), 0.0)
        if size is not None:
            core.handle(ev.Reported(client, int(size * GIB)), 0.0)
        core.handle(ev.Requested(client), 0.0)
        clients.append(client)
    return core, clients


def holders(core: LockCore) -> list[int]:
    return list(core.cards[CARD].holders)


def test_clients_that_fit_run_together() -> None:
    core, clients = one_card(7.2, 7.2)
    assert holders(core) == clients


def test_clients_that_do_not_fit_take_turns() -> None:
    core, clients = one_card(15.3, 15.3)
    assert holders(core) == clients[:1]


def test_growing_beyond_the_card_makes_it_exclusive_and_shrinking_makes_it_concurrent_again() -> None:
    core, (first, second) = one_card(7, 7)
    instructions = core.handle(ev.Reported(first, 12 * GIB), 1.0)
    assert core.cards[CARD].exclusive
    dropped = [i.client for i in instructions if isinstance(i, ev.Drop)]
    assert len(dropped) == 1
    core.handle(ev.Released(dropped[0]), 1.1)
    core.handle(ev.Requested(dropped[0]), 1.1)
    assert len(holders(core)) == 1
    # Between the two thresholds nothing changes.
    core.handle(ev.Reported(first, int(8.3 * GIB)), 2.0)
    assert core.cards[CARD].exclusive
    core.handle(ev.Reported(first, 7 * GIB), 3.0)
    assert not core.cards[CARD].exclusive
    assert sorted(holders(core)) == [first, second]


def test_a_client_that_reports_no_memory_may_need_the_whole_card() -> None:
    core, clients = one_card(None, 1)
    assert holders(core) == clients[:1]


def test_telemetry_may_show_that_it_needs_less() -> None:
    core, clients = one_card(None, None)
    instructions = core.handle(ev.Sampled(CARD, memory_by_pid={101: 3 * GIB, 102: 4 * GIB}), 1.0)
    assert [i.client for i in instructions if isinstance(i, Grant)] == clients[1:]


def test_a_card_of_unknown_size_is_exclusive() -> None:
    core = LockCore()
    for number in (1, 2):
        core.handle(ev.Joined(ClientId(number), CARD, extended=True), 0.0)
        core.handle(ev.Reported(ClientId(number), GIB), 0.0)
        core.handle(ev.Requested(ClientId(number)), 0.0)
    assert holders(core) == [1]


def test_a_fixed_mode_overrides_the_sizes() -> None:
    core, clients = one_card(15, 15, settings=Settings(mode=Mode.CONCURRENT))
    assert holders(core) == clients
    core, clients = one_card(1, 1, settings=Settings(mode=Mode.SERIAL))
    assert holders(core) == clients[:1]


def test_when_one_client_leaves_the_others_may_run_together() -> None:
    core, clients = one_card(7, 7, 7)
    dropped = next(c.id for c in core.cards[CARD].holders.values() if c.phase is Phase.DROPPING)
    core.handle(ev.Released(dropped), 0.5)
    core.handle(ev.Requested(dropped), 0.5)
    assert len(holders(core)) == 1
    core.handle(ev.Left(clients[2]), 1.0)
    assert sorted(holders(core)) == clients[:2]


def test_paging_that_slows_clients_down_is_thrashing_whatever_the_reported_sizes() -> None:
    core, clients = one_card(4)
    # Alone, as the reference: 1000 launches synchronise in 1 s.
    core.handle(ev.Reported(clients[0], 4 * GIB, 1000, 1.0), 1.0)
    second = ClientId(2)
    core.handle(ev.Joined(second, CARD, 102, extended=True), 1.0)
    core.handle(ev.Reported(second, 4 * GIB), 1.0)
    core.handle(ev.Requested(second), 1.0)
    assert len(holders(core)) == 2
    moved, launches, sync_s = 0, 1000, 1.0
    for step in range(10):
        now_s = 2.0 + step
        moved += int(LINK * 0.9)
        launches, sync_s = launches + 10, sync_s + 0.9
        core.handle(ev.Reported(clients[0], 4 * GIB, launches, sync_s), now_s)
        core.handle(ev.Sampled(CARD, pcie_bytes=moved), now_s)
    card = core.cards[CARD]
    assert card.exclusive
    assert card.thrash_spells == 1
    assert card.thrash_until_s > 12


def test_a_busy_link_alone_is_not_thrashing() -> None:
    """A client that loads data at full speed does not thrash if no client slows down."""
    core, clients = one_card(4)
    core.handle(ev.Reported(clients[0], 4 * GIB, 1000, 1.0), 1.0)
    core.handle(ev.Joined(ClientId(2), CARD, 102, extended=True), 1.0)
    core.handle(ev.Reported(ClientId(2), 4 * GIB), 1.0)
    core.handle(ev.Requested(ClientId(2)), 1.0)
    for step in range(10):
        core.handle(ev.Reported(clients[0], 4 * GIB, 2000 + 1000 * step, 2.0 + step), 2.0 + step)
        core.handle(ev.Sampled(CARD, pcie_bytes=int(LINK * 0.9 * step)), 2.0 + step)
    assert not core.cards[CARD].exclusive


def test_without_telemetry_the_reports_of_all_clients_show_thrashing() -> None:
    core, clients = one_card(4, 4, settings=Settings(mode=Mode.SERIAL))
    for client in clients:
        core.handle(ev.Reported(client, 4 * GIB, 1000, 1.0), 1.0)
        core.handle(ev.Released(client), 1.0)
    core.handle(ev.ModeSet(Mode.AUTO), 1.0)
    for client in clients:
        core.handle(ev.Requested(client), 2.0)
    assert len(holders(core)) == 2
    for step in range(1, 6):
        for client in clients:
            core.handle(ev.Reported(client, 4 * GIB, 1000 + 10 * step, 1.0 + step), 2.0 + step)
    assert core.cards[CARD].thrash_spells == 1


def test_the_penalty_ends_and_doubles() -> None:
    core, _ = one_card(4, 4)
    card = core.cards[CARD]
    card.quantum_s = 1.0
    from baton.lock.core import modes

    first_s = modes.penalise(card, 0.0, core.settings)
    assert modes.penalise(card, first_s, core.settings) == 2 * first_s
    core.handle(ev.Ticked(), card.thrash_until_s + 1)
    core.handle(ev.Sampled(CARD), card.thrash_until_s + 1)
    assert not card.exclusive


def test_the_quantum_follows_the_sizes_before_anything_is_measured() -> None:
    core, _ = one_card(15.3, 15.3)
    expected_s = 2 * 15.3 * GIB / LINK / core.settings.switch_share  # out and in
    assert core.cards[CARD].quantum_s == pytest.approx(expected_s, rel=0.01)
    assert core.cards[CARD].quantum_s > 100  # what the published two-job case needs to beat running serially


def test_the_more_clients_wait_the_shorter_the_quantum_but_at_least_ten_switches() -> None:
    """The square root: with five clients the quantum is half as long, and switching costs twice as much."""
    between_two_s = one_card(12, 12)[0].cards[CARD].quantum_s
    assert one_card(*[12] * 5)[0].cards[CARD].quantum_s == pytest.approx(between_two_s / 2)
    crowded = one_card(*[12] * 100)[0].cards[CARD]
    assert crowded.cost_s is not None
    assert crowded.quantum_s == pytest.approx(10 * crowded.cost_s)


def test_the_quantum_is_short_if_switches_cost_nothing() -> None:
    core, _ = one_card(1, 1, settings=Settings(mode=Mode.SERIAL))
    assert core.cards[CARD].quantum_s == core.settings.min_quantum_s


def test_the_quantum_is_nvshares_if_nothing_is_known() -> None:
    core, _ = one_card(None, None)
    assert core.cards[CARD].quantum_s == 30.0


def test_the_quantum_follows_the_measured_cost_of_switches() -> None:
    """At least ten times the measured cost; here 12 GiB at 12 GB/s, about a second."""
    m = Machine(Settings(mode=Mode.SERIAL))
    m.add(release_s=0.05)
    m.add(release_s=0.05)
    moved = 0
    for _ in range(400):
        # A turn that has just begun pages its working set in; then the link is quiet.
        fresh = [w for w in m.workers.values() if w.owns and w.turn != getattr(w, "_paged", 0)]
        for worker in fresh:
            moved += 12 * GIB
            worker._paged = worker.turn  # type: ignore[attr-defined]  # reaches into the model of a worker
        m.run(1.0)
        m.feed(ev.Sampled(m.cards[0], pcie_bytes=moved))
        m.run(4.0)
        m.feed(ev.Sampled(m.cards[0], pcie_bytes=moved))
    card = m.core.cards[m.cards[0]]
    assert card.switch_cost_s is not None
    assert card.switch_cost_s == pytest.approx(12 * GIB / card.link_peak_bytes_per_s, rel=0.1)
    assert card.quantum_s >= 10 * card.switch_cost_s
    assert all(client.ledger.paged_bytes > 0 for client in m.core.clients.values())


def test_the_idle_time_is_about_the_cost_of_coming_back() -> None:
    core, _ = one_card(15.3, 15.3)
    assert core.cards[CARD].idle_s == pytest.approx(2 * 15.3 * GIB / LINK, rel=0.01)
    core, _ = one_card(1, 1)
    assert core.cards[CARD].idle_s == core.settings.min_idle_s


def take_turns(core: LockCore, paged_bytes: list[int], look_s: float) -> None:
    """Two clients alternate; in each turn one sample shows that this number of bytes has moved."""
    moved, now_s = 0, 0.0
    core.handle(ev.Sampled(CARD, pcie_bytes=0), now_s)
    for paged in paged_bytes:
        moved += paged
        for _ in range(5):
            now_s += look_s
            core.handle(ev.Sampled(CARD, pcie_bytes=moved), now_s)
        now_s += core.cards[CARD].quantum_s
        for client in [i.client for i in core.handle(ev.Ticked(), now_s) if isinstance(i, ev.Drop)]:
            core.handle(ev.Released(client), now_s)
            core.handle(ev.Requested(client), now_s)


def test_a_first_turn_says_nothing_about_the_cost_of_coming_back() -> None:
    core, _ = one_card(12, 12)
    take_turns(core, [0, 0], look_s=0.2)
    assert core.cards[CARD].switch_cost_s is None
    assert core.cards[CARD].quantum_s > 50


def test_a_page_in_shorter_than_the_sampling_interval_is_noticed() -> None:
    core, _ = one_card(12, 12)
    core.cards[CARD].link_bytes_per_s = 1000e9
    take_turns(core, [0, 0, 24 * GIB, 24 * GIB], look_s=0.2)  # a tenth of the link's bandwidth
    cost_s = core.cards[CARD].switch_cost_s
    assert cost_s == pytest.approx(24 * GIB / 1000e9, rel=0.1)


def test_the_time_to_finish_is_not_a_cost() -> None:
    """A client that takes long to release is still working, so the quantum and the idle time do not grow."""
    m = Machine(Settings(mode=Mode.SERIAL))
    m.add(memory_bytes=GIB, release_s=3.0)
    m.add(memory_bytes=GIB, release_s=3.0)
    m.run(60.0)
    card = m.core.cards[m.cards[0]]
    assert card.release_s == pytest.approx(3.0, rel=0.05)
    assert card.quantum_s == m.core.settings.min_quantum_s
    assert card.idle_s == m.core.settings.min_idle_s


def test_slow_releases_do_not_make_clients_overdue() -> None:
    """Weights hold although a turn lasts much longer than its quantum: patience counts the releases."""
    m = Machine(Settings(mode=Mode.SERIAL))
    light = m.add(Terms(weight=1), memory_bytes=GIB, release_s=1.0)
    heavy = m.add(Terms(weight=3), memory_bytes=GIB, release_s=1.0)
    m.run(400.0)
    assert heavy.received_s / light.received_s == pytest.approx(3.0, rel=0.1)
