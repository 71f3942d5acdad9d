import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from graphcl.errors import GraphError, ParameterError
from graphcl.evaluation import logistic
from graphcl.evaluation.logistic import (
    STRENGTHS,
    MultilabelResult,
    fit_logistic_batch,
    fit_multilabel,
    multilabel_probe,
)
from graphcl.evaluation.probe import linear_probe
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from tests.conftest import random_graph

TRIED = (1e-4, 1e-2, 1.0, 100.0)


def problem(rows, dim, classes, seed):
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, rows)
    z = random.normal(size=(rows, dim)) + 0.8 * np.eye(classes, dim)[y] + 0.5
    return z * np.linspace(0.1, 3, dim), y


def tensors(z, targets):
    return torch.tensor(z, dtype=torch.float64), torch.tensor(targets, dtype=torch.float64)


@pytest.mark.parametrize(("rows", "dim"), [(80, 6), (20, 50)])  # more rows than columns, and fewer
def test_it_is_scikit_learns_regression_for_every_strength(rows, dim):
    many = [problem(rows + 7 * number, dim, 3, number) for number in range(2)]
    fitted = fit_logistic_batch(
        [tensors(z, np.eye(3)[y]) for z, y in many], TRIED, softmax=True, steps=2000
    )
    for (z, y), one in zip(many, fitted, strict=True):
        for number, strength in enumerate(TRIED):
            theirs = LogisticRegression(C=strength, max_iter=100_000, tol=1e-10).fit(z, y)
            ours = one.scores(torch.tensor(z))[number].softmax(1)
            np.testing.assert_allclose(ours, theirs.predict_proba(z), atol=1e-3)


def test_two_classes_are_one_sigmoid():
    z, y = problem(60, 5, 2, 0)
    (one,) = fit_logistic_batch([tensors(z, y[:, None])], TRIED, softmax=False, steps=2000)
    for number, strength in enumerate(TRIED):
        theirs = LogisticRegression(C=strength, max_iter=100_000, tol=1e-10).fit(z, y)
        ours = one.scores(torch.tensor(z))[number].sigmoid()
        np.testing.assert_allclose(ours[:, 0], theirs.predict_proba(z)[:, 1], atol=1e-3)


def test_labels_are_fitted_apart_and_problems_do_not_touch_each_other():
    z, y = problem(50, 4, 2, 1)
    labels = np.stack([y, 1 - y, np.arange(50) % 2], 1)
    other = tensors(*[part[:30] for part in (z, labels)])
    together = next(fit_logistic_batch([tensors(z, labels), other], TRIED, softmax=False))
    for label in range(3):
        (alone,) = fit_logistic_batch([tensors(z, labels[:, [label]])], TRIED, softmax=False)
        torch.testing.assert_close(
            together.weight[:, :, [label]], alone.weight, rtol=1e-2, atol=1e-2
        )


def test_what_does_not_fit_together_is_fitted_one_after_another(monkeypatch):
    many = [tensors(z, y[:, None]) for z, y in (problem(30 + 9 * n, 4, 2, n) for n in range(5))]
    whole = list(fit_logistic_batch(many, TRIED, softmax=False))
    taken = []

    def given():
        for number, one in enumerate(many):
            taken.append(number)
            yield one

    monkeypatch.setattr(logistic, "VALUES", 2 * 40 * (4 + len(TRIED)))
    parts = fit_logistic_batch(given(), TRIED, softmax=False)
    first = next(parts)
    assert len(taken) < len(many)  # the others are not in memory yet
    for one, other in zip([first, *parts], whole, strict=True):
        torch.testing.assert_close(one.weight, other.weight)


def test_its_usual_steps_are_enough_for_predictions():
    z, y = problem(300, 20, 4, 2)
    (one,) = fit_logistic_batch([tensors(z, np.eye(4)[y])], TRIED, softmax=True)
    for number, strength in enumerate(TRIED):
        theirs = LogisticRegression(C=strength, max_iter=100_000).fit(z, y).predict(z)
        ours = one.scores(torch.tensor(z))[number].argmax(1).numpy()
        assert (ours == theirs).mean() > 0.99


def test_constant_columns_do_no_harm():
    z, y = problem(40, 3, 2, 3)
    z[:, 1] = 5
    (one,) = fit_logistic_batch([tensors(z, y[:, None])], TRIED, softmax=False)
    assert bool(one.weight.isfinite().all())
    assert bool(one.bias.isfinite().all())
    np.testing.assert_allclose(one.weight[:, 1], 0, atol=1e-6)


def labelled_problem(seed=0, *, nodes=(300, 120, 150), dim=6, labels=4):
    """Labels that the embeddings predict in part; columns of different scales."""
    random = np.random.default_rng(seed)
    rule, scale = random.normal(size=(dim, labels)), 10.0 ** random.integers(-2, 3, dim)
    z, y = [], []
    for count in nodes:
        hidden = random.normal(size=(count, dim))
        z.append((hidden * scale + 3).astype(np.float32))
        y.append((hidden @ rule + 2 * random.normal(size=(count, labels)) > 0.8).astype(int))
    return tuple(z), tuple(y)


def standardised(z):
    mean, spread = z[0].mean(0), z[0].std(0)
    return [(part - mean) / spread for part in z]


@pytest.mark.parametrize("strength", [1e-3, 1e-1])
def test_coefficients_are_scikit_learns_at_the_same_penalty(strength):
    z, y = labelled_problem()
    rows = standardised(z)[0]
    weight, bias = fit_multilabel(
        torch.tensor(rows), torch.tensor(y[0]).float(), strengths=[7.0, strength], steps=2000
    )
    assert (weight.shape, bias.shape) == ((2, 6, 4), (2, 4))
    for label in range(4):
        witness = LogisticRegression(C=1 / (strength * len(rows)), tol=1e-8, max_iter=1000)
        witness.fit(rows, y[0][:, label])
        np.testing.assert_allclose(weight[1, :, label], witness.coef_[0], atol=2e-3)
        np.testing.assert_allclose(bias[1, label], witness.intercept_[0], atol=2e-3)


def test_scores_are_those_of_one_scikit_learn_regression_per_label():
    z, y = labelled_problem()
    result = multilabel_probe(z, y, strengths=[1e-2, 1e-4], steps=1000, device="cpu")
    train, val, test = standardised(z)
    val_scores, test_scores = {}, {}
    for strength in (1e-2, 1e-4):
        fitted = [
            LogisticRegression(C=1 / (strength * len(train)), max_iter=1000).fit(train, column)
            for column in y[0].T
        ]
        predict = lambda part: np.stack([one.predict(part) for one in fitted], 1)  # noqa: B023, E731
        val_scores[strength] = f1_score(y[1], predict(val), average="micro")
        test_scores[strength] = [
            f1_score(y[2], predict(test), average=average) for average in ("micro", "macro")
        ] + [(y[2] == predict(test)).mean()]
    best = max(val_scores, key=val_scores.get)
    assert result.strength == best
    assert result.val_micro_f1 == pytest.approx(val_scores[best], abs=0.01)
    found = (result.micro_f1, result.macro_f1, result.accuracy)
    assert found == pytest.approx(test_scores[best], abs=0.01)


def test_the_result_contains_the_budget():
    result = multilabel_probe(*labelled_problem(), steps=7, device="cpu")
    assert (result.steps, result.strengths, result.nodes) == (7, STRENGTHS, (300, 120, 150))
    assert result.optimiser == "full-batch Adam, learning rate 0.05 with cosine decay"
    assert result.split == "given"
    assert result.strength in STRENGTHS


def test_the_grid_in_one_training_is_each_strength_alone():
    z, y = labelled_problem()
    rows, labels = torch.tensor(standardised(z)[0]), torch.tensor(y[0]).float()
    weight, bias = fit_multilabel(rows, labels, strengths=STRENGTHS, steps=50)
    for number, strength in enumerate(STRENGTHS):
        alone, offset = fit_multilabel(rows, labels, strengths=[strength], steps=50)
        torch.testing.assert_close(weight[number], alone[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(bias[number], offset[0], rtol=1e-3, atol=1e-4)


def test_a_tie_takes_the_strongest_penalty():
    _, y = labelled_problem()
    easy = tuple(np.where(label == 1, 1.0, -1.0) for label in y)
    result = multilabel_probe(easy, y, strengths=[0.0, 1e-5, 1e-4], steps=100, device="cpu")
    assert result.micro_f1 == result.val_micro_f1 == 1
    assert result.strength == 1e-4


def test_test_labels_choose_nothing_and_it_repeats():
    z, y = labelled_problem()
    honest = multilabel_probe(z, y, steps=30, device="cpu")
    blind = multilabel_probe(z, (*y[:2], 1 - y[2]), steps=30, device="cpu")
    assert (blind.strength, blind.val_micro_f1) == (honest.strength, honest.val_micro_f1)
    assert blind.accuracy == pytest.approx(1 - honest.accuracy)
    assert multilabel_probe(z, y, steps=30, device="cpu") == honest


def test_tensors_go_in_and_nothing_is_changed():
    z, y = labelled_problem()
    copies = [part.copy() for part in z]
    tensors = tuple(torch.tensor(part) for part in z)
    steps = []
    result = multilabel_probe(tensors, y, steps=5, device="cpu", on_step=steps.append)
    assert result == multilabel_probe(z, y, steps=5, device="cpu")
    assert steps == [1, 2, 3, 4, 5]
    for part in z:
        part.flags.writeable = False  # as a graph's arrays are
    assert result == multilabel_probe(z, y, steps=5, device="cpu")
    assert all(np.array_equal(part, copy) for part, copy in zip(z, copies, strict=True))


def test_constant_columns_and_labels_that_no_node_has():
    z, y = labelled_problem()
    z = tuple(np.hstack([part, np.full((len(part), 1), 3.0)]) for part in z)
    y = tuple(np.hstack([part, np.zeros((len(part), 1), int)]) for part in y)
    result = multilabel_probe(z, y, steps=200, device="cpu")
    plain = multilabel_probe(*labelled_problem(), steps=200, device="cpu")
    assert result.micro_f1 == pytest.approx(plain.micro_f1, abs=0.005)
    assert result.macro_f1 == pytest.approx(plain.macro_f1 * 4 / 5, abs=0.005)


def test_errors():
    z, y = labelled_problem()
    with pytest.raises(GraphError, match="there are no validation nodes"):
        multilabel_probe((z[0], z[1][:0], z[2]), (y[0], y[1][:0], y[2]), device="cpu")
    with pytest.raises(GraphError, match="of the test nodes do not fit each other"):
        multilabel_probe(z, (y[0], y[1], y[2][:-1]), device="cpu")
    with pytest.raises(GraphError, match="of the validation nodes differ in width"):
        multilabel_probe((z[0], z[1][:, :2], z[2]), y, device="cpu")
    with pytest.raises(GraphError, match="a label of the train nodes is neither 0 nor 1"):
        multilabel_probe(z, (y[0] + 1, *y[1:]), device="cpu")
    with pytest.raises(GraphError, match="an embedding of the test nodes is not finite"):
        multilabel_probe((z[0], z[1], z[2] * np.nan), y, device="cpu")
    with pytest.raises(ParameterError, match="steps must be at least 1; got 0"):
        multilabel_probe(z, y, steps=0)
    for strengths in ((), (-1.0,)):
        with pytest.raises(ParameterError, match="strengths must be one or more"):
            multilabel_probe(z, y, strengths=strengths)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_finds_what_a_cpu_finds():
    z, y = labelled_problem()
    on_cpu, on_gpu = (multilabel_probe(z, y, steps=300, device=name) for name in ("cpu", "cuda"))
    assert on_gpu.micro_f1 == pytest.approx(on_cpu.micro_f1, abs=0.01)
    assert on_gpu.val_micro_f1 == pytest.approx(on_cpu.val_micro_f1, abs=0.01)


def test_linear_probe_of_a_collection_trains_on_its_training_graphs(collection):
    z = [graph.x for graph in collection.graphs]
    result = linear_probe(z, collection, steps=20, device="cpu")
    assert isinstance(result, MultilabelResult)
    assert result.nodes == collection.split_nodes
    assert linear_probe(np.concatenate(z), collection, steps=20, device="cpu") == result
    parts = [
        tuple(np.concatenate([getattr(graph, name) for graph in graphs]) for graphs in splits)
        for name in ("x", "y")
        for splits in [(collection.train, collection.val, collection.test)]
    ]
    assert multilabel_probe(*parts, steps=20, device="cpu") == result
    with pytest.raises(GraphError, match="train, validation and test graphs"):
        linear_probe(
            np.concatenate(z[:3]), dataclasses.replace(collection, val=(), test=()), device="cpu"
        )


def test_linear_probe_of_a_collection_with_one_class_per_node():
    graphs = [random_graph(seed) for seed in range(3)]
    collection = GraphCollection((graphs[0],), (graphs[1],), (graphs[2],))
    result = linear_probe([graph.x for graph in graphs], collection)
    assert (result.split, result.nodes) == ("given", (60, 60, 60))
    assert result.accuracy == result.micro_f1 > 0.6


def test_linear_probe_of_one_graph_with_several_labels(graph):
    y = np.eye(3, dtype=int)[graph.y]
    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    given = Graph.from_edge_index(graph.edge_index(), graph.x, y, **masks)
    result = linear_probe(graph.x, given, steps=100, device="cpu")
    assert (result.split, result.nodes) == ("given", (20, 20, 20))
    assert result.micro_f1 > 0.5
    free = Graph.from_edge_index(graph.edge_index(), graph.x, y)
    drawn = linear_probe(graph.x, free, steps=5, device="cpu")
    assert (drawn.split, drawn.nodes) == ("cross-validation", (60, 0, 60))


def test_test_rows_choose_nothing():
    z, y = labelled_problem()
    loud = (*z[:2], np.concatenate([z[2][:5] * 1e4, z[2][5:]]).astype(np.float32))
    honest, moved = (multilabel_probe(rows, y, steps=50, device="cpu") for rows in (z, loud))
    assert (moved.val_micro_f1, moved.strength) == (honest.val_micro_f1, honest.strength)


@pytest.mark.parametrize("rows", [10, 3001, 45_000])
@pytest.mark.parametrize("value", [0.0, 0.1, 1.7e9])
def test_a_column_that_is_constant_on_train_rows_alone_becomes_zero(rows, value):
    train = torch.full((rows, 1), value)
    test = torch.full((4, 1), value + 1e6)
    assert not any(part.any() for part in logistic._standardise([train, test]))
