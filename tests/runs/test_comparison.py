import json

import pytest

from graphcl.cli.main import run
from graphcl.errors import RunError
from graphcl.runs.comparison import compare_runs, is_run
from tests.cli.conftest import QUICK, arrays, fails, folder  # noqa: F401 (fixtures)


@pytest.fixture
def runs(folder, capsys):  # noqa: F811
    for name, seed, extra in (("a", "0", []), ("b", "1", ["--set", "temperature=0.8"])):
        command = ["train", "mine.npz", *QUICK, *extra, "--seed", seed, "--out", name]
        assert run(command) == 0
    assert run(["train", "mine.npz", "--method", "raw", "--out", "raw"]) == 0
    capsys.readouterr()
    return folder


def test_settings_that_differ_and_scores_as_the_runs_have_them(runs):
    found = compare_runs([runs / "a", runs / "b"])
    assert dict(found.settings) == {"seed": (0, 1), "temperature": (0.3, 0.8)}
    assert found.same["dim"] == 8
    for place, name in enumerate(("a", "b")):
        result = json.loads((runs / name / "result.json").read_text())
        assert found.scores["accuracy"][place] == result["probe"]["accuracy"]
        assert found.scores["loss"][place] == result["loss"]
    assert "micro_f1" not in found.scores
    assert found.notes == ()


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


def test_runs_of_different_graphs_are_noted_and_mixtures_refused(runs, capsys, arrays):  # noqa: F811
    import numpy as np

    np.savez("other.npz", **arrays | {"x": arrays["x"] + 1})
    assert run(["train", "other.npz", *QUICK, "--out", "other"]) == 0
    assert "different graphs" in compare_runs([runs / "a", runs / "other"]).notes[0]
    capsys.readouterr()
    assert "all runs, or all graphs" in fails(capsys, "compare", "a", "mine.npz")
    assert is_run(runs / "a")
    assert not is_run(runs)
    with pytest.raises(RunError, match="no such run"):
        compare_runs([runs / "absent"])


def test_a_run_alone_and_runs_without_a_result(runs):
    (runs / "b" / "result.json").unlink()
    found = compare_runs([runs / "a", runs / "b"])
    assert found.scores["accuracy"][1] is None
    assert "has no result.json" in found.notes[-1]
    assert "–" in found.table()
    assert "no setting differs" in compare_runs([runs / "a"]).table()
