"""Lengths of time as Go and kubectl write them."""

import pytest

from baton.model.durations import age_text, duration_text, parse_duration_s


@pytest.mark.parametrize(
    ("passed_s", "words"),
    [
        (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"), (600, "10m"), (10_799, "179m"),
        (10_800, "3h"), (10_860, "3h1m"), (28_800, "8h"), (172_799, "47h"), (172_800, "2d"), (176_400, "2d1h"),
        (8 * 86_400, "8d"), (800 * 86_400, "2y70d"), (3650 * 86_400, "10y"), (-1, "0s"), (-9, "<invalid>"),
    ],
)  # fmt: skip
def test_ages_are_short(passed_s: int, words: str) -> None:
    assert age_text(passed_s) == words


@pytest.mark.parametrize(("length_s", "text"), [(0, "0s"), (59.6, "1m0s"), (3600, "1h0m0s"), (3723, "1h2m3s")])
def test_durations_are_written_as_go_writes_them_and_read_back(length_s: float, text: str) -> None:
    assert duration_text(length_s) == text
    assert parse_duration_s(text) == round(length_s)
