import json
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl import Graph, GraphCL
from graphcl.encoders import build_encoder
from graphcl.errors import ParameterError, TrainingWarning
from graphcl.estimator import fitting
from graphcl.estimator.fitting import dense_features, retrain, turn
from graphcl.estimator.inference import embed_fitted
from graphcl.evaluation.unsupervised import effective_rank, mean_cosine
from graphcl.graphs.tensors import graph_tensors, prepare
from tests.conftest import configured, random_collection, random_graph
from tests.estimator.test_typed import library
from tests.groups import in_processes

SHORT = {
    "encoder": "residual",
    "normalisation": "layer",
    "side_by_side": True,
    "own_features": 0.5,
    "smoothed_features": 0.125,
    "dim": 16,
    "layers": 2,
    "epochs": 2,
    "batch_nodes": 16,
    "fan_out": 3,
}
CPU = torch.device("cpu")
PARTS = (slice(0, 8), slice(8, 11), slice(11, 14), slice(14, 16))  # own, layers, smoothed


def sizes(z):
    return [float(np.square(z[:, columns]).sum(1).mean()) for columns in PARTS]


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_parts_of_embeddings_have_one_size(graph, mode):
    z = configured(**SHORT, mode=mode).fit_transform(graph)
    assert z.shape == (graph.num_nodes, 16)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(sizes(z), 1, rtol=1e-4)


def test_a_run_keeps_them(graph, tmp_path):
    model = configured(**SHORT).fit(graph)
    model.save(tmp_path / "run")
    other = random_graph(seed=5)  # its own figures would differ
    again = GraphCL.load(tmp_path / "run")
    np.testing.assert_array_equal(again.transform(other), model.transform(other))
    assert max(abs(size - 1) for size in sizes(again.transform(other))) > 1e-3
    assert list(again.get_feature_names_out())[-1] == "graphcl15"


def test_no_other_row_counts_in_inductive_training(graph):
    mask = np.arange(graph.num_nodes) % 2 == 0
    graph = graph.replace(train_mask=mask)
    x = np.array(graph.x)
    x[~mask] *= 100
    first, second = (
        configured(**SHORT, inductive=True, feature_scaling="none").fit(one)
        for one in (graph, graph.replace(x=x))
    )
    beside, other = first.encoder_.beside, second.encoder_.beside
    assert (beside.shift == other.shift).all()
    assert (beside.scale == other.scale).all()
    assert torch.equal(beside.projection, other.projection)
    assert torch.equal(beside.smoother, other.smoother)
    transductive = configured(**SHORT, feature_scaling="none").fit(graph.replace(x=x))
    assert not torch.allclose(transductive.encoder_.beside.projection, beside.projection)


def test_of_a_large_graph_some_ranges_are_enough(graph, monkeypatch):
    whole = configured(**SHORT).fit(graph).encoder_.beside
    monkeypatch.setattr(fitting, "WHOLE", 10)
    monkeypatch.setattr(fitting, "NODES", 4)
    monkeypatch.setattr(fitting, "RANGES", graph.num_nodes // 4)  # all of them, in order
    ranges = configured(**SHORT).fit(graph).encoder_.beside
    assert graph.num_nodes % 4 == 0
    np.testing.assert_allclose(ranges.scale, whole.scale, rtol=1e-5)
    np.testing.assert_allclose(ranges.shift, whole.shift, atol=1e-5)


def span_of(x, width):
    """What takes rows to the first principal directions of `x`, by numpy."""
    _, sizes, right = np.linalg.svd(np.asarray(x, np.float64), full_matrices=False)
    right = right[: min(width, int((sizes > 1e-5 * sizes[0]).sum()))].T
    return right @ right.T


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_features_are_seen_in_the_directions_of_those_trained_on(graph, mode):
    model = configured(**SHORT, mode=mode).fit(graph)
    beside, scaling = model.encoder_.beside, model._fitted.scaling
    x = dense_features(graph.x, scaling, "node")
    for turned, width in ((beside.projection, 8), (beside.smoother, 2)):
        assert turned.shape == (graph.num_features, width)
        np.testing.assert_allclose(turned @ turned.T, span_of(x, width), atol=1e-3)
    again = configured(**SHORT, mode=mode).fit(graph).encoder_.state_dict()
    other = configured(**SHORT, mode=mode, seed=1).fit(graph).encoder_.beside
    for name, value in model.encoder_.state_dict().items():
        assert torch.equal(value, again[name])
    assert not torch.allclose(other.projection, beside.projection, atol=1e-2)
    np.testing.assert_allclose(other.projection @ other.projection.T, span_of(x, 8), atol=1e-3)


@pytest.mark.parametrize("inductive", [False, True])
def test_labels_change_no_bit(graph, inductive):
    shuffled = np.random.default_rng(0).permutation(graph.y)
    assert (shuffled != graph.y).any()
    first, second = (
        configured(**SHORT, inductive=inductive).fit(graph.replace(y=y)).encoder_.state_dict()
        for y in (graph.y, shuffled)
    )
    assert "beside.smoother" in first
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_each_type_has_directions_of_its_own():
    graph = library()
    model = configured(**SHORT | {"own_features": 0.25}).fit(graph)
    (prepared,) = prepare([graph], "auto")
    for name, table in prepared.tables.items():
        part, x = model.encoder_.part(name), dense_features(table, prepared.scaling, name)
        for turned in (part.projection, part.smoother):
            features, width = turned.shape
            if width < features:
                expected = span_of(x, width)
                np.testing.assert_allclose(turned @ turned.T, expected, atol=1e-3)
            else:  # all features fit
                copies = np.tile(np.eye(features), -(-width // features))
                np.testing.assert_array_equal(turned, copies[:, :width])


def test_a_model_goes_on_with_the_directions_that_it_has(graph):
    fitted = configured(**SHORT).fit(graph)._fitted
    other = retrain(fitted, random_graph(5), epochs=1, device=CPU)
    ours, theirs = fitted.encoder.beside, other.encoder.beside
    assert torch.equal(ours.projection, theirs.projection)
    assert torch.equal(ours.smoother, theirs.smoother)
    assert not torch.equal(ours.shift, theirs.shift)


def turned_apart(share, folder):
    """Every process passes rows of its own."""
    encoder = build_encoder(
        "mean",
        12,
        dim=16,
        layers=2,
        own_features=0.5,
        smoothed_features=0.2,
        generator=torch.Generator().manual_seed(share.rank),
    )
    x = torch.randn(40, 12, generator=torch.Generator().manual_seed(share.rank))
    turn(encoder, {"node": x}, 0)
    return [encoder.beside.projection.numpy(), encoder.beside.smoother.numpy(), x.numpy()]


def test_of_several_processes_the_first_decides(tmp_path):
    first, *others = in_processes(3, turned_apart, tmp_path)
    projection, smoother, x = first
    np.testing.assert_allclose(projection @ projection.T, span_of(x, 8), atol=1e-3)
    for other in others:
        np.testing.assert_array_equal(other[0], projection)
        np.testing.assert_array_equal(other[1], smoother)
        assert not np.array_equal(other[2], x)


def test_several_graphs(monkeypatch):
    graphs = [random_graph(seed=seed) for seed in range(3)]
    monkeypatch.setattr(fitting, "ENOUGH", graphs[0].num_nodes + 1)
    model = configured(**SHORT).fit(graphs)
    z = np.concatenate([model.transform(one) for one in graphs[:2]])
    np.testing.assert_allclose(sizes(z), 1, rtol=1e-4)


def test_one_result_is_left_alone(graph):
    model = GraphCL("ppi", dim=8, epochs=1).fit(graph)
    assert model.encoder_.beside is None


@pytest.fixture(scope="module")
def fitted():
    return GraphCL(dim=12, epochs=20, device="cpu").fit(random_graph())._fitted


def weights(one):
    return {name: value.clone() for name, value in one.encoder.state_dict().items()}


def test_it_goes_on_from_the_weights(fitted):
    before = weights(fitted)
    grown = random_graph(1, num_nodes=80)
    after = retrain(fitted, grown, epochs=1, device=CPU)
    moved = [
        float((after.encoder.state_dict()[name] - one).abs().max()) for name, one in before.items()
    ]
    steps = 0.1  # Adam moves a weight by about the learning rate in a step
    assert max(moved) > 0
    trained = [
        float((one.data - before[name]).abs().max())
        for name, one in after.encoder.named_parameters()
    ]
    assert max(trained) < steps
    assert all(
        torch.equal(value, before[name]) for name, value in fitted.encoder.state_dict().items()
    )
    assert [one.epoch for one in after.history] == list(range(1, len(fitted.history) + 2))
    assert after.seconds > fitted.seconds
    assert after.scaling is fitted.scaling
    assert len(fitted.history) == 20


def test_a_tenth_of_the_epochs_unless_told(fitted):
    assert len(retrain(fitted, random_graph(), device=CPU).history) == 22
    with pytest.raises(ParameterError, match="epochs must be at least 1"):
        retrain(fitted, random_graph(), epochs=0, device=CPU)


def test_the_same_again_gives_the_same_bits_and_labels_do_not_matter(fitted):
    graph = random_graph(2)
    other = graph.replace(y=np.roll(graph.y, 7))
    both = [weights(retrain(fitted, one, epochs=2, device=CPU)) for one in (graph, other)]
    assert all(torch.equal(value, both[1][name]) for name, value in both[0].items())


def test_other_views_are_drawn_than_before(fitted):
    graph = random_graph()
    once = retrain(fitted, graph, epochs=1, device=CPU)
    twice = retrain(once, graph, epochs=1, device=CPU)
    assert twice.history[-1].epoch == 22
    assert not np.array_equal(
        embed_fitted(once, graph, device=CPU)["node"],
        embed_fitted(twice, graph, device=CPU)["node"],
    )


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


def trained(graph, **changes):
    settings = {"epochs": 40, "dim": 32, "learning_rate": 0.01, "device": "cpu"} | PLAIN | changes
    return configured(**settings).fit(graph)


def names(model):
    return [sign.name for sign in model.health_.warnings]


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_a_healthy_training_is_silent(mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = trained(communities(), mode=mode)
    assert names(model) == []
    assert model.health_.effective_rank > 4
    assert model.health_.mean_cosine < 0.5


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_constant_features_collapse_and_warn(mode):
    with pytest.warns(TrainingWarning, match="nearly coincide"):
        model = trained(communities(features=np.ones((200, 5))), mode=mode, epochs=10)
    assert "collapse" in names(model)
    assert model.health_.mean_cosine == pytest.approx(1)
    assert model.health_.effective_rank == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_few_directions_under_automatic_scaling_are_measured_too(mode):
    """What the features allow is looked at as they were scaled, not by the recipe's word."""
    features = np.random.default_rng(0).normal(size=(200, 1)) * [1.0, 1e3] + [0.0, 5.0]
    model = trained(communities(features=features), mode=mode, epochs=2, feature_scaling="auto")
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
        model = trained(communities(features=np.zeros((200, 5))), epochs=5)
    assert model.health_.effective_rank == 0


def test_a_learning_rate_of_next_to_nothing_warns_of_the_loss():
    with pytest.warns(TrainingWarning, match=r"the loss hardly moved.*learning_rate"):
        model = trained(communities(), learning_rate=1e-12)
    assert names(model) == ["loss"]


def test_the_facts_are_those_of_the_embeddings():
    graph = communities()
    model = trained(graph, batch_nodes=0)
    z = model.transform(graph)
    assert model.health_.effective_rank == pytest.approx(effective_rank(z), rel=1e-4)
    assert model.health_.mean_cosine == pytest.approx(mean_cosine(z), abs=1e-5)


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_small_batches_are_put_together(mode):
    graph = communities()
    frozen = trained(graph, learning_rate=1e-12, batch_nodes=8, mode=mode, epochs=5)
    assert names(frozen) == ["loss"]
    if mode == "full":  # every node is in one of the batches
        z = frozen.transform(graph)
        assert frozen.health_.mean_cosine == pytest.approx(mean_cosine(z), abs=1e-5)


@pytest.mark.parametrize("width", [1, 2, 7])
def test_few_columns_alone_are_no_collapse(width):
    random = np.random.default_rng(3)
    columns = random.normal(size=(200, width)).astype(np.float32)
    assert "collapse" not in names(trained(communities(features=columns)))
    kinds = np.eye(7, dtype=np.float32)[random.integers(0, 7, 200)]
    sparse = communities(features=scipy.sparse.csr_array(kinds))
    assert "collapse" not in names(trained(sparse))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_of_tiny_graphs_nothing_is_said(n):
    path = np.array([range(n - 1), range(1, n)])
    graph = Graph.from_edge_index(path, np.ones((n, 3)), name="tiny")
    health = trained(graph, epochs=6).health_
    assert health.warnings == ()
    facts = {"rank": health.effective_rank, "cosine": health.mean_cosine}
    json.dumps(facts, allow_nan=False)
    assert (health.effective_rank is None) == (n == 1)


def test_several_graphs_and_own_perturbations():
    assert trained(random_collection(), epochs=2).health_.effective_rank > 1

    class Shift:
        def __call__(self, x, adjacency, generator):
            dense = x.to_dense() if not hasattr(x, "new_empty") else x
            return dense + 1, adjacency

    graph = communities()
    model = trained(graph, perturbation=Shift(), epochs=2, batch_nodes=0)
    z = model.transform(graph)  # of the graph as it is, not of a view
    assert model.health_.mean_cosine == pytest.approx(mean_cosine(z), abs=1e-5)


def test_labels_change_nothing():
    plain = communities()
    y = np.random.default_rng(0).integers(0, 3, plain.num_nodes)
    known = Graph.from_edge_index(plain.edge_index(), plain.x, y)
    assert trained(plain, epochs=6).health_ == trained(known, epochs=6).health_


def test_a_loaded_model_does_not_know(tmp_path):
    trained(communities(), epochs=2).save(tmp_path / "run")
    with pytest.raises(AttributeError):
        _ = GraphCL.load(tmp_path / "run").health_
