"""kube-scheduler and the engine's predicates on random pods: lists nodes that only one of them accepts.

BATON_BENCH_WORLDS sets the number of random clusters (default 60, with 40 pods each), BATON_BENCH_SEED the first seed.
"""

import os
import sys
import time

from bench._predicates import PODS, compare

_WORLDS = 60


def run() -> None:
    first, worlds = int(os.environ.get("BATON_BENCH_SEED", "1")), int(os.environ.get("BATON_BENCH_WORLDS", _WORLDS))
    began = time.monotonic()
    bound = unschedulable = 0
    differences = []
    for tally in compare(range(first, first + worlds), pods=PODS):
        bound += tally.bound
        unschedulable += tally.unschedulable
        differences += tally.differences
    for difference in differences:
        print(difference)
    took_s = time.monotonic() - began
    print(f"{bound + unschedulable} pods in {worlds} clusters, {took_s:.0f} s")
    print(
        f"kube-scheduler bound {bound} and reported {unschedulable} as unschedulable; differences: {len(differences)}"
    )
    if differences:
        sys.exit("predicates_differential: the engine and kube-scheduler disagree")
