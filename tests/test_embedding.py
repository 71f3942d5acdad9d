from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

from graphcl.embedding import embed, embed_graph
from graphcl.encoders import build_encoder
from graphcl.errors import ParameterError, PartError, TrainingError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adjacency import mean_pool
from tests.conftest import random_graph
from tests.elsewhere import mapped

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("two_threads")


def encoder_for(graph, name, layers=3):
    return build_encoder(
        name, graph.num_features, dim=8, layers=layers, generator=torch.Generator().manual_seed(0)
    )


def graph_with_isolated_nodes(*, sparse):
    graph = random_graph()
    edges = graph.edge_index()
    edges = edges[:, (edges > 2).all(0)]  # nodes 0 to 2 lose their edges
    x = scipy.sparse.csr_array(graph.x * (graph.x > 0)) if sparse else graph.x
    return Graph.from_edge_index(edges, x)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", ["mean", "residual"])
def test_layer_by_layer_is_the_forward_pass(name, layers, sparse):
    graph = graph_with_isolated_nodes(sparse=sparse)
    encoder = encoder_for(graph, name, layers)
    x, adjacency = graph_tensors(graph, device=CPU)
    whole = embed(encoder, x, adjacency)
    assert whole.dtype == np.float32
    for block_rows in (1, 7, 60, 1000):
        blocks = embed_graph(encoder, graph, device=CPU, block_rows=block_rows)["node"]
        np.testing.assert_allclose(blocks, whole, rtol=1e-5, atol=1e-6)


def test_into_a_file(graph, tmp_path):
    encoder = encoder_for(graph, "residual")
    path = tmp_path / "h.npy"
    mapped = embed_graph(encoder, graph, device=CPU, out=path, block_rows=13)["node"]
    assert isinstance(mapped, np.memmap)
    expected = embed_graph(encoder, graph, device=CPU, block_rows=13)["node"]
    np.testing.assert_array_equal(np.load(path), expected)
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_no_longer_mapped_when_it_gets_its_name(graph, tmp_path, monkeypatch):
    """Windows would not rename it."""
    real, renamed = Path.replace, []

    def replace(path, target):
        renamed.append(str(path))
        assert not mapped() & set(renamed)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    found = embed_graph(encoder_for(graph, "mean"), graph, device=CPU, out=tmp_path / "h.npy")
    assert renamed
    assert str(tmp_path / "h.npy") in mapped()
    del found


def test_a_failure_leaves_no_file(graph, tmp_path):
    encoder = encoder_for(graph, "mean")
    with pytest.raises(ParameterError, match="block_rows must be at least 1; got 0"):
        embed_graph(encoder, graph, device=CPU, out=tmp_path / "h.npy", block_rows=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["create_npy", "layer_by_layer"])
def test_a_failure_leaves_the_old_file(graph, tmp_path, monkeypatch, step):
    def fail(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(f"graphcl.embedding.{step}", fail)
    path = tmp_path / "h.npy"
    path.write_text("old")
    with pytest.raises(OSError, match="No space left"):
        embed_graph(encoder_for(graph, "mean"), graph, device=CPU, out=path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_scaled_features(graph):
    encoder = encoder_for(graph, "mean")
    expected = embed(encoder, *graph_tensors(graph, device=CPU, feature_scaling="row"))
    ours = embed_graph(encoder, graph, device=CPU, feature_scaling="row")["node"]
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_other_encoders_are_named(graph):
    with pytest.raises(ParameterError, match="layers, like mean or residual; got PygEncoder"):
        embed_graph(encoder_for(graph, "gcn"), graph, device=CPU)


def lattice(nodes, *, width=11, strangers=0, sparse=False, weighted=False):
    """A ring with chords; strangers know node 0 alone, and do not change what others are."""
    random = np.random.default_rng(0)
    around = np.arange(nodes)
    edges = np.stack(
        [np.tile(around, 3), np.concatenate([(around + k) % nodes for k in (1, 7, 50)])]
    )
    new = np.arange(nodes, nodes + strangers)
    edges = np.concatenate([edges, np.stack([new, 0 * new])], axis=1)
    x = np.maximum(random.normal(size=(nodes, width)), 0)
    x = np.concatenate([x, 100 * random.normal(size=(strangers, width))]).astype(np.float32)
    weight = 1.0 + (edges.sum(0) % 5) if weighted else None
    table = scipy.sparse.csr_array(x) if sparse else x
    return Graph.from_edge_index(edges, table, edge_weight=weight)


@pytest.mark.parametrize("dim", [32, 37])
@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
@pytest.mark.parametrize("name", ["mean", "residual"])
def test_bits_do_not_depend_on_what_is_far_away(name, kind, dim):
    how = {} if kind == "dense" else {kind: True}
    encoder = build_encoder(name, 11, dim=dim, layers=2, generator=torch.Generator().manual_seed(0))
    options = {"device": CPU, "feature_scaling": "row"}
    whole = embed_graph(encoder, lattice(2113, **how), **options)["node"]
    plain = embed(encoder, *graph_tensors(lattice(2113, **how), **options))
    np.testing.assert_allclose(whole, plain, rtol=1e-5, atol=1e-6)
    far = slice(101, 2012)
    for strangers in (1, 2, 40):
        grown = embed_graph(encoder, lattice(2113, strangers=strangers, **how), **options)["node"]
        assert np.array_equal(grown[far], whole[far])
        assert not np.array_equal(grown[1], whole[1])
    for nodes in (slice(7, 8), slice(2000, 2113), np.array([5, 2112, 5]), slice(0, 1500)):
        some = embed_graph(encoder, lattice(2113, **how), nodes=nodes, **options)["node"]
        assert np.array_equal(some, whole[nodes])
    for block_rows in (100, 777):
        assert np.array_equal(
            embed_graph(encoder, lattice(2113, **how), block_rows=block_rows, **options)["node"],
            whole,
        )


def test_many_rows_of_one_layer_are_those_of_all(tmp_path, generator):
    """They are read where they are, without a copy of their neighbourhood."""
    random = np.random.default_rng(0)
    x = random.normal(size=(20_000, 3)).astype(np.float32)
    Graph.from_edge_index(random.integers(0, 20_000, (2, 30_000)), x).save(tmp_path / "store")
    graph = Graph.open(tmp_path / "store")
    encoder = build_encoder("residual", 3, dim=4, layers=1, generator=generator)
    whole = embed_graph(encoder, graph, device=torch.device("cpu"))["node"]
    for count in (4000, 5000):
        rows = random.choice(20_000, count, replace=False)
        some = embed_graph(encoder, graph, device=torch.device("cpu"), nodes=rows)["node"]
        np.testing.assert_array_equal(some, whole[rows])


class Plain(nn.Module):
    """One layer; `cut` rows are forgotten."""

    cut = 0

    def __init__(self, num_features, *, dim, layers, generator):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_features, dim, generator=generator))

    def forward(self, x, adjacency):
        h = mean_pool(x @ self.weight, adjacency)
        return h[: len(h) - self.cut]


class Short(Plain):
    cut = 2


class Lost(Plain):
    """Forgets a number, but not in training."""

    def forward(self, x, adjacency):
        h = super().forward(x, adjacency)
        return h if self.training else h * float("nan")


class Writing(Plain):
    """Writes to its input when it embeds."""

    def forward(self, x, adjacency):
        return super().forward(x if self.training else x.mul_(0.5), adjacency)


def model(encoder, **options):
    return GraphCL(encoder=encoder, dim=4, epochs=1, device="cpu", **options)


def test_a_row_for_each_node_is_wanted():
    assert model(Plain).fit_transform(random_graph()).shape == (60, 4)
    with pytest.raises(PartError, match="Short returned 118 rows for 120 nodes of the views"):
        model(Short).fit(random_graph())
    fitted = model(Plain).fit(random_graph())
    fitted._fitted.encoder.cut = 1
    with pytest.raises(PartError, match="Plain returned 59 rows for 60 nodes"):
        fitted.transform(random_graph())


def test_numbers_that_are_none_are_no_success():
    with pytest.raises(PartError, match="Lost returned a number that is not finite"):
        model(Lost).fit_transform(random_graph())

    def infinite_slope(h_1, h_2):
        return (h_1 - h_2).square().mean() + (h_1 * 0).sum().sqrt() * 0

    with pytest.raises(TrainingError, match="the last step made a weight that is not finite"):
        GraphCL("cora", dim=8, epochs=1, loss=infinite_slope, device="cpu").fit(random_graph())


def test_the_graph_stays_as_it_is():
    graph = random_graph()
    before = graph.x.copy()
    fitted = model(Writing, feature_scaling="none").fit(graph)
    first = fitted.transform(graph)
    np.testing.assert_array_equal(fitted.transform(graph), first)
    np.testing.assert_array_equal(graph.x, before)
