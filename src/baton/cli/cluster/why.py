"""`baton why`: what a pod or a job waits for, in one screen."""

from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.cluster.options import ContextOption, KubeconfigOption, NamespaceOption, connect
from baton.cli.output import Format, FormatOption, command_app, note, write_data, write_table

if TYPE_CHECKING:
    from baton.cli.cluster.reasons import Answer

app = command_app()

SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="URL", help="Address of the scheduler. Defaults to its pod in the cluster."),
]


@app.command()
def why(
    name: Annotated[
        str,
        typer.Argument(metavar="POD|JOB", help="A pod or a job; use pod/NAME or job/NAME if both exist."),
    ],
    namespace: NamespaceOption = None,
    scheduler: SchedulerOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show what a pod or a job waits for, and what would help.

    The command asks the running scheduler. If none answers, it builds the same answer from the API server.
    """
    from baton.cli.cluster.reasons import answer

    with connect(kubeconfig, context) as cluster:
        found = answer(cluster, namespace or cluster.access.namespace, name, scheduler)
    if output is not Format.TABLE:
        write_data(found, output)
        return
    _show(found)


def _show(found: "Answer") -> None:
    from rich.markup import escape

    typer.echo(found.sentence)
    verdict = found.verdict
    if verdict is not None:
        if verdict.min_member > 1 and verdict.reasons:
            typer.echo(
                f"The gang needs {verdict.min_member} pods at once; {verdict.ready} run already and"
                f" {verdict.placeable} more could start."
            )
        if verdict.reasons:
            typer.echo()
            write_table(
                (f"of {verdict.nodes} nodes", "why not"),
                ((str(item.nodes), escape(item.reason)) for item in verdict.reasons),
            )
        if verdict.nearest:
            typer.echo()
            write_table(
                ("nearest fit", "lacks"),
                ((escape(fit.node), escape("; ".join(fit.missing))) for fit in verdict.nearest),
            )
        if verdict.would_help:
            typer.echo()
            typer.echo("What would help:")
            for remedy in verdict.would_help:
                typer.echo(f"  - {remedy}")
    if found.remark:
        note(found.remark)
