import json

import pyarrow.parquet

from graphcl.cli.main import run
from graphcl.runs.results import read_answers
from tests.cli.conftest import fails


def test_groups_with_ids_sizes_and_typical_nodes(trained, capsys):
    assert run(["cluster", "runs/mine", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chosen_by"] == "silhouette"
    assert sum(told["sizes"]) == len(told["rows"]) == 60
    assert told["rows"][7]["id"] == "node 7"
    group = {row["id"]: row["group"] for row in told["rows"]}
    for number, names in enumerate(told["typical"], 1):
        assert {group[name] for name in names} == {number}
    assert read_answers(trained)["cluster"]["sizes"] == told["sizes"]
    assert "rows" not in read_answers(trained)["cluster"]


def test_a_number_of_groups_into_a_file(trained, capsys):
    assert run(["cluster", "runs/mine", "--count", "4", "--out", "groups.parquet"]) == 0
    assert "groups.parquet: 60 rows" in capsys.readouterr().out
    assert set(pyarrow.parquet.read_table("groups.parquet").column("group").to_pylist()) == {
        *range(1, 5)
    }
    assert run(["cluster", "runs/mine", "-k", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 groups by kmeans, silhouette")
    assert lines[1] == "group\tnodes\tnearest its centre"
    assert lines[2].split("\t")[2].startswith("node ")


def test_hdbscan(trained, capsys):
    assert run(["cluster", "runs/mine", "--method", "hdbscan", "--least", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(told["sizes"]) + told["outside"] == 60


def test_bad_input(trained, capsys):
    assert "too few for 100 groups" in fails(capsys, "cluster", "runs/mine", "--count", "100")
    assert "kmeans or hdbscan" in fails(capsys, "cluster", "runs/mine", "--method", "ward")
    assert "already exists" in fails(capsys, "cluster", "runs/mine", "--out", _touched(trained))


def _touched(trained):
    path = trained.parents[1] / "there.csv"
    path.touch()
    return str(path)
