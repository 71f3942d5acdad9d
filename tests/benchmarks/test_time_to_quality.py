import sys

import numpy as np
import pytest

from benchmarks import time_to_quality
from graphcl.research import rows
from graphcl.research.comparison import read_systems
from tests.conftest import random_graph


def row(system, seconds, score, seed=0, **other):
    plain = {"graph": "mine", "device": "cpu", "method": system.partition(":")[0], "seed": seed}
    return plain | {"system": system, "train_seconds": seconds, "score": score, **other}


FOUND = [
    row("graphcl:steps=10", 1.0, 0.5),
    row("graphcl:steps=10", 3.0, 0.7, seed=1),
    row("graphcl", 9.0, 0.9),
    row("dgi:epochs=10", 4.0, 0.65),
    row("dgi:epochs=30", 8.0, 0.6),
    row("grace", 7.0, 0.95),
    row("grace:epochs=5", 1.0, None, failed="no memory"),
]


def test_points_are_means_over_seeds_in_the_order_of_time():
    points = time_to_quality.curves(FOUND)
    assert points["mine", "graphcl"] == [pytest.approx((2.0, 0.6)), (9.0, 0.9)]
    assert points["mine", "grace"] == [(7.0, 0.95)]


def test_the_table_has_the_points_and_the_page_says_where_a_rival_is_ahead():
    lines = time_to_quality.table(FOUND).splitlines()
    assert lines[3] == "| mine | DGI | 65.0 (4.0 s), 60.0 (8.0 s) |"
    # After 4 s ours has 0.6; after 7 s still, beside 0.95; after 8 s, 0.6 is not behind 0.6.
    said = time_to_quality.behind(FOUND)
    assert said.endswith(
        "seconds: mine, DGI after 4.0 s: 5.0 points; mine, GRACE after 7.0 s: 35.0 points."
    )
    assert time_to_quality.behind(FOUND[:3]).endswith("seconds: nowhere.")


def test_the_legend_has_the_systems_of_all_panels():
    other = [row("cca-ssg", 1.0, 0.5) | {"graph": "other"}]
    figure = time_to_quality.draw(FOUND + other)
    assert len(figure.axes) == 2
    (legend,) = figure.legends
    shown = {text.get_text() for text in legend.get_texts()}
    assert shown == {"GraphCL, default", "DGI", "GRACE", "CCA-SSG"}


def test_every_length_is_a_system():
    for method in time_to_quality.LENGTHS:
        systems = read_systems(time_to_quality.lengths(method))
        assert {system.name for system in systems} == {method}


def test_rows_of_every_length_and_nothing_twice(tmp_path, monkeypatch):
    graph = random_graph()
    (tmp_path / "graphs").mkdir()
    np.savez(tmp_path / "graphs/mine.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path))
    out = tmp_path / "rows.jsonl"
    arguments = ["--out", out, "--graphs", "mine", "--systems", "cca-ssg"]
    monkeypatch.setattr(sys, "argv", ["time_to_quality", *map(str, arguments)])
    time_to_quality.main()
    found = [one["system"] for one in rows.read(out)]
    assert found == time_to_quality.lengths("cca-ssg")
    time_to_quality.main()
    assert len(rows.read(out)) == len(found)
