"""`baton demo`: the jobs of three tenants on two simulated GPUs, run in three ways side by side."""

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from baton.cli.output import Format, FormatOption, QuietOption, command_app, console, note, write_data, write_table
from baton.errors import one_failure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from baton.local.scenarios import Progress, Scenario

app = command_app()

_PROFILE = "p100-16"
_TIME_SCALE = 60.0
_PATIENCE_S = 35.0
"""Real seconds after which a way that thrashes is stopped and its makespan estimated."""
_REFRESH_HZ = 8

_TITLES = {
    "serial": "one after the other",
    "unmanaged": "all at once, unmanaged",
    "baton": "all at once, with Baton",
}


class Outcome(msgspec.Struct, frozen=True):
    """The result of one way. Times are modelled seconds."""

    way: str
    makespan_s: float
    estimated: bool
    speedup_over_serial: float
    fairness: float | None
    jobs: dict[str, float | None]


@app.command()
def demo(
    output: FormatOption = Format.TABLE,
    quiet: QuietOption = False,
    patience: Annotated[
        float,
        typer.Option(min=1, help="Real seconds after which a way that thrashes is stopped and its makespan estimated."),
    ] = _PATIENCE_S,
) -> None:
    """Run the same jobs one after the other, unmanaged, and with Baton, side by side.

    Four jobs of three tenants share two simulated GPUs with 16 GiB each. The two jobs on each GPU need more memory than
    it has. The demo takes less than a minute.
    """
    import time

    from baton.local.scenarios import Job, Scenario, Way

    jobs = [
        Job("alice", "alice-1", 0, 11),
        Job("bob", "bob-1", 0, 11),
        Job("alice", "alice-2", 1, 11),
        Job("carol", "carol-1", 1, 11),
    ]
    note(
        "Four jobs of three tenants share two simulated P100 GPUs with 16 GiB each.\n"
        "Each job needs 11 GiB and spends half of its time on the GPU.\n"
        f"Time runs {_TIME_SCALE:.0f} times faster than on a real GPU.\n",
        quiet=quiet,
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="baton-demo-") as folder:
        scenarios = [Scenario(way, jobs, Path(folder), profile=_PROFILE, time_scale=_TIME_SCALE) for way in Way]
        asyncio.run(_run(scenarios, patience, live=output is Format.TABLE and not quiet))
    outcomes = [_outcome(scenario.progress, scenarios[0].progress) for scenario in scenarios]
    if output is not Format.TABLE:
        write_data(outcomes, output)
        return
    _write(outcomes)
    note(
        f"\nThe demo took {time.monotonic() - started:.0f} s. Next, try `baton run -- your-program` and `baton top`.",
        quiet=quiet,
    )


async def _run(scenarios: "list[Scenario]", patience_s: float, *, live: bool) -> None:
    with one_failure():
        async with asyncio.TaskGroup() as group:
            for scenario in scenarios:
                group.create_task(_one(scenario, patience_s))
            if live:
                group.create_task(_show(scenarios))


async def _one(scenario: "Scenario", patience_s: float) -> None:
    async with scenario:
        try:
            async with asyncio.timeout(patience_s):
                await scenario.run()
        except TimeoutError:
            scenario.progress.stopped = True
            scenario.progress.ended_at = scenario.progress.elapsed_s()


async def _show(scenarios: "list[Scenario]") -> None:
    from rich.live import Live

    screen = console(stderr=True)
    if not screen.is_terminal:
        return
    with Live(console=screen, refresh_per_second=_REFRESH_HZ, transient=True) as display:
        while any(scenario.progress.ended_at is None for scenario in scenarios):
            display.update(_picture([scenario.progress for scenario in scenarios]))
            await asyncio.sleep(1 / _REFRESH_HZ)
        display.update(_picture([scenario.progress for scenario in scenarios]))


def _picture(ways: "list[Progress]") -> "RenderableType":
    from rich.columns import Columns
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    panels: list[Any] = []
    for way in ways:
        table = Table.grid(padding=(0, 1))
        for job in way.jobs:
            colour = "green" if job.finished_at is not None else "cyan"
            bar = ProgressBar(total=1.0, completed=job.fraction, width=18, complete_style=colour)
            table.add_row(f"GPU {job.job.card}", job.job.name, bar, f"{job.fraction:4.0%}")
        seconds = way.elapsed_s() * _TIME_SCALE if way.began else 0.0
        end = " (done)" if way.ended_at is not None and not way.stopped else ""
        panels.append(Panel(table, title=_TITLES[way.way], subtitle=f"{seconds:.0f} s{end}", width=48))
    return Columns(panels)


def _outcome(progress: "Progress", serial: "Progress") -> Outcome:
    def makespan_s(way: "Progress") -> float:
        return way.elapsed_s() * _TIME_SCALE / (max(way.fraction, 1e-9) if way.stopped else 1.0)

    return Outcome(
        way=progress.way,
        makespan_s=makespan_s(progress),
        estimated=progress.stopped,
        speedup_over_serial=makespan_s(serial) / makespan_s(progress),
        fairness=progress.fairness(),
        jobs={
            job.job.name: job.finished_at * _TIME_SCALE if job.finished_at is not None else None
            for job in progress.jobs
        },
    )


def _write(outcomes: list[Outcome]) -> None:
    rows = []
    for outcome in outcomes:
        about = "about " if outcome.estimated else ""
        fairness = f"{outcome.fairness:.2f}" if outcome.fairness is not None else "-"
        finished = "  ".join(f"{name} {f'{at:.0f}' if at is not None else '-'}" for name, at in outcome.jobs.items())
        rows.append(
            (
                _TITLES[outcome.way],
                f"{about}{outcome.makespan_s:.0f} s",
                f"{outcome.speedup_over_serial:.2f}x",
                fairness,
                finished,
            )
        )
    write_table(("way", "makespan", "against serial", "fairness", "jobs finished at (s)"), rows)
    if any(outcome.estimated for outcome in outcomes):
        note("about: stopped before the end because the jobs thrash; estimated from their progress")
    note("fairness: Jain's index of the tenants' progress when the first job finished; 1.00 is even")
