from graphcl.cli.main import run


def test_datasets_prints_table_1(capsys):
    assert run(["datasets"]) == 0
    out = capsys.readouterr().out
    for text in (
        "Cora",
        "5,429 (5,278)",
        "3,707 (3,703)",
        "Reddit",
        "11,606,919",
        "151,708/23,699/55,334",
    ):
        assert text in out
