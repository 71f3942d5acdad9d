import json

from graphcl.cli.main import run


def test_evaluate_one_run_and_several(trained, capsys):
    assert run(["evaluate", "runs/mine", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["accuracy"] == json.loads((trained / "result.json").read_text())["probe"]["accuracy"]
    assert run(["evaluate", "runs/mine", "--runs", "3", "--json"]) == 0
    three = json.loads(capsys.readouterr().out)
    assert set(three["accuracy"]) == {"mean", "std"}
    assert three["seeds"] == [0, 1, 2]
    assert run(["evaluate", "runs/mine", "--runs", "2", "--seed", "7"]) == 0
    assert "2 runs" in capsys.readouterr().out


def test_repeating_a_runs_own_seed_gives_its_score(trained, capsys):
    assert run(["evaluate", "runs/mine", "--seed", "0", "--json", "--device", "cpu"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (
        again["accuracy"] == json.loads((trained / "result.json").read_text())["probe"]["accuracy"]
    )
