"""The engine's predicates against the real kube-scheduler, on a seeded part of `bench/predicates_differential`."""

import pytest

from bench._predicates import compare

pytestmark = pytest.mark.cluster


def test_engine_and_kube_scheduler_agree_about_random_pods() -> None:
    tallies = list(compare(range(101, 107)))
    differences = [str(item) for tally in tallies for item in tally.differences]
    assert not differences, "\n".join(differences)
    assert sum(tally.bound for tally in tallies) > 60, "hardly any pod was bound: the comparison says little"
    assert sum(tally.unschedulable for tally in tallies) > 60, "hardly any pod was refused: the comparison says little"
