from graphcl.cli.main import COMMANDS, load_command, run
from graphcl.cli.table_options import unusual
from graphcl.tabular.report import Usual, said_of
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
    asked = ("links", "run", "-k", "2", "--by", "embeddings")
    assert told(*asked) == ""  # the training has said it
    assert {*whole.splitlines()} <= {*told(*asked, "--verbose").splitlines()}


def test_every_command_that_reads_tables_has_the_same_verbosity():
    told = {}
    for name in COMMANDS:
        options = {one.name: one for one in load_command(name).params}
        if "id_column" in options:
            told[name] = options["verbose"].opts, options["verbose"].help
    assert len(told) > 10
    (opts, text), *others = told.values()
    assert opts == ["--verbose", "-v"]
    assert "all that was read of tables" in text
    assert others == [(opts, text)] * len(others)


def test_what_is_usual_is_left_out_and_many_alike_are_summed_up():
    lines = [f"edges r{n}: {n + 2} repeated rows: merged" for n in range(15)]
    lines += said_of("nodes author:", [Usual("nodes: 3 features: a, b"), "nodes: 1 row: left out"])
    assert unusual(lines) == [
        *lines[:3],
        "  … and 12 more; -v says all",
        "nodes author: 1 row: left out",
    ]
    assert unusual(lines[:4]) == lines[:4]  # one more takes no more room than saying so
