"""The sources implement the common interface (checked by the type checker), and the fake behaves like a source."""

from baton.gpu.cards import GpuSource, Severity
from baton.gpu.nvml import NvmlSource
from tests.gpu.fake import FakeSource, card

SOURCES: tuple[type[GpuSource], ...] = (NvmlSource, FakeSource)


def test_a_fatal_xid_makes_the_fakes_card_unhealthy_and_an_application_xid_does_not() -> None:
    source = FakeSource([card(0), card(1)])
    first, second = (found.id for found in source.cards())
    source.push_xid(first, 31)
    source.push_xid(second, 79)
    assert [event.severity for event in source.events(0)] == [Severity.APPLICATION, Severity.FATAL]
    assert [state.healthy for state in source.health()] == [True, False]
    assert source.events(0) == ()
