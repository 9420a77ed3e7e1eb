"""`baton controller`: the controllers of Volcano's objects, in the foreground."""

import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from baton.cli.output import command_app
from baton.cli.programs.options import LogJson, Verbose, access, election, lease_name

app = command_app()


@app.command()
def controller(
    controllers: Annotated[
        list[str] | None,
        typer.Option("--controllers", metavar="NAME", help="Run only this controller; may be repeated."),
    ] = None,
    scheduler_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Manage pods with this scheduler name; may be repeated. [default: baton, volcano]"
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Kubeconfig file. Defaults to the service account in a pod, elsewhere to $KUBECONFIG.",
        ),
    ] = None,
    qps: Annotated[float, typer.Option(min=0, help="Requests per second to the API server; 0 for no limit.")] = 500,
    burst: Annotated[int, typer.Option(min=1, help="Requests at once before --qps applies.")] = 1000,
    workers: Annotated[int, typer.Option(min=1, help="Objects of one kind that are reconciled at the same time.")] = 64,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of health and metrics.")] = ":8081",
    leader_elect: Annotated[
        bool, typer.Option(help="Compete for a lease, so that one of several replicas works.")
    ] = True,
    lease: Annotated[str, typer.Option(metavar="NAMESPACE/NAME", help="The Lease that replicas compete for.")] = (
        "kube-system/baton-controller"
    ),
    lease_duration: Annotated[
        float, typer.Option(min=3.0, metavar="SECONDS", help="Time until a dead leader is replaced.")
    ] = 15.0,
    identity: Annotated[
        str | None,
        typer.Option(
            envvar="POD_NAME", help="Name of this replica in the lease. Defaults to the host name and a random number."
        ),
    ] = None,
    log_json: LogJson = False,
    verbose: Verbose = False,
) -> None:
    """Run the controllers behind Volcano's objects.

    They reconcile jobs, PodGroups of plain workloads, queues, cron jobs and job flows. Several replicas may run: one
    works, the others wait for its lease. A replica may be stopped, killed and restarted at any time.
    """
    from baton.controllers.program import ControllerProgram, Settings, choose
    from baton.kube.client import Client
    from baton.model.names import SCHEDULER_NAMES
    from baton.observe import logs
    from baton.observe.program import execute

    logs.set_up(sys.stderr, as_json=log_json, verbose=verbose)
    chosen = choose(controllers or ())
    lease_at = lease_name(lease)
    where = access(kubeconfig)
    settings = Settings(
        identity=identity or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
        listen=listen,
        workers=workers,
        scheduler_names=tuple(scheduler_name or SCHEDULER_NAMES),
    )

    async def serve() -> None:
        async with Client(where, qps=qps, burst=burst, user_agent="baton-controller") as client:
            candidate = election(client, lease_at, settings.identity, lease_duration) if leader_elect else None
            await ControllerProgram(client, settings, chosen, candidate).run()

    execute(serve)
