from graphcl.cli.main import run
from tests.cli.conftest import QUICK


def test_table_options_are_refused_without_tables(capsys):
    assert run(["train", "cora", "--label", "y"]) == 2
    assert "--label applies only to tables; 'cora' is not a table" in capsys.readouterr().err


def test_tables_are_described_whole_once_and_briefly_afterwards(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ring = [f"{row},{(row + 1) % 30}" for row in range(30)]
    (tmp_path / "edges.csv").write_text("\n".join(["source,target", *ring, "0,1"]) + "\n")
    rows = [f"{row},{row % 7},{'ab'[row % 2]}" for row in range(30)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,age,kind", *rows]) + "\n")
    tables = ["edges.csv", "--nodes", "nodes.csv"]

    def told(*arguments):
        assert run(list(arguments)) == 0
        return capsys.readouterr().err

    columns, merged, guess = "columns of the node table:", "1 repeated row", "guessed by name)"
    whole = told("check", *tables)
    assert columns in whole
    trained = told("train", *tables, *QUICK, "--out", "run")
    assert guess in whole
    for brief in (trained, told("build", *tables, "--out", "store")):
        assert merged in brief
        assert brief.count("guessed") == 1  # in the first line alone
        assert columns not in brief
    (again,) = told("links", "run", "-k", "2").splitlines()
    assert again.startswith("guessed: ")
    assert {*whole.splitlines()} <= {*told("links", "run", "-k", "2", "--verbose").splitlines()}
