from graphcl.cli.main import run


def test_quiet_leaves_results_and_errors(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quick = ["train", "cora", "--set", "epochs=1", "--set", "dim=8"]
    for arguments in (["--quiet", *quick], [*quick, "-q", "--overwrite"]):
        assert run(arguments) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        assert "probe: accuracy" in captured.out
    assert run([*quick, "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "already holds a run" in captured.err
    assert run([*quick, "--overwrite"]) == 0  # quiet ends with its command
    assert "epoch 1/1" in capsys.readouterr().err
    assert run(["report", "runs/cora", "--map", "pca", "--verbose"]) == 0
    captured = capsys.readouterr()
    assert "nearest neighbours of 2708 nodes" in captured.err
    assert "ms" in captured.err


def test_verbose_shows_where_a_bug_is(monkeypatch, capsys):
    monkeypatch.setattr("graphcl.cli.datasets._row", lambda card: 1 / 0)
    assert run(["datasets"]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert run(["-v", "datasets"]) == 1
    captured = capsys.readouterr()
    assert "Traceback" in captured.err
    assert captured.err.splitlines()[-1].startswith("graphcl: bug: ZeroDivisionError")
    assert run(["datasets"]) == 1
    assert "Traceback" not in capsys.readouterr().err
