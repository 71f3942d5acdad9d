import pytest
import torch

from graphcl.errors import DatasetError, ParameterError
from graphcl.research import paper, rows
from graphcl.research.studies.study import Plan
from graphcl.research.systems import SYSTEMS

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
