import math

import pytest

from benchmarks.reproduction import rank_of
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


def test_failures_are_counted():
    found = [*rows_of("gat", [0.83, 0.84]), {"method": "gat", "graph": "cora", "seed": 2}]
    found[-1]["failed"] = "the loss became nan"
    cell = cell_of(assemble(found, datasets=["cora"]), "gat")
    assert (cell.runs, cell.failed, cell.mean) == (2, 1, pytest.approx(83.5))
    text = table2.table_2_report([cell], []).markdown
    assert "GAT on Cora: 1 of 3 runs failed (the loss became nan)." in text
    lost = cell_of(assemble(found[2:3], datasets=["cora"]), "gat")
    assert table2.ours(lost) == "failed"


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
