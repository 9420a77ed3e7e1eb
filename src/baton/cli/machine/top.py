"""`baton top`: a live view of the GPUs of this machine: holders, waiters, shares, memory, history."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.output import command_app, console
from baton.cli.sizes import seconds, size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baton.lock.control import ControlClient
    from baton.lock.status import CardStatus, ClientStatus, Status

app = command_app()

_BLOCKS = " ▁▂▃▄▅▆▇█"
_HISTORY = 40
_ORDER = {"holding": 0, "dropping": 1, "waiting": 2, "throttled": 3, "parked": 4, "idle": 5}
_COLOURS = {"holding": "green", "dropping": "magenta", "waiting": "yellow", "throttled": "yellow", "parked": "red"}


class History:
    """How busy each card was, and the share that each client received, since the last update."""

    def __init__(self) -> None:
        self._before: Status | None = None
        self.busy: dict[str, deque[float]] = {}
        self.shares: dict[str, float] = {}

    def add(self, status: "Status") -> None:
        """Add one more status."""
        before, self._before = self._before, status
        if before is None or before.epoch != status.epoch:
            return
        elapsed_s = max(status.uptime_s - before.uptime_s, 1e-6)
        known = {client.id: client.account.received_s for client in before.clients}
        self.shares = {
            client.id: (client.account.received_s - known.get(client.id, 0.0)) / elapsed_s for client in status.clients
        }
        for card in status.gpus:
            held = sum(self.shares[client.id] for client in status.clients if client.gpu == card.gpu)
            self.busy.setdefault(card.gpu, deque(maxlen=_HISTORY)).append(min(1.0, held))

    def line(self, gpu: str) -> str:
        """The history of a card as a row of blocks, the latest on the right."""
        row = "".join(_BLOCKS[round(share * (len(_BLOCKS) - 1))] for share in self.busy.get(gpu, ()))
        return row.rjust(_HISTORY)


@app.command()
def top(
    every: Annotated[float, typer.Option(min=0.05, max=60, help="Seconds between two updates.")] = 0.5,
    once: Annotated[
        bool, typer.Option("--once", help="Print the view once and exit. Default without a terminal.")
    ] = False,
    socket_dir: Annotated[Path | None, typer.Option(help="The daemon's socket directory.")] = None,
) -> None:
    """Watch which programs run on each GPU, which wait, and what each received.

    Press Ctrl-C to exit. If the daemon stops, the view stays and continues with the next daemon.
    """
    from rich.live import Live

    from baton.local.launch import find_sockets
    from baton.lock.control import ControlClient
    from baton.lock.paths import Paths

    daemon = ControlClient(Paths((socket_dir or find_sockets()).absolute()).control)
    history, seen = History(), daemon.status()
    history.add(seen)
    if once or not sys.stdout.isatty():
        console().print(_view(daemon.status(), history))
        return
    with Live(console=console(), screen=True, auto_refresh=False) as display:
        for status in _statuses(daemon, every):
            if status is not None:
                history.add(status)
                seen = status
            display.update(_view(seen, history, lost=status is None), refresh=True)


def _statuses(daemon: "ControlClient", every_s: float) -> Iterator["Status | None"]:
    """The status repeatedly; None while no daemon answers: programs outlive the daemon, and so does the view."""
    from baton.errors import UnavailableError

    while True:
        with contextlib.suppress(UnavailableError):
            yield from daemon.follow(round(every_s * 1000))
        yield None
        time.sleep(every_s)


def _view(status: "Status", history: History, *, lost: bool = False) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    uptime = f"lockd {status.version}, up {seconds(status.uptime_s)}"
    waiting = sum(client.state == "waiting" for client in status.clients)
    head = Text(
        f"{uptime}   {len(status.gpus)} GPUs   {len(status.clients)} programs, {waiting} waiting   "
        f"unfairness {status.fairness_error:.1%}",
        style="bold",
    )
    if lost:
        head = Text("no lock daemon answers; this is its last status", style="bold red")
    return Group(head, Text(), _cards(status, history), Text(), _clients(status, history))


def _cards(status: "Status", history: History) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("GPU", "BUSY", "MODE", "QUANTUM", "SWITCH COST", "NEEDED / MEMORY", "LINK"):
        table.add_column(title)
    for card in status.gpus:
        table.add_row(
            card.gpu[:12],
            history.line(card.gpu),
            _mode(card),
            f"{seconds(card.quantum_s)}{'' if card.quantum_fixed else ' auto'}",
            "?" if card.switch_cost_s is None else seconds(card.switch_cost_s),
            f"{size(card.working_sets_bytes)} / {size(card.memory_bytes or None)}",
            f"{card.pcie_bytes_per_s / 1e9:.1f} GB/s",
        )
    return table


def _mode(card: "CardStatus") -> str:
    if not card.on:
        return "[red]off[/]"
    now = "in turns" if card.exclusive else "together"
    return now if card.mode == "auto" else f"{now} ({card.mode})"


def _clients(status: "Status", history: History) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in (
        "GPU",
        "STATE",
        "FOR",
        "PROGRAM",
        "PID",
        "TENANT",
        "WEIGHT",
        "NOW",
        "RECEIVED",
        "WAITED",
        "TURNS",
        "MEMORY",
    ):
        table.add_column(title)
    for client in sorted(status.clients, key=lambda c: (c.gpu, _ORDER.get(c.state, 9), -history.shares.get(c.id, 0.0))):
        table.add_row(*_client(client, history))
    return table


def _client(client: "ClientStatus", history: History) -> list[str]:
    from rich.markup import escape

    colour = _COLOURS.get(client.state)
    limit = f" of {size(client.memory_limit_bytes)}" if client.memory_limit_bytes else ""
    return [
        client.gpu[:12],
        f"[{colour}]{client.state}[/]" if colour else client.state,
        seconds(client.for_s) if client.for_s else "",
        escape(client.name or client.pod or "?"),
        str(client.pid),
        escape(client.tenant),
        f"{client.weight:g}" + (f" {client.priority}" if client.priority != "normal" else ""),
        f"{history.shares.get(client.id, 0.0):.0%}",
        seconds(client.account.received_s),
        seconds(client.account.waited_s),
        str(client.account.grants),
        f"{size(client.working_set_bytes)}{limit}",
    ]
