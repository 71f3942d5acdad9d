from graphcl.cli.main import run


def test_options_of_tables_are_refused_where_there_are_none(capsys):
    assert run(["train", "cora", "--label", "y"]) == 2
    assert "--label says what tables mean; 'cora' is none" in capsys.readouterr().err
