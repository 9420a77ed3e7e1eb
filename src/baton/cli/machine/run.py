"""`baton run -- CMD…`: run a program that shares GPUs with other programs on this machine."""

import enum
from typing import Annotated

import typer

from baton.cli.output import QuietOption, command_app, note
from baton.cli.sizes import parse_size, seconds, size
from baton.errors import BatonError, UsageError

app = command_app()


class PriorityName(enum.StrEnum):
    """The names of the priority classes."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


@app.command(
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    no_args_is_help=True,
)
def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD…", help="The program and its arguments, after --.")],
    gpus: Annotated[int, typer.Option(min=0, help="Number of GPUs; Baton picks the least busy ones. 0 means one.")] = 0,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory limit on each GPU, such as 8Gi.")] = "",
    cores: Annotated[int, typer.Option(min=0, max=100, help="Limit of GPU time in percent; 0: no limit.")] = 0,
    weight: Annotated[int, typer.Option(min=0, max=1000, help="Share relative to other programs; 0 means 1.")] = 0,
    priority: Annotated[
        PriorityName | None, typer.Option(help="Goes before lower priorities, which still get turns.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="The tenant that the GPU time is charged to. Default: you.")] = "",
    gang: Annotated[bool, typer.Option("--gang", help="Take turns on all GPUs of the program at once.")] = False,
    oversubscribe: Annotated[
        bool | None,
        typer.Option("--oversubscribe/--no-oversubscribe", help="Let the program use more memory than the GPU has."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Run a program that shares GPUs with other programs on this machine.

    Starts the lock daemon if none is running. Exits with the exit code of the program, after one line that says how
    much GPU time it received.
    """
    from baton.local import daemon, launch

    requests = launch.Requests(
        gpus=gpus,
        memory_bytes=parse_size(memory, "--memory") if memory else 0,
        cores_percent=cores,
        weight=weight,
        priority=priority.value if priority else "",
        tenant=tenant or launch.user_name(),
        gang=gang,
        oversubscribe=oversubscribe,
    )
    if gang and gpus < 2:
        raise UsageError(f"--gang needs several GPUs, but --gpus is {gpus}; ask for at least 2")
    machine = launch.find_machine()
    sockets = launch.find_sockets()
    job = launch.Launch(command, requests, sockets, machine)
    if machine:
        note("baton: no NVIDIA driver here; using the simulated GPUs", quiet=quiet)
    if daemon.ensure(sockets, machine):
        note(f"baton: started the lock daemon in {sockets.parent}", quiet=quiet)
    try:
        status = job.control.status()
    except BatonError:
        if gpus:
            raise
        status = None  # this user may not control the daemon, so the program sees all GPUs
    with job.choosing(status) as chosen:
        code = job.run(job.environment(chosen))
    account = job.account() if status is not None else None
    if account is not None:
        turns = f"{account.grants} turn{'s' if account.grants != 1 else ''}"
        got = f"{seconds(account.received_s)} of GPU time in {turns}"
        note(f"baton: {got}, waited {seconds(account.waited_s)}, {size(account.paged_bytes)} paged", quiet=quiet)
    elif status is not None:
        note("baton: the program did not use a GPU through the lock", quiet=quiet)
    raise typer.Exit(code)
