"""Compiled loops on narrow features against the same loops on float32 tables."""

import numpy as np
import pytest
import torch

from graphcl.kernels import stored_features
from graphcl.kernels.gather_mean import Draws, Family, gather_mean
from graphcl.kernels.stored_features import StoredFeatures, mean_of_neighbourhoods
from tests.conftest import dense_adjacency, random_graph


def table(kind, *, rows=60, width=21, divided=False):
    random = np.random.default_rng(0)
    values = random.normal(size=(rows, width)) * 10.0 ** random.integers(-7, 4, (rows, width))
    stored = torch.from_numpy(values.astype(kind))
    divisor = torch.from_numpy(1 / random.random(rows)).float() if divided else None
    return StoredFeatures(stored, divisor)


def plain(x):
    values = x.values.float()
    return values if x.row_divisor is None else values / x.row_divisor[:, None]


KINDS = pytest.mark.parametrize("kind", ["float32", "float16"])
DIVIDED = pytest.mark.parametrize("divided", [False, True])


def test_every_half_is_read_exactly():
    bits = np.arange(65536, dtype=np.uint16)
    halves = bits.view(np.float16)
    halves = halves[np.isfinite(halves)][:, None]
    x = StoredFeatures(torch.from_numpy(halves))
    nodes = torch.arange(len(halves))
    alone = mean_of_neighbourhoods(
        x, torch.zeros(len(halves) + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64), nodes
    )
    np.testing.assert_array_equal(alone.numpy(), halves.astype(np.float32))


@KINDS
@DIVIDED
def test_gather_mean_reads_any_type(kind, divided):
    x = table(kind, divided=divided)
    random = torch.Generator().manual_seed(0)
    parents = torch.randint(60, (17,), generator=random)
    children = torch.randint(60, (17 * 5,), generator=random)
    weight = torch.rand(17 * 5, generator=random)
    draws = Draws(0.3, 0.4, (1, 2), (3, 4))
    ours, expected = torch.empty(2, 17, 42), torch.empty(2, 17, 42)
    family = Family(parents, children, weight, torch.arange(17))
    gather_mean(x, family, draws=draws, out=ours, own=21)
    gather_mean(plain(x), family, draws=draws, out=expected, own=21)
    torch.testing.assert_close(ours, expected, rtol=2e-5, atol=1e-5)


@KINDS
@DIVIDED
def test_means_of_neighbourhoods(kind, divided):
    graph = random_graph()
    x = table(kind, divided=divided)
    looped = dense_adjacency(graph) + np.eye(60)
    expected = (looped @ plain(x).double().numpy()) / looped.sum(1, keepdims=True)
    csr = (torch.from_numpy(graph.indptr.copy()), torch.from_numpy(graph.indices.astype(np.int32)))
    nodes = torch.tensor([5, 59, 0, 7])
    ours = mean_of_neighbourhoods(x, *csr, nodes)
    np.testing.assert_allclose(ours.numpy(), expected[nodes], rtol=1e-4, atol=1e-4)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    divisor = None if x.row_divisor is None else x.row_divisor[order]
    moved = StoredFeatures(x.values[order], divisor)
    place = torch.argsort(order).to(torch.int32)
    torch.testing.assert_close(mean_of_neighbourhoods(moved, *csr, nodes, place=place), ours)


@pytest.mark.parametrize("width", [1, 2, 3, 17, 64])
@pytest.mark.parametrize("moved", [False, True])
def test_few_nodes_have_the_bits_of_the_compiled_loop(monkeypatch, width, moved):
    graph = random_graph()
    x = StoredFeatures(torch.randn(60, width, generator=torch.Generator().manual_seed(width)))
    csr = (torch.from_numpy(graph.indptr.copy()), torch.from_numpy(graph.indices.astype(np.int32)))
    nodes, place = torch.arange(60), torch.arange(60).flip(0).to(torch.int32) if moved else None
    assert x.is_plain
    few = mean_of_neighbourhoods(x, *csr, nodes, place=place)
    monkeypatch.setattr(stored_features, "_FEW_NODES", 0)
    many = mean_of_neighbourhoods(x, *csr, nodes, place=place)
    assert torch.equal(few, many)


def test_a_hub_has_the_bits_of_the_compiled_loop(monkeypatch):
    count = 3000
    indptr = torch.tensor([0, count - 1, *range(count, 2 * count - 1)])
    indices = torch.cat([torch.arange(1, count), torch.zeros(count - 1, dtype=torch.int64)])
    for width in (1, 2, 8):
        x = StoredFeatures(torch.randn(count, width, generator=torch.Generator().manual_seed(0)))
        few = mean_of_neighbourhoods(x, indptr, indices, torch.tensor([0, 5]))
        with monkeypatch.context() as patch:
            patch.setattr(stored_features, "_FEW_NEIGHBOURS", 0)
            many = mean_of_neighbourhoods(x, indptr, indices, torch.tensor([0, 5]))
        assert torch.equal(few, many), width


@KINDS
def test_conversions(kind):
    x = table(kind)
    torch.testing.assert_close(x.to_dense(torch.device("cpu")), plain(x))
    torch.testing.assert_close(x.rows(slice(3, 9)), plain(x)[3:9])
    row, unit = (plain(x.with_scaled_rows(scaling)) for scaling in ("row", "unit"))
    torch.testing.assert_close(row.abs().sum(1), torch.ones(60))
    torch.testing.assert_close(unit.square().sum(1), torch.ones(60))


@pytest.mark.parametrize("scaling", ["row", "unit"])
def test_a_row_of_zeros_stays(scaling):
    x = StoredFeatures(torch.zeros(2, 3)).with_scaled_rows(scaling)
    assert plain(x).eq(0).all()
