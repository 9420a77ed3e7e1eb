"""`baton job`: runs, inspects and controls jobs on Kubernetes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from baton.cli.cluster.options import (
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    connect,
    place,
)
from baton.cli.output import Format, FormatOption, QuietOption, command_app, note, write_data, write_table
from baton.errors import UsageError

if TYPE_CHECKING:
    from baton.cli.cluster.requests import Cluster, Object

app = command_app(help="Run, inspect and control jobs on Kubernetes.", no_args_is_help=True)

JobName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the job.", show_default=False)]


@app.command()
def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the job; omit it with --filename.", show_default=False)
    ] = "",
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="Command of the containers. Defaults to the image's command."),
    ] = None,
    filename: Annotated[
        Path | None, typer.Option("--filename", "-f", help="Create the jobs in this manifest (YAML or JSON).")
    ] = None,
    image: Annotated[str, typer.Option("--image", "-i", help="Container image.")] = "busybox",
    replicas: Annotated[int, typer.Option("--replicas", "-r", min=1, help="Number of pods.")] = 1,
    min_available: Annotated[
        int | None, typer.Option("--min", "-m", min=1, help="Number of pods that must start together. Defaults to all.")
    ] = None,
    requests: Annotated[
        str, typer.Option("--requests", "-R", metavar="NAME=AMOUNT,…", help="Resource requests of each pod.")
    ] = "cpu=1,memory=100Mi",
    limits: Annotated[
        str,
        typer.Option(
            "--limits", "-L", metavar="NAME=AMOUNT,…", help="Resource limits of each pod, such as nvshare.com/gpu=1."
        ),
    ] = "",
    queue: Annotated[
        str, typer.Option("--queue", help="Queue of the job. Defaults to the cluster's default queue.")
    ] = "",
    scheduler: Annotated[str, typer.Option("--scheduler", "-S", help="Scheduler name.")] = "baton",
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Create a job from options or from a manifest.

    The pods of a job start together or not at all. Example: `baton job run train --replicas 4 --limits
    nvshare.com/gpu=1 -- train.sh`
    """
    from baton.cli.cluster import workloads
    from baton.model.volcano import JOBS

    if bool(name) == (filename is not None):
        raise UsageError("give either the name of the job or a manifest with --filename")
    if filename is not None:
        jobs = workloads.read_documents(filename, "Job")
    else:
        jobs = [
            workloads.job_object(
                name,
                image=image,
                replicas=replicas,
                min_available=replicas if min_available is None else min_available,
                requests=workloads.parse_amounts(requests, "--requests"),
                limits=workloads.parse_amounts(limits, "--limits"),
                scheduler=scheduler,
                queue=queue,
                command=command or (),
            )
        ]
    with connect(kubeconfig, context) as cluster:
        made = []
        for job in jobs:
            where = namespace or job["metadata"].get("namespace") or cluster.access.namespace
            made.append(cluster.create(JOBS, job, where))
            note(f"job {where}/{made[-1]['metadata']['name']} created", quiet=quiet or output is not Format.TABLE)
    if output is not Format.TABLE:
        write_data(made if filename else made[0], output)


@app.command("list")
def list_(
    queue: Annotated[str, typer.Option("--queue", "-q", help="List only jobs of this queue.")] = "",
    phase: Annotated[str, typer.Option("--phase", help="List only jobs in this phase, such as Pending.")] = "",
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List jobs, their phases and their pods."""
    from baton.cli.cluster import workloads
    from baton.model.names import JobPhase
    from baton.model.volcano import JOBS

    if phase and phase.capitalize() not in list(JobPhase):
        raise UsageError(f"--phase is {phase!r}, expected one of {', '.join(JobPhase)}")
    with connect(kubeconfig, context) as cluster:
        where = None if all_namespaces else namespace or cluster.access.namespace
        jobs = [
            job
            for job in cluster.list(JOBS, where)
            if (not queue or job.get("spec", {}).get("queue", "default") == queue)
            and (not phase or workloads.phase_of(job) == phase.capitalize())
        ]
    if output is not Format.TABLE:
        write_data(jobs, output)
        return
    if not jobs:
        note(f"no jobs found in {place(where)}")
        return
    columns = ("name", "queue", "phase", "type", "replicas", "min", "pending", "running", "succeeded", "failed",
               "unknown", "retries", "age")  # fmt: skip
    write_table(
        ("namespace", *columns) if all_namespaces else columns,
        ([job["metadata"]["namespace"], *_row(job)] if all_namespaces else _row(job) for job in jobs),
    )


def _row(job: "Object") -> list[str]:
    from baton.cli.cluster import workloads

    status, spec = job.get("status", {}), job.get("spec", {})
    counts = [str(status.get(key, 0)) for key in ("pending", "running", "succeeded", "failed", "unknown", "retryCount")]
    return [
        job["metadata"]["name"],
        spec.get("queue", "default"),
        workloads.phase_of(job) or "-",
        workloads.type_of(job),
        str(workloads.replicas_of(job)),
        str(spec.get("minAvailable", 0)),
        *counts,
        workloads.age(job["metadata"].get("creationTimestamp")),
    ]


@app.command()
def view(
    name: JobName,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a job with its tasks, pods and events."""
    from baton.cli.cluster import workloads
    from baton.model.core import PODS
    from baton.model.names import JOB_NAME, JobPhase
    from baton.model.volcano import JOBS

    with connect(kubeconfig, context) as cluster:
        where = namespace or cluster.access.namespace
        job = cluster.get(JOBS, name, where)
        if output is not Format.TABLE:
            write_data(job, output)
            return
        pods = cluster.table(PODS, where, label_selector=f"{JOB_NAME}={name}")
        events = _events(cluster, job)
    spec, state = job.get("spec", {}), job.get("status", {}).get("state", {})
    facts = [
        ("job", f"{where}/{name}"),
        ("queue", spec.get("queue", "default")),
        ("phase", workloads.phase_of(job) or "not seen by a controller yet"),
        ("reason", " ".join(filter(None, (state.get("reason"), state.get("message"))))),
        ("starts with", f"{spec.get('minAvailable', 0)} of {workloads.replicas_of(job)} pods"),
        ("priority", spec.get("priorityClassName", "")),
        ("plugins", ", ".join(sorted(spec.get("plugins") or {}))),
        ("age", workloads.age(job["metadata"].get("creationTimestamp"))),
    ]
    for word, value in facts:
        if value:
            typer.echo(f"{word + ':':<13}{value}")
    typer.echo()
    write_table(("task", "replicas", "min", "image", "limits"), (_task_row(task) for task in spec.get("tasks") or []))
    if pods.rows:
        typer.echo()
        columns = ("Name", "Ready", "Status", "Restarts", "Age", "Node")
        write_table(
            tuple("pod" if column == "Name" else column for column in columns),
            ([pods.cell(row, column) for column in columns] for row in pods.rows),
        )
    if events:
        typer.echo()
        write_table(("age", "event", "message"), events)
    if workloads.phase_of(job) in ("", JobPhase.PENDING):
        note(f"run `baton why -n {where} {name}` to see what the job waits for")


def _task_row(task: "Object") -> list[str]:
    from rich.markup import escape

    containers: list[Any] = task.get("template", {}).get("spec", {}).get("containers") or []
    limits = sorted(
        {f"{key}={value}" for c in containers for key, value in (c.get("resources", {}).get("limits") or {}).items()}
    )
    return [
        task.get("name", ""),
        str(task.get("replicas", 0)),
        str(task.get("minAvailable", task.get("replicas", 0))),
        escape(", ".join(str(c.get("image", "")) for c in containers)),
        ", ".join(limits) or "none",
    ]


def _events(cluster: "Cluster", job: "Object") -> list[list[str]]:
    """The events of the job and of its pod group, oldest first."""
    from rich.markup import escape

    from baton.cli.cluster import workloads
    from baton.model.meta import EVENTS

    metadata = job["metadata"]
    names = {metadata["name"], f"{metadata['name']}-{metadata['uid']}"}
    found = [
        event
        for event in cluster.list(EVENTS, metadata["namespace"])
        if event.get("involvedObject", {}).get("name") in names
        and event["involvedObject"].get("kind") in ("Job", "PodGroup")
    ]
    found.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return [
        [
            workloads.age(event.get("lastTimestamp") or event.get("eventTime")),
            event.get("reason", ""),
            escape(event.get("message", "")),
        ]
        for event in found
    ]


@app.command()
def suspend(
    name: JobName,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    quiet: QuietOption = False,
) -> None:
    """Suspend a job: its pods end, and it can be resumed later."""
    _order(name, "AbortJob", "will be suspended", namespace, kubeconfig, context, quiet=quiet)


@app.command()
def resume(
    name: JobName,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    quiet: QuietOption = False,
) -> None:
    """Resume a suspended job."""
    _order(name, "ResumeJob", "will be resumed", namespace, kubeconfig, context, quiet=quiet)


def _order(
    name: str,
    action: str,
    words: str,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    *,
    quiet: bool,
) -> None:
    from baton.cli.cluster import workloads
    from baton.model.volcano import BATCH, COMMANDS, JOBS

    with connect(kubeconfig, context) as cluster:
        where = namespace or cluster.access.namespace
        job = cluster.get(JOBS, name, where)
        cluster.create(COMMANDS, workloads.command_object(job, BATCH, "Job", action), where)
    note(f"job {where}/{name} {words}", quiet=quiet)


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the jobs.", show_default=False)],
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    quiet: QuietOption = False,
) -> None:
    """Delete jobs and everything that belongs to them."""
    from baton.model.volcano import JOBS

    with connect(kubeconfig, context) as cluster:
        where = namespace or cluster.access.namespace
        for name in names:
            cluster.delete(JOBS, name, where)
            note(f"job {where}/{name} deleted", quiet=quiet)
