"""`baton lockd`: the lock daemon in the foreground."""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.output import command_app
from baton.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton.gpu.cards import GpuSource
    from baton.lock.events import CardId
    from baton.lock.telemetry import CardInfo, Reading, Telemetry

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


class CardTelemetry:
    """The lock's view of a source of GPUs."""

    def __init__(self, source: "GpuSource") -> None:
        self._source = source

    def cards(self) -> "Sequence[CardInfo]":
        """The machine's cards."""
        from baton.lock.events import CardId
        from baton.lock.telemetry import CardInfo

        return [CardInfo(CardId(card.id), card.memory_mib * 2**20) for card in self._source.cards()]

    def read(self) -> "Mapping[CardId, Reading]":
        """One look at all of them; a process whose memory is not told is left out."""
        from baton.lock.events import CardId
        from baton.lock.telemetry import Reading

        readings: dict[CardId, Reading] = {}
        for sample in self._source.telemetry():
            moved = [b for b in (sample.pcie_sent_bytes, sample.pcie_received_bytes) if b is not None]
            readings[CardId(sample.card)] = Reading(
                None if sample.memory_total_mib is None else sample.memory_total_mib * 2**20,
                sum(moved) if moved else None,
                {use.pid: use.memory_mib * 2**20 for use in sample.processes if use.memory_mib is not None},
            )
        return readings


def _nvml() -> "Telemetry":
    """NVML where there is a driver; otherwise cards are those that clients name."""
    import structlog

    from baton.gpu.nvml import NvmlSource
    from baton.lock.telemetry import NoTelemetry

    try:
        return CardTelemetry(NvmlSource())
    except UnavailableError as error:
        structlog.get_logger().debug("no telemetry", reason=str(error))
        return NoTelemetry()


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
    from baton.lock import logs
    from baton.lock.daemon import LockDaemon
    from baton.lock.events import CardId, Mode
    from baton.lock.paths import Paths, default_socket_dir
    from baton.lock.telemetry import CardInfo, NoTelemetry, Telemetry

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
    telemetry: Telemetry = NoTelemetry(given) if given else _nvml()
    daemon_config = msgspec.structs.replace(chosen, settings=settings)
    paths = Paths((socket_dir or default_socket_dir()).absolute())

    async def serve() -> None:
        await LockDaemon(paths, daemon_config, telemetry, metrics_port).run()

    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.run(serve())
        return
    asyncio.run(serve())
