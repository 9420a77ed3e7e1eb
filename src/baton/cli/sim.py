"""`baton sim`: replays traces through the scheduler and reports how policies compare."""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import typer

from baton.cli.output import Format, FormatOption, QuietOption, command_app, note, write_data, write_table
from baton.cli.progress import progress_bar
from baton.errors import BatonError, UsageError

app = command_app(help="Replay a trace of jobs through the scheduler and compare policies.")

_JOBS = 1000


TraceArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Job trace: openb, Philly, Muri, Tiresias, or Baton's CSV or JSON lines. Defaults to a generated trace."
    ),
]
GpusOption = Annotated[
    int, typer.Option("--gpus", min=1, help="Cards in the uniform cluster that is used without a node list.")
]
PerNodeOption = Annotated[int, typer.Option("--cards-per-node", min=1, help="Cards per node of the uniform cluster.")]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Number of jobs to generate (default 1000), or to read from a given trace."),
]
LoadOption = Annotated[float, typer.Option("--load", help="Demand of a generated trace divided by the capacity.")]
FractionsOption = Annotated[
    float, typer.Option("--fractions", help="Fraction of one-card jobs that ask for a share of a card.")
]
HtmlOption = Annotated[Path | None, typer.Option("--html", help="Write a report with plots to this file.")]
ProcessesOption = Annotated[
    int | None, typer.Option("--processes", "-j", min=1, help="Number of parallel runs. Defaults to the cores.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Random seed.")]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds to run, starting with --seed.")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that `run` and `compare` share: cluster, trace, behaviour and output."""

    nodes: Annotated[
        Path | None, typer.Option("--nodes", help="Node list: openb, or Baton's own CSV or JSON lines.")
    ] = None
    state: Annotated[
        Path | None,
        typer.Option("--state", help="Recorded cluster state from `baton state dump`; its running pods stay."),
    ] = None
    gpus: GpusOption = 64
    cards_per_node: PerNodeOption = 8
    jobs: JobsOption = None
    load: LoadOption = 1.0
    fractions: FractionsOption = 0.0
    seed: SeedOption = 42
    restart_s: Annotated[
        float, typer.Option("--restart-s", min=0, help="Card time that a stopped job needs before it continues.")
    ] = 60.0
    checkpoint_s: Annotated[
        float, typer.Option("--checkpoint-s", min=0, help="How often jobs save their progress.")
    ] = 1800.0
    cycle_s: Annotated[float, typer.Option("--cycle-s", min=0, help="Minimum time between two decisions.")] = 0.0
    slots: Annotated[int, typer.Option("--slots", min=1, help="Number of jobs that time-share one card.")] = 1
    quantum_s: Annotated[
        float,
        typer.Option("--quantum-s", min=0.1, help="Turn of each job on a card whose memory is oversubscribed."),
    ] = 30.0
    no_lock: Annotated[
        bool, typer.Option("--no-lock", help="Let oversubscribed cards thrash; jobs do not take turns.")
    ] = False
    node_mtbf_h: Annotated[
        float, typer.Option("--node-mtbf-h", min=0, help="Mean hours between failures of a node; 0 for no failures.")
    ] = 0.0
    node_repair_h: Annotated[
        float, typer.Option("--node-repair-h", min=0.01, help="Hours until a failed node returns.")
    ] = 1.0
    queues: Annotated[
        bool, typer.Option("--queues", help="Use the queues of the trace instead of one queue for all jobs.")
    ] = False
    visible: Annotated[
        int,
        typer.Option("--visible", min=0, help="Waiting jobs of one shape that the engine considers; 0 for all."),
    ] = 8
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", metavar="FILE", help="Python file with your own scheduling plugin; may be repeated."),
    ] = None
    html: HtmlOption = None
    output: FormatOption = Format.TABLE
    quiet: QuietOption = False


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option to the command for every field of `RunOptions`, which it receives as its argument `options`."""
    hints = get_type_hints(RunOptions, include_extras=True)
    own = [item for item in inspect.signature(command).parameters.values() if item.name != "options"]
    shared = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[item.name])
        for item in fields(RunOptions)
    ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        options = RunOptions(**{item.name: given.pop(item.name) for item in fields(RunOptions)})
        command(**given, options=options)

    parameters = [*(item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own), *shared]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it; functions have it
    called.__annotations__ = {item.name: item.annotation for item in parameters}
    return called


@app.command()
@with_run_options
def run(
    *,
    trace: TraceArgument = None,
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="Name of a policy, or a scheduler configuration file.")
    ] = "fifo",
    options: RunOptions,
) -> None:
    """Replay a trace under one policy."""
    _compare(trace, [policy], options, seeds=1, processes=1)


@app.command()
@with_run_options
def compare(
    *,
    trace: TraceArgument = None,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="Name of a policy, or a scheduler configuration file; repeatable."),
    ] = None,
    seeds: SeedsOption = 1,
    processes: ProcessesOption = None,
    options: RunOptions,
) -> None:
    """Replay a trace under several policies, over several seeds, on all cores.

    The seed affects generated traces and node failures; a given trace without failures runs the same with every seed.
    """
    from baton.sim.scheduling_policies import POLICIES

    _compare(trace, policies or list(POLICIES), options, seeds=seeds, processes=processes)


def _compare(
    trace: Path | None, policies: list[str], options: RunOptions, *, seeds: int, processes: int | None
) -> None:
    from baton.sim.parallel import in_parallel
    from baton.sim.report import RUN_COLUMNS, run_report, run_row
    from baton.sim.run.settings import Settings
    from baton.sim.run.sharing import SharingModel
    from baton.sim.scheduling_policies import named_policy
    from baton.sim.study import Study, simulate
    from baton.sim.traces.synthetic import SyntheticSettings

    _check_writable(options.html)
    chosen = [named_policy(name, options.plugin or ()) for name in dict.fromkeys(policies)]
    for policy in chosen:
        for warning in policy.parsed().warnings:
            note(warning, quiet=options.quiet)
    if options.queues:
        chosen = [msgspec.structs.replace(policy, trace_queues=True) for policy in chosen]
    settings = Settings(
        restart_s=options.restart_s,
        checkpoint_s=options.checkpoint_s,
        cycle_s=options.cycle_s,
        visible_per_shape=options.visible,
        slots_per_card=options.slots,
        enforce_memory=options.slots == 1,
        sharing=SharingModel(lock=not options.no_lock, quantum_s=options.quantum_s),
        node_mtbf_s=options.node_mtbf_h * 3600,
        node_repair_s=options.node_repair_h * 3600,
    )
    made_up = SyntheticSettings(
        jobs=options.jobs or _JOBS,
        gpus=options.gpus,
        load=options.load,
        fractions=options.fractions,
        cards_per_node=options.cards_per_node,
    )
    study = Study.read(
        trace=trace,
        nodes=options.nodes,
        state=options.state,
        first_jobs=options.jobs,
        gpus=options.gpus,
        cards_per_node=options.cards_per_node,
        made_up=made_up,
        settings=settings,
    )
    for sentence in study.remarks:
        note(sentence, quiet=options.quiet)
    tasks = [(policy, options.seed + offset) for policy in chosen for offset in range(seeds)]
    with progress_bar("runs", quiet=options.quiet) as progress:
        if len(tasks) == 1:
            summaries = [simulate(study, tasks[0], progress)]
        else:
            summaries = in_parallel(simulate, study, tasks, processes=processes, progress=progress)
    if options.html is not None:
        options.html.write_text(run_report(summaries, study.described()), encoding="utf-8")
        note(f"report: {options.html}", quiet=options.quiet)
    if options.output is not Format.TABLE:
        write_data(summaries, options.output)
        return
    write_table(RUN_COLUMNS, [run_row(summary) for summary in summaries])
    for summary in summaries:
        for names, why in (
            (summary.impossible, "cannot fit the cluster"),
            (summary.unfinished, "did not finish"),
        ):
            if names:
                shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
                note(f"{summary.policy}: {len(names):,} jobs {why}: {shown}", quiet=options.quiet)


@app.command()
def fill(
    pods: Annotated[Path, typer.Argument(help="Pod list: openb, or Baton's own format.")],
    nodes: Annotated[Path, typer.Argument(help="Node list: openb, or Baton's own format.")],
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="random, dotprod, clustering, packing, bestfit or fgd; repeatable."),
    ] = None,
    seed: SeedOption = 42,
    seeds: SeedsOption = 1,
    load: Annotated[float, typer.Option("--load", help="Demand that arrives, divided by the capacity.")] = 1.3,
    processes: ProcessesOption = None,
    html: HtmlOption = None,
    output: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Fill a cluster with pods and compare how much each placement policy allocates.

    This is the test of the FGD study: pods never leave, and a pod that does not fit is dropped.
    """
    from baton.sim.fill.filling import fill_task
    from baton.sim.fill.placement import POLICIES
    from baton.sim.parallel import in_parallel
    from baton.sim.report import FILL_COLUMNS, fill_report, fill_rows
    from baton.sim.traces.readers import read_jobs, read_nodes
    from baton.sim.traces.workload import skipped_rows

    _check_writable(html)
    chosen = policies or list(POLICIES)
    for name in chosen:
        if name not in POLICIES:
            raise UsageError(f"no fill policy {name!r}; there are {', '.join(POLICIES)}")
    if not 0 < load < 100:
        raise UsageError(f"--load is {load}, expected more than 0 and less than 100")
    trace = read_jobs(pods)
    found, skipped = read_nodes(nodes)
    note(trace.report(), quiet=quiet)
    if skipped:
        note(f"{nodes}: {skipped_rows(skipped)}", quiet=quiet)
    tasks = [(policy, seed + offset, load) for policy in chosen for offset in range(seeds)]
    with progress_bar("fills", quiet=quiet) as progress:
        results = in_parallel(fill_task, (trace.jobs, found), tasks, processes=processes, progress=progress)
    if html is not None:
        asked = {"pods": str(pods), "nodes": f"{len(found):,}", "seeds": f"{seeds} from {seed}", "load": f"{load:g}"}
        html.write_text(fill_report(results, asked), encoding="utf-8")
        note(f"report: {html}", quiet=quiet)
    if output is not Format.TABLE:
        write_data(results, output)
    else:
        write_table(FILL_COLUMNS, fill_rows(results))


@app.command()
def generate(
    to: Annotated[
        Path | None,
        typer.Argument(help="File to write (.csv or .jsonl, optionally .gz). Defaults to CSV on standard output."),
    ] = None,
    jobs: JobsOption = None,
    gpus: GpusOption = 64,
    load: LoadOption = 1.0,
    tenants: Annotated[int, typer.Option("--tenants", min=1, help="Number of tenants that submit jobs.")] = 5,
    fractions: FractionsOption = 0.0,
    median_s: Annotated[float, typer.Option("--median-s", help="Median duration of a job.")] = 1800.0,
    cards_per_node: PerNodeOption = 8,
    seed: SeedOption = 42,
    quiet: QuietOption = False,
) -> None:
    """Generate a trace that resembles public ones, in Baton's own format."""
    from baton.sim.traces.readers import format_jobs
    from baton.sim.traces.synthetic import SyntheticSettings
    from baton.sim.traces.synthetic import generate as make_up

    settings = SyntheticSettings(
        jobs=jobs or _JOBS,
        gpus=gpus,
        load=load,
        tenants=tenants,
        fractions=fractions,
        median_s=median_s,
        cards_per_node=cards_per_node,
        seed=seed,
    )
    if to is None:
        sys.stdout.write(format_jobs(make_up(settings), json_lines=False).decode())
        return
    _check_writable(to)
    made = make_up(settings)
    data = format_jobs(made, json_lines=to.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")))
    if to.suffix == ".gz":
        import gzip

        data = gzip.compress(data, mtime=0)
    to.write_bytes(data)
    note(f"{to}: {len(made):,} jobs", quiet=quiet)


def _check_writable(path: Path | None) -> None:
    """Refuse an unwritable path before hours of work, not after."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name a file")
    folder = path.parent
    if not folder.is_dir():
        raise BatonError(f"{path} cannot be written: there is no directory {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise BatonError(f"{path} cannot be written: permission denied")
