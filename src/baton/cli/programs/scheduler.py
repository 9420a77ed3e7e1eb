"""`baton scheduler`: the live scheduler in the foreground."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from baton.cli.output import command_app
from baton.cli.programs.options import LogJson, Verbose, access, election, lease_name
from baton.errors import UsageError

app = command_app()


@app.command()
def scheduler(
    scheduler_name: Annotated[
        list[str] | None,
        typer.Option(help="Schedule pods with this scheduler name; may be repeated. [default: volcano, baton]"),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Kubeconfig file. Defaults to the service account in a pod, elsewhere to $KUBECONFIG."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Scheduler configuration (volcano-scheduler.conf).")] = None,
    config_map: Annotated[
        str | None, typer.Option(metavar="NAMESPACE/NAME[:KEY]", help="Read the configuration from a ConfigMap.")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Ready-made configuration, used without --config and --config-map.")
    ] = "simple",
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Python file with your own scheduling plugin, loaded again when it changes; may be repeated.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of health, metrics, verdicts and state; empty for none.")
    ] = "127.0.0.1:11251",
    leader_elect: Annotated[
        bool, typer.Option(help="Compete for a lease, so that one of several replicas schedules.")
    ] = True,
    lease: Annotated[str, typer.Option(metavar="NAMESPACE/NAME", help="The Lease that replicas compete for.")] = (
        "kube-system/baton-scheduler"
    ),
    lease_duration: Annotated[float, typer.Option(help="Seconds until a dead leader is replaced.")] = 15.0,
    window: Annotated[float, typer.Option(help="Seconds during which events are gathered before a cycle.")] = 0.02,
    period: Annotated[float, typer.Option(help="Seconds between cycles while pods wait and no events arrive.")] = 1.0,
    parallel_binds: Annotated[int, typer.Option(help="Concurrent bind requests.")] = 32,
    bind_limit: Annotated[float, typer.Option(help="Seconds after which a bind is given up and planned again.")] = 30.0,
    request_limit: Annotated[float, typer.Option(help="Time limit of a single request, in seconds.")] = 15.0,
    retry_first: Annotated[
        float, typer.Option(help="First pause after a failed bind, in seconds; it doubles with every failure.")
    ] = 0.2,
    retry_longest: Annotated[float, typer.Option(help="Longest such pause, in seconds.")] = 30.0,
    evict_retry: Annotated[float, typer.Option(help="Seconds until a refused eviction is planned again.")] = 5.0,
    explain: Annotated[float, typer.Option(help="Seconds between explanations of waiting jobs.")] = 1.0,
    status_pause: Annotated[float, typer.Option(help="Seconds during which status counts are gathered.")] = 1.0,
    reason_pause: Annotated[
        float, typer.Option(help="Seconds before a message is rewritten because of new numbers.")
    ] = 30.0,
    volume_limit: Annotated[float, typer.Option(help="Seconds a pod waits for a volume to be provisioned.")] = 120.0,
    cycle_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which a cycle ends; the next one continues. [default: a quarter of --lease-duration]"
        ),
    ] = None,
    cycle_warning: Annotated[float, typer.Option(help="Log a cycle that takes longer than this many seconds.")] = 5.0,
    qps: Annotated[float, typer.Option(help="Requests per second to the API server; 0 for no limit.")] = 0.0,
    burst: Annotated[int, typer.Option(help="Requests at once before --qps applies.")] = 500,
    event_qps: Annotated[float, typer.Option(help="Events written per second.")] = 50.0,
    slot_resource: Annotated[
        list[str] | None,
        typer.Option(help="A resource whose units are slots of cards; may be repeated. [default: nvshare.com/gpu]"),
    ] = None,
    memory_overcommit: Annotated[float, typer.Option(help="Factor by which the memory of a card is promised.")] = 1.0,
    share_overcommit: Annotated[float, typer.Option(help="Factor by which the cores of a card are promised.")] = 1.0,
    log_json: LogJson = False,
    verbose: Verbose = False,
) -> None:
    """Run the scheduler, which decides where and when pods go.

    It runs until SIGTERM. It may be stopped, killed and restarted at any time, and run as several replicas: all of its
    knowledge is in the API server.
    """
    from baton.extensions.scheduling_plugins import PluginLoader
    from baton.kube.client import Client
    from baton.observe import logs
    from baton.observe.program import execute
    from baton.observe.serving import Address
    from baton.scheduler.metrics import Metrics
    from baton.scheduler.program import SchedulerProgram, new_identity
    from baton.scheduler.reload import ConfigMapName, LiveConfiguration
    from baton.scheduler.settings import Settings

    logs.set_up(sys.stderr, as_json=log_json, verbose=verbose)
    if config is not None and config_map is not None:
        raise UsageError("--config and --config-map were both given; give one of them")
    settings = Settings(
        scheduler_names=tuple(scheduler_name or Settings().scheduler_names),
        slot_resources=tuple(slot_resource or Settings().slot_resources),
        window_s=window,
        period_s=period,
        explain_s=explain,
        cycle_limit_s=lease_duration / 4 if cycle_limit is None else cycle_limit,
        cycle_warning_s=cycle_warning,
        parallel_binds=parallel_binds,
        bind_limit_s=bind_limit,
        request_limit_s=request_limit,
        retry_first_s=retry_first,
        retry_longest_s=retry_longest,
        evict_retry_s=evict_retry,
        status_pause_s=status_pause,
        reason_pause_s=reason_pause,
        volume_limit_s=volume_limit,
        qps=qps,
        burst=burst,
        event_qps=event_qps,
        memory_overcommit=memory_overcommit,
        share_overcommit=share_overcommit,
    )
    if leader_elect and lease_duration < 3:  # first, because the limit of a cycle follows from it
        raise UsageError(f"--lease-duration is {lease_duration:g}, expected at least 3 seconds")
    settings.check()
    if leader_elect and settings.cycle_limit_s >= lease_duration * 2 / 3:
        raise UsageError(
            f"--cycle-limit is {settings.cycle_limit_s:g}, expected less than two thirds of --lease-duration,"
            f" {lease_duration:g}: a leader that does not renew in that time stops leading"
        )
    lease_at = lease_name(lease)
    metrics = Metrics()
    configuration = LiveConfiguration(metrics, preset=preset, file=config, plugins=PluginLoader(plugin or ()))
    where = access(kubeconfig)
    address = Address(listen, "--listen") if listen else None

    async def serve() -> None:
        client = Client(
            where,
            qps=qps,
            burst=burst,
            timeout_s=request_limit,
            connections=parallel_binds + 80,
            user_agent="baton-scheduler",
        )
        identity = new_identity()
        async with client:
            await SchedulerProgram(
                client,
                settings,
                configuration,
                metrics,
                listen=address,
                config_map=ConfigMapName(config_map) if config_map is not None else None,
                lease=election(client, lease_at, identity, lease_duration) if leader_elect else None,
                identity=identity,
            ).run()

    execute(serve)
