"""The report of a simulation as one HTML file: its inputs, a table and plots.

The file is self-contained (inline styles, plots as inline SVG, no script, no external resources), so that it can be
mailed or archived. It follows the reader's light or dark setting and prints well.
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources

from baton import __version__
from baton.sim.fill.filling import FillResult
from baton.sim.plots import Bar, Series, bar_chart, line_chart
from baton.sim.run.metrics import Summary


def run_report(summaries: Sequence[Summary], asked: Mapping[str, str]) -> str:
    """The report of one or more runs; the plots show the first seed of each policy."""
    drawn = list({summary.policy: summary for summary in reversed(summaries)}.values())[::-1]
    share = [number / 100 for number in range(101)]
    plots = [
        bar_chart(
            "Mean job completion time",
            [Bar(summary.policy, summary.jct_s.mean / 3600) for summary in drawn],
            y_label="hours",
        ),
        bar_chart("Mean wait", [Bar(summary.policy, summary.wait_s.mean / 3600) for summary in drawn], y_label="hours"),
        line_chart(
            "Completion times",
            [Series(summary.policy, summary.jct_quantiles_s, share) for summary in drawn],
            x_label="seconds (logarithmic)",
            y_label="fraction of jobs completed within",
            log_x=True,
        ),
        line_chart(
            "Waits",
            [Series(summary.policy, [max(1.0, wait) for wait in summary.wait_quantiles_s], share) for summary in drawn],
            x_label="seconds (logarithmic, at least 1)",
            y_label="fraction of jobs that wait at most",
            log_x=True,
        ),
        *(
            line_chart(
                title,
                [Series(s.policy, s.curve.time_h, [scale * value for value in getattr(s.curve, field)]) for s in drawn],
                x_label="hours since the first submission",
                y_label=unit,
            )
            for title, field, unit, scale in (
                ("Cards in use", "utilisation", "% of capacity", 100),
                ("Jobs waiting", "pending", "jobs", 1),
                ("Free capacity that typical jobs cannot use", "fragmentation", "% of capacity", 100),
            )
        ),
    ]
    sections = [
        _section("Policies", _table(RUN_COLUMNS, [run_row(summary) for summary in summaries])),
        f'<h2>Plots</h2><div class="plots">{"".join(f"<div>{plot}</div>" for plot in plots)}</div>',
    ]
    for summary in drawn:
        rows = [
            (
                tenant.name,
                f"{tenant.jobs:,}",
                f"{tenant.gpu_hours:,.0f}",
                duration(tenant.jct_s),
                duration(tenant.wait_s),
                f"{tenant.slowdown:,.1f}",
                f"{tenant.finish_time_fairness:.2f}",
            )
            for tenant in summary.tenants
        ]
        columns = ("tenant", "jobs", "GPU hours", "mean JCT", "mean wait", "slowdown", "finish-time fairness")
        sections.append(_section(f"Tenants under {summary.policy}", _table(columns, rows)))
        if summary.impossible or summary.unfinished:
            lost = [("cannot fit the cluster", summary.impossible), ("did not finish", summary.unfinished)]
            text = "; ".join(
                f"{why}: {', '.join(names[:10])}{' …' if len(names) > 10 else ''}" for why, names in lost if names
            )
            sections.append(f"<p>{escape(text)}</p>")
    return _page("Simulation of scheduling policies", asked, sections)


def fill_report(results: Sequence[FillResult], asked: Mapping[str, str]) -> str:
    """The report of a fill: allocation and fragmentation over the arrived demand, as means over the seeds."""
    policies = list(dict.fromkeys(result.policy for result in results))
    curves = {policy: mean_curves([result for result in results if result.policy == policy]) for policy in policies}

    def chart(title: str, place: int, y_label: str, start: int = 0) -> str:
        series = [
            Series(policy, range(start, len(curves[policy][place])), curves[policy][place][start:])
            for policy in policies
        ]
        label = "arrived demand, % of capacity"
        return line_chart(title, series, x_label=label, y_label=y_label, y_from_zero=not start)

    plots = (
        chart("Allocated", 0, "% of capacity"),
        chart("Allocated, from 80 % of demand", 0, "% of capacity", start=80),
        chart("Fragmented", 1, "% of capacity"),
        chart("Fragmented part of the free capacity", 2, "% of free capacity"),
    )
    sections = [
        _section("Policies", _table(FILL_COLUMNS, fill_rows(results))),
        f'<h2>Plots</h2><div class="plots">{"".join(f"<div>{plot}</div>" for plot in plots)}</div>',
    ]
    return _page("Simulation of filling a cluster", asked, sections)


FILL_POINTS = (90, 95, 100, 130)
FILL_COLUMNS = (
    "policy",
    "seeds",
    *(f"allocated at {at} %" for at in FILL_POINTS),
    "fragmented at 100 %",
    "pods dropped",
)
RUN_COLUMNS = (
    "policy",
    "seed",
    "mean JCT",
    "p95 JCT",
    "mean wait",
    "p95 wait",
    "max wait",
    "slowdown p95",
    "GPU use",
    "preempted",
    "Jain",
    "fairness p95",
    "unfinished",
)


def run_row(summary: Summary) -> tuple[str, ...]:
    """One run as a row of the table, on the terminal and in the report."""
    return (
        summary.policy,
        str(summary.seed),
        duration(summary.jct_s.mean),
        duration(summary.jct_s.p95),
        duration(summary.wait_s.mean),
        duration(summary.wait_s.p95),
        duration(summary.wait_s.max),
        f"{summary.slowdown.p95:,.1f}",
        f"{100 * summary.busy_utilisation:.1f} %",
        f"{summary.preemptions:,}",
        f"{summary.jain:.2f}",
        f"{summary.finish_time_fairness.p95:.2f}",
        f"{len(summary.unfinished) + len(summary.impossible):,}",
    )


def fill_rows(results: Sequence[FillResult]) -> list[tuple[str, ...]]:
    """One row per policy, with means over its seeds."""
    rows = []
    for policy in dict.fromkeys(result.policy for result in results):
        mine = [result for result in results if result.policy == policy]
        allocated, fragmented, _ = mean_curves(mine)
        rows.append(
            (
                policy,
                str(len(mine)),
                *(f"{allocated[at]:.2f}" if at < len(allocated) else "" for at in FILL_POINTS),
                f"{fragmented[100]:.2f}" if len(fragmented) > 100 else "",
                f"{sum(result.failed for result in mine) / len(mine):,.0f}",
            )
        )
    return rows


def mean_curves(results: Sequence[FillResult]) -> tuple[list[float], list[float], list[float]]:
    """Means over seeds, up to the demand that every seed reached."""
    allocated, fragmented, of_free = (
        [sum(values) / len(values) for values in zip(*curves, strict=False)]
        for curves in (
            [result.allocated_percent for result in results],
            [result.fragmented_percent for result in results],
            [result.fragmented_percent_of_free for result in results],
        )
    )
    return allocated, fragmented, of_free


def duration(seconds: float) -> str:
    """A duration for people: 45 s, 12.5 min, 3.2 h, 12.0 d."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5_400:
        return f"{seconds / 60:.1f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} d"


def _section(title: str, body: str) -> str:
    return f'<h2>{escape(title)}</h2><div class="wide">{body}</div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _page(title: str, asked: Mapping[str, str], sections: Sequence[str]) -> str:
    style = resources.files("baton.sim").joinpath("report.css").read_text(encoding="utf-8")
    facts = " · ".join(f"{escape(key)}: {escape(value)}" for key, value in asked.items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head><body><h1>{escape(title)}</h1><p>{facts}</p>"
        f"{''.join(sections)}<p>Baton {escape(__version__)}</p></body></html>\n"
    )
