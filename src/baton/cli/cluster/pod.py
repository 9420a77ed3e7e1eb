"""`baton pod`: the pods of jobs and queues."""

from typing import TYPE_CHECKING, Annotated

import typer

from baton.cli.cluster.options import (
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    connect,
    place,
)
from baton.cli.output import Format, FormatOption, command_app, note, write_data, write_table

if TYPE_CHECKING:
    from baton.cli.cluster.requests import Object

app = command_app(help="Inspect the pods of jobs and queues.", no_args_is_help=True)


@app.callback()
def _pod() -> None:
    """Inspect the pods of jobs and queues."""


@app.command("list")
def list_(
    job: Annotated[str, typer.Option("--job", "-j", help="List only the pods of this job.")] = "",
    queue: Annotated[
        str, typer.Option("--queue", "-q", help="List only the pods of this queue, of jobs and other owners.")
    ] = "",
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List the pods of jobs, with their nodes and GPUs."""
    from baton.cli.cluster import workloads
    from baton.model.core import PODS

    with connect(kubeconfig, context) as cluster:
        where = None if all_namespaces else namespace or cluster.access.namespace
        selector = workloads.pod_selector(job, queue)
        pods = cluster.list(PODS, where, label_selector=selector)
        pods = [pod for pod in pods if not queue or workloads.belongs_to_queue(pod["metadata"], queue)]
        if output is not Format.TABLE:
            write_data(pods, output)
            return
        shown = cluster.table(PODS, where, label_selector=selector)
    if not pods:
        note(f"no pods of jobs found in {place(where)}" if not queue else f"no pods found in {place(where)}")
        return
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    rows = [row for row in shown.rows if row.object["metadata"]["uid"] in by_uid]
    columns = ("Name", "Ready", "Status", "Restarts", "Age", "Node")
    write_table(
        (*(("namespace",) if all_namespaces else ()), *columns, "queue", "gpus"),
        (
            [
                *([row.object["metadata"]["namespace"]] if all_namespaces else []),
                *(shown.cell(row, column) for column in columns),
                *_more(by_uid[row.object["metadata"]["uid"]]),
            ]
            for row in rows
        ),
    )


def _more(pod: "Object") -> list[str]:
    """The queue and the cards that the scheduler recorded."""
    from baton.cli.cluster import workloads
    from baton.model.names import QUEUE_NAME, QUEUE_OF_POD

    metadata = pod["metadata"]
    queue = (metadata.get("labels") or {}).get(QUEUE_NAME) or (metadata.get("annotations") or {}).get(QUEUE_OF_POD)
    return [queue or "-", ",".join(workloads.cards_of(metadata)) or "-"]
