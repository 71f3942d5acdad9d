import math

import pytest

from benchmarks.reproduction import normalised, rank_of
from graphcl.recipes import load_recipe
from graphcl.research import table2
from graphcl.research.output import csv_text
from graphcl.research.table2 import TABLE_2, UNSUPERVISED, Cell, assemble, lines_of


def rows_of(method, scores, graph="cora", **more):
    return [
        {"method": method, "graph": graph, "seed": seed, "accuracy": score, **more}
        for seed, score in enumerate(scores)
    ]


def cell_of(cells, method, dataset="cora"):
    return next(cell for cell in cells if (cell.method, cell.dataset) == (method, dataset))


def test_the_arithmetic_by_hand():
    # Mean 83.0, sample deviation √((1 + 0 + 1) / 2) = 1.0, over three runs.
    cells = assemble(rows_of("graphcl", [0.82, 0.83, 0.84]), datasets=["cora"])
    cell = cell_of(cells, "graphcl")
    assert (cell.mean, cell.std, cell.runs) == (pytest.approx(83.0), pytest.approx(1.0), 3)
    assert cell.difference == pytest.approx(-0.6)
    # 2 √(1 / 3 + 0.5² / 50) = 2 √0.338333
    assert cell.two_errors == pytest.approx(1.163328)
    assert cell.within is True
    # GCN's number has no deviation: ours alone, 2 · 1 / √3.
    gcn = cell_of(assemble(rows_of("gcn", [0.82, 0.83, 0.84]), datasets=["cora"]), "gcn")
    assert gcn.two_errors == pytest.approx(1.154700)
    assert gcn.difference == pytest.approx(1.5)
    assert gcn.within is False


def test_a_difference_without_deviations_is_not_judged():
    one = cell_of(assemble(rows_of("gat", [0.83]), datasets=["cora"]), "gat")
    assert (one.runs, one.std, one.within) == (1, None, None)
    assert table2.difference(one) == "+0.0, n/a"
    fixed = assemble(rows_of("raw", [0.5], runs_identical=True), datasets=["cora"])
    raw = cell_of(fixed, "raw")
    assert raw.deterministic
    assert raw.two_errors == pytest.approx(2 * 0.4 / math.sqrt(50))
    assert table2.ours(raw) == "50.0 (no seed)"


def test_inductive_scores_are_fractions_of_micro_f1():
    found = [
        {"graph": "ppi", "what": what, "seed": seed, "micro_f1": score, "recipe_name": name}
        for what, seed, score, name in (
            ("trained", 0, 0.65, "ppi"),
            ("trained", 1, 0.66, "ppi"),
            ("trained", 0, 0.80, "ppi-wide"),
            ("random encoder", 0, 0.60, "ppi"),
            ("random encoder", 0, 0.62, "ppi-wide"),
            ("raw features", None, 0.42, "ppi"),
        )
    ]
    assert all(cell.mean is None for cell in assemble(found, datasets=["ppi"]))
    ready = [row for row in map(normalised, found) if row is not None]
    cells = assemble(ready, datasets=["ppi"])
    ours = [cell for cell in cells if cell.method == "graphcl"]
    assert [cell.title for cell in ours] == ["GraphCL", "GraphCL, recipe ppi-wide"]
    assert ours[0].mean == pytest.approx(0.655)
    assert ours[1].paper is None
    assert cell_of(cells, "random-encoder", "ppi").mean == pytest.approx(0.60)
    assert cell_of(cells, "raw", "ppi").deterministic


def test_absent_and_unmeasured_cells_are_marked():
    cells = assemble([], datasets=["cora", "reddit"], absent=["reddit"])
    assert {cell.state for cell in cells if cell.dataset == "reddit"} == {"absent"}
    assert {cell.state for cell in cells if cell.dataset == "cora"} == {"not measured"}
    assert all(cell.mean is None and cell.difference is None for cell in cells)
    report = table2.table_2_report(cells, ["reddit"])
    text = report.markdown
    assert "| absent | 0.951 ± 0.010 | – |" in text
    assert "Absent: Reddit" in text
    assert "Absent: Reddit" in report.terminal()
    assert [table.title for table in report.narrow] == ["Cora"]


def test_failures_are_counted_and_a_repeated_run_counts_once():
    found = [*rows_of("gat", [0.83, 0.84]), {"method": "gat", "graph": "cora", "seed": 2}]
    found[-1]["failed"] = "the loss became nan"
    found += [{"method": "gat", "graph": "cora", "seed": 0, "accuracy": 0.82}]
    cell = cell_of(assemble(found, datasets=["cora"]), "gat")
    assert (cell.runs, cell.failed, cell.mean) == (2, 1, pytest.approx(83.0))
    text = table2.table_2_report([cell], []).markdown
    assert "GAT on Cora: 1 of 3 runs failed (the loss became nan)." in text
    lost = cell_of(assemble(found[2:3], datasets=["cora"]), "gat")
    assert table2.ours(lost) == "failed"


def test_the_shipped_settings_count_whatever_they_score():
    shipped = vars(load_recipe("cora")) | {}
    del shipped["mode"]  # a key that rows of an older version do not have
    other = shipped | {"temperature": 0.1}
    found = rows_of("graphcl", [0.80, 0.81], recipe=shipped)
    found += rows_of("graphcl", [0.90, 0.91], recipe=other)
    assert cell_of(assemble(found, datasets=["cora"]), "graphcl").mean == pytest.approx(80.5)
    newest = rows_of("graphcl", [0.7, 0.7], recipe=shipped | {"dim": 1})
    newest += rows_of("graphcl", [0.6, 0.6], recipe=other)
    assert cell_of(assemble(newest, datasets=["cora"]), "graphcl").mean == pytest.approx(60)


def test_rows_of_studies_are_not_in_the_table():
    cells = assemble(rows_of("graphcl", [0.5], study="temperature"), datasets=["cora"])
    assert cell_of(cells, "graphcl").state == "not measured"


def test_a_system_that_the_paper_does_not_have_gets_a_line():
    cells = assemble(rows_of("mine", [0.5, 0.6]), datasets=["cora"])
    assert cell_of(cells, "mine").group == "Beyond the paper"


def test_rank_and_ties():
    def cell(method, mean, std, group=UNSUPERVISED):
        return Cell(method, method, group, "cora", "measured", runs=4, mean=mean, std=std)

    cells = [
        cell("graphcl", 83.0, 1.0),
        cell("dgi", 84.0, 1.0),  # 1 ≤ 2 √(1/4 + 1/4) = 1.41: tied
        cell("ep-b", 78.0, 1.0),
        cell("gat", 99.0, 0.1, "Supervised"),
    ]
    assert rank_of("graphcl", cells, "cora") == (2, ["dgi"])
    assert rank_of("graphcl", cells[1:], "cora") is None


def test_the_csv_has_every_cell_unrounded():
    cells = assemble(rows_of("graphcl", [0.8201, 0.83]), datasets=["cora"])
    lines = csv_text([cell.as_row() for cell in cells]).splitlines()
    assert len(lines) == 1 + len(cells)
    assert any("82.505" in line for line in lines)


def test_the_published_table_is_the_papers():
    by = {system.name: system.scores for system in TABLE_2}
    assert (by["graphcl"]["cora"].mean, by["graphcl"]["cora"].std) == (83.6, 0.5)
    assert (by["graphcl"]["reddit"].mean, by["graphcl"]["reddit"].std) == (0.951, 0.01)
    assert by["gcn"]["pubmed"].std is None
    assert "ppi" not in by["fastgcn"]
    names = [system.name for system in lines_of("cora") if system.scores["cora"]]
    assert names == ["raw", "deepwalk", "deepwalk-features", "ep-b", "dgi", "graphcl", "gcn", "gat"]
    assert len([system for system in lines_of("ppi") if system.group == UNSUPERVISED]) == 7
