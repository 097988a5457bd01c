"""Render charts as SVG from plain data.

CSS classes define the colours, so that charts are readable on light and dark pages. Axis labels are
horizontal and include the unit. The legend is HTML outside the SVG, so that the legend can wrap and
never covers the chart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal

from trtllm_serve_cli.bench.report.scales import Scale, write_number

Point = tuple[float, float]
Style = Literal["line", "steps", "bars", "dots", "area"]

NUM_COLOURS = 8
_TOP, _RIGHT, _BOTTOM = 26, 14, 40
_LETTER = 6.6
_LINE = 15


@dataclass(frozen=True, slots=True)
class Axis:
    """A chart axis with about `max_ticks` ticks. The `label` includes the unit."""

    label: str
    scale: Scale
    max_ticks: int = 6


@dataclass(frozen=True, slots=True)
class Series:
    """A series of points.

    Lines connect the points in the order of `points`. In the `steps` and `area` styles, the line
    keeps the value of each point until the next point. The `area` style also fills the area below
    the line. In the `bars` style, a bar extends from each point to the next point, and the last
    point only ends the last bar. `names` contains a label for each point, or is empty. `colour` is
    the zero-based index of the series' colour.
    """

    label: str
    points: Sequence[Point]
    style: Style = "line"
    colour: int = 0
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on the x axis, for example the limit of an objective.

    The chart shows a vertical line at `value` if the x axis includes this value. The legend omits
    limits without a label.
    """

    label: str
    value: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its axes, series and limits.

    `left` is the width of the left margin, which contains the y axis labels. `width`, `height` and
    `left` are in pixels.
    """

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    width: int = 420
    height: int = 260
    left: int = 52
    limits: Sequence[Limit] = ()
    note: str = ""


def render_figure(chart: Chart, *variants: Chart) -> str:
    """Render the chart as an HTML figure with a legend.

    `variants` are wider versions of the same chart. Wide pages display `variants` instead of
    `chart`.
    """
    narrow, wide = (render_svg(chart), "".join(render_svg(each) for each in variants))
    picture = f'<div class="narrow">{narrow}</div><div class="wide">{wide}</div>'
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{_legend(chart)}"
        f"{picture if variants else narrow}{note}</figure>"
    )


def render_svg(chart: Chart) -> str:
    """Render the chart as an SVG element without a legend."""
    frame, scale = _Frame(chart), chart.x.scale
    parts = [
        f'<svg viewBox="0 0 {chart.width} {chart.height}" role="img" '
        f'aria-label="{escape(chart.title)}" xmlns="http://www.w3.org/2000/svg">',
        *_draw_axes(frame),
        *(_draw_limit(frame, limit) for limit in chart.limits if scale.holds(limit.value)),
        *(_draw_series(frame, series) for series in chart.series),
        *_write_names(frame),
        "</svg>",
    ]
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Frame:
    chart: Chart

    @property
    def right(self) -> float:
        return self.chart.width - _RIGHT

    @property
    def bottom(self) -> float:
        return self.chart.height - _BOTTOM

    def x(self, value: float) -> float:
        left = self.chart.left
        return round(left + self.chart.x.scale.place(value) * (self.right - left), 1)

    def y(self, value: float) -> float:
        return round(self.bottom - self.chart.y.scale.place(value) * (self.bottom - _TOP), 1)


def _legend(chart: Chart) -> str:
    entries = [
        (f"c{each.colour % NUM_COLOURS}", each.label) for each in chart.series if each.label
    ] + [
        ("limit", limit.label)
        for limit in chart.limits
        if limit.label and chart.x.scale.holds(limit.value)
    ]
    items = "".join(f'<li class="{kind}"><i></i>{escape(label)}</li>' for kind, label in entries)
    return f'<ul class="legend">{items}</ul>' if items else ""


def _draw_axes(frame: _Frame) -> Iterable[str]:
    chart = frame.chart
    for tick in chart.y.scale.ticks(chart.y.max_ticks):
        y = frame.y(tick)
        yield f'<line class="grid" x1="{chart.left}" x2="{frame.right}" y1="{y}" y2="{y}"/>'
        yield _text(write_number(tick), chart.left - 6, y + 4, "end")
    for tick in _without_overlaps(frame, chart.x.scale.ticks(chart.x.max_ticks)):
        x = frame.x(tick)
        yield f'<line class="tick" x1="{x}" x2="{x}" y1="{frame.bottom}" y2="{frame.bottom + 4}"/>'
        yield _text(write_number(tick), x, frame.bottom + 17, _anchor(frame, x, tick))
    yield (
        f'<line class="axis" x1="{chart.left}" x2="{frame.right}" '
        f'y1="{frame.bottom}" y2="{frame.bottom}"/>'
    )
    yield _text(chart.y.label, 4, 14, "start", "label")
    yield _text(chart.x.label, frame.right, chart.height - 6, "end", "label")


def _anchor(frame: _Frame, x: float, tick: float) -> str:
    """Return the SVG `text-anchor` of a tick label on the x axis.

    The result is `end` if a centred label would exceed the right edge, otherwise `middle`.
    """
    return "end" if x + len(write_number(tick)) * _LETTER / 2 > frame.chart.width else "middle"


def _without_overlaps(frame: _Frame, ticks: Sequence[float]) -> Iterable[float]:
    """Yield the ticks whose labels do not overlap the previous label."""
    free_x = 0.0
    for tick in ticks:
        half = len(write_number(tick)) * _LETTER / 2
        if frame.x(tick) - half >= free_x:
            free_x = frame.x(tick) + half + 8
            yield tick


def _draw_limit(frame: _Frame, limit: Limit) -> str:
    x = frame.x(limit.value)
    return f'<line class="limit" x1="{x}" x2="{x}" y1="{_TOP}" y2="{frame.bottom}"/>'


def _draw_series(frame: _Frame, series: Series) -> str:
    colour = f"c{series.colour % NUM_COLOURS}"
    places = [(frame.x(x), frame.y(y)) for x, y in series.points]
    match series.style:
        case "line" if series.names:
            return _path(places, colour) + _dots(places, colour, series.names)
        case "line":
            return _path(places, colour)
        case "steps":
            return _path(_corners(places), colour)
        case "area":
            return _area(_corners(places), frame.bottom, colour)
        case "bars":
            return _bars(places, frame.bottom, colour)
        case "dots":
            return _dots(places, colour, series.names)


def _path(places: Sequence[Point], colour: str) -> str:
    if not places:
        return ""
    return f'<path class="line {colour}" d="M{" ".join(f"{x},{y}" for x, y in places)}"/>'


def _corners(places: Sequence[Point]) -> list[Point]:
    """Return the corners of the step line through the points in `places`."""
    corners = list(places[:1])
    for (_, before), (x, y) in pairwise(places):
        corners += [(x, before), (x, y)]
    return corners


def _area(places: Sequence[Point], bottom: float, colour: str) -> str:
    if not places:
        return ""
    outline = [(places[0][0], bottom), *places, (places[-1][0], bottom)]
    shape = " ".join(f"{x},{y}" for x, y in outline)
    return f'<path class="area {colour}" d="M{shape}Z"/>' + _path(places, colour)


def _bars(places: Sequence[Point], bottom: float, colour: str) -> str:
    return "".join(
        f'<rect class="bar {colour}" x="{x}" y="{y}" width="{max(to - x - 0.5, 0.5):.1f}" '
        f'height="{bottom - y:.1f}"/>'
        for (x, y), (to, _) in pairwise(places)
        if y < bottom
    )


def _dots(places: Sequence[Point], colour: str, names: Sequence[str]) -> str:
    """Draw a dot at each point. With names, the dots are larger and show the names as tooltips."""
    if not names:
        return "".join(_dot(place, colour, 1.6) for place in places)
    return "".join(
        _dot(place, colour, 3.5, f"<title>{escape(name)}</title>")
        for place, name in zip(places, names, strict=True)
    )


def _dot(place: Point, colour: str, radius: float, inside: str = "") -> str:
    x, y = place
    return f'<circle class="dot {colour}" cx="{x}" cy="{y}" r="{radius}">{inside}</circle>'


def _write_names(frame: _Frame) -> Iterable[str]:
    """Draw the point names of the first series that has names.

    Omit names that would overlap a previous name.
    """
    named = next((series for series in frame.chart.series if series.names), None)
    if named is None:
        return
    written: list[tuple[float, float, float]] = []
    for point, name in zip(named.points, named.names, strict=True):
        half = len(name) * _LETTER / 2
        x = min(max(frame.x(point[0]), frame.chart.left + half), frame.right - half)
        y = max(frame.y(point[1]) - 8, _TOP)
        if all(abs(x - a) >= half + b + 8 or abs(y - c) >= _LINE for a, b, c in written):
            written.append((x, half, y))
            yield _text(name, x, y, "middle", "name")


def _text(words: str, x: float, y: float, anchor: str, kind: str = "figure") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'
