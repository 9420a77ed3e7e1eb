"""Misspelt names and the names they probably mean."""

from baton.model.suggestions import closest, did_you_mean

KNOWN = ("gang", "priority", "proportion")


def test_the_closest_name_is_suggested_after_the_lead() -> None:
    assert did_you_mean("gagn", KNOWN) == "did you mean 'gang'?"
    assert did_you_mean("gagn", KNOWN, lead="; ") == "; did you mean 'gang'?"


def test_a_name_that_resembles_none_has_no_suggestion() -> None:
    assert did_you_mean("xyz", KNOWN, lead="; ") == ""


def test_several_names_come_closest_first() -> None:
    assert closest("proportoin", KNOWN, most=3) == ["proportion"]
    assert closest("prio", ("priority", "prior"), most=3) == ["prior", "priority"]
