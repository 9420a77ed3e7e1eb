"""`baton state`: record the scheduler's view of the cluster in a file and replay it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.cluster.options import ContextOption, KubeconfigOption, connect
from baton.cli.cluster.why import SchedulerOption
from baton.cli.output import Format, FormatOption, QuietOption, command_app, note, write_data, write_table
from baton.errors import BatonError, UsageError

if TYPE_CHECKING:
    from baton.engine.plan import Plan

app = command_app(help="Record the scheduler's view of the cluster and replay it.", no_args_is_help=True)


@app.command()
def dump(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Output file. Defaults to standard output.", show_default=False),
    ] = None,
    scheduler: SchedulerOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write the cluster as the scheduler sees it: one event of the engine per line, after its configuration.

    The file is the input of `baton state replay` and of `baton sim --state`.
    """
    import sys

    from baton.cli.cluster.observation import observe
    from baton.cli.cluster.scheduler_link import NoSchedulerError, ask
    from baton.engine import records

    with connect(kubeconfig, context) as cluster:
        try:
            content = ask(cluster, "/state", scheduler)
        except NoSchedulerError as error:
            note(f"no scheduler answered ({error}); this is the view of one that starts now", quiet=quiet)
            seen = observe(cluster).record
            content = b"".join(records.lines(seen.about, seen.events))
    if file is None:
        sys.stdout.buffer.write(content)
        return
    try:
        file.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    record = records.read(content, str(file))
    note(f"{len(record.events)} events written to {file}", quiet=quiet)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `baton state dump`.")],
    config: Annotated[
        Path | None, typer.Option("--config", help="Use this scheduler configuration instead of the recorded one.")
    ] = None,
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", metavar="FILE", help="Python file with your own scheduling plugin; may be repeated."),
    ] = None,
    output: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Run the scheduling engine once on a recorded cluster; show its decisions and why the other jobs wait."""
    from baton.engine import records
    from baton.extensions.scheduling_plugins import PluginLoader

    try:
        record = records.read(file.read_bytes(), str(file))
        configuration = config.read_text() if config is not None else ""
    except OSError as error:
        raise BatonError(f"{error.filename} cannot be read: {error.strerror}") from None
    engine = record.engine(configuration, PluginLoader(plugin or ()).plugins())
    for warning in engine.tiers.configuration.warnings:
        note(warning, quiet=quiet)
    plan = engine.schedule(record.about.now_s)
    if output is not Format.TABLE:
        write_data(plan, output)
        return
    _show(plan)


def _show(plan: "Plan") -> None:
    from rich.markup import escape

    if plan.bindings:
        write_table(
            ("pod", "node", "cards"),
            (
                (escape(b.pod), escape(b.node), ", ".join(sorted({grant.card for grant in b.cards})) or "-")
                for b in plan.bindings
            ),
        )
        typer.echo()
    if plan.evictions:
        write_table(
            ("evicted", "node", "for", "reason"),
            ((escape(e.pod), escape(e.node), escape(e.for_pod or "-"), escape(e.reason)) for e in plan.evictions),
        )
        typer.echo()
    for verdict in plan.verdicts:
        typer.echo(verdict.paragraph())
    typer.echo(
        f"{len(plan.bindings)} pods would be bound, {len(plan.evictions)} evicted; {len(plan.verdicts)} jobs wait."
    )
