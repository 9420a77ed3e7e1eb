"""Growable struct-of-arrays storage: every array has the node as its last axis.

Rows are handed out in the order nodes arrive and are brought into name order by `permute`, so that the first maximum
of a score array is also the first name: ties need no extra pass.
"""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

NOW, FUTURE = 0, 1
"""Two planes of every usage: NOW counts what is held; FUTURE forgets what is being evicted and counts what is
promised to pipelined tasks. A task may start where both have room; where only FUTURE has, it may be pipelined."""
BOTH = 2
"""The larger usage of the two planes: where there is room by it there is room on both."""


class Columns:
    """Named arrays that grow and permute together."""

    COLUMNS: ClassVar[tuple[str, ...]] = ()

    def grow(self, size: int) -> None:
        for name in self.COLUMNS:
            setattr(self, name, padded(getattr(self, name), size))

    def permute(self, order: Rows, size: int) -> None:
        """Row i becomes what row `order[i]` was; rows behind are zero."""
        for name in self.COLUMNS:
            setattr(self, name, permuted(getattr(self, name), order, size))


def padded(array: Array, size: int) -> Array:
    have = array.shape[-1]
    if have >= size:
        return array
    result = np.zeros((*array.shape[:-1], size), dtype=array.dtype)
    result[..., :have] = array
    return result


def permuted(array: Array, order: Rows, size: int) -> Array:
    result = np.zeros((*array.shape[:-1], size), dtype=array.dtype)
    result[..., : len(order)] = array[..., order]
    return result
