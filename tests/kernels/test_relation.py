import numpy as np
import pytest
import torch

from graphcl.kernels.relation import RelationAdjacency, relation_mean

CPU = torch.device("cpu")


def relation(seed=0, *, within=False, weighted=True, undirected=False, vectors=3):
    """A relation in float64 with parallel edges, and its edges as a list."""
    random = np.random.default_rng(seed)
    targets, sources = (7, 7) if within else (7, 5)
    ends = random.integers(0, (sources, targets), (20, 2))
    ends = ends[ends[:, 0] != ends[:, 1]] if within else ends
    ids = None
    if undirected:
        ids = np.tile(np.arange(len(ends)), 2)
        ends = np.concatenate([ends, ends[:, ::-1]])
    order = np.lexsort((ends[:, 0], ends[:, 1]))
    weight = random.random(len(ends)) + 0.1
    if ids is not None:
        weight, ids = weight[ids], ids[order]
    ends, weight = ends[order], weight[order]
    features = random.normal(size=(len(ends), vectors))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends[:, 1], minlength=targets))])
    found = RelationAdjacency.of(
        indptr,
        ends[:, 0],
        sources,
        edge_weight=weight if weighted else None,
        edge_features=features,
        edge_ids=ids,
        within=within,
        device=CPU,
        dtype=torch.float64,
    )
    return found, ends, weight if weighted else np.ones(len(ends)), features


def loop_mean(table, ends, weight, receivers, *, backwards, within, vectors=False):
    """The module's mean, one receiver after the other."""
    to, of = (0, 1) if backwards else (1, 0)
    rows = []
    for u in range(receivers):
        mine = [e for e in range(len(ends)) if ends[e, to] == u]
        own = 0.0
        if within:
            own = sum(weight[e] for e in mine) / len(mine) if mine else 1.0
        total = own * (0 * table[0] if vectors else table[u]) if within else 0 * table[0]
        for e in mine:
            total = total + weight[e] * (table[e] if vectors else table[ends[e, of]])
        size = own + sum(weight[e] for e in mine)
        rows.append(total / size if size else total)
    return np.array(rows)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_means_of_rows_and_of_vectors_are_their_loops(backwards, within, weighted):
    found, ends, weight, features = relation(within=within, weighted=weighted)
    receivers, senders = (5, 7) if backwards else (7, 5)
    receivers, senders = (7, 7) if within else (receivers, senders)
    h = np.random.default_rng(1).normal(size=(senders, 4))
    options = {"backwards": backwards, "within": within}
    expected = loop_mean(h, ends, weight, receivers, **options)
    mean = relation_mean(torch.from_numpy(h), found, backwards=backwards)
    np.testing.assert_allclose(mean, expected, rtol=1e-12)
    vectors = loop_mean(features, ends, weight, receivers, **options, vectors=True)
    np.testing.assert_allclose(found.edge_mean(backwards), vectors, rtol=1e-12)
    rows = torch.tensor([3, 0, 3])
    some = relation_mean(torch.from_numpy(h), found, backwards=backwards, rows=rows)
    np.testing.assert_allclose(some, expected[rows], rtol=1e-12)
    np.testing.assert_allclose(found.edge_mean(backwards, rows), vectors[rows], rtol=1e-12)


@pytest.mark.parametrize("rows", [None, torch.tensor([2, 0, 2])])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("within", "undirected"), [(False, False), (True, False), (True, True)])
def test_gradients(backwards, within, undirected, rows):
    found, *_ = relation(within=within, undirected=undirected)
    size = 7 if within or backwards else 5
    h = torch.randn(size, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda h: relation_mean(h, found, backwards=backwards, rows=rows), (h,)
    )


def test_an_absent_edge_counts_nowhere_and_nothing_is_left_of_a_node_without_edges():
    found, ends, weight, _ = relation()
    h = torch.randn(5, 3, dtype=torch.float64)
    gone = found.weight.clone()
    gone[ends[:, 1] == 2] = 0
    mean = relation_mean(h, found.with_weight(gone), backwards=False)
    assert not mean[2].any()
    kept = weight * (ends[:, 1] != 2)
    expected = loop_mean(h.numpy(), ends, kept, 7, backwards=False, within=False)
    np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-15)
