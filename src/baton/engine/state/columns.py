"""Growable struct-of-arrays storage: every array has the node as its last axis.

Rows are assigned in the order in which nodes arrive, and `permute` sorts them by name, so that the first maximum of a
score array is also the first name: ties need no extra pass.
"""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

NOW, FUTURE = 0, 1
"""Every usage has two planes. NOW counts everything that is held. FUTURE leaves out tasks that are being evicted and
counts promises to pipelined tasks. A task may start where both planes have room; where only FUTURE has room, it may be
pipelined."""
BOTH = 2
"""The larger usage of the two planes: room by this measure is room on both."""


class Columns:
    """Named arrays that grow and permute together."""

    COLUMNS: ClassVar[tuple[str, ...]] = ()

    def grow(self, size: int) -> None:
        for name in self.COLUMNS:
            setattr(self, name, padded(getattr(self, name), size))

    def permute(self, order: Rows, size: int) -> None:
        """Move row `order[i]` to row i; the rows after the last one are zero."""
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
