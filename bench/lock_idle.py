"""Memory and CPU of a daemon with 2,000 idle clients, against the same daemon with none."""

import resource
import time

from bench._lock import GPU, Client, cpu_s, daemon, rss_mib

_CLIENTS = 2000
_WATCH_S = 10.0


def run() -> None:
    """Measure and print."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with daemon() as (pid, sockets):
        empty_mib = rss_mib(pid)
        started = time.perf_counter()
        clients = [Client(sockets, GPU) for _ in range(_CLIENTS)]
        joined_s = time.perf_counter() - started
        for client in clients:
            client.identify(name="idle")
        before_s = cpu_s(pid)
        time.sleep(_WATCH_S)
        share = (cpu_s(pid) - before_s) / _WATCH_S
        full_mib = rss_mib(pid)
        print(f"0 clients      {empty_mib:6.1f} MiB")
        print(
            f"{_CLIENTS} clients  {full_mib:6.1f} MiB  {full_mib / empty_mib:.2f}x  (budget 100 MiB)   "
            f"{100 * share:.2f} % of a core  (budget 2 %)   joined at {_CLIENTS / joined_s:.0f}/s"
        )
        for client in clients:
            client.socket.close()
