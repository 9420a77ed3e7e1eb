"""How fast jobs run that share a card: interference when they fit together, the lock when their memory does not.

Three regimes for the jobs on one card, by the sum of what they keep in its memory:

- it fits: they run together. The speed of each falls with the sum of their solo utilisations, by a table of 1,388
  measured pairs of training jobs (RTX 3090, 11 models): 0.91 at 100 %, 0.61 at 200 %. The table is of the slower job
  of a pair, so the model errs on the slow side. Beyond 200 % the sum of the speeds stays what it was there.
- it does not fit, and a lock gives the card to one job for a quantum: the card phases of the jobs take turns, the rest
  overlaps. Each turn pays for moving memory in and out, and the lock itself for waits at the turns' edges. For two
  jobs of 15.3 GB and half a card's duty on 16 GB this gives 36 % less time than one after the other, beside 30 to
  35 % measured by the authors of nvshare on a P100: the right size, a little hopeful.
- it does not fit and there is no lock: the card thrashes, 4.25 times slower than running the jobs one after the other
  in the same measurement. The model exists so that a simulation shows why nobody should do this.

A share smaller than a card that the workload was measured in (`milli` of a trace) is demand, not a limit: it enters as
the job's utilisation.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

_UTILISATION_SUM = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7, 1.9, 2.0])
_SPEED = np.array([1.0, 0.95, 0.95, 0.95, 0.94, 0.93, 0.89, 0.81, 0.74, 0.66, 0.61, 0.61])


class Resident(msgspec.Struct, frozen=True):
    """One job on a card: how busy it keeps the card alone (0..1), and what it keeps in its memory."""

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
        """Progress per second of each of these jobs, 1 being its speed alone."""
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
    """Speed of the slower of jobs whose solo utilisations add up to this (1 = one card)."""
    if utilisation_sum > _UTILISATION_SUM[-1]:
        return float(_SPEED[-1] * _UTILISATION_SUM[-1] / utilisation_sum)
    return float(np.interp(utilisation_sum, _UTILISATION_SUM, _SPEED))
