"""CPU time of `baton --help` against starting a bare interpreter."""

import resource
import subprocess
import sys

_ROUNDS = 10


def _cpu_ms(*command: str) -> float:
    """The minimum CPU time of several runs: noise only adds time."""
    best = float("inf")
    for _ in range(_ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime))
    return best * 1000


def run() -> None:
    bare = _cpu_ms(sys.executable, "-c", "pass")
    ours = _cpu_ms(sys.executable, "-m", "baton.cli.main", "--help")
    print(f"python -c pass   {bare:6.0f} ms")
    print(f"baton --help     {ours:6.0f} ms  {ours / bare:.1f}x  (budget 250 ms)")
