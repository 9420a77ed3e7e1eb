"""Independent simulations on all cores: one process each, with the results in the order of the tasks.

Workers are spawned, not forked, because numpy may have started threads in the parent. Data that all tasks share (a
trace, a cluster) is sent once per worker. Each worker limits its linear algebra to one thread, because the tasks
already use every core.
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]

_shared: Any = None


def in_parallel(
    function: Callable[[Any, Task], Result],
    shared: object,
    tasks: Sequence[Task],
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Call `function(shared, task)` for every task; in this process if one process or one task is enough."""
    count = min(processes or len(os.sched_getaffinity(0)), len(tasks))
    report = progress or _silent
    report(0, len(tasks))
    if count <= 1:
        results: list[Result] = []
        for task in tasks:
            results.append(function(shared, task))
            report(len(results), len(tasks))
        return results
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_adopt, initargs=(shared,)) as pool:
        waiting = {pool.submit(_call, function, task): position for position, task in enumerate(tasks)}
        found: dict[int, Result] = {}
        try:
            for future in as_completed(waiting):
                found[waiting[future]] = future.result()
                report(len(found), len(tasks))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[position] for position in range(len(tasks))]


def _adopt(shared: object) -> None:
    global _shared
    _shared = shared


def _call(function: Callable[[Any, Task], Result], task: Task) -> Result:
    return function(_shared, task)


def _silent(done: int, total: int) -> None:
    pass
