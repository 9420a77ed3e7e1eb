"""`baton queue`: the queues in which jobs wait, and the resources that each may use."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from baton.cli.cluster.options import ContextOption, KubeconfigOption, connect
from baton.cli.output import Format, FormatOption, QuietOption, command_app, note, write_data, write_table
from baton.errors import UsageError

if TYPE_CHECKING:
    from collections import Counter

    from baton.cli.cluster.requests import Object

app = command_app(help="Create, inspect and control the queues in which jobs wait.", no_args_is_help=True)

QueueName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the queue.", show_default=False)]
_COLUMNS = ("name", "weight", "state", "parent", "inqueue", "pending", "running", "unknown", "completed", "allocated",
            "deserved", "capability")  # fmt: skip
_ACTIONS = {"open": "OpenQueue", "close": "CloseQueue"}


@app.command()
def create(
    name: QueueName,
    weight: Annotated[
        int, typer.Option("--weight", "-w", min=1, max=65535, help="Share relative to other queues.")
    ] = 1,
    capability: Annotated[
        str, typer.Option("--capability", metavar="NAME=AMOUNT,…", help="Upper limit of what the queue may use.")
    ] = "",
    deserved: Annotated[
        str,
        typer.Option("--deserved", metavar="NAME=AMOUNT,…", help="Resources that it can reclaim from other queues."),
    ] = "",
    guarantee: Annotated[
        str, typer.Option("--guarantee", metavar="NAME=AMOUNT,…", help="Resources reserved for this queue.")
    ] = "",
    parent: Annotated[str, typer.Option("--parent", help="Parent queue.")] = "",
    reclaimable: Annotated[
        bool,
        typer.Option(
            "--reclaimable/--not-reclaimable", help="Whether other queues may reclaim what it uses beyond its share."
        ),
    ] = True,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    quiet: QuietOption = False,
) -> None:
    """Create a queue."""
    from baton.cli.cluster.workloads import parse_amounts
    from baton.model.volcano import QUEUES, SCHEDULING

    spec: dict[str, Any] = {"weight": weight, "reclaimable": reclaimable}
    amounts = {"capability": capability, "deserved": deserved}
    spec.update({key: parse_amounts(text, f"--{key}") for key, text in amounts.items() if text})
    if guarantee:
        spec["guarantee"] = {"resource": parse_amounts(guarantee, "--guarantee")}
    if parent:
        spec["parent"] = parent
    body = {"apiVersion": SCHEDULING, "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    with connect(kubeconfig, context) as cluster:
        cluster.create(QUEUES, body)
    note(f"queue {name} created", quiet=quiet)


@app.command("list")
def list_(
    kubeconfig: KubeconfigOption = None, context: ContextOption = None, output: FormatOption = Format.TABLE
) -> None:
    """List the queues with their weights, states, jobs per phase, and resources in use."""
    _show(None, kubeconfig, context, output)


@app.command()
def get(
    name: QueueName,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show one queue."""
    _show(name, kubeconfig, context, output)


def _show(name: str | None, kubeconfig: Any, context: str | None, output: Format) -> None:
    from baton.cli.cluster.workloads import phases_by_queue
    from baton.model.volcano import POD_GROUPS, QUEUES

    with connect(kubeconfig, context) as cluster:
        queues = cluster.list(QUEUES) if name is None else [cluster.get(QUEUES, name)]
        if output is not Format.TABLE:
            write_data(queues if name is None else queues[0], output)
            return
        counts = phases_by_queue(cluster.list(POD_GROUPS))
    if not queues:
        note("no queues found")
        return
    write_table(_COLUMNS, (_row(queue, counts.get(queue["metadata"]["name"])) for queue in queues))


def _row(queue: "Object", counts: "Counter[str] | None") -> list[str]:
    from baton.cli.cluster.workloads import PHASES

    spec, status = queue.get("spec", {}), queue.get("status", {})
    return [
        queue["metadata"]["name"],
        str(spec.get("weight", 0)),
        status.get("state") or "-",
        spec.get("parent") or "-",
        *(str(counts[phase] if counts else 0) for phase in PHASES),
        *(_amounts(amounts) for amounts in (status.get("allocated"), spec.get("deserved"), spec.get("capability"))),
    ]


def _amounts(amounts: dict[str, Any] | None) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted((amounts or {}).items()) if str(amount) != "0") or "-"


@app.command()
def operate(
    name: QueueName,
    action: Annotated[str, typer.Option("--action", "-a", metavar="open|close|update", help="Action to take.")],
    weight: Annotated[int, typer.Option("--weight", "-w", help="New weight, with --action update.")] = 0,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    quiet: QuietOption = False,
) -> None:
    """Open or close a queue, or change its weight. A closed queue takes no new jobs; its present jobs continue."""
    from baton.cli.cluster.workloads import order_queue
    from baton.model.volcano import QUEUES

    if action not in (*_ACTIONS, "update"):
        raise UsageError(f"--action is {action!r}, expected open, close or update")
    if (action == "update") != (weight > 0):
        raise UsageError("--action update needs --weight with a value of at least 1; other actions take no --weight")
    with connect(kubeconfig, context) as cluster:
        if action == "update":
            cluster.patch(QUEUES, name, {"spec": {"weight": weight}})
        else:
            order_queue(cluster, name, _ACTIONS[action])
    told = f"has weight {weight}" if action == "update" else f"will be {'opened' if action == 'open' else 'closed'}"
    note(f"queue {name} {told}", quiet=quiet)


@app.command()
def delete(
    name: QueueName, kubeconfig: KubeconfigOption = None, context: ContextOption = None, quiet: QuietOption = False
) -> None:
    """Delete a queue.

    Its waiting jobs stay pending until a queue with the same name exists; close the queue first to let its jobs end.
    """
    from baton.model.volcano import QUEUES

    with connect(kubeconfig, context) as cluster:
        cluster.delete(QUEUES, name)
    note(f"queue {name} deleted", quiet=quiet)
