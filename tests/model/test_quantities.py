"""Quantities as whole numbers, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.model.quantities import QuantityError, amounts, scaled, text_of


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 1), ("2", 2), (2, 2), ("1.5", 2), ("8Gi", 8 << 30), ("1k", 1000), ("1e3", 1000), ("0.5Gi", 1 << 29)],
)
def test_quantities_are_whole_numbers_rounded_up(text: str | int, value: int) -> None:
    assert scaled(text) == value


@pytest.mark.parametrize(("text", "value"), [("10E", 2**63 - 1), ("1e999999999", 2**63 - 1), ("-1e99", 1 - 2**63)])
def test_a_quantity_beyond_64_bits_counts_as_the_largest_number(text: str, value: int) -> None:
    assert scaled(text) == value


def test_cpu_is_counted_in_thousandths() -> None:
    assert amounts({"memory": "1Gi", "cpu": "250m"}) == (("cpu", 250), ("memory", 1 << 30))


def test_a_text_that_is_no_quantity_is_named() -> None:
    with pytest.raises(QuantityError, match="'8GB' is not a quantity"):
        scaled("8GB")


@given(st.integers(0, 1 << 50), st.sampled_from(["cpu", "memory", "volcano.sh/vgpu-memory"]))
def test_a_written_quantity_reads_as_the_same_amount(value: int, name: str) -> None:
    assert amounts({name: text_of(name, value)}) == ((name, value),)
