"""`baton lockd`: the lock daemon in the foreground."""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Annotated

import typer

from baton.cli.output import command_app
from baton.errors import UsageError

app = command_app()

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_size(text: str, field: str) -> int:
    """A size in bytes such as 16Gi."""
    digits = text.rstrip("KMGTi")
    unit = text[len(digits) :]
    try:
        number = float(digits)
    except ValueError:
        number = -1.0
    if unit not in _UNITS or number < 0:
        raise UsageError(f"{field} is {text!r}, expected a size such as 8Gi or 512Mi")
    return int(number * _UNITS[unit])


@app.command()
def lockd(
    socket_dir: Annotated[
        Path | None, typer.Option(help="Directory that workloads mount; default by $BATON_SOCKET_DIR, then the user.")
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="UUID[=MEMORY]", help="A GPU and its memory, where NVML is not asked.")
    ] = None,
    quantum: Annotated[str, typer.Option(metavar="auto|SECONDS", help="Length of a turn; auto measures.")] = "auto",
    mode: Annotated[str, typer.Option(metavar="auto|serial|concurrent", help="How GPUs are shared.")] = "auto",
    config: Annotated[Path | None, typer.Option(help="Configuration file (YAML).")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve Prometheus metrics on this port of the loopback.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log as JSON lines.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log debugging details.")] = False,
) -> None:
    """Run the lock daemon, which decides who may run on a GPU now.

    It serves until SIGTERM. It may be stopped, killed and started again at any time: workloads go on and reconnect.
    """
    import msgspec

    from baton.lock import config as configuration
    from baton.lock.daemon import LockDaemon
    from baton.lock.events import CardId, Mode
    from baton.lock.paths import Paths, default_socket_dir
    from baton.lock.telemetry import CardInfo, NoTelemetry

    _set_up_log(as_json=log_json, verbose=verbose)
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
        await LockDaemon(paths, daemon_config, NoTelemetry(given), metrics_port).run()

    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.run(serve())
        return
    asyncio.run(serve())


def _set_up_log(*, as_json: bool, verbose: bool) -> None:
    import sys

    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer()
            if as_json
            else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
