"""`baton lockd`: the lock daemon in the foreground."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.output import command_app
from baton.cli.programs.options import LogJson, Verbose
from baton.cli.sizes import parse_size
from baton.errors import UsageError

if TYPE_CHECKING:
    from baton.lock.telemetry import CardInfo, Telemetry

app = command_app()


@app.command()
def lockd(
    socket_dir: Annotated[
        Path | None,
        typer.Option(help="Directory that workloads mount. Defaults to $BATON_SOCKET_DIR, then to one by user."),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="UUID[=MEMORY]", help="A GPU and its memory, instead of asking the driver."),
    ] = None,
    quantum: Annotated[
        str, typer.Option(metavar="auto|SECONDS", help="Length of a turn; auto derives it from measurements.")
    ] = "auto",
    mode: Annotated[str, typer.Option(metavar="auto|serial|concurrent", help="How GPUs are shared.")] = "auto",
    config: Annotated[Path | None, typer.Option(help="Configuration file (YAML).")] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port for Prometheus metrics on the loopback interface. [default: none]"),
    ] = None,
    log_json: LogJson = False,
    verbose: Verbose = False,
) -> None:
    """Run the lock daemon, which decides who may run on a GPU now.

    It serves until SIGTERM. It may be stopped, killed and restarted at any time: workloads continue and reconnect.
    """
    import msgspec

    from baton.lock import config as configuration
    from baton.lock.core.events import Mode
    from baton.lock.daemon.daemon import LockDaemon
    from baton.lock.paths import Paths, default_socket_dir
    from baton.lock.telemetry import CardInfo
    from baton.model.ids import CardId
    from baton.observe import logs
    from baton.observe.program import execute

    logs.set_up(sys.stderr, as_json=log_json, verbose=verbose)
    chosen = configuration.load(config) if config else configuration.Config()
    settings = chosen.settings
    if quantum != "auto":
        try:
            quantum_s = float(quantum)
        except ValueError:
            quantum_s = 0.0
        if quantum_s <= 0:
            raise UsageError(f"--quantum is {quantum!r}, expected auto or a number of seconds above 0")
        settings = msgspec.structs.replace(settings, quantum_s=quantum_s)
    if mode != "auto":
        if mode not in set(Mode):
            raise UsageError(f"--mode is {mode!r}, expected one of {', '.join(Mode)}")
        settings = msgspec.structs.replace(settings, mode=Mode(mode))
    given: list[CardInfo] = []
    for entry in gpu or ():
        uuid, _, memory = entry.partition("=")
        given.append(CardInfo(CardId(uuid), parse_size(memory, f"--gpu {uuid}") if memory else 0))
    daemon_config = msgspec.structs.replace(chosen, settings=settings)
    paths = Paths((socket_dir or default_socket_dir()).absolute())

    async def serve() -> None:
        await LockDaemon(paths, daemon_config, _telemetry(given), metrics_port).run()

    execute(serve)


def _telemetry(given: "list[CardInfo]") -> "Telemetry":
    """The cards given on the command line, else those of the drivers; without either, clients name the cards."""
    import structlog

    from baton.gpu import vendors
    from baton.local.telemetry import GpuTelemetry
    from baton.lock.telemetry import NoTelemetry

    if given:
        return NoTelemetry(given)
    sources, errors = vendors.open_drivers([vendor for vendor in vendors.VENDORS if vendor.runs_hook])
    for error in errors:
        structlog.get_logger("baton.lock").debug("no telemetry", why=str(error))
    return GpuTelemetry(sources) if sources else NoTelemetry()
