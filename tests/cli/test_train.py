"""`graphcl train`: what it writes, and what it refuses."""

import json
import os
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from graphcl.cli.main import run
from graphcl.cli.train import parse_bytes
from graphcl.errors import ParameterError, RunError
from graphcl.estimator.model import GraphCL
from graphcl.evaluation import folds
from graphcl.evaluation.probe import linear_probe
from graphcl.partitioned.embeddings import open_shards, type_shards
from graphcl.tabular.build import build_store
from tests.cli.conftest import PARTS_CHANGES as CHANGES
from tests.cli.conftest import PARTS_SETTINGS as SETTINGS
from tests.cli.conftest import QUICK, fails, said, weights
from tests.conftest import random_graph
from tests.groups import command


def test_a_run_has_a_name(folder, capsys):
    assert run(["train", "mine.npz", *QUICK, "--out", "."]) == 2
    assert said(capsys) == "graphcl: .: a run is a new folder; give it a name"


def test_weights_that_do_not_fit_are_refused(folder, capsys, monkeypatch):
    monkeypatch.setattr("graphcl.training.modes.available_memory_bytes", lambda _: 10**9)
    assert run(["train", "mine.npz", "--set", "dim=65536", "--out", "run"]) == 2
    assert said(capsys).endswith("the encoder's weights alone do not fit; set a smaller dim")


def test_a_name_that_is_not_utf8_is_refused_at_once(folder, capsys):
    name = os.fsdecode(b"\xffmine.npz")
    (folder / "mine.npz").rename(folder / name)
    assert run(["train", name, *QUICK]) == 2
    assert said(capsys).endswith("a name that is not UTF-8; rename it")


def test_half_a_split_gives_no_score_and_a_report_draws_none(folder, graph, capsys):
    train = np.arange(graph.num_nodes) < 20
    np.savez("half.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y, train_mask=train)
    assert run(["train", "half.npz", *QUICK, "--out", "run"]) == 0
    assert "no probe: probe: train nodes are given, validation and test" in capsys.readouterr().out
    kept = np.load("run/nodes.npz")["split"]
    assert np.array_equal(kept == 1, train)
    assert set(kept) == {0, 1}


def test_a_number_to_predict_has_no_probe_and_no_classes_to_draw(folder, graph, capsys):
    prices = np.where(np.arange(graph.num_nodes) % 3, np.arange(graph.num_nodes) / 4, np.nan)
    np.savez("prices.npz", edge_index=graph.edge_index(), x=graph.x, y=prices)
    assert run(["train", "prices.npz", *QUICK, "--out", "run"]) == 0
    refused = "the label is a number, not a class; predict answers it"
    assert f"no probe: probe: {refused}\n" in capsys.readouterr().out
    assert np.array_equal(np.load("run/nodes.npz")["y"], prices, equal_nan=True)
    for asked in (["evaluate", "run"], ["tune", "prices.npz", "--trials", "1"]):
        assert run(asked) == 2, asked
        assert said(capsys).endswith(refused)
    assert run(["compare", "prices.npz", "--methods", "raw", "--runs", "1"]) == 0
    assert f"raw on prices: 1 of 1 run failed (probe: {refused})" in capsys.readouterr().out
    assert run(["report", "run", "--out", "page.html", "--map", "pca"]) == 0
    assert Path("page.html").stat().st_size > 0


def test_train_writes_a_run_and_prints_the_probe(folder, capsys):
    assert run(["train", "mine.npz", *QUICK]) == 0
    captured = capsys.readouterr()
    assert "probe: accuracy" in captured.out
    assert "epoch 2/2" in captured.err
    names = {path.name for path in (folder / "runs/mine").iterdir()}
    assert names == {
        "config.toml",
        "model.safetensors",
        "scaling.safetensors",
        "metrics.jsonl",
        "embeddings.npy",
        "result.json",
        "nodes.npz",
    }
    result = json.loads((folder / "runs/mine/result.json").read_text())
    assert result["status"] == "complete"
    assert 0 <= result["probe"]["accuracy"] <= 1
    assert {"seed", "versions", "train_seconds", "peak_memory_bytes"} <= result.keys()
    z = np.load(folder / "runs/mine/embeddings.npy")
    assert np.array_equal(z, GraphCL.load("runs/mine").transform(_graph(folder)))
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]


def _graph(folder):
    from graphcl.cli.graphs import load_graph

    return load_graph(str(folder / "mine.npz"))


def test_a_file_named_like_a_dataset_gets_the_default_recipe(folder, capsys):
    (folder / "mine.npz").rename(folder / "citeseer.npz")
    assert run(["train", "citeseer.npz", *QUICK, "--json"]) == 0
    captured = capsys.readouterr()
    assert "recipe default" in captured.err
    assert json.loads(captured.out)["mode"]["name"] == "full"


def test_a_graph_without_labels_trains(folder, capsys, arrays):
    np.savez("bare.npz", edge_index=arrays["edge_index"], x=arrays["x"])
    assert run(["train", "bare.npz", *QUICK]) == 0
    assert "no probe: the graph has no labels" in capsys.readouterr().out
    assert "graph has no labels" in fails(capsys, "evaluate", "runs/bare")


def test_a_graph_without_edges_trains(folder, capsys, arrays):
    np.savez("loose.npz", **arrays | {"edge_index": np.zeros((2, 0), int)})
    assert run(["train", "loose.npz", *QUICK]) == 0


def test_a_labelled_graph_without_a_split_says_what_it_did(folder, capsys, arrays):
    np.savez("free.npz", **{key: arrays[key] for key in ("edge_index", "x", "y")})
    assert run(["train", "free.npz", *QUICK]) == 0
    assert (
        f"60 labelled nodes, each held out in one of {folds.MORE_FOLDS} folds"
        in capsys.readouterr().out
    )


def test_an_existing_run_is_kept_unless_told_otherwise(trained, capsys):
    before = (trained / "model.safetensors").read_bytes()
    message = fails(capsys, "train", "mine.npz", "--seed", "1", *QUICK)
    assert "already holds a run; pass --overwrite" in message
    assert (trained / "model.safetensors").read_bytes() == before
    assert run(["train", "mine.npz", "--seed", "1", "--overwrite", *QUICK]) == 0
    assert (trained / "model.safetensors").read_bytes() != before


def test_tensorboard_curves_end_up_in_the_run(folder, capsys):
    assert run(["train", "mine.npz", *QUICK, "--log", "tensorboard"]) == 0
    assert "tensorboard --logdir" in capsys.readouterr().err
    assert len(list((folder / "runs/mine/tensorboard").iterdir())) == 1
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]
    wild = ["--set", "learning_rate=1e30", "--log", "tensorboard", "--overwrite"]
    assert run(["train", "mine.npz", *QUICK, *wild]) == 2
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]


def constant(folder, y):
    """Writes a graph whose features say nothing."""
    random = np.random.default_rng(0)
    np.savez("flat.npz", edge_index=random.integers(0, 90, (2, 200)), x=np.ones((90, 4)), y=y)


def test_a_training_that_failed_says_so_on_stderr_and_in_its_result(folder, capsys):
    constant(folder, np.random.default_rng(1).integers(0, 3, 90))
    plain = ["encoder=mean", "feature_scaling=row", "side_by_side=false", "own_features=0"]
    plain += ["smoothed_features=0", "normalisation=none"]
    settings = ["epochs=6", "dim=8", *plain]
    command = [
        "train",
        "flat.npz",
        *(word for one in settings for word in ("--set", one)),
        "--json",
    ]
    assert run(command) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert [sign["name"] for sign in result["warnings"]] == ["loss", "collapse", "majority"]
    assert captured.err.count("warning: ") == 3
    assert captured.err.count("\n  try ") == 3
    assert "TrainingWarning" not in captured.err
    assert result["mean_cosine"] == pytest.approx(1)
    assert result["effective_rank"] == pytest.approx(1, abs=0.01)
    assert json.loads((folder / "runs/flat/result.json").read_text()) == result
    assert run([*command, "--resume"]) == 0  # the run is there: it is read, not trained
    assert json.loads(capsys.readouterr().out) == result
    assert run([*command, "--overwrite", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert len(json.loads(captured.out)["warnings"]) == 3


@pytest.mark.parametrize("y", [np.zeros(90, int), np.full(90, -1)])
def test_without_classes_to_tell_apart_the_other_signs_stay(folder, capsys, y):
    constant(folder, y)
    assert run(["train", "flat.npz", "--set", "epochs=6", "--set", "dim=8", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["probe"] is None
    assert [sign["name"] for sign in result["warnings"]] == ["loss", "collapse"]


def test_a_training_that_learned_says_nothing(folder, capsys):
    longer = ["--set", "epochs=40", "--set", "dim=32", "--set", "learning_rate=0.01"]
    assert run(["train", "mine.npz", *longer, "--set", "feature_scaling=none"]) == 0
    captured = capsys.readouterr()
    assert "warning" not in captured.err
    result = json.loads((folder / "runs/mine/result.json").read_text())
    assert result["warnings"] == []
    assert f"(majority {100 * result['probe']['majority']:.1f} %)" in captured.out


def test_another_system_keeps_the_facts_too(folder, capsys):
    assert run(["train", "mine.npz", "--method", "raw", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["effective_rank"] > 1
    assert -1 <= result["mean_cosine"] <= 1
    assert result["warnings"] == []
    assert 0 < result["scores"]["majority"] < 1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    random_graph(num_nodes=90).save(folder / "store")
    for parts in (1, 2):
        build_store(folder / "store", out=folder / f"p{parts}", parts=parts, order="as-is")
    return folder


@pytest.fixture(scope="module")
def whole(prepared):
    """A training over two parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(prepared)
        options = ("--processes", "2", "--out", "whole", "--cache", "1MB", "--json")
        code, out, err = command("train", "p2", *options, *CHANGES)
    assert code == 0, err
    assert "edges of other parts are mapped" in err
    assert "MB sent a step" in err
    return prepared, json.loads(out)


def test_the_run_is_an_ordinary_one(whole, tmp_path, monkeypatch, capsys):
    folder, said = whole
    assert said["graph"]["nodes"] == 90
    reason = "a graph in parts; edges of other parts are mapped"
    assert said["mode"] == {"name": "sampled", "reason": reason}
    assert 0 < said["traffic"]["cache_hits"] <= 1
    lines = [json.loads(one) for one in (folder / "whole/metrics.jsonl").read_text().splitlines()]
    assert all(line["sent_bytes"] >= 0 for line in lines)
    assert lines[0]["sent_bytes"] > 0
    monkeypatch.chdir(folder)
    options = ["--set", "mode=sampled", *CHANGES]
    assert run(["train", "store", "--out", str(tmp_path / "one"), *options]) == 0
    alone = [json.loads(one) for one in (tmp_path / "one/metrics.jsonl").read_text().splitlines()]
    losses = np.array([[one["loss"] for one in both] for both in (alone, lines)])
    np.testing.assert_allclose(losses[0, :9], losses[1, :9], rtol=0, atol=1e-5)
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-3)  # rounding grows with steps
    assert run(["embed", "whole", "store", "--out", str(tmp_path / "a.npy")]) == 0
    capsys.readouterr()
    assert run(["embed", "whole", "--out", str(tmp_path / "shards")]) == 2  # the run's own parts
    assert "p2: has 2 parts" in capsys.readouterr().err
    (folder / "p2").rename(folder / "kept")
    build_store(folder / "store", out=folder / "p2", parts=2, order="hash")
    assert run(["embed", "whole", "--out", str(tmp_path / "shards")]) == 2
    assert "p2 is not the graph that the run was trained on" in capsys.readouterr().err
    shutil.rmtree(folder / "p2")
    (folder / "kept").rename(folder / "p2")
    z, expected = np.load(tmp_path / "a.npy"), np.load(tmp_path / "one/embeddings.npy")
    np.testing.assert_allclose(z, expected, atol=2e-3 * np.abs(expected).max())


def test_a_typed_graph_in_parts_is_trained_and_embedded(typed_parts, monkeypatch):
    """The losses are those of one process on the whole store."""
    folder, graph = typed_parts
    monkeypatch.chdir(folder)
    assert run(["train", "typed", "--out", "one", "--set", "mode=sampled", *CHANGES]) == 0
    both = [Path(name, "metrics.jsonl").read_text().splitlines() for name in ("one", "whole")]
    losses = np.array([[json.loads(line)["loss"] for line in lines] for lines in both])
    assert losses.shape[1] == SETTINGS["epochs"]
    np.testing.assert_allclose(losses[0, :9], losses[1, :9], rtol=0, atol=1e-5)
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-3)  # rounding grows with steps
    assert command("embed", "whole", "--processes", "2", "--out", "tz.parquet")[0] == 0
    for name in graph.nodes:
        assert run(["embed", "whole", "typed", "--type", name, "--out", f"{name}.npy"]) == 0
        found = open_shards(type_shards(Path("tz.parquet"), name))
        np.testing.assert_allclose(found[:], np.load(f"{name}.npy"), rtol=1e-4, atol=1e-5)
    answer = ["predict", "whole", "--type", "paper", "--all", "--out", "p.csv"]
    assert run([*answer, "--embeddings", "tz.parquet", "--graph", "t2"]) == 0


def test_what_is_wrong_is_said_in_one_line(prepared, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(prepared)
    refused = {
        ("p2",): "has 2 parts, one for each process; got 1 process: pass --processes 2",
        ("p2", "--device", "tpu"): "device must be auto, cpu, cuda or cuda:N; got 'tpu'",
        ("p2", "--cache", "lots"): "--cache must be like 256MB or 1GB; got 'lots'",
        ("p2", "--timeout", "0"): "Invalid value for '--timeout'",
        ("p2", "--topology", "x"): "--topology must be one of auto, asked; got 'x'",
        ("p2", "--set", "mode=full"): "mode must be auto or sampled over parts; got 'full'",
        ("store", "--cache", "1GB"): "--cache must be left out unless GRAPH is in parts",
        ("p2", "--label", "y"): "GRAPH must be tables",
    }
    for arguments, expected in refused.items():
        assert run(["train", *arguments, "--out", str(tmp_path / "out")]) == 2, arguments
        (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert expected in line
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_one_part_is_a_store(prepared, monkeypatch, tmp_path):
    monkeypatch.chdir(prepared)
    for graph, out in (("p1", "a"), ("store", "b")):
        assert run(["train", graph, "--out", str(tmp_path / out), *CHANGES]) == 0
    assert weights(tmp_path, "a") == weights(tmp_path, "b")
    assert (tmp_path / "a/embeddings.npy").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("256MB", 256 * 10**6), ("1.5 GiB", 3 * 2**29), ("2gb", 2 * 10**9)],
)
def test_bytes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1XB", "MB", "1e3", "١MBB"])
def test_what_is_not_a_size(text):
    with pytest.raises(ParameterError, match="--cache must be like"):
        parse_bytes(text)


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
    for method, times in (("graphsage-mean", 1), ("dgi", 0)):
        assert run(["train", "weighted.npz", "--method", method, *quick]) == 0
        note = f"note: {method} does not look at edge weights"
        assert capsys.readouterr().err.count(note) == times
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
    assert capsys.readouterr().out.startswith("accuracy ")
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
            "gcn: the loss is not finite in epoch",
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
    from graphcl.estimator.model import GraphCL

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
