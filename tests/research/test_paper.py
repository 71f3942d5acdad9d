import math

import pytest
import torch

from benchmarks.reproduction import rank_of
from graphcl.errors import DatasetError, ParameterError
from graphcl.research import paper, rows
from graphcl.research.output import csv_text
from graphcl.research.paper import LINES, UNSUPERVISED, Cell, assemble, lines_of
from graphcl.research.studies.study import Plan
from graphcl.research.systems import SYSTEMS


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
    assert paper.difference(one) == "+0.0, n/a"
    fixed = assemble(rows_of("raw", [0.5], runs_identical=True), datasets=["cora"])
    raw = cell_of(fixed, "raw")
    assert raw.deterministic
    assert raw.two_errors == pytest.approx(2 * 0.4 / math.sqrt(50))
    assert paper.ours(raw) == "50.0 (no seed)"


def test_absent_and_unmeasured_cells_are_marked():
    cells = assemble([], datasets=["cora", "reddit"], absent=["reddit"])
    assert {cell.state for cell in cells if cell.dataset == "reddit"} == {"absent"}
    assert {cell.state for cell in cells if cell.dataset == "cora"} == {"not measured"}
    assert all(cell.mean is None and cell.difference is None for cell in cells)
    report = paper.table_2_report(cells, ["reddit"])
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
    text = paper.table_2_report([cell], []).markdown
    assert "GAT on Cora: 1 of 3 runs failed (the loss became nan)." in text
    lost = cell_of(assemble(found[2:3], datasets=["cora"]), "gat")
    assert paper.ours(lost) == "failed"


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
    by = {system.name: system.scores for system in LINES}
    assert by["graphcl"]["cora"] == "83.6±0.5"
    assert by["fastgcn"]["ppi"] == "-"
    cells = assemble([], datasets=["cora", "pubmed", "reddit"])
    ours = cell_of(cells, "graphcl", "reddit")
    assert (ours.paper, ours.paper_std) == (0.951, 0.01)
    assert cell_of(cells, "gcn", "pubmed").paper_std is None
    names = [system.name for system in lines_of("cora") if system.scores["cora"] != "?"]
    assert names == ["raw", "deepwalk", "deepwalk-features", "ep-b", "dgi", "graphcl", "gcn", "gat"]
    assert len([system for system in lines_of("ppi") if system.group == UNSUPERVISED]) == 7


CPU = torch.device("cpu")
QUICK = {"epochs": 2, "dim": 8}


def run(path, runs=2, **options):
    chosen = {"datasets": ("cora",), "methods": ("graphcl", "raw"), "settings": QUICK} | options
    plan = Plan(seeds=(0,), device=CPU, **chosen)
    return paper.reproduce("table2", plan, path, runs=runs).about["cells"]


def test_table_1_puts_ours_beside_the_papers():
    found = {row["dataset"]: row for row in paper.table_1(["cora", "reddit"])}
    assert found["cora"]["paper"]["edges"] == 5429
    assert found["cora"]["ours"]["edges"] == 5278
    assert found["cora"]["ours"]["split"] == found["cora"]["paper"]["split"] == [140, 500, 1000]
    assert found["reddit"]["ours"] is None


def test_table_2_runs_once_and_never_again(tmp_path, tiny, monkeypatch):
    path = tmp_path / "table2.jsonl"
    first = run(path)
    by = {cell["method"]: cell for cell in first}
    assert set(by) == {"graphcl", "raw"}
    assert [by[name]["runs"] for name in ("graphcl", "raw")] == [2, 1]
    assert by["raw"]["deterministic"]
    found = rows.read(path)
    assert len(found) == 3
    assert {"method", "graph", "seed", "settings", "settings_hash", "commit"} <= found[0].keys()
    monkeypatch.setattr(paper, "train_method", lambda *_, **__: pytest.fail("ran again"))
    assert run(path) == first
    assert len(rows.read(path)) == 3


def test_other_settings_are_other_rows(tmp_path, tiny):
    path = tmp_path / "table2.jsonl"
    run(path, methods=("graphcl",), runs=1)
    more = run(path, methods=("graphcl",), runs=1, settings={"epochs": 1})
    assert len(rows.read(path)) == 2
    assert more[0]["runs"] == 1  # the rows of these settings alone


def test_many_graphs_are_scored_by_micro_f1_and_their_note_is_kept(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(paper, "present", lambda names: (list(names), []))
    cells = run(tmp_path / "t.jsonl", datasets=("ppi",), runs=1, probe_steps=5)
    assert {cell["method"] for cell in cells if cell["mean"] is not None} == {"graphcl", "raw"}
    assert all(cell["note"] == "made up" for cell in cells)
    assert "val_micro_f1" in rows.read(tmp_path / "t.jsonl")[0]


def test_a_system_that_fails_leaves_a_reason(tmp_path, tiny, monkeypatch):
    def embed(*_, **__):
        raise MemoryError("too wide")

    monkeypatch.setattr(type(SYSTEMS["raw"].method("cora")), "embed", embed)
    (cell,) = run(tmp_path / "t.jsonl", methods=("raw",), settings={})
    assert (cell["state"], cell["reason"]) == ("failed", "MemoryError: too wide")


def test_absent_datasets_are_not_run(tmp_path, tiny, monkeypatch):
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cells = run(tmp_path / "t.jsonl", datasets=("reddit", "ppi"))
    assert {cell["state"] for cell in cells} == {"absent"}
    assert not (tmp_path / "t.jsonl").exists()


def test_names_are_checked():
    with pytest.raises(DatasetError, match="did you mean 'cora'"):
        paper.check_datasets(["corra"])
    with pytest.raises(ParameterError, match="unknown method"):
        paper.check_methods(["graphcl", "gdi"])
    with pytest.raises(ParameterError, match="none of the systems"):
        paper.check_settings({"epoch": 3}, ["cora"], ["graphcl", "raw"])
    with pytest.raises(ParameterError, match="temperature"):
        paper.check_settings({"temperature": -1}, ["cora"], ["graphcl"])
    paper.check_settings({"temperature": 1, "epochs": 3}, ["cora"], ["graphcl", "raw"])


def test_every_system_of_the_table_is_there_to_run():
    listed = {name for dataset in ("cora", "pubmed") for name in paper.methods_on(dataset, None)}
    assert {"graphcl", "raw", "random-encoder", "propagation"} <= listed
    assert paper.methods_on("cora", ["gaan", "graphcl"]) == ["graphcl"]
