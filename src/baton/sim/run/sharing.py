"""The speed of jobs that share a card: interference when they fit together, the lock when their memory does not.

There are three regimes for the jobs on one card, by the sum of the memory that they use on it:

- The memory fits: the jobs run together. The speed of each falls with the sum of their solo utilisations, by a table of
  1,388 measured pairs of training jobs (RTX 3090, 11 models): 0.91 at 100 %, 0.61 at 200 %. The table shows the slower
  job of each pair, so the model is pessimistic. Beyond 200 % the sum of the speeds stays constant.
- The memory does not fit, and a lock gives the card to one job for a quantum: the jobs take turns on the card, and
  their other phases overlap. Each turn pays for moving memory in and out, and the lock for waits between turns. For two
  jobs with 15.3 GB and half a card's duty cycle on 16 GB, the model takes 36 % less time than running them one after
  the other; the authors of nvshare measured 30 to 35 % on a P100, so the model is slightly optimistic.
- The memory does not fit and there is no lock: the card thrashes, 4.25 times slower than running the jobs one after the
  other in the same measurement. The model includes this regime to show why a lock is needed.

A trace's share of a card (`milli`) is measured demand and not a limit: it enters as the job's utilisation.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

_UTILISATION_SUM = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7, 1.9, 2.0])
_SPEED = np.array([1.0, 0.95, 0.95, 0.95, 0.94, 0.93, 0.89, 0.81, 0.74, 0.66, 0.61, 0.61])


class Resident(msgspec.Struct, frozen=True):
    """One job on a card: how busy it keeps the card when alone (0 to 1), and how much card memory it uses."""

    utilisation: float
    memory_mib: int


class SharingModel(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of the three regimes."""

    interference: bool = True
    lock: bool = True
    quantum_s: float = 30.0
    bandwidth_mib_per_s: float = 10_000.0
    lock_efficiency: float = 0.85
    thrashing_factor: float = 4.25

    def speed(self, residents: Sequence[Resident], card_memory_mib: int) -> float:
        """The progress per second of each of these jobs; 1 is its speed alone."""
        if len(residents) < 2:
            return 1.0
        resident_mib = sum(resident.memory_mib for resident in residents)
        busy = sum(resident.utilisation for resident in residents)
        if resident_mib <= card_memory_mib:
            return interference(busy) if self.interference else 1.0
        if not self.lock:
            return 1.0 / (len(residents) * self.thrashing_factor)
        overflow_mib = resident_mib - card_memory_mib
        moved_mib = sum(min(resident.memory_mib, overflow_mib) * 2 for resident in residents) / len(residents)
        useful = self.quantum_s / (self.quantum_s + moved_mib / self.bandwidth_mib_per_s)
        return min(1.0, useful * self.lock_efficiency / max(busy, 1e-9))


def interference(utilisation_sum: float) -> float:
    """The speed of the slowest of jobs whose solo utilisations add up to this (1 is one card)."""
    if utilisation_sum > _UTILISATION_SUM[-1]:
        return float(_SPEED[-1] * _UTILISATION_SUM[-1] / utilisation_sum)
    return float(np.interp(utilisation_sum, _UTILISATION_SUM, _SPEED))
