"""Charts and reports are well-formed and self-contained, and contain the results."""

import re
import xml.etree.ElementTree as ET

import pytest

from baton.sim.fill.filling import fill
from baton.sim.plots import Bar, Series, bar_chart, compact, line_chart
from baton.sim.report import RUN_COLUMNS, duration, fill_report, fill_rows, run_report, run_row
from baton.sim.run.replay import Replay
from baton.sim.run.settings import Settings
from baton.sim.run.translation import engine_node
from baton.sim.scheduling_policies import POLICIES
from baton.sim.traces.synthetic import SyntheticSettings, generate
from baton.sim.traces.workload import TraceJob, uniform_cluster


def elements(svg: str, tag: str, css_class: str) -> list[ET.Element]:
    return [found for found in ET.fromstring(svg).iter(tag) if css_class in (found.get("class") or "").split()]


def test_a_line_chart_has_one_line_per_series_inside_its_frame() -> None:
    svg = line_chart("t", [Series("a", [0, 10], [0, 5]), Series("b", [0, 10], [5, 1])], x_label="x", y_label="y")
    lines = elements(svg, "polyline", "line")
    assert [line.findtext("title") for line in lines] == ["a", "b"]
    (start, end) = (tuple(map(float, point.split(","))) for point in (lines[0].get("points") or "").split())
    assert start == (64.0, 254.0), "the origin is the lower left corner"
    assert end == (544.0, 34.0), "the largest value is the upper right one"


def test_a_logarithmic_axis_omits_values_that_it_cannot_show() -> None:
    svg = line_chart("t", [Series("a", [0, 1, 100], [0, 1, 2])], x_label="x", y_label="y", log_x=True)
    (line,) = elements(svg, "polyline", "line")
    assert len((line.get("points") or "").split()) == 2


def test_charts_without_data_say_so() -> None:
    assert "no data" in line_chart("t", [Series("a", [], [])], x_label="x", y_label="y")
    assert "no data" in bar_chart("t", [], y_label="y")


def test_bars_show_their_value_and_their_reference() -> None:
    svg = bar_chart("t", [Bar("a", 1500, reference=1000)], y_label="y", reference_label="published")
    (bar,) = elements(svg, "rect", "bar")
    assert bar.findtext("title") == "a: 1.5k"
    assert [mark.findtext("title") for mark in elements(svg, "line", "reference")] == ["published 1k"]


def test_names_in_traces_are_escaped() -> None:
    svg = line_chart("<t>", [Series("<script>", [0, 1], [0, 1])], x_label="&", y_label="y")
    ET.fromstring(svg)
    assert "<script>" not in svg


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.25, "0.25"), (1500, "1.5k"), (2e7, "20M"), (3e9, "3G")])
def test_ticks_are_short(value: float, text: str) -> None:
    assert compact(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45 s"), (750, "12.5 min"), (11_520, "3.2 h"), (1_036_800, "12.0 d")]
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def assert_self_contained(page: str) -> None:
    assert not re.search(r"<script|<link|@import|url\(|https?://(?!www\.w3\.org)", page)
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)


def test_the_report_of_a_run_is_one_self_contained_page() -> None:
    jobs = generate(SyntheticSettings(jobs=40, gpus=8, load=1.5))
    nodes = [engine_node(node, 1) for node in uniform_cluster(8)]
    summaries = [Replay(jobs, nodes, POLICIES[name], Settings()).run() for name in ("fifo", "priority")]
    page = run_report(summaries, {"trace": "<generated>"})
    assert_self_contained(page)
    assert "&lt;generated&gt;" in page
    assert len(RUN_COLUMNS) == len(run_row(summaries[0]))
    for cell in run_row(summaries[0]):
        assert f"<td>{cell}</td>" in page
    assert "Tenants under priority" in page


def test_the_report_of_a_fill_has_every_policy() -> None:
    jobs = [TraceJob(name="a", cards=1, milli=600), TraceJob(name="b", cards=2)]
    results = [fill(jobs, uniform_cluster(32), policy, seed) for policy in ("fgd", "random") for seed in (1, 2)]
    page = fill_report(results, {})
    assert_self_contained(page)
    rows = fill_rows(results)
    assert [row[:2] for row in rows] == [("fgd", "2"), ("random", "2")]
    mean = (results[0].allocated_percent[100] + results[1].allocated_percent[100]) / 2
    assert rows[0][4] == f"{mean:.2f}"
