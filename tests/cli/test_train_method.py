import json
import tomllib

import numpy as np
import pytest

from graphcl.cli.main import run
from graphcl.evaluation import linear_probe
from tests.cli.conftest import fails

DGI = ["train", "mine.npz", "--method", "dgi", "--set", "dim=8", "--set", "epochs=4"]
GCN = ["train", "mine.npz", "--method", "gcn", "--set", "epochs=4"]


@pytest.fixture
def dgi(folder, capsys):
    assert run(DGI) == 0
    capsys.readouterr()
    return folder / "runs/mine-dgi"


@pytest.fixture
def gcn(folder, capsys):
    assert run(GCN) == 0
    capsys.readouterr()
    return folder / "runs/mine-gcn"


def test_an_unsupervised_one_writes_a_run_and_prints_the_probe(folder, capsys, graph):
    assert run([*DGI, "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert "probe: accuracy" in captured.out
    assert "DGI" in captured.err
    made = folder / "runs/mine-dgi"
    assert {path.name for path in made.iterdir()} == {
        "config.toml",
        "embeddings.npy",
        "nodes.npz",
        "result.json",
    }
    config = tomllib.loads((made / "config.toml").read_text())
    assert config["method"] == {"name": "dgi"}
    assert (config["settings"]["dim"], config["settings"]["patience"]) == (8, 20)
    assert (config["run"]["seed"], config["run"]["graph"]) == (3, "mine.npz")
    result = json.loads((made / "result.json").read_text())
    z = np.load(made / "embeddings.npy")
    assert result["scores"]["accuracy"] == linear_probe(z, graph).accuracy
    assert {"seed", "versions", "train_seconds", "peak_memory_bytes", "device"} <= result.keys()


def test_one_that_ignores_weights_says_so(folder, capsys, graph):
    both = graph.edge_index()
    ends = both[:, both[0] < both[1]]
    np.savez("weighted.npz", edge_index=ends, x=graph.x, edge_weight=np.ones(ends.shape[1]))
    quick = ["--set", "epochs=1", "--set", "dim=4"]
    for method, said in (("graphsage-mean", 1), ("dgi", 0)):
        assert run(["train", "weighted.npz", "--method", method, *quick]) == 0
        note = f"note: {method} does not look at edge weights"
        assert capsys.readouterr().err.count(note) == said
    assert run(["train", "mine.npz", "--method", "graphsage-mean", *quick]) == 0
    assert "edge weights" not in capsys.readouterr().err


def test_a_supervised_one_keeps_its_predictions(gcn, capsys, graph):
    assert {path.name for path in gcn.iterdir()} == {
        "config.toml",
        "nodes.npz",
        "predictions.npy",
        "result.json",
    }
    predicted = np.load(gcn / "predictions.npy")
    scores = json.loads((gcn / "result.json").read_text())["scores"]
    assert scores["accuracy"] == (predicted == graph.y)[graph.test_mask].mean()
    assert run([*GCN, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"] == scores
    assert run([*GCN, "--overwrite"]) == 0
    assert "predictions: accuracy" in capsys.readouterr().out


def test_evaluate_stored_and_repeated(dgi, gcn, capsys):
    for made in (dgi, gcn):
        stored = json.loads((made / "result.json").read_text())["scores"]
        assert run(["evaluate", str(made), "--json"]) == 0
        one = json.loads(capsys.readouterr().out)
        assert one["accuracy"] == stored["accuracy"]
        assert run(["evaluate", str(made), "--runs", "2", "--json"]) == 0
        two = json.loads(capsys.readouterr().out)
        assert set(two["accuracy"]) == {"mean", "std"}
        assert two["seeds"] == [0, 1]
        assert run(["evaluate", str(made), "--seed", "0", "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["accuracy"] == stored["accuracy"]  # config.toml says all that it needs
    assert run(["evaluate", str(gcn), "--set", "epochs=2"]) == 0
    assert "1 run" in capsys.readouterr().out
    line = fails(capsys, "evaluate", str(gcn), "--set", "epoch=2")
    assert line == "graphcl: gcn: unknown field 'epoch'; did you mean 'epochs'?"


def test_evaluate_says_that_identical_runs_are(folder, capsys):
    assert run(["train", "mine.npz", "--method", "raw"]) == 0
    assert run(["evaluate", "runs/mine-raw", "--runs", "3"]) == 0
    assert "3 runs" in (out := capsys.readouterr().out)
    assert "all identical" in out


def test_embed_gives_what_the_run_holds(dgi, gcn, capsys):
    assert run(["embed", str(dgi), "--out", "z.npy"]) == 0
    assert run(["embed", str(dgi), "mine.npz", "--out", "same.npy"]) == 0
    assert np.array_equal(np.load("z.npy"), np.load(dgi / "embeddings.npy"))
    assert np.array_equal(np.load("z.npy"), np.load("same.npy"))
    capsys.readouterr()
    line = fails(capsys, "embed", str(dgi), "cora", "--out", "other.npy")
    assert "dgi has embeddings of mine.npz only; train it on cora" in line
    line = fails(capsys, "embed", str(gcn), "--out", "other.npy")
    assert "gcn is supervised: it predicts classes and has no embeddings" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "dgii"], "unknown method 'dgii'; known: graphcl, raw, label-propagation"),
        (["--method", "dgi", "--set", "dimm=3"], "dgi: unknown field 'dimm'; did you mean 'dim'?"),
        (["--method", "dgi", "--set", "dim=x"], "dgi: dim must be a whole number; got 'x'"),
        (["--method", "dgi", "--set", "dim=0"], "dgi: dim must be at least 1; got 0"),
        (["--method", "dgi", "--recipe", "cora"], "--recipe is graphcl's alone; dgi"),
        (["--method", "dgi", "--resume"], "--resume is graphcl's alone; dgi does not take it"),
        (
            ["--method", "gcn", "--set", "learning_rate=1e30", "--set", "epochs=3"],
            "gcn: the result is not finite",
        ),
    ],
)
def test_a_users_error_is_one_line_and_leaves_nothing(folder, capsys, arguments, message):
    assert message in fails(capsys, "train", "mine.npz", *arguments)
    assert not (folder / "runs").exists()


def test_a_graph_without_labels(folder, arrays, capsys):
    np.savez("bare.npz", edge_index=arrays["edge_index"], x=arrays["x"])
    assert run(["train", "bare.npz", *DGI[2:]]) == 0
    assert "no probe scored: probe: the graph has no labels" in capsys.readouterr().out
    line = fails(capsys, "train", "bare.npz", *GCN[2:])
    assert "gcn: learns from labels; bare has none" in line


def test_a_baselines_run_is_none_of_graphcls(dgi, capsys):
    from graphcl.errors import RunError
    from graphcl.estimator import GraphCL

    with pytest.raises(RunError, match="a run of the baseline 'dgi'"):
        GraphCL.load(dgi)
    kept = (dgi / "config.toml").read_text()
    (dgi / "config.toml").write_text(kept.replace("seed = 0", "seed = 'x'"))
    assert "seed must be a whole number" in fails(capsys, "evaluate", str(dgi), "--runs", "2")
    (dgi / "config.toml").write_text(kept.replace("seed = 0", ""))
    assert "lacks the seed" in fails(capsys, "evaluate", str(dgi), "--runs", "2")
    (dgi / "config.toml").write_text(kept.replace('name = "dgi"', 'name = "dgj"'))
    assert "did you mean 'dgi'?" in fails(capsys, "evaluate", str(dgi), "--runs", "2")
    (dgi / "config.toml").write_text("[method]\nname = 'dgi'\n[run]\nformat = 1\n")
    assert "lacks the tables" in fails(capsys, "evaluate", str(dgi))
