"""`baton admission`: the admission webhooks in the foreground."""

import datetime
import sys
from pathlib import Path
from typing import Annotated

import typer

from baton.cli.output import command_app
from baton.cli.programs.options import LogJson, Verbose
from baton.errors import UnavailableError, UsageError
from baton.model.names import DEFAULT_SCHEDULER, SCHEDULER_NAMES

app = command_app()


@app.command()
def admission(
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name under which API servers call the webhooks; may be repeated."),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the webhooks.")] = ":8443",
    observe: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of health and metrics.")] = ":8082",
    namespace: Annotated[
        str | None,
        typer.Option(
            help="Namespace of the Secret with the certificates. Defaults to that of the pod or the kubeconfig."
        ),
    ] = None,
    configuration: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Name of the webhook configurations, which are made to trust the certificates."
        ),
    ] = "baton-admission",
    scheduler_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Check pods with this scheduler name; may be repeated. [default: baton, volcano]"
        ),
    ] = None,
    default_scheduler: Annotated[
        str, typer.Option(metavar="NAME", help="Scheduler name for jobs that set none.")
    ] = DEFAULT_SCHEDULER,
    slot_resource: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A resource of time-shared GPUs; may be repeated. [default: nvshare.com/gpu]"
        ),
    ] = None,
    resource_groups: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Resource groups, in Volcano's format.")
    ] = None,
    max_queue_depth: Annotated[
        int, typer.Option(min=1, help="Greatest depth of the queue tree, not counting root.")
    ] = 5,
    certificate_days: Annotated[
        float,
        typer.Option(min=0.0001, help="Lifetime of a serving certificate, which is renewed after two thirds of it."),
    ] = 90.0,
    certificate_check: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Interval at which the certificates are checked.")
    ] = 30.0,
    drain: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long to continue answering after SIGTERM.")
    ] = 5.0,
    qps: Annotated[float, typer.Option(min=0, help="Requests per second to the API server; 0 for no limit.")] = 200,
    burst: Annotated[int, typer.Option(min=1, help="Requests at once before --qps applies.")] = 400,
    log_json: LogJson = False,
    verbose: Verbose = False,
) -> None:
    """Run the admission webhooks, which set defaults for jobs and refuse invalid ones.

    The webhooks create their own certificates, store them in a Secret that all replicas share, renew them while
    running, and make the API server trust them. Run at least two replicas.
    """
    try:
        import cryptography  # noqa: F401  # to check that it is installed
    except ImportError:
        raise UnavailableError("the admission webhooks need cryptography; install `baton[certs]`") from None
    from baton.admission.certificates.authority import Lifetimes
    from baton.admission.certificates.keeper import Keeper
    from baton.admission.endpoints import Policy
    from baton.admission.server import AdmissionProgram, Settings
    from baton.engine.state.resources import SLOTS
    from baton.kube.client import Client
    from baton.observe import logs
    from baton.observe.program import execute

    if not host:
        raise UsageError(
            "--host is missing: give the name under which API servers call the webhooks, "
            "as in --host NAME.NAMESPACE.svc"
        )
    logs.set_up(sys.stderr, as_json=log_json, verbose=verbose)
    policy = Policy(
        scheduler_name=default_scheduler,
        scheduler_names=tuple(scheduler_name or SCHEDULER_NAMES),
        slot_resources=tuple(slot_resource or (SLOTS,)),
        max_queue_depth=max_queue_depth,
        resource_groups_file=resource_groups,
    )

    async def serve() -> None:
        async with Client.from_environment(qps=qps, burst=burst, user_agent="baton-admission") as client:
            keeper = Keeper(
                client,
                namespace or client.access.namespace,
                host,
                lifetimes=Lifetimes(serving=datetime.timedelta(days=certificate_days)),
                every_s=certificate_check,
                configuration=configuration,
            )
            settings = Settings(listen=listen, observe=observe, drain_s=drain)
            await AdmissionProgram(client, keeper, settings, policy).run()

    execute(serve)
