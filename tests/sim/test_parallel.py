"""Parallel simulations give the same results, in the same order, as sequential ones."""

import os

import pytest

from baton.sim.parallel import in_parallel


def power(base: int, exponent: int) -> tuple[int, int]:
    return base**exponent, os.getpid()


def reciprocal(_shared: object, number: int) -> float:
    return 1 / number


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_tasks_and_each_one_is_reported(processes: int) -> None:
    told: list[tuple[int, int]] = []
    results = in_parallel(
        power, 3, [4, 1, 3, 2], processes=processes, progress=lambda done, total: told.append((done, total))
    )
    assert [value for value, _ in results] == [81, 3, 27, 9]
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert all((pid == os.getpid()) == (processes == 1) for _, pid in results)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failing_task_fails_the_whole_call(processes: int) -> None:
    with pytest.raises(ZeroDivisionError):
        in_parallel(reciprocal, None, [1, 0, 2], processes=processes)
