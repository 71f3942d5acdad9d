"""The rules of `feature_scaling = "auto"` on tables of each kind, and how its result is applied."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl import Graph
from graphcl.errors import ParameterError, RunError
from graphcl.graphs.scaling import (
    CONSTANT,
    KEPT,
    LIMIT,
    LOGARITHM,
    NUMBER,
    WORD,
    ColumnScaling,
)
from graphcl.graphs.tensors import feature_tensor, prepare, stored_features
from graphcl.kernels.features import SparseFeatures

CPU = torch.device("cpu")
ROWS = 400


def graph_of(x, **fields):
    return Graph.from_edge_index(np.array([[0, 1], [1, 2]]), x, **fields)


def bag_of_words(columns=80, share=0.15, highest=4):
    random = np.random.default_rng(0)
    counts = random.integers(1, highest, (ROWS, columns))
    return (counts * (random.random((ROWS, columns)) < share)).astype(np.float32)


def numbers():
    """An age, an income with a heavy tail, a temperature, a small share with a heavy tail."""
    random = np.random.default_rng(1)
    age = random.integers(18, 90, ROWS)
    income = np.exp(random.normal(10, 1.5, ROWS))
    celsius = random.normal(-5, 12, ROWS)
    share = np.exp(random.normal(-12, 1.5, ROWS))
    return np.stack([age, income, celsius, share], axis=1).astype(np.float32)


def one_hot(classes, seed):
    return np.eye(classes, dtype=np.float32)[np.random.default_rng(seed).integers(0, classes, ROWS)]


def mixed():
    """Numbers, a code of five columns, a constant and a bag of words."""
    return np.hstack([numbers(), one_hot(5, 2), np.full((ROWS, 1), 7.0), bag_of_words()])


def fit_scaling(word, graphs, **options):
    return prepare(graphs, word, **options)[0].scaling.table


def fitted(x, **options):
    return fit_scaling("auto", [graph_of(x)], **options)


def scaled(x, scaling=None):
    graph = graph_of(x)
    found = feature_tensor(graph.x, device=CPU, feature_scaling=scaling or fitted(x))
    return (found if isinstance(found, torch.Tensor) else found.to_dense()).numpy()


@pytest.mark.parametrize("as_given", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("highest", [2, 5])  # zeros and ones; counts
def test_a_bag_of_words_is_scaled_as_unit_scales_it(as_given, highest):
    graph = graph_of(as_given(bag_of_words(highest=highest)))
    scaling = fit_scaling("auto", [graph])
    assert (scaling.kind == WORD).all()
    assert scaling.plain == "unit"
    ours, unit = (feature_tensor(graph.x, device=CPU, feature_scaling=s) for s in (scaling, "unit"))
    if isinstance(unit, SparseFeatures):
        ours, unit = ours.values, unit.values
    assert torch.equal(ours, unit)
    assert scaling.describe() == "features: 80 columns of words, rows scaled"


def test_a_word_that_every_row_has_is_a_word_and_a_large_number_beside_words_is_not():
    words = bag_of_words()
    words[:, 3] = np.random.default_rng(3).integers(1, 3, ROWS)
    assert (fitted(words).kind == WORD).all()
    words[:, 3] = np.random.default_rng(3).random(ROWS)
    assert fitted(words).kind[3] == NUMBER  # a fraction is no word beside counts
    words[:, 3] = numbers()[:, 0]  # ages
    words[:, 5] *= 1000  # mostly zeros, as sums of money are
    kinds = fitted(words).kind
    assert kinds[3] == NUMBER
    assert kinds[5] in (NUMBER, LOGARITHM)
    assert (np.delete(kinds, [3, 5]) == WORD).all()


def test_codes_stay_as_they_are():
    codes = np.hstack([one_hot(40, 0), one_hot(40, 1)])
    scaling = fitted(codes)
    assert (scaling.kind == KEPT).all()
    np.testing.assert_array_equal(scaled(codes), codes)
    beside = np.hstack([codes, numbers()])
    np.testing.assert_array_equal(scaled(beside)[:, :80], codes)


def test_numbers_are_standardised_and_heavy_tails_become_logarithms():
    x = numbers()
    scaling, found = fitted(x), scaled(x)
    assert scaling.kind.tolist() == [NUMBER, LOGARITHM, NUMBER, LOGARITHM]
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(0), 1, atol=1e-5)
    for column in (0, 2):
        own = x[:, column].astype(np.float64)
        np.testing.assert_allclose(found[:, column], (own - own.mean()) / own.std(), atol=1e-5)
    # The logarithm of the small share is not the share itself: its tail is gone.
    assert scaling.unit[3] == pytest.approx(x[:, 3].mean(), rel=1e-5)
    assert (found[:, [1, 3]] < 6).all()
    assert scaling.describe() == (
        "features: 4 columns of numbers standardised (2 after a logarithm)"
    )


def test_signs_survive_the_logarithm():
    x = numbers()
    x[:, 1] *= np.where(np.arange(ROWS) % 2, 1, -1)
    x[:, 1] -= x[:, 1].mean()
    scaling = fitted(x)
    assert scaling.kind[1] == LOGARITHM
    order = np.argsort(x[:, 1])
    assert (np.diff(scaled(x)[order, 1]) >= 0).all()


def test_constants_become_zero_and_are_said():
    x = np.hstack([numbers(), np.full((ROWS, 1), 194_000.0), np.zeros((ROWS, 1))])
    x[0, 4] += 0.02  # what rounding leaves
    scaling = fitted(x)
    assert scaling.kind[4:].tolist() == [CONSTANT, CONSTANT]
    assert not scaled(x)[:, 4:].any()
    assert scaling.describe().endswith("; 2 columns constant, set to 0")
    unseen = x.copy()
    unseen[:, 4:] = 5
    assert not scaled(unseen, scaling)[:, 4:].any()


def test_in_a_mixed_table_each_part_is_treated_by_its_kind():
    x = mixed()
    scaling, found = fitted(x), scaled(x)
    kinds = [NUMBER, LOGARITHM, NUMBER, LOGARITHM] + [WORD] * 5 + [CONSTANT] + [WORD] * 80
    assert scaling.kind.tolist() == kinds
    np.testing.assert_allclose(found[:, :4], scaled(numbers()), atol=1e-6)
    words = x[:, scaling.kind == WORD]
    ours = found[:, scaling.kind == WORD]
    lengths = np.sqrt(np.square(words).sum(1, keepdims=True))
    np.testing.assert_allclose(ours, 2 * words / np.where(lengths > 0, lengths, 1), rtol=1e-5)
    # As much as the four numbers, each of which has a mean square of 1.
    np.testing.assert_allclose((ours**2).sum(1), 4 * (lengths[:, 0] > 0), rtol=1e-5)


def test_values_far_outside_the_training_range_are_clipped_and_counted():
    x = numbers()
    scaling, unseen = fitted(x), x.copy()
    unseen[:3, 0], unseen[3, 2] = 1e9, -1e9
    found = scaled(unseen, scaling)
    assert (found[:3, 0] == LIMIT).all()
    assert found[3, 2] == -LIMIT
    assert (np.abs(found) <= LIMIT).all()
    assert scaling.clipped(unseen) == 4
    assert scaling.clipped(x) == 0


def test_inductive_statistics_come_from_training_rows_alone():
    x, train = mixed(), np.arange(ROWS) < 250
    seen = fit_scaling("auto", [graph_of(x, train_mask=train)], inductive=True)
    alone = fitted(x[train])
    x[~train] = np.random.default_rng(9).normal(0, 1e6, x[~train].shape)
    changed = fit_scaling("auto", [graph_of(x, train_mask=train)], inductive=True)
    for name, array in vars(seen).items():
        np.testing.assert_array_equal(array, getattr(alone, name))
        np.testing.assert_array_equal(array, getattr(changed, name))
    whole = fit_scaling("auto", [graph_of(x, train_mask=train)])
    assert not np.array_equal(whole.shift, seen.shift)


def test_several_graphs_are_looked_at_together():
    x = mixed()
    parts = fit_scaling("auto", [graph_of(x[:150]), graph_of(x[150:])])
    together = fitted(x)
    assert parts.kind.tolist() == together.kind.tolist()
    np.testing.assert_allclose(parts.shift, together.shift, rtol=1e-5)
    np.testing.assert_allclose(parts.factor, together.factor, rtol=1e-5)


@pytest.mark.parametrize("features", ["float32", "float16"])
def test_a_store_and_the_same_table_in_memory_agree(tmp_path, features):
    x = mixed()
    x[:, 1] /= 1e3  # within float16
    graph_of(x).save(tmp_path / "store", features=features)
    stored = Graph.open(tmp_path / "store")
    memory = graph_of(np.asarray(stored.x, np.float32))
    ours, theirs = (fit_scaling("auto", [graph]) for graph in (stored, memory))
    for name, array in vars(ours).items():
        np.testing.assert_array_equal(array, getattr(theirs, name))
    tables = [
        feature_tensor(stored.x, device=CPU, feature_scaling=ours),
        stored_features(stored.x, feature_scaling=ours).to_dense(CPU),
        stored_features(memory.x, feature_scaling=ours).to_dense(CPU),
    ]
    wanted = feature_tensor(memory.x, device=CPU, feature_scaling=ours)
    for table in tables:
        torch.testing.assert_close(table, wanted, rtol=1e-6, atol=1e-6)
    part = feature_tensor(stored.x[7:30], device=CPU, feature_scaling=ours)
    torch.testing.assert_close(part, wanted[7:30], rtol=1e-6, atol=1e-6)
    ahead = stored_features(stored.x, feature_scaling=ours).values.dtype
    assert ahead == getattr(torch, features)  # nothing was converted ahead


def test_a_sparse_table_stays_sparse_and_differs_by_the_shift_alone():
    x = mixed()
    dense, sparse = fitted(x), fitted(scipy.sparse.csr_array(x))
    assert sparse.kind.tolist() == dense.kind.tolist()
    np.testing.assert_allclose(sparse.factor, dense.factor, rtol=1e-6)
    np.testing.assert_allclose(sparse.unit, dense.unit, rtol=1e-6)
    assert not sparse.shift.any()
    assert "divided by their deviation" in sparse.describe()
    graph = graph_of(scipy.sparse.csr_array(x))
    found = feature_tensor(graph.x, device=CPU, feature_scaling=sparse)
    assert isinstance(found, SparseFeatures)
    unshifted = dataclasses.replace(dense, shift=np.zeros_like(dense.shift))
    np.testing.assert_allclose(found.to_dense(), scaled(x, unshifted), rtol=1e-5, atol=1e-6)
    # A sparse table that meets statistics of a dense one gets the same numbers as that.
    met = feature_tensor(graph.x, device=CPU, feature_scaling=dense)
    np.testing.assert_allclose(met, scaled(x, dense), rtol=1e-5, atol=1e-6)


def test_auto_must_be_fitted_first():
    with pytest.raises(ParameterError, match="fitted to training rows first"):
        feature_tensor(graph_of(numbers()).x, device=CPU, feature_scaling="auto")
    assert fit_scaling("row", [graph_of(numbers())]) == "row"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shift", None),
        ("shift", torch.zeros(3)),
        ("factor", torch.zeros(4, dtype=torch.float64)),
        ("unit", torch.full((4,), -1.0)),
        ("factor", torch.full((4,), float("nan"))),
        ("kind", torch.full((4,), 9, dtype=torch.uint8)),
    ],
)
def test_damaged_statistics_are_refused(name, value):
    tensors = fitted(numbers()).tensors()
    again = ColumnScaling.from_tensors(tensors, 4)
    assert all(np.array_equal(array, getattr(again, key)) for key, array in tensors.items())
    del tensors[name]
    if value is not None:
        tensors[name] = value
    with pytest.raises(RunError, match=name):
        ColumnScaling.from_tensors(tensors, 4)
