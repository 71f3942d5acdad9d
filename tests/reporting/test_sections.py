import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.reporting.markup import bars
from graphcl.reporting.sections import confusion_table, degree_rows, line_chart, ticks

NASTY = '</script><b>"&'


@settings(deadline=None)
@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-6, 1e6))
def test_ticks_are_round_few_and_span(low, width):
    high = low + width
    found = ticks(low, high)
    assert 2 <= len(found) <= 8
    assert found[0] <= low + 1e-6 * width
    assert found[-1] >= high - 1e-6 * width
    assert ticks(3.0, 3.0) == [3.0]


def test_a_curve_goes_through_its_points():
    chart = ElementTree.fromstring(
        line_chart([1, 2, 3], [4.0, 2.0, 3.0], label=NASTY, x_label=NASTY)
    )
    path = chart.find("path[@class='curve']").get("d")
    points = [tuple(map(float, pair.split())) for pair in path[1:].split("L")]
    xs, ys = zip(*points, strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] < ys[2] < ys[1]  # up is less in SVG
    assert chart.get("aria-label") == NASTY


def test_long_flat_and_single_curves():
    long = line_chart(range(1, 5001), np.arange(5000.0), label="", x_label="")
    assert long.count("L") < 450
    ElementTree.fromstring(line_chart([1, 2], [5.0, 5.0], label="", x_label=""))
    assert "<circle" in line_chart([1], [5.0], label="", x_label="")


def test_degree_rows_count_every_node_once():
    degree = np.array([0, 1, 1, 2, 3, 4, 5, 8, 9, 16, 17, 1000])
    rows = degree_rows(degree)
    assert rows[:6] == [("0", 1), ("1", 2), ("2", 1), ("3–4", 2), ("5–8", 2), ("9–16", 2)]
    assert sum(count for _, count in rows) == len(degree)
    assert rows[-1] == ("513–1,024", 1)
    assert degree_rows(np.array([1, 2]))[0] == ("1", 1)
    assert degree_rows(np.zeros(3, int))[0] == ("0", 3)


def test_bars_and_matrix_escape_names():
    for markup in (
        bars([(NASTY, 3), ("b", 0)], label=NASTY, coloured=True),
        confusion_table([NASTY, "b"], [[3, 1], [0, 2]]),
    ):
        assert "<b>" not in markup
        assert "&lt;/script&gt;" in markup
    table = confusion_table(["a", "b"], [[3, 1], [0, 2]])
    assert re.findall(r"--share:([\d.]+)", table) == ["0.750", "0.250", "0.000", "1.000"]
    assert "75 %" in table
    assert "100 %" in table
