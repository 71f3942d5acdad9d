import json
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl import Graph, GraphCL
from graphcl.errors import TrainingWarning
from graphcl.evaluation.unsupervised import effective_rank, mean_cosine
from graphcl.graphs.tensors import graph_tensors
from tests.conftest import configured, random_collection


def communities(n=200, width=16, *, features=None):
    """Two communities whose features give them away, unless `features` replaces them."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, n)
    likely = np.where(y[:, None] == y[None], 8 / n, 1 / n)
    edges = np.argwhere(np.triu(random.random((n, n)) < likely, 1)).T
    x = random.normal(size=(n, width)) + 2 * np.eye(2, width)[y] if features is None else features
    return Graph.from_edge_index(edges, x)


PLAIN = {  # the embedding is what was contrasted, and nothing else
    "encoder": "mean",
    "normalisation": "none",
    "side_by_side": False,
    "own_features": 0.0,
    "smoothed_features": 0.0,
    "repeat_own": False,
    "feature_scaling": "row",
    "batch_nodes": 4096,
}


def fitted(graph, **changes):
    settings = {"epochs": 40, "dim": 32, "learning_rate": 0.01, "device": "cpu"} | PLAIN | changes
    return configured(**settings).fit(graph)


def names(model):
    return [sign.name for sign in model.health_.warnings]


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_a_healthy_training_is_silent(mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fitted(communities(), mode=mode)
    assert names(model) == []
    assert model.health_.effective_rank > 4
    assert model.health_.mean_cosine < 0.5


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_constant_features_collapse_and_warn(mode):
    with pytest.warns(TrainingWarning, match="nearly coincide"):
        model = fitted(communities(features=np.ones((200, 5))), mode=mode, epochs=10)
    assert "collapse" in names(model)
    assert model.health_.mean_cosine == pytest.approx(1)
    assert model.health_.effective_rank == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_few_directions_under_automatic_scaling_are_measured_too(mode):
    """What the features allow is looked at as they were scaled, not by the recipe's word."""
    features = np.random.default_rng(0).normal(size=(200, 1)) * [1.0, 1e3] + [0.0, 5.0]
    model = fitted(communities(features=features), mode=mode, epochs=2, feature_scaling="auto")
    assert 0 < model.health_.effective_rank < 4


def test_of_several_parts_the_learned_one_is_judged():
    """Own features that stand beside it must not hide that nothing was learned."""
    graph = communities()
    model = GraphCL(epochs=3, dim=32, device="cpu").fit(graph)
    assert model.encoder_.beside is not None
    tensors = graph_tensors(graph, device=torch.device("cpu"), feature_scaling=model.scaling_)
    learned = model.encoder_(*tensors).detach().numpy()
    assert model.health_.effective_rank == pytest.approx(effective_rank(learned), rel=1e-4)
    assert model.health_.mean_cosine == pytest.approx(mean_cosine(learned), abs=1e-5)
    assert effective_rank(model.transform(graph)) > model.health_.effective_rank + 1


def test_constant_features_warn_under_the_default_too():
    with pytest.warns(TrainingWarning, match="all embeddings are 0: the features tell nothing"):
        GraphCL(epochs=3, dim=32, device="cpu").fit(communities(features=np.ones((200, 5))))


def test_features_of_zeros_collapse_and_warn():
    with pytest.warns(TrainingWarning, match="all embeddings are 0: the features tell nothing"):
        model = fitted(communities(features=np.zeros((200, 5))), epochs=5)
    assert model.health_.effective_rank == 0


def test_a_learning_rate_of_next_to_nothing_warns_of_the_loss():
    with pytest.warns(TrainingWarning, match=r"the loss hardly moved.*learning_rate"):
        model = fitted(communities(), learning_rate=1e-12)
    assert names(model) == ["loss"]


def test_the_facts_are_those_of_the_embeddings():
    graph = communities()
    model = fitted(graph, batch_nodes=0)
    z = model.transform(graph)
    assert model.health_.effective_rank == pytest.approx(effective_rank(z), rel=1e-4)
    assert model.health_.mean_cosine == pytest.approx(mean_cosine(z), abs=1e-5)


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_small_batches_are_put_together(mode):
    graph = communities()
    frozen = fitted(graph, learning_rate=1e-12, batch_nodes=8, mode=mode, epochs=5)
    assert names(frozen) == ["loss"]
    if mode == "full":  # every node is in one of the batches
        z = frozen.transform(graph)
        assert frozen.health_.mean_cosine == pytest.approx(mean_cosine(z), abs=1e-5)


@pytest.mark.parametrize("width", [1, 2, 7])
def test_few_columns_alone_are_no_collapse(width):
    random = np.random.default_rng(3)
    columns = random.normal(size=(200, width)).astype(np.float32)
    assert "collapse" not in names(fitted(communities(features=columns)))
    kinds = np.eye(7, dtype=np.float32)[random.integers(0, 7, 200)]
    sparse = communities(features=scipy.sparse.csr_array(kinds))
    assert "collapse" not in names(fitted(sparse))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_of_tiny_graphs_nothing_is_said(n):
    path = np.array([range(n - 1), range(1, n)])
    graph = Graph.from_edge_index(path, np.ones((n, 3)), name="tiny")
    health = fitted(graph, epochs=6).health_
    assert health.warnings == ()
    facts = {"rank": health.effective_rank, "cosine": health.mean_cosine}
    json.dumps(facts, allow_nan=False)
    assert (health.effective_rank is None) == (n == 1)


def test_several_graphs_and_own_perturbations():
    assert fitted(random_collection(), epochs=2).health_.effective_rank > 1

    class Shift:
        def __call__(self, x, adjacency, generator):
            dense = x.to_dense() if not hasattr(x, "new_empty") else x
            return dense + 1, adjacency

    graph = communities()
    model = fitted(graph, perturbation=Shift(), epochs=2, batch_nodes=0)
    z = model.transform(graph)  # of the graph as it is, not of a view
    assert model.health_.mean_cosine == pytest.approx(mean_cosine(z), abs=1e-5)


def test_labels_change_nothing():
    plain = communities()
    y = np.random.default_rng(0).integers(0, 3, plain.num_nodes)
    known = Graph.from_edge_index(plain.edge_index(), plain.x, y)
    assert fitted(plain, epochs=6).health_ == fitted(known, epochs=6).health_


def test_a_loaded_model_does_not_know(tmp_path):
    fitted(communities(), epochs=2).save(tmp_path / "run")
    with pytest.raises(AttributeError):
        _ = GraphCL.load(tmp_path / "run").health_
