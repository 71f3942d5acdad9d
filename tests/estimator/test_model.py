import dataclasses
import json

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch_geometric.data import Data

import graphcl
from graphcl import probe_scorer
from graphcl.errors import GraphCLError, GraphError, ParameterError, RunError, TrainingError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.research.tuning import ValidationScore
from tests.conftest import random_graph


def small(recipe, **changes):
    return GraphCL(recipe, device="cpu", **changes)


def test_fit_transform_gives_float32_numpy_and_the_same_bits_for_a_seed(graph, recipe):
    z = small(recipe).fit_transform(graph)
    assert z.dtype == np.float32
    assert z.shape == (graph.num_nodes, recipe.dim)
    assert np.array_equal(z, small(recipe).fit(graph).transform(graph))
    assert not np.array_equal(z, small(recipe, seed=1).fit_transform(graph))


def test_labels_do_not_reach_training(graph, recipe):
    scrambled = graph.replace(y=graph.y[::-1].copy())
    bare = Graph.from_edge_index(graph.edge_index(), graph.x)
    z = small(recipe).fit_transform(graph)
    assert np.array_equal(z, small(recipe).fit_transform(scrambled))
    assert np.array_equal(z, small(recipe).fit_transform(bare))


def test_it_learns_something(recipe):
    graph = random_graph(num_nodes=300)
    model = small(recipe, epochs=30, dim=32)
    assert graphcl.linear_probe(model.fit_transform(graph), graph).accuracy > 0.85


def test_save_and_load(graph, recipe, tmp_path):
    model = small(recipe).fit(graph)
    model.save(tmp_path / "run")
    loaded = GraphCL.load(tmp_path / "run", device="cpu")
    assert np.array_equal(loaded.transform(graph), model.transform(graph))
    assert loaded.recipe_ == model.recipe_
    assert loaded.history_ == model.history_
    assert loaded.seed == model.seed
    names = {file.name for file in (tmp_path / "run").iterdir()}
    files = {"config.toml", "model.safetensors", "metrics.jsonl"}
    assert names - {"scaling.safetensors"} == files
    assert ("scaling.safetensors" in names) == (model.recipe_.feature_scaling == "auto")
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_saving_replaces_nothing_unasked(graph, recipe, tmp_path):
    model = small(recipe).fit(graph)
    model.save(tmp_path / "run")
    before = (tmp_path / "run/model.safetensors").read_bytes()
    with pytest.raises(RunError, match="already holds a run"):
        model.save(tmp_path / "run")
    small(recipe, seed=5).fit(graph).save(tmp_path / "run", overwrite=True)
    assert (tmp_path / "run/model.safetensors").read_bytes() != before
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.tex").touch()
    with pytest.raises(RunError, match="holds files that are not part of a run"):
        model.save(tmp_path / "precious", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious", "run"]


def test_a_failed_save_leaves_nothing(graph, recipe, tmp_path, monkeypatch):
    model = small(recipe).fit(graph)
    model.save(tmp_path / "run")
    monkeypatch.setattr(
        "graphcl.runs.files.write_weights", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(OSError, match="full"):
        model.save(tmp_path / "run", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    GraphCL.load(tmp_path / "run")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model.safetensors", lambda data: data[: len(data) // 2], "damaged or truncated"),
        ("model.safetensors", lambda data: b"", "damaged or truncated"),
        ("config.toml", lambda data: data.replace(b"dim = 16", b"dim = 17"), "do not fit"),
        ("config.toml", lambda data: data.replace(b"format = 1", b"format = 9"), "run format 9"),
        ("config.toml", lambda data: data[:40], "not TOML|is missing|lacks the tables"),
        ("config.toml", lambda data: b"\xff\xfe", "not text"),
        ("config.toml", lambda data: data.replace(b"seed = 0\n", b""), "lacks 'seed'"),
        (
            "config.toml",
            lambda data: data.replace(b"seed = 0\n", b'seed = "x"\n'),
            r"\[run\] seed must be a whole number; got 'x'",
        ),
        (
            "config.toml",
            lambda data: data.replace(b"num_features = 12", b"num_features = inf"),
            r"\[run\] num_features must be a whole number; got inf",
        ),
        ("metrics.jsonl", lambda data: data[:-9], "damaged"),
    ],
)
def test_damaged_runs(graph, recipe, tmp_path, file, change, message):
    small(recipe).fit(graph).save(tmp_path / "run")
    path = tmp_path / "run" / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(GraphCLError, match=message):
        GraphCL.load(tmp_path / "run")


def test_missing_runs(tmp_path):
    with pytest.raises(RunError, match="no such run"):
        GraphCL.load(tmp_path / "absent")
    with pytest.raises(RunError, match=r"not a run \(it has no config.toml\)"):
        GraphCL.load(tmp_path)


def test_unseen_graphs_and_feature_mismatch(graph, recipe):
    model = small(recipe).fit(graph)
    assert model.transform(random_graph(9, num_nodes=31)).shape == (31, recipe.dim)
    with pytest.raises(GraphError, match="has 5 features; the model was trained on 12"):
        model.transform(random_graph(num_features=5))


def test_before_fit(graph, tmp_path):
    with pytest.raises(GraphCLError, match="call fit before transform"):
        GraphCL().transform(graph)
    with pytest.raises(GraphCLError, match="call fit before save"):
        GraphCL().save(tmp_path / "run")


def fitted_state(model):
    state = {name: value for name, value in vars(model).items() if name.endswith("_")}
    return state | {"history_": list(model.history_)}


def same_fit(model, graph, state, folder):
    """Asserts that `model` holds `state`, and that all it tells and writes agrees with it."""
    assert fitted_state(model) == state
    z = model.transform(graph)
    assert z.shape == (graph.num_nodes, len(model.get_feature_names_out()))
    model.save(folder)
    loaded = GraphCL.load(folder, device="cpu")
    assert np.array_equal(loaded.transform(graph), z)
    assert loaded.recipe_ == model.recipe_
    assert (loaded.seed, loaded.history_) == (model.seed_, model.history_)


def raises(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    ("changes", "part", "error"),
    [
        ({"encoder": "foo"}, None, ParameterError),
        ({"seed": None}, None, ParameterError),
        ({"encoder": "gat", "mode": "sampled"}, None, GraphCLError),
        ({"learning_rate": 1e30}, None, TrainingError),
        ({}, "Components.new_encoder", ParameterError("no encoder")),
        ({}, "Components.batches", TrainingError("no memory")),
        ({}, "train", KeyboardInterrupt()),
        ({}, "train", torch.OutOfMemoryError()),
    ],
)
def test_a_refit_that_fails_leaves_the_earlier_fit(
    graph, recipe, tmp_path, monkeypatch, changes, part, error
):
    model = small(recipe).fit(graph)
    state = fitted_state(model)
    if part:
        home = "fitting" if part == "train" else "model"
        monkeypatch.setattr(f"graphcl.estimator.{home}.{part}", raises(error))
    with pytest.raises(type(error) if part else error):
        model.set_params(dim=8, **changes).fit(random_graph(num_features=5))
    monkeypatch.undo()
    same_fit(model, graph, state, tmp_path / "run")


def test_a_refit_that_fails_at_its_first_step_leaves_the_earlier_fit(graph, recipe, tmp_path):
    edges = graph.edge_index()
    weighted = Graph.from_edge_index(edges, graph.x, edge_weight=np.full(edges.shape[1], 0.5))
    model = small(recipe).fit(graph)
    state = fitted_state(model)
    with pytest.raises(ParameterError, match="takes no edge weights"):
        model.set_params(dim=8, encoder="gin").fit(weighted)
    same_fit(model, graph, state, tmp_path / "run")


def test_a_first_fit_that_fails_leaves_none(graph, recipe):
    model = small(recipe, learning_rate=1e30)
    with pytest.raises(TrainingError, match="the loss became"):
        model.fit(graph)
    with pytest.raises(GraphCLError, match="call fit before transform"):
        model.transform(graph)


def test_an_interrupted_refit_keeps_what_it_has_reached(graph, recipe, tmp_path):
    model = small(recipe).fit(graph)
    earlier = model.encoder_
    with pytest.raises(KeyboardInterrupt):
        model.set_params(dim=8, seed=4).fit(graph, on_epoch=raises(KeyboardInterrupt()))
    assert (model.recipe_.dim, model.seed_, len(model.history_)) == (8, 4, 1)
    assert model.encoder_ is not earlier
    same_fit(model, graph, fitted_state(model), tmp_path / "run")


def test_a_resumed_fit_is_taken_over_with_its_weights(graph, recipe, tmp_path, monkeypatch):
    small(recipe).fit(graph, checkpoints=tmp_path / "checkpoints")
    model = small(recipe, seed=1).fit(graph)
    state = fitted_state(model)
    monkeypatch.setattr("graphcl.training.checkpoints.Saved.restore", raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        model.set_params(seed=0).fit(graph, checkpoints=tmp_path / "checkpoints", resume=True)
    same_fit(model, graph, state, tmp_path / "run")


@pytest.mark.parametrize("seed", [None, "x", 1.5, True, np.float64(1)])
def test_a_seed_is_a_whole_number(graph, recipe, seed):
    with pytest.raises(ParameterError) as caught:
        small(recipe, seed=seed).fit(graph)
    assert str(caught.value) == f"GraphCL: seed must be a whole number; got {seed!r}"


def test_seeds_of_numpy_and_a_changed_seed_are_saved_as_trained(graph, recipe, tmp_path):
    model = small(recipe, seed=np.int64(5)).fit(graph, checkpoints=tmp_path / "checkpoints")
    assert np.array_equal(model.transform(graph), small(recipe, seed=5).fit_transform(graph))
    model.set_params(seed=None).save(tmp_path / "run")
    assert GraphCL.load(tmp_path / "run").seed == 5


def test_checkpoints_that_are_none(graph, recipe):
    with pytest.raises(ParameterError) as caught:
        small(recipe).fit(graph, checkpoints=3)
    expected = "GraphCL: checkpoints must be a folder or a Checkpoints; got 3"
    assert str(caught.value) == expected


def test_scikit_learn_clones_it(recipe):
    model = GraphCL("cora", temperature=0.9, seed=4)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(epochs=7).complete_recipe().epochs == 7
    assert repr(model) == "GraphCL(recipe='cora', seed=4, temperature=0.9)"


def test_a_pyg_user_needs_two_lines(recipe):
    data = Data(x=torch.rand(10, 4), edge_index=torch.randint(0, 10, (2, 30)))
    z = small(recipe).fit_transform(data)
    assert z.shape == (10, recipe.dim)
    with pytest.raises(GraphError, match=r"expected a graphcl\.Graph"):
        small(recipe).fit([1, 2, 3])


def garbage(graph):
    return Graph.from_edge_index([[0], [1]], 1e3 * np.ones_like(graph.x[:7]), graph.y[:7])


def test_validation_and_test_graphs_never_enter_training(recipe, collection):
    model = small(recipe, encoder="residual", layers=3).fit(collection)
    spoilt = dataclasses.replace(
        collection,
        val=tuple(map(garbage, collection.val)),
        test=tuple(map(garbage, collection.test)),
    )
    without = dataclasses.replace(collection, val=(), test=())
    for other in (spoilt, without, list(collection.train)):
        again = small(recipe, encoder="residual", layers=3).fit(other)
        assert [m.loss for m in again.history_] == [m.loss for m in model.history_]
        for key, weight in model.encoder_.state_dict().items():
            assert torch.equal(weight, again.encoder_.state_dict()[key])
    fewer = small(recipe, encoder="residual", layers=3).fit(list(collection.train[:2]))
    assert fewer.history_[-1].loss != model.history_[-1].loss


def test_labels_of_many_graphs_do_not_reach_training(recipe, collection):
    bare = [Graph.from_edge_index(graph.edge_index(), graph.x) for graph in collection.train]
    first, second = small(recipe).fit(collection), small(recipe).fit(bare)
    assert [m.loss for m in first.history_] == [m.loss for m in second.history_]


def test_many_graphs_are_embedded_one_by_one(recipe, collection, tmp_path):
    model = small(recipe, encoder="residual", layers=3)
    z = model.fit_transform(collection)
    assert [len(rows) for rows in z] == [graph.num_nodes for graph in collection.graphs]
    for rows, graph in zip(z, collection.graphs, strict=True):
        assert np.array_equal(rows, model.transform(graph))
    assert [len(rows) for rows in model.transform(list(collection.test))] == [55]
    model.save(tmp_path / "run")
    again = GraphCL.load(tmp_path / "run", device="cpu").transform(collection)
    assert all(np.array_equal(first, second) for first, second in zip(z, again, strict=True))
    with pytest.raises(GraphError, match="has 5 features; the model was trained on 12"):
        model.transform([random_graph(num_features=5)])


def test_a_list_of_one_graph_is_that_graph(graph, recipe):
    (rows,) = small(recipe).fit_transform([graph])
    assert np.array_equal(rows, small(recipe).fit_transform(graph))


def test_lists_that_are_no_graphs(graph, recipe):
    with pytest.raises(GraphError, match="no training graph"):
        small(recipe).fit([])
    with pytest.raises(GraphError, match="has 5 features"):
        small(recipe).fit([graph, random_graph(num_features=5)])
    data = Data(x=torch.rand(10, 4), edge_index=torch.randint(0, 10, (2, 30)))
    assert [len(rows) for rows in small(recipe).fit_transform([data, data])] == [10, 10]


AWKWARD = {
    "one node": Graph.from_edge_index([], [[1.0, 2.0]]),
    "no edges": Graph.from_edge_index([], np.eye(5)),
    "an isolated node": Graph.from_edge_index([[0, 1], [1, 2]], np.eye(4)),
    "an all-zero row": Graph.from_edge_index([[0, 1], [1, 2]], np.diag([1.0, 1, 1, 0])),
    "all rows zero": Graph.from_edge_index([[0, 1], [1, 2]], np.zeros((3, 2))),
    "sparse with an empty row": Graph.from_edge_index(
        [[0, 1], [1, 2]], scipy.sparse.csr_array(np.diag([1.0, 1, 1, 0]))
    ),
    "sparse with no entry": Graph.from_edge_index([[0], [1]], scipy.sparse.csr_array((3, 4))),
    "integer features": Graph.from_edge_index([[0], [1]], np.array([[1, 2], [3, 4], [5, 6]])),
    "one feature": Graph.from_edge_index([[0], [1]], [[1.0], [2.0], [3.0]]),
    "float64": Graph.from_edge_index(torch.tensor([[0], [1]]), torch.rand(3, 2).double()),
    "only self-loops": Graph.from_edge_index([[0, 1], [0, 1]], np.eye(2)),
    "large features": Graph.from_edge_index([[0], [1]], np.array([[1e6, 2e6], [3e6, 4], [5, 6]])),
}


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("encoder", ["mean", "residual", "gat"])
@pytest.mark.parametrize("changes", [{}, {"layers": 1, "batch_nodes": 2, "feature_scaling": "row"}])
def test_awkward_graphs_train(name, encoder, changes, recipe):
    z = small(recipe, encoder=encoder, **changes).fit_transform(AWKWARD[name])
    assert z.shape == (AWKWARD[name].num_nodes, recipe.dim)
    assert np.isfinite(z).all()


def test_verbose_shows_progress(graph, recipe, capsys):
    small(recipe, verbose=True).fit(graph)
    captured = capsys.readouterr()
    assert "epoch 3/3" in captured.err
    assert captured.out == ""


def test_grid_search_holds_graphs_out(recipe):
    graphs = [random_graph(seed) for seed in range(3)]
    search = GridSearchCV(
        GraphCL(recipe, device="cpu"),
        {"dim": [2, 16], "temperature": [0.5]},
        scoring=probe_scorer,
        cv=3,
        error_score="raise",
    ).fit(graphs)
    scores = search.cv_results_["mean_test_score"]
    assert scores.shape == (2,)
    assert search.best_params_["dim"] == (2, 16)[int(scores.argmax())]
    # The first fold of the first setting, by hand.
    model = GraphCL(recipe, device="cpu", dim=2, temperature=0.5).fit(graphs[1:])
    assert search.cv_results_["split0_test_score"][0] == probe_scorer(model, graphs[:1])
    assert [len(rows) for rows in search.transform(graphs)] == [60, 60, 60]


def test_grid_search_over_one_graph(graph, recipe):
    search = GridSearchCV(
        GraphCL(recipe, device="cpu"), {"dim": [4, 8]}, scoring=probe_scorer, cv=[([0], [0])]
    ).fit([graph])
    model = GraphCL(recipe, device="cpu", **search.best_params_)
    score = ValidationScore.of(graph, device="cpu")
    assert search.best_score_ == score(model.fit(graph).transform)


def test_two_classes_are_ranked_as_tune_ranks_them(graph, recipe):
    two = graph.replace(y=np.minimum(graph.y, 1))
    model = GraphCL(recipe, device="cpu").fit(two)
    score = ValidationScore.of(two, device="cpu")
    assert score.name == "validation ROC-AUC"
    assert probe_scorer(model, two) == score(model.transform)


def test_the_scorer_takes_several_labels_per_node(collection, recipe):
    model = GraphCL(recipe, device="cpu").fit(collection)
    assert 0 <= probe_scorer(model, list(collection.test)) <= 1
