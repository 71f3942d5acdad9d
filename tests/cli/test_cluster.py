import json

import pyarrow.parquet

import graphcl
from graphcl.cli.main import run
from graphcl.runs.files import read_answer_table, read_answers
from tests.cli.conftest import fails

LONGER = ["--set", "epochs=10", "--set", "dim=16"]


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
    kept = read_answer_table(trained, "cluster")
    assert kept["group"] == [row["group"] for row in told["rows"]]
    assert told["stability"]["times"] == 5
    assert len(told["profiles"]) == len(told["sizes"])
    found = graphcl.Run(trained).cluster()
    assert [[str(one) for one in some] for some in found.profiles] == [
        [one["text"] for one in some] for some in told["profiles"]
    ]


def test_profiles_are_of_the_cells_of_a_table_or_say_why_not(folder, capsys):
    rows = [
        f"p{n},{n % 2 * 40 + n % 7},{'Süd' if n % 2 else 'Nord'},{'old' if n % 2 else 'new'} words "
        f"of here and of there,{'x' if n % 3 else ''}"
        for n in range(60)
    ]
    (folder / "people.csv").write_text("id,age,town,said,nick\n" + "\n".join(rows), "utf-8")
    knows = [f"p{n},p{(n + step) % 60}" for n in range(60) for step in (2, 4)]
    (folder / "knows.csv").write_text("a,b\n" + "\n".join(knows))
    tables = ["knows.csv", "--nodes", "people.csv", "--text", "said", "--ignore", "nick"]
    assert run(["train", *tables, "--out", "run", *LONGER]) == 0
    capsys.readouterr()
    assert run(["cluster", "run", "-k", "2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["profiles"]
    told = {one["text"].partition(":")[0]: one for one in first + second}
    assert {"age", "town = Süd", "town = Nord"} <= told.keys()
    assert {"said has “old”", "said has “new”"} <= told.keys()
    assert "nick" not in str(told.keys())
    north = next(
        one for one in first + second if one["what"] == "town = Nord" and one["effect"] > 0
    )
    assert (north["inside"], north["known"], north["outside"]) == (30, 30, 0)
    (folder / "people.csv").unlink()
    assert run(["cluster", "run", "-k", "2"]) == 0
    said = capsys.readouterr()
    assert "of the columns of nodes nothing is known: people.csv: no such file" in said.err
    assert "nothing sets it apart beyond chance" in said.out


def test_a_number_of_groups_into_a_file(trained, capsys):
    assert run(["cluster", "runs/mine", "--count", "4", "--out", "groups.parquet"]) == 0
    assert "groups.parquet: 60 rows" in capsys.readouterr().out
    assert set(pyarrow.parquet.read_table("groups.parquet").column("group").to_pylist()) == {
        *range(1, 5)
    }
    assert run(["cluster", "runs/mine", "-k", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 groups by kmeans, silhouette")
    assert lines[1].startswith("grouped again 5 times")
    assert lines[2].startswith("group 1: ")
    assert "; found again by " in lines[2]
    assert lines[3].startswith("  nearest its centre: node ")


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
