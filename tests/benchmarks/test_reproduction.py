"""The page of reproduction is what the rows say."""

import json
import re
import sys

import pytest

from benchmarks import reproduction
from benchmarks.findings import FINDINGS
from benchmarks.reproduction import chosen
from graphcl.recipes import load_recipe
from graphcl.research import rows
from graphcl.research.paper import LINES, assemble
from graphcl.research.studies import STUDIES
from tests.research.test_paper import cell_of, rows_of


def test_the_page_is_that_of_the_rows(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["reproduction", "--check"])
    with pytest.raises(SystemExit) as ended:
        reproduction.main()
    assert ended.value.code == 0


def test_its_pictures_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", reproduction.PAGE.read_text()):
        assert (reproduction.PAGE.parent / target).exists(), target


def test_without_rows_it_says_so(tmp_path):
    text = reproduction.page(tmp_path)
    assert text.count("Not measured yet") == 3 + len(STUDIES)
    assert "| absent | 0.951 ± 0.010 | – |" in text
    assert "| not measured | 83.6 ± 0.5 | – |" in text


def test_verdicts_come_from_rows(tmp_path):
    def write(method, graph, scores, key="accuracy"):
        for seed, score in enumerate(scores):
            row = {"method": method, "graph": graph, "seed": seed, key: score, "device": "a GPU"}
            rows.append(tmp_path / "baselines.jsonl", row)

    write("graphcl", "cora", (0.835, 0.836, 0.837))  # within
    write("dgi", "cora", (0.835, 0.836, 0.837))  # 1.3 points above: near
    write("raw", "cora", (0.60, 0.61))  # far, and explained
    write("gcn", "citeseer", (0.60, 0.61))  # far, and not explained
    text = reproduction.page(tmp_path)
    assert "1 are within two standard errors, 1 more within 1.5 points" in text
    assert "2 further away: Raw features (Cora +12.6); GCN (Citeseer −9.8)." in text
    assert "- Raw features on Cora (+12.6): The published numbers" in text
    assert "- GCN on Citeseer (−9.8): No explanation yet." in text
    assert "Ours: Cora 1 of 3, tied with DGI." in text
    assert "Measured on: a GPU." in text


def test_explanations_are_of_systems_and_studies_that_exist_and_hold_no_number():
    import tomllib

    said = tomllib.loads(reproduction.EXPLANATIONS.read_text())
    assert set(said) <= {system.name for system in LINES} | {"study"}
    assert set(said.get("study", {})) <= set(STUDIES)
    assert not re.search(r"\d+\.\d", json.dumps(said))


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_study_has_a_finding(name):
    assert FINDINGS[name]([]) == ""


def test_findings_by_hand():
    lines = [
        {"graph": "cora", "temperature": t, "mean": m, "std": 1.0, "runs": 2, "failed": 0}
        for t, m in ((0.1, 70.0), (0.5, 82.04), (1.0, 80.0))
    ]
    assert FINDINGS["temperature"](lines) == "- Cora: from 70.0 at τ = 0.1 to 82.0 at τ = 0.5."
    grid = [
        {"graph": "cora", "edge_drop": e, "feature_drop": f, "mean": m}
        for e, f, m in ((0.05, 0.5, 80.0), (0.15, 0.7, 82.0), (0.75, 0.5, 70.0), (0.05, 0.2, 78.0))
    ]
    assert FINDINGS["perturbation"](grid) == (
        "- Cora: over 4 pairs the accuracy lies between 70.0 (edge_drop 0.75, feature_drop 0.5) "
        "and 82.0 (0.15, 0.7); where the paper advises (up to 20 % of edges, 50 to 70 % of "
        "features) it is 81.0 on average, elsewhere 74.0."
    )


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
    cells = assemble(chosen(found), datasets=["ppi"])
    ours = [cell for cell in cells if cell.title.startswith("GraphCL")]
    assert [cell.title for cell in ours] == ["GraphCL", "GraphCL, recipe ppi-wide"]
    assert ours[0].mean == pytest.approx(0.655)
    assert ours[1].paper is None
    assert cell_of(cells, "random-encoder", "ppi").mean == pytest.approx(0.60)
    assert cell_of(cells, "raw", "ppi").deterministic


def test_the_shipped_settings_count_whatever_they_score():
    shipped = vars(load_recipe("cora")) | {}
    del shipped["mode"]  # a key that rows of an older version do not have
    other = shipped | {"temperature": 0.1}
    found = rows_of("graphcl", [0.80, 0.81], recipe=shipped)
    found += rows_of("graphcl", [0.90, 0.91], recipe=other)
    assert cell_of(assemble(chosen(found), datasets=["cora"]), "graphcl").mean == pytest.approx(
        80.5
    )
    newest = rows_of("graphcl", [0.7, 0.7], recipe=shipped | {"dim": 1})
    newest += rows_of("graphcl", [0.6, 0.6], recipe=other)
    cells = assemble(chosen(newest), datasets=["cora"])
    assert cell_of(cells, "graphcl").mean == pytest.approx(60)


def test_rows_of_studies_are_not_in_the_table():
    cells = assemble(chosen(rows_of("graphcl", [0.5], study="temperature")), datasets=["cora"])
    assert cell_of(cells, "graphcl").state == "not measured"


def test_a_repeated_run_counts_once():
    found = [*rows_of("gat", [0.83, 0.84]), *rows_of("gat", [0.82])]
    cell = cell_of(assemble(chosen(found), datasets=["cora"]), "gat")
    assert (cell.runs, cell.mean) == (2, pytest.approx(83.0))
