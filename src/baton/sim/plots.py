"""Line and bar charts as SVG text, so that a report needs no external script, font or library.

Colours come from the page's style sheet by class (`s0` to `s7`, a palette that colour-blind readers can distinguish);
lines also differ in their dashes. Every mark has a `<title>`, which browsers show on hover and screen readers speak.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 46
_SERIES_CLASSES = 8
_LEGEND_LINE_PX = 18


class Series(NamedTuple):
    """One line: its name and its points."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


class Bar(NamedTuple):
    """One bar, with an optional reference value to compare it with."""

    label: str
    value: float
    reference: float | None = None


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    y_from_zero: bool = True,
) -> str:
    """Lines over a common pair of axes."""
    drawn = [line for line in series if len(line.x)]
    if not drawn:
        return _frame(title, x_label, y_label, '<text class="empty" x="280" y="150">no data</text>')
    xs = [value for line in drawn for value in line.x if not log_x or value > 0]
    ys = [value for line in drawn for value in line.y]
    x_axis = _Axis(min(xs, default=1), max(xs, default=1), _LEFT, _WIDTH - _RIGHT, log=log_x, tight=True)
    low = 0.0 if y_from_zero else min(ys)
    y_axis = _Axis(low, max(ys), _HEIGHT - _BOTTOM, _TOP)
    parts = [x_axis.grid_x(), y_axis.grid_y()]
    for number, line in enumerate(drawn):
        points = " ".join(
            f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in zip(line.x, line.y, strict=True) if not log_x or x > 0
        )
        name = escape(line.label)
        parts.append(
            f'<polyline class="line s{number % _SERIES_CLASSES}" points="{points}"><title>{name}</title></polyline>'
        )
    legend, legend_px = _legend([line.label for line in drawn])
    parts.append(legend)
    return _frame(title, x_label, y_label, "".join(parts), legend_px)


def bar_chart(title: str, bars: Sequence[Bar], *, y_label: str, reference_label: str = "") -> str:
    """Bars side by side, each with its value; a reference value is a line across its bar."""
    if not bars:
        return _frame(title, "", y_label, '<text class="empty" x="280" y="150">no data</text>')
    highest = max(max(bar.value, bar.reference or 0.0) for bar in bars)
    axis = _Axis(0.0, highest, _HEIGHT - _BOTTOM, _TOP)
    slot = (_WIDTH - _LEFT - _RIGHT) / len(bars)
    width = slot * 0.62
    parts = [axis.grid_y()]
    for number, bar in enumerate(bars):
        left = _LEFT + slot * number + (slot - width) / 2
        top = axis.at(bar.value)
        middle = left + width / 2
        name, value = escape(bar.label), compact(bar.value)
        parts.append(
            f'<rect class="bar s{number % _SERIES_CLASSES}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{max(0.0, _HEIGHT - _BOTTOM - top):.1f}"><title>{name}: {value}</title></rect>'
            f'<text class="tick mid" x="{middle:.1f}" y="{top - 4:.1f}">{value}</text>'
        )
        if bar.reference is not None:
            level = axis.at(bar.reference)
            parts.append(
                f'<line class="reference" x1="{left - 4:.1f}" x2="{left + width + 4:.1f}" '
                f'y1="{level:.1f}" y2="{level:.1f}">'
                f"<title>{escape(reference_label)} {compact(bar.reference)}</title></line>"
            )
        parts.append(f'<text class="tick mid" x="{middle:.1f}" y="{_HEIGHT - _BOTTOM + 15}">{name}</text>')
    return _frame(title, reference_label and f"line: {reference_label}", y_label, "".join(parts))


class _Axis:
    """Values to pixels, with round ticks."""

    def __init__(
        self, low: float, high: float, start_px: float, end_px: float, *, log: bool = False, tight: bool = False
    ) -> None:
        self.log = log
        self.start_px, self.end_px = start_px, end_px
        if log:
            self.low, self.high = math.log10(low), math.log10(high)
            if self.high - self.low < 0.1:
                self.low, self.high = self.low - 0.5, self.high + 0.5
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            step = max(1, math.ceil((last - first) / 8))
            self.ticks = [10.0**power for power in range(first, last + 1, step)]
        else:
            if high <= low:
                high = low + (abs(low) or 1.0)
            step_size = _nice((high - low) / 5)
            first, last = math.floor(low / step_size + 1e-9), math.ceil(high / step_size - 1e-9)
            self.low, self.high = (low, high) if tight else (first * step_size, last * step_size)
            ticks = [number * step_size for number in range(first, last + 1)]
            self.ticks = [tick for tick in ticks if self.low - 1e-9 <= tick <= self.high + 1e-9]

    def at(self, value: float) -> float:
        position = math.log10(value) if self.log else value
        return self.start_px + (position - self.low) / (self.high - self.low) * (self.end_px - self.start_px)

    def grid_x(self) -> str:
        bottom = _HEIGHT - _BOTTOM
        return "".join(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
            f'<text class="tick mid" x="{x:.1f}" y="{bottom + 15}">{compact(tick)}</text>'
            for tick in self.ticks
            for x in (self.at(tick),)
        )

    def grid_y(self) -> str:
        return "".join(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{compact(tick)}</text>'
            for tick in self.ticks
            for y in (self.at(tick),)
        )


def compact(value: float) -> str:
    """A number short enough for a tick: 1.5k, 20M, 0.25."""
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}" if size >= 1e-9 else "0"


def _nice(step: float) -> float:
    scale = 10.0 ** math.floor(math.log10(step))
    return next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= step - 1e-12 * scale)


def _legend(labels: Sequence[str]) -> tuple[str, float]:
    """The legend below the axis, spaced by the length of each label, and its height."""
    parts, x = [], float(_LEFT)
    y = _HEIGHT + 2.0
    for number, label in enumerate(labels):
        width = 30 + 6.6 * len(label)
        if x + width > _WIDTH and x > _LEFT:
            x, y = float(_LEFT), y + _LEGEND_LINE_PX
        parts.append(
            f'<line class="line s{number % _SERIES_CLASSES}" x1="{x:.0f}" x2="{x + 18:.0f}" y1="{y:.0f}" y2="{y:.0f}"/>'
            f'<text class="tick" x="{x + 23:.0f}" y="{y + 4:.0f}">{escape(label)}</text>'
        )
        x += width + 8
    return "".join(parts), y + 10 - _HEIGHT


def _frame(title: str, x_label: str, y_label: str, body: str, legend_px: float = 0.0) -> str:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    height = round(_HEIGHT + legend_px)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f'<text class="heading" x="{_LEFT}" y="18">{escape(title)}</text>'
        f'<text class="label mid" x="{middle:.0f}" y="{_HEIGHT - 12}">{escape(x_label)}</text>'
        f'<text class="label mid" transform="translate(14 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)">'
        f"{escape(y_label)}</text>{body}</svg>"
    )
