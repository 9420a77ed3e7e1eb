"""`baton agent`: the node agent in the foreground, and questions to a running one."""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.output import Format, FormatOption, command_app, note, write_data, write_table
from baton.cli.programs.options import LogJson, Verbose
from baton.errors import UnavailableError

if TYPE_CHECKING:
    from baton.agent.config import AgentConfig

app = command_app(invoke_without_command=True)

_STATUS_LIMIT_S = 3.0


@app.callback()
def agent(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="Configuration file (YAML). Defaults to built-in values.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="FILE", help="Report every mistake in a configuration and exit.")
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", envvar="NODE_NAME", help="Name of this node. Defaults to the host name.")
    ] = None,
    log_json: LogJson = False,
    verbose: Verbose = False,
) -> None:
    """Run the node agent, which gives containers their GPUs.

    The agent offers the node's GPUs to kubelet according to its configuration, until SIGTERM. It may be stopped, killed
    and restarted at any time: running containers keep their GPUs.
    """
    if context.invoked_subcommand is not None:
        return
    name = node or socket.gethostname()
    if check is not None:
        _check(check, name)
        return
    # gRPC's fork handlers can deadlock the start of a child process; nothing here forks without exec.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        import grpc  # noqa: F401  # to check that it is installed
    except ImportError:
        raise UnavailableError("the node agent needs grpcio; install `baton[node]`") from None
    from baton.agent import config as configuration
    from baton.agent.assembly import assemble
    from baton.observe import logs
    from baton.observe.program import execute

    logs.set_up(sys.stderr, as_json=log_json, verbose=verbose)
    settings = configuration.load(config) if config else configuration.AgentConfig()
    program = assemble(settings, name, config)
    execute(program.run, fast_loop=False)  # gRPC supports asyncio's own loop


def _check(path: Path, node: str) -> None:
    """Report all mistakes in a file, also against the cards of this node if it has any."""
    from baton.agent import config as configuration
    from baton.agent.offers.offers import plan, unused_rules
    from baton.agent.offers.vendor_devices import load_kinds
    from baton.gpu import vendors

    config: AgentConfig = configuration.load(path).for_node(node)
    kinds = load_kinds(config.devices, config.resource_names())
    sources, errors = vendors.open_drivers(vendors.VENDORS)
    if not sources:
        note(f"{path} is valid as far as can be checked without a GPU: {'; '.join(map(str, errors))}")
        return
    try:
        cards = tuple(card for source in sources for card in source.cards())
    finally:
        for source in sources:
            source.close()
    for kind in kinds:
        kind.look()
    for offer in (*plan(config, cards), *(kind.offer() for kind in kinds)):
        typer.echo(offer.describe())
    for sentence in unused_rules(config, cards):
        note(sentence)


@app.command()
def status(
    socket_path: Annotated[Path, typer.Option("--socket", help="Socket of the agent.")] = Path("/run/baton/agent.sock"),
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the resources and GPUs of a running agent, and their state with kubelet."""
    from baton.agent.status import Status, ask

    found: Status = asyncio.run(ask(socket_path, _STATUS_LIMIT_S))
    if output is not Format.TABLE:
        write_data(found, output)
        return
    write_table(
        ("resource", "slots", "free", "state", "for s", "policy"),
        [
            (r.name, str(r.slots), "unknown" if r.free is None else str(r.free), r.state, f"{r.for_s:.0f}", r.policy)
            for r in found.resources
        ],
    )
    typer.echo()
    write_table(
        ("gpu", "card", "model", "health", "pods"),
        [(str(c.index), c.id, c.model, c.reason or "healthy", ", ".join(c.pods) or "none") for c in found.cards],
    )
    if found.problem:
        note(found.problem)
