"""Which errors take a card out of service, and which must not."""

import pytest

from baton.gpu.cards import Severity
from baton.gpu.xids import XIDS, classify


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_a_programs_own_error_leaves_the_card_in_service(number: int) -> None:
    assert classify(number).severity is Severity.APPLICATION


@pytest.mark.parametrize("number", [48, 62, 64, 74, 79, 95, 119, 140])
def test_a_broken_card_is_taken_out(number: int) -> None:
    assert classify(number).severity is Severity.FATAL


def test_an_unknown_error_is_not_ignored() -> None:
    assert 9999 not in XIDS
    assert classify(9999).severity is Severity.FATAL
    assert classify(9999).number == 9999
