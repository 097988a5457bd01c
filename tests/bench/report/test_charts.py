from __future__ import annotations

from typing import get_args
from xml.etree import ElementTree

import pytest

from trtllm_serve_cli.bench.report.charts import (
    Axis,
    Chart,
    Limit,
    Series,
    Style,
    render_figure,
    render_svg,
)
from trtllm_serve_cli.bench.report.scales import Scale

STYLES = get_args(Style)
POINTS = [(0.0, 0.0), (5.0, 10.0), (10.0, 5.0)]


def _chart(*series: Series, limits: tuple[Limit, ...] = ()) -> Chart:
    x, y = Axis("Time (s)", Scale(0, 10)), Axis("Requests <&>", Scale(0, 10))
    return Chart("A title", x, y, series, width=420, height=260, left=52, limits=limits)


def _elements(svg: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{name}"))


@pytest.mark.parametrize("style", STYLES)
def test_every_style_is_well_formed_and_inside_the_chart(style: Style) -> None:
    svg = render_svg(_chart(Series("", POINTS, style)))
    for text in _elements(svg, "text"):
        assert 0 <= float(text.attrib["x"]) <= 420
        assert 0 <= float(text.attrib["y"]) <= 260
    for circle in _elements(svg, "circle"):
        assert 52 <= float(circle.attrib["cx"]) <= 406
    drawn = _elements(svg, "path") + _elements(svg, "rect") + _elements(svg, "circle")
    assert drawn


def test_axes_have_their_labels_and_figures() -> None:
    words = [text.text for text in _elements(render_svg(_chart(Series("", POINTS))), "text")]
    assert {"Time (s)", "Requests <&>", "0", "2", "10"} <= set(words)


def test_points_are_placed_by_value() -> None:
    dots = _elements(render_svg(_chart(Series("", POINTS, "dots"))), "circle")
    places = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in dots]
    assert places == [(52.0, 220.0), (229.0, 26.0), (406.0, 123.0)]


def test_legend_lists_lines_and_visible_limits() -> None:
    figure = render_figure(
        _chart(Series("p99 <b>", POINTS), limits=(Limit("within", 4), Limit("beyond", 11)))
    )
    assert "p99 &lt;b&gt;" in figure
    assert "within" in figure
    assert "beyond" not in figure
    assert figure.count('class="limit"') == 2


def test_legend_omits_limits_without_a_label() -> None:
    figure = render_figure(_chart(limits=(Limit("kill", 2), Limit("", 4))))
    assert figure.count('<line class="limit"') == 2
    assert figure.count('<li class="limit">') == 1


def test_point_names_do_not_overlap() -> None:
    points = [(x / 10, 5.0) for x in range(100)]
    names = [f"point {number}" for number in range(100)]
    svg = render_svg(_chart(Series("", points, names=names)))
    written = [text for text in _elements(svg, "text") if text.attrib["class"] == "name"]
    assert 3 <= len(written) <= 10
    assert len(_elements(svg, "title")) == 100


@pytest.mark.parametrize("style", STYLES)
def test_series_without_points_draws_nothing(style: Style) -> None:
    svg = render_svg(_chart(Series("", [], style)))
    assert not _elements(svg, "path") + _elements(svg, "rect") + _elements(svg, "circle")
