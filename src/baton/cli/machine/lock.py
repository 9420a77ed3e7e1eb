"""`baton lock`: show and control which programs run on the GPUs of this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from baton.cli.output import Format, FormatOption, QuietOption, command_app, note, write_data, write_table
from baton.cli.sizes import parse_size, seconds, size
from baton.errors import UsageError

if TYPE_CHECKING:
    from baton.lock.control import ControlClient
    from baton.lock.status import CardStatus, ClientStatus

app = command_app(help="Show and control which programs run on the GPUs of this machine.", no_args_is_help=True)

SocketDir = Annotated[
    Path | None, typer.Option(help="The daemon's socket directory. Default: $BATON_SOCKET_DIR, or one for this user.")
]
Selector = Annotated[
    str,
    typer.Argument(help="An id or its first digits, pid:N, run:ID, pod:NAMESPACE/NAME, tenant:NAME or name:PROGRAM."),
]
_COLOURS = {"holding": "green", "waiting": "yellow", "throttled": "yellow", "dropping": "magenta", "parked": "red"}


def client_of(socket_dir: Path | None) -> "ControlClient":
    """A control client of the daemon that serves a socket directory."""
    from baton.lock.control import ControlClient
    from baton.lock.paths import Paths, default_socket_dir

    return ControlClient(Paths((socket_dir or default_socket_dir()).absolute()).control)


@app.command()
def status(output: FormatOption = Format.TABLE, socket_dir: SocketDir = None) -> None:
    """Show each GPU, its programs, and the GPU time that each program received."""
    from rich.markup import escape

    found = client_of(socket_dir).status()
    if output is not Format.TABLE:
        write_data(found, output)
        return
    write_table(
        ("gpu", "mode", "now", "quantum", "switch", "memory", "holding", "waiting", "switches", "unfair"),
        (_card_row(card) for card in found.gpus),
    )
    if found.clients:
        typer.echo()
        ranks = {"holding": 0, "dropping": 1, "waiting": 2, "throttled": 3, "parked": 4, "idle": 5}
        ordered = sorted(found.clients, key=lambda client: (client.gpu, ranks.get(client.state, 9), client.id))
        write_table(
            ("client", "gpu", "state", "for", "program", "tenant", "weight", "prio", "cores", "memory", "received",
             "entitled", "waited", "turns"),
            ([escape(cell) if column != 2 else cell for column, cell in enumerate(_client_row(c))] for c in ordered),
        )  # fmt: skip


def _card_row(card: "CardStatus") -> list[str]:
    now = "off" if not card.on else ("in turns" if card.exclusive else "together")
    return [
        card.gpu,
        card.mode,
        now,
        f"{seconds(card.quantum_s)}{'' if card.quantum_fixed else ' (auto)'}",
        "?" if card.switch_cost_s is None else seconds(card.switch_cost_s),
        f"{size(card.working_sets_bytes)}/{size(card.memory_bytes or None)}",
        str(len(card.holders)),
        str(len(card.waiters)),
        str(card.switches),
        f"{100 * card.fairness_error:.1f}%",
    ]


def _client_row(client: "ClientStatus") -> list[str]:
    colour = _COLOURS.get(client.state)
    program = client.name or (f"{client.namespace}/{client.pod}" if client.pod else f"pid {client.pid}")
    return [
        client.id[:8],
        client.gpu[:12],
        f"[{colour}]{client.state}[/]" if colour else client.state,
        seconds(client.for_s) if client.for_s else "",
        program,
        client.tenant,
        f"{client.weight:g}",
        client.priority,
        f"{client.cores_percent:g}%" if client.cores_percent else "",
        size(client.working_set_bytes),
        seconds(client.account.received_s),
        seconds(client.account.entitled_s),
        seconds(client.account.waited_s),
        str(client.account.grants),
    ]


@app.command("set")
def set_(
    gpu: Annotated[str, typer.Option(help="The GPU to change: its UUID or the beginning of it. Default: all.")] = "",
    quantum: Annotated[str | None, typer.Option(metavar="auto|SECONDS", help="Length of a turn.")] = None,
    mode: Annotated[str | None, typer.Option(metavar="auto|serial|concurrent", help="How the GPU is shared.")] = None,
    scheduling: Annotated[
        bool | None, typer.Option("--on/--off", help="Switch scheduling on or off. When it is off, all programs run.")
    ] = None,
    client: Annotated[str, typer.Option(help="The client to change: an id, pid:N, run:ID, tenant:NAME …")] = "",
    weight: Annotated[float | None, typer.Option(help="The client's share relative to others.")] = None,
    priority: Annotated[str | None, typer.Option(metavar="low|normal|high", help="The client's priority.")] = None,
    cores: Annotated[float | None, typer.Option(help="The client's limit in percent of GPU time; 0: no limit.")] = None,
    memory: Annotated[str | None, typer.Option(help="The client's memory limit, such as 8Gi; 0: no limit.")] = None,
    socket_dir: SocketDir = None,
    quiet: QuietOption = False,
) -> None:
    """Change how a GPU is shared, or the terms of a client.

    The daemon keeps the changes over restarts. The new terms of a client last as long as its process.
    """
    from baton.lock.control import SetCard, SetClient

    of_card = (quantum, mode, scheduling)
    of_client = (weight, priority, cores, memory)
    if all(value is None for value in (*of_card, *of_client)):
        raise UsageError(
            "nothing to set; give --quantum, --mode, --on or --off, "
            "or --client with --weight, --priority, --cores or --memory"
        )
    if any(value is not None for value in of_client) and not client:
        raise UsageError("--weight, --priority, --cores and --memory apply to a client; name it with --client")
    daemon = client_of(socket_dir)
    # All options are parsed before the first request is sent, so an invalid one changes nothing.
    card = SetCard(gpu, _quantum(quantum), _choice(mode, "--mode", ("auto", "serial", "concurrent")), scheduling)
    terms = SetClient(
        client,
        weight,
        _choice(priority, "--priority", ("low", "normal", "high")),
        cores,
        None if memory is None else parse_size(memory, "--memory"),
    )
    changed: list[str] = []
    if client:
        changed += daemon.send(terms).changed
    if any(value is not None for value in of_card):
        changed += daemon.send(card).changed
    note("changed: " + (", ".join(changed) or "the defaults for future GPUs"), quiet=quiet)


def _quantum(text: str | None) -> float | Literal["auto"] | None:
    if text is None or text == "auto":
        return None if text is None else "auto"
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--quantum is {text!r}, expected auto or a number of seconds") from None


def _choice(text: str | None, option: str, allowed: tuple[str, ...]) -> Any:
    if text is not None and text not in allowed:
        raise UsageError(f"{option} is {text!r}, expected one of {', '.join(allowed)}")
    return text


@app.command()
def park(client: Selector, socket_dir: SocketDir = None, quiet: QuietOption = False) -> None:
    """Stop giving turns to a client; its process keeps running."""
    _park(client, socket_dir, parked=True, quiet=quiet)


@app.command()
def unpark(client: Selector, socket_dir: SocketDir = None, quiet: QuietOption = False) -> None:
    """Give turns to a parked client again."""
    _park(client, socket_dir, parked=False, quiet=quiet)


def _park(client: str, socket_dir: Path | None, *, parked: bool, quiet: bool) -> None:
    from baton.lock.control import Park

    changed = client_of(socket_dir).send(Park(client, parked)).changed
    note(f"{'parked' if parked else 'unparked'}: {', '.join(changed)}", quiet=quiet)
