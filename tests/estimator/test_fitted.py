"""The alignment of two spaces, against SciPy's orthogonal Procrustes."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError, RunError
from graphcl.estimator.fitted import Alignment, align
from graphcl.estimator.model import GraphCL
from tests.conftest import random_graph


def turned(seed, rows=50, dim=6, noise=0.0):
    random = np.random.default_rng(seed)
    old = random.normal(size=(rows, dim)) + 3
    turn = np.linalg.qr(random.normal(size=(dim, dim)))[0]
    new = (old - 1) @ turn + random.normal(size=dim) + noise * random.normal(size=(rows, dim))
    return new.astype(np.float32), old.astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 200), noise=st.sampled_from([0.0, 0.5]))
def test_it_is_the_turn_that_scipy_finds(seed, rows, noise):
    new, old = turned(seed, rows=rows, noise=noise)
    found = align(new, old)
    rotation = found.rotation.numpy()
    centred = [one.astype(np.float64) - one.astype(np.float64).mean(axis=0) for one in (new, old)]
    expected, _ = scipy.linalg.orthogonal_procrustes(*centred)
    away = [np.linalg.norm(centred[0] @ one - centred[1]) for one in (rotation, expected)]
    assert away[0] <= away[1] + 1e-3
    if rows > 20:  # else several turns are equally good
        np.testing.assert_allclose(rotation, expected, atol=1e-4)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(6), atol=1e-5)
    if noise == 0 and rows > 20:
        np.testing.assert_allclose(found.apply(new.copy()), old, atol=1e-4)
    np.testing.assert_allclose(found.apply(new.copy()).mean(axis=0), old.mean(axis=0), atol=1e-3)


def test_distances_stay():
    new, old = turned(0, noise=1.0)
    found = align(new, old).apply(new.copy())
    before = np.linalg.norm(new[:, None] - new[None], axis=2)
    np.testing.assert_allclose(
        np.linalg.norm(found[:, None] - found[None], axis=2), before, atol=1e-4
    )


def test_the_bits_of_a_row_do_not_depend_on_others():
    new, old = turned(1, rows=10_000)
    found = align(new, old)
    whole = found.apply(new.copy())
    for rows in ([0], [7, 9_999], list(range(3, 200))):
        assert np.array_equal(found.apply(new[rows]), whole[rows])
    fixed = new.copy()
    fixed.flags.writeable = False
    assert np.array_equal(found.apply(fixed), whole)
    assert np.array_equal(fixed, new)


def test_embeddings_are_turned_everywhere_and_kept_in_runs(tmp_path):
    graph = random_graph()
    model = GraphCL("cora", encoder="mean", dim=6, epochs=1, device="cpu").fit(graph)
    plain = model.transform(graph)
    model._fitted.alignment = align(*turned(3))
    model.save(tmp_path / "run", graph=graph)
    loaded = GraphCL.load(tmp_path / "run", device="cpu")
    expected = plain @ model._fitted.alignment.rotation.numpy()
    expected += model._fitted.alignment.shift.numpy()
    np.testing.assert_allclose(loaded.transform(graph), expected, atol=1e-5)
    np.testing.assert_allclose(loaded.transform(graph, nodes=[3, 1]), expected[[3, 1]], atol=1e-5)
    assert np.array_equal(np.load(tmp_path / "run/embeddings.npy"), loaded.transform(graph))
    features, near = np.asarray(graph.x[5]), [1, 2, 3]
    free = GraphCL.load(tmp_path / "run", device="cpu")
    free._fitted.alignment = None
    new = free.embed_new(features, near, graph=graph)
    np.testing.assert_allclose(
        loaded.embed_new(features, near, graph=graph),
        model._fitted.alignment.apply(new[None].copy())[0],
        atol=1e-6,
    )
    many = [np.tile(features, (3, 1)), [near] * 3]
    assert loaded.embed_new(*many, graph=graph).shape == (3, 6)


def test_an_exported_program_turns_too():
    from graphcl.exporting.program import GraphProgram

    graph = random_graph()
    model = GraphCL("cora", encoder="mean", dim=6, epochs=1, device="cpu").fit(graph)
    model._fitted.alignment = align(*turned(3))
    program = GraphProgram(model._fitted)
    edges = torch.from_numpy(graph.edge_index())
    with torch.no_grad():
        found = program(torch.from_numpy(graph.x.copy()), edges, torch.ones(edges.shape[1]))
    np.testing.assert_allclose(found, model.transform(graph), atol=1e-5)


def test_what_cannot_be_aligned():
    with pytest.raises(GraphError, match="expected the same nodes"):
        align(np.zeros((0, 3)), np.zeros((0, 3)))
    with pytest.raises(GraphError, match="expected the same nodes"):
        align(np.zeros((4, 3)), np.zeros((4, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("shift"), "lacks rotation or shift"),
        (lambda t: t.update(rotation=torch.eye(3)), "rotation"),
        (lambda t: t.update(rotation=2 * torch.eye(6)), "not orthogonal"),
        (lambda t: t.update(rotation=torch.full((6, 6), torch.nan)), "not orthogonal"),
        (lambda t: t.update(shift=torch.full((6,), torch.inf)), "not finite"),
        (lambda t: t.update(shift=torch.zeros(6, 1)), "shift"),
    ],
)
def test_a_forged_alignment_is_refused(change, message):
    tensors = align(*turned(0)).tensors()
    change(tensors)
    with pytest.raises(RunError, match=message):
        Alignment.from_tensors(tensors)
