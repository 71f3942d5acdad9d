"""`feature_scaling = "auto"`, from training to the commands: whose rows decide, who applies it."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl import Graph, GraphCL
from graphcl.cli.main import run
from graphcl.embedding import embed_graph
from graphcl.errors import RunError
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.scaling import LOGARITHM, NUMBER, WORD
from graphcl.graphs.tensors import graph_tensors
from graphcl.training import SampledGraph
from graphcl.views import Drop
from tests.conftest import configured, random_graph

CPU = torch.device("cpu")
AUTO = {"feature_scaling": "auto", "device": "cpu"}


def mixed_graph(seed=0):
    """Columns of different units and tails, two codes, a constant and a bag of 60 words."""
    graph, random = random_graph(seed), np.random.default_rng(seed)
    words = random.integers(1, 4, (60, 60)) * (random.random((60, 60)) < 0.2)
    code = random.random((60, 2)) < 0.5
    units = 10.0 ** np.arange(-6, 2)
    numbers = np.where(np.arange(8) % 2, np.exp(2 * graph.x[:, :8]), graph.x[:, :8]) * units
    x = np.hstack([numbers, code, np.full((60, 1), 3.0), words])
    return graph.replace(x=x.astype(np.float32))


def changed_outside_training(graph):
    x = graph.x.copy()
    unseen = ~graph.train_mask
    x[unseen] = np.random.default_rng(5).normal(0, 1e5, x[unseen].shape)
    return graph.replace(x=x)


def without_edges_to_unseen(graph):
    pairs = graph.edge_index()
    kept = graph.train_mask[pairs[0]] == graph.train_mask[pairs[1]]
    return Graph.from_edge_index(pairs[:, kept], graph.x)


def same(one, other):
    return all(np.array_equal(array, getattr(other, name)) for name, array in vars(one).items())


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_unseen_rows_change_nothing_but_themselves(recipe, mode):
    graph = mixed_graph()
    other = changed_outside_training(graph)
    options = {"mode": mode, "inductive": True, "batch_nodes": 8, **AUTO}
    ours, theirs = (configured(recipe, **options).fit(one) for one in (graph, other))
    assert same(ours.scaling_, theirs.scaling_)
    assert {NUMBER, LOGARITHM, WORD} <= set(ours.scaling_.kind.tolist())
    for one, two in zip(ours.encoder_.parameters(), theirs.encoder_.parameters(), strict=True):
        assert torch.equal(one, two)
    apart, other_apart = (without_edges_to_unseen(one) for one in (graph, other))
    first, second = ours.transform(apart), ours.transform(other_apart)
    np.testing.assert_array_equal(first[graph.train_mask], second[graph.train_mask])
    assert not np.array_equal(first[~graph.train_mask], second[~graph.train_mask])


def test_transductive_training_looks_at_all_rows(recipe):
    graph = mixed_graph()
    ours = GraphCL(recipe, **AUTO).fit(graph).scaling_
    theirs = GraphCL(recipe, **AUTO).fit(changed_outside_training(graph)).scaling_
    assert not same(ours, theirs)


def test_a_collection_is_scaled_by_its_training_graphs(recipe):
    graphs = [mixed_graph(seed).replace(train_mask=None) for seed in range(3)]
    collection = GraphCollection((graphs[0],), (graphs[1],), (graphs[2],))
    model = GraphCL(recipe, **AUTO).fit(collection)
    assert same(model.scaling_, GraphCL(recipe, **AUTO).fit(graphs[0]).scaling_)
    np.testing.assert_array_equal(model.transform(collection)[2], model.transform(graphs[2]))


def test_a_loaded_run_applies_the_same_numbers(recipe, tmp_path):
    graph, unseen = mixed_graph(), mixed_graph(1)
    model = GraphCL(recipe, **AUTO).fit(graph)
    model.save(tmp_path / "run")
    loaded = GraphCL.load(tmp_path / "run", device="cpu")
    assert same(model.scaling_, loaded.scaling_)
    for copy in (loaded, pickle.loads(pickle.dumps(model))):
        for one in (graph, unseen):
            np.testing.assert_array_equal(copy.transform(one), model.transform(one))
    # The same weights with statistics of the unseen graph would give something else.
    other = GraphCL(recipe, **AUTO).fit(unseen).scaling_
    x, adjacency = graph_tensors(unseen, device=CPU, feature_scaling=other)
    with torch.no_grad():
        wrong = model.encoder_.embedding(x, adjacency).numpy()
    assert not np.allclose(model.transform(unseen), wrong, atol=1e-3)


def test_a_run_without_its_statistics_is_refused(recipe, tmp_path):
    GraphCL(recipe, **AUTO).fit(mixed_graph()).save(tmp_path / "run")
    file = tmp_path / "run/scaling.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-8])
    with pytest.raises(RunError, match=r"scaling\.safetensors: damaged"):
        GraphCL.load(tmp_path / "run")
    other = GraphCL(recipe, **AUTO).fit(random_graph())
    other.save(tmp_path / "other")
    file.write_bytes((tmp_path / "other/scaling.safetensors").read_bytes())
    with pytest.raises(RunError, match=r"scaling\.safetensors: damaged .*71 columns"):
        GraphCL.load(tmp_path / "run")
    file.unlink()
    with pytest.raises(RunError, match=r"scaling\.safetensors: missing"):
        GraphCL.load(tmp_path / "run")


def test_other_values_leave_no_statistics(recipe, tmp_path):
    model = GraphCL(recipe, feature_scaling="row", device="cpu").fit(mixed_graph())
    model.save(tmp_path / "run")
    assert model.scaling_ == "row"
    assert not (tmp_path / "run/scaling.safetensors").exists()


@pytest.mark.parametrize("features", ["float32", "float16"])
@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_a_store_trains_and_embeds_as_memory_does(recipe, tmp_path, features, mode):
    mixed_graph().save(tmp_path / "store", features=features)
    stored = Graph.open(tmp_path / "store")
    memory = Graph.from_edge_index(stored.edge_index(), np.asarray(stored.x, np.float32))
    options = {"mode": mode, "batch_nodes": 20, **AUTO}
    ours, theirs = (configured(recipe, **options).fit(one) for one in (stored, memory))
    assert same(ours.scaling_, theirs.scaling_)
    losses = [model.history_[-1].loss for model in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    whole = ours.transform(memory)
    np.testing.assert_allclose(ours.transform(stored), whole, rtol=1e-4, atol=1e-5)
    in_blocks = embed_graph(
        ours.encoder_, stored, device=CPU, feature_scaling=ours.scaling_, block_rows=7
    )["node"]
    np.testing.assert_allclose(in_blocks, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("as_given", [np.asarray, scipy.sparse.csr_array])
def test_whole_and_sampled_training_see_the_same_features(recipe, as_given):
    graph = mixed_graph()
    graph = graph.replace(x=as_given(graph.x))
    scaling = GraphCL(recipe, **AUTO).fit(graph).scaling_
    x, _ = graph_tensors(graph, device=CPU, feature_scaling=scaling)
    assert isinstance(x, torch.Tensor) == isinstance(graph.x, np.ndarray)
    x = x if isinstance(x, torch.Tensor) else x.to_dense()
    none = Drop(0.0, 0.0)
    source = SampledGraph.of(graph, device=CPU, feature_scaling=scaling, fan_outs=4, layers=1)
    torch.testing.assert_close(source.topology.x["node"], x)
    tree = source.batch({"node": torch.arange(60)}, none, seed=0).draw()[0]
    own = tree.inputs[0]["node"][:, x.shape[1] :]
    torch.testing.assert_close(own, x, rtol=1e-5, atol=1e-6)


def test_commands_say_what_was_done_and_embed_by_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    graph, x = mixed_graph(), mixed_graph().x[::-1].copy()
    x[:2, 0] = 1e9
    np.savez("mine.npz", edge_index=graph.edge_index(), x=graph.x)
    np.savez("other.npz", edge_index=graph.edge_index(), x=x)
    quick = ["--set", "epochs=2", "--set", "dim=8", "--set", "feature_scaling=auto"]
    assert run(["train", "mine.npz", *quick]) == 0
    said = json.loads((tmp_path / "runs/mine/result.json").read_text())["scaling"]
    assert said.startswith("features: 62 columns of words, rows scaled")
    assert "; 8 columns of numbers standardised (" in said
    assert said.endswith("; 1 column constant, set to 0")
    assert said in capsys.readouterr().err
    assert run(["embed", "runs/mine", "other.npz", "--out", "z.npy"]) == 0
    assert (
        "2 values more than 10 deviations from the training rows' mean" in capsys.readouterr().err
    )
    model = GraphCL.load("runs/mine", device="cpu")
    wanted = model.transform(graph.replace(x=x))
    np.testing.assert_array_equal(np.load("z.npy"), wanted)
    assert run(["report", "runs/mine", "--out", "page.html"]) == 0
    page = (tmp_path / "page.html").read_text()
    assert said in page
    assert "Alignment is left out" not in page


@pytest.mark.parametrize("method", ["propagation", "cca-ssg", "graphsage-mean", "dgi-inductive"])
def test_baselines_take_it(method):
    from graphcl.research.trials import find_system

    graph = mixed_graph()
    quick = {} if method == "propagation" else {"epochs": 1}
    system = find_system(method).method("", feature_scaling="auto", **quick)
    z = system.embed(graph, seed=0, device=CPU)
    other = find_system(method).method("", feature_scaling="row", **quick)
    assert np.isfinite(z).all()
    assert not np.array_equal(z, other.embed(graph, seed=0, device=CPU))
