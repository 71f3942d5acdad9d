from graphcl.cli.main import run


def test_table_options_are_refused_without_tables(capsys):
    assert run(["train", "cora", "--label", "y"]) == 2
    assert "--label applies only to tables; 'cora' is not a table" in capsys.readouterr().err
