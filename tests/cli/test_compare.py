import json

import numpy as np
import pytest

from graphcl.cli.compare import compare_runs, comparison_table, is_run
from graphcl.cli.main import run
from graphcl.errors import RunError
from tests.cli.conftest import QUICK as QUICK_TRAINING
from tests.cli.conftest import fails
from tests.conftest import random_graph

ENDINGS = ("jsonl", "md", "csv", "tex", "png")
QUICK = ["--methods", "raw,random-encoder:dim=4", "--device", "cpu"]


@pytest.fixture
def graphs(here):
    (here / "mine").mkdir()
    for seed, name in enumerate(("first", "second")):
        graph = random_graph(seed)
        np.savez(f"mine/{name}.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    return here


def test_a_folder_in_all_forms(graphs, capsys):
    assert run(["compare", "mine", *QUICK, "--runs", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert "run 6/6" in captured.err
    report = json.loads(captured.out)
    assert [(c["graph"], c["system"], c["runs"]) for c in report["cells"]] == [
        ("first", "raw", 1),
        ("first", "random-encoder:dim=4", 2),
        ("second", "raw", 1),
        ("second", "random-encoder:dim=4", 2),
    ]
    assert report["common"] == ["first", "second"]
    folder = graphs / "comparison"
    assert {path.name for path in folder.iterdir()} == {f"compare.{end}" for end in ENDINGS}
    assert "| first | accuracy |" in (folder / "compare.md").read_text()
    assert r"\begin{tabular}" in (folder / "compare.tex").read_text()
    assert len((folder / "compare.csv").read_text().splitlines()) == 5
    assert run(["compare", "mine", *QUICK, "--runs", "2"]) == 0  # nothing is left to do
    captured = capsys.readouterr()
    assert "run " not in captured.err
    assert "2 graphs that every system was scored on" in captured.out


@pytest.mark.parametrize("other", ["labels", "edges"])
def test_rows_of_another_graph_of_the_same_name_are_refused(graphs, capsys, other):
    command = ["compare", "mine", *QUICK, "--runs", "1"]
    assert run(command) == 0
    capsys.readouterr()
    rows = graphs / "comparison/compare.jsonl"
    before = rows.read_bytes()
    changed = dict(np.load("mine/second.npz"))
    if other == "labels":
        changed["y"] = changed["y"][::-1]
    else:
        ends = changed["edge_index"]
        changed["edge_index"] = ends[:, (ends != 0).all(axis=0)]
    np.savez("mine/second.npz", **changed)
    said = fails(capsys, *command)
    assert "its rows of 'second' are of another graph; choose another --out" in said
    assert rows.read_bytes() == before
    assert run([*command, "--out", "anew"]) == 0


def test_few_labels_have_a_table_of_their_own(graphs, capsys):
    given = ["--methods", "raw,trees", "--device", "cpu", "--runs", "1", "--labels", "5"]
    assert run(["compare", "mine", *given, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell.get("labels") for cell in cells] == [None] * 4 + [5] * 4
    assert (
        "| 5 labels a class | Score | raw | trees |"
        in (graphs / "comparison/compare.md").read_text()
    )


def test_names_and_files_are_graphs_too(graphs, capsys):
    assert run(["compare", "mine/first.npz", "cora", "--methods", "raw", "--runs", "1"]) == 0
    out = capsys.readouterr().out
    assert "cora" in out
    assert "first" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine", "--methods", "dgy"], "unknown method 'dgy'"),
        (["mine", "--methods", "gcn"], "gcn learns from the labels of one split"),
        (
            ["mine", "--labels", "20,few"],
            "--labels must be whole numbers of 1 or more",
        ),
        (["mine", "--methods", ","], "--methods must be one system or more"),
        (["nowhere"], "unknown dataset 'nowhere'"),
        (["mine", "mine/first.npz"], "two graphs are named 'first'"),
        (["empty"], "empty: holds no graph"),
    ],
)
def test_bad_input_is_one_line(graphs, capsys, arguments, message):
    (graphs / "empty").mkdir()
    assert message in fails(capsys, "compare", *arguments)
    assert not (graphs / "comparison").exists()


@pytest.fixture
def runs(folder, capsys):
    for name, seed, extra in (("a", "0", []), ("b", "1", ["--set", "temperature=0.8"])):
        command = ["train", "mine.npz", *QUICK_TRAINING, *extra, "--seed", seed, "--out", name]
        assert run(command) == 0
    assert run(["train", "mine.npz", "--method", "raw", "--out", "raw"]) == 0
    capsys.readouterr()
    return folder


def test_settings_that_differ_and_scores_as_the_runs_have_them(runs):
    found = compare_runs([runs / "a", runs / "b"])
    settings = [one["settings"] for one in found["runs"]]
    assert settings == [{"seed": 0, "temperature": 0.3}, {"seed": 1, "temperature": 0.8}]
    assert found["same"]["dim"] == 8
    for one, name in zip(found["runs"], ("a", "b"), strict=True):
        result = json.loads((runs / name / "result.json").read_text())
        assert one["scores"]["accuracy"] == result["probe"]["accuracy"]
        assert one["scores"]["loss"] == result["loss"]
        assert "micro_f1" not in one["scores"]
    assert found["notes"] == []


def test_the_command_prints_a_table_or_json(runs, capsys):
    assert run(["compare", "a", "b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["a", "b"]
    assert ["temperature", "0.3", "0.8"] in [line.split() for line in lines]
    assert any(line.startswith("accuracy, %") for line in lines)
    assert run(["compare", "a", "b", "raw", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["settings"]["method"] for one in told["runs"]] == ["graphcl", "graphcl", "raw"]
    assert told["runs"][2]["settings"]["temperature"] is None
    assert told["runs"][2]["scores"]["accuracy"] > 0
    assert told["runs"][2]["scores"]["loss"] is None


def test_runs_of_different_graphs_are_noted_and_mixtures_refused(runs, capsys, arrays):
    np.savez("other.npz", **arrays | {"x": arrays["x"] + 1})
    assert run(["train", "other.npz", *QUICK_TRAINING, "--out", "other"]) == 0
    assert "different graphs" in compare_runs([runs / "a", runs / "other"])["notes"][0]
    capsys.readouterr()
    assert "all runs, or all graphs" in fails(capsys, "compare", "a", "mine.npz")
    assert is_run(runs / "a")
    assert not is_run(runs)
    with pytest.raises(RunError, match="no such run"):
        compare_runs([runs / "absent"])


def test_a_run_alone_and_runs_without_a_result(runs):
    (runs / "b" / "result.json").unlink()
    found = compare_runs([runs / "a", runs / "b"])
    assert found["runs"][1]["scores"]["accuracy"] is None
    assert "has no result.json" in found["notes"][-1]
    assert "–" in comparison_table(found)
    assert "no setting differs" in comparison_table(compare_runs([runs / "a"]))
