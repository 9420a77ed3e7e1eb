"""`baton simgpu`: simulated GPUs for a machine that has none, or whose GPUs must not be broken.

`start` prints shell commands for `eval "$(baton simgpu start)"`; messages for people go to stderr. A fault stays until
`inject heal`, except an Xid, which happens once.
"""

import enum
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from baton.cli.output import Format, FormatOption, QuietOption, command_app, note, write_data, write_table
from baton.errors import UsageError

if TYPE_CHECKING:
    from baton.gpu.simulated import CardStatus, MachineStatus

app = command_app(invoke_without_command=True)

_MIB = 1 << 20

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        help="The directory of the machine. Default: $BATON_SIMGPU_DIR, or one for this user.",
    ),
]


@app.callback()
def _root(context: typer.Context) -> None:
    """Start, inspect, break and stop simulated GPUs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class Fault(enum.StrEnum):
    """The faults of a card, and their end."""

    XID = "xid"
    OFF_BUS = "off-bus"
    ECC = "ecc"
    HANG = "hang"
    SLOW_LINK = "slow-link"
    HEAL = "heal"


_C_NAMES = {Fault.OFF_BUS: "lost"}


class Started(msgspec.Struct, frozen=True):
    """The result of `start`."""

    directory: str
    created: bool
    cards: list[str]
    environment: dict[str, str]


@app.command()
def start(
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="Number of cards. Default: 2.")] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="NAME|FILE",
            help="p100-16 (default), t4, l4, a100-80, h100, rtx-4090, or a YAML file. Repeat it for different cards.",
        ),
    ] = None,
    directory: DirectoryOption = None,
    time_scale: Annotated[
        float | None, typer.Option("--time-scale", help="Modelled seconds that pass in one real second.")
    ] = None,
    output: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Start simulated GPUs and print the environment for using them.

    In a shell: eval "$(baton simgpu start)". Starting the same machine again changes nothing and prints the same
    environment.
    """
    from baton.gpu import profiles, simulated

    if time_scale is not None and not 0 < time_scale <= 1_000_000:
        raise UsageError(f"--time-scale is {time_scale:g}; expected a number above 0 and at most 1000000")
    chosen = [profiles.find(name) for name in profile or ["p100-16"]]
    count = gpus if gpus is not None else max(2, len(chosen))
    if count < len(chosen):
        raise UsageError(f"--gpus is {count}, but there are {len(chosen)} profiles; each profile needs a card")
    if len(chosen) > 1 and count != len(chosen):
        raise UsageError(f"--gpus is {count}, but there are {len(chosen)} profiles; give one profile, or one per card")
    cards = chosen * count if len(chosen) == 1 else chosen
    where = directory or simulated.default_directory()
    created = simulated.start(cards, where, time_scale)
    variables = simulated.environment(where)
    machine = simulated.status(where)
    if output is not Format.TABLE:
        write_data(Started(str(where), created, [card.uuid for card in machine.cards], variables), output)
        return
    for name, value in variables.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    state = "started" if created else "already running"
    note(f"{machine.describe()} in {where}, {state}", quiet=quiet)
    if sys.stdout.isatty():
        note('To use them in this shell: eval "$(baton simgpu start)"', quiet=quiet)


@app.command()
def status(directory: DirectoryOption = None, output: FormatOption = Format.TABLE) -> None:
    """Show the cards, the programs that use them, and their faults.

    Also lists driver calls that programs tried to use and that are not simulated.
    """
    from baton.gpu import simulated

    machine = simulated.status(directory or simulated.default_directory())
    if output is not Format.TABLE:
        write_data(machine, output)
        return
    write_table(
        ("gpu", "model", "memory MiB", "load", "temp", "power", "clients", "faults"),
        [_card_row(card) for card in machine.cards],
    )
    if rows := _client_rows(machine):
        typer.echo()
        write_table(("gpu", "pid", "program", "memory MiB", "managed MiB", "paged MiB", "kernels", "busy s"), rows)
    if machine.unsupported:
        typer.echo("\nused but not simulated:")
        write_table(
            ("call", "times"),
            [(name, str(times)) for name, times in sorted(machine.unsupported.items(), key=lambda item: -item[1])],
        )


def _card_row(card: "CardStatus") -> tuple[str, ...]:
    used = card.memory_bytes - card.free_bytes
    return (
        str(card.index),
        card.name,
        f"{used // _MIB} / {card.memory_bytes // _MIB}",
        f"{card.utilization:.0%}",
        f"{card.temperature_c:.0f} °C",
        f"{card.power_w:.0f} W",
        str(len({client.pid for client in card.processes})),
        f"[red]{', '.join(card.faults)}[/]" if card.faults else "none",
    )


def _client_rows(machine: "MachineStatus") -> list[tuple[str, ...]]:
    from rich.markup import escape

    return [
        (
            str(card.index),
            str(client.pid),
            escape(Path(client.name).name),
            str((client.device_bytes + client.resident_bytes) // _MIB),
            str(client.managed_bytes // _MIB),
            str((client.paged_in_bytes + client.paged_out_bytes) // _MIB),
            str(client.kernels),
            f"{client.busy_s:.1f}",
        )
        for card in machine.cards
        for client in card.processes
    ]


@app.command()
def inject(
    fault: Annotated[
        Fault,
        typer.Argument(metavar="FAULT", help="xid, off-bus, ecc, hang, slow-link, or heal, which removes all faults."),
    ],
    number: Annotated[int | None, typer.Argument(metavar="XID", help="For xid: its number, such as 31.")] = None,
    gpu: Annotated[
        int | None, typer.Option("--gpu", min=0, help="The card. Without it, `heal` heals all cards.")
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", min=1, help="For xid or hang: the process that it affects.")
    ] = None,
    factor: Annotated[
        float, typer.Option("--factor", help="For slow-link: the remaining fraction of the bandwidth.")
    ] = 0.1,
    directory: DirectoryOption = None,
    quiet: QuietOption = False,
) -> None:
    """Break a card, or heal it.

    xid N reports an error to the programs that listen for errors; an Xid that a program caused also destroys its
    contexts. off-bus removes the card from the bus. ecc is an uncorrectable memory error. hang makes the next kernel
    run forever. slow-link leaves --factor of the bandwidth to the host. heal removes all faults, like a reset.
    """
    from baton.gpu import simulated

    if (number is not None) != (fault is Fault.XID):
        raise UsageError(
            "the fault xid needs its number, as in `baton simgpu inject xid 31`"
            if number is None
            else f"unexpected argument {number}: only the fault xid takes a number"
        )
    if pid is not None and fault not in (Fault.XID, Fault.HANG):
        raise UsageError(f"--pid goes with xid and hang, not with {fault}")
    if not 0 < factor <= 1:
        raise UsageError(f"--factor is {factor:g}; expected a number above 0 and at most 1")
    where = directory or simulated.default_directory()
    count = len(simulated.status(where).cards)
    if gpu is None and count > 1 and fault is not Fault.HEAL:
        raise UsageError(f"the machine has {count} cards; choose one with --gpu 0 to --gpu {count - 1}")
    if gpu is not None and gpu >= count:
        raise UsageError(
            f"--gpu is {gpu}; the machine has {'only card 0' if count == 1 else f'cards 0 to {count - 1}'}"
        )
    cards = range(count) if gpu is None else [gpu]
    details: dict[str, float] = {}
    if number is not None:
        details["xid"] = number
    if pid is not None:
        details["pid"] = pid
    if fault is Fault.SLOW_LINK:
        details["factor"] = factor
    for card in cards:
        simulated.inject(where, card, _C_NAMES.get(fault, fault.value), **details)
    done = "healed" if fault is Fault.HEAL else f"{fault}{f' {number}' if number is not None else ''} injected"
    note(f"GPU {', '.join(map(str, cards))}: {done}", quiet=quiet)


@app.command()
def stop(
    directory: DirectoryOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Stop it even while processes use it; they lose their cards.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Remove the simulated machine.

    Fails while a process uses the machine, unless --force is given.
    """
    from baton.gpu import simulated

    where = directory or simulated.default_directory()
    simulated.stop(where, force=force)
    note(f"stopped the simulated machine in {where}", quiet=quiet)
