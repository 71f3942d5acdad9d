import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from graphcl.cli.progress import scores_text
from graphcl.errors import GraphError
from graphcl.evaluation import probe
from graphcl.evaluation.calibration import fit_calibrated
from graphcl.evaluation.probe import (
    FEW_LABELS,
    STRENGTHS,
    is_cross_validated,
    linear_probe,
    node_split,
    standardiser,
    transfer_probe,
)
from graphcl.evaluation.splits import probe_confusion, validation_score
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from tests.conftest import random_graph


@pytest.fixture
def graph():
    return random_graph(num_nodes=240)


@pytest.fixture
def redrawn(monkeypatch):
    """As many splits as users' probes choose on."""
    monkeypatch.setattr(probe, "REDRAWN", 5)


def with_labels(graph, y, **masks):
    return Graph.from_edge_index(graph.edge_index(), graph.x, y, **masks)


def masks_of(graph):
    return {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}


def test_it_is_scikit_learns_logistic_regression_at_the_best_validation_strength(
    graph, monkeypatch
):
    monkeypatch.setattr(probe, "REDRAWN", 0)  # the given split alone
    z = graph.x.astype(np.float64)
    z = StandardScaler().fit(z[graph.train_mask]).transform(z)
    scores = {}
    for c in STRENGTHS:
        model = LogisticRegression(C=c, max_iter=300).fit(
            z[graph.train_mask], graph.y[graph.train_mask]
        )
        scores[c] = model.score(z[graph.val_mask], graph.y[graph.val_mask]), model
    best = max(scores, key=lambda c: (scores[c][0], -c))
    result = linear_probe(graph.x, graph)
    predicted = scores[best][1].predict(z[graph.test_mask])
    truth = graph.y[graph.test_mask]
    assert result.strength == best
    assert result.val_accuracy == scores[best][0]
    assert result.accuracy == result.micro_f1 == (predicted == truth).mean()
    assert result.macro_f1 == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert (result.split, result.nodes) == ("given", (80, 80, 80))


def test_the_strength_is_the_best_over_the_given_and_the_redrawn_splits(graph, redrawn):
    order = np.concatenate([np.flatnonzero(graph.train_mask), np.flatnonzero(graph.val_mask)])
    y, z = graph.y[order], graph.x[order].astype(np.float64)
    given = np.arange(len(order)) < graph.train_mask.sum()
    random = np.random.default_rng(0)
    splits = [given, *(probe.redraw(y, given, random) for _ in range(probe.REDRAWN))]
    means = [
        np.mean(
            [
                make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=300))
                .fit(z[t], y[t])
                .score(z[~t], y[~t])
                for t in splits
            ]
        )
        for c in STRENGTHS
    ]
    for drawn in splits[1:]:
        assert np.array_equal(np.bincount(y[drawn]), np.bincount(y[given]))
    # The path is warm-started: accuracies may differ by a node here and there.
    chosen = STRENGTHS.index(linear_probe(graph.x, graph).strength)
    assert means[chosen] >= max(means) - 0.005


def test_the_span_of_few_rows_changes_no_prediction():
    random = np.random.default_rng(0)
    z, y = random.normal(size=(60, 50)), random.integers(0, 3, 60)
    train, standard = np.arange(60) < 20, standardiser(z)
    assert probe.within_span(z, standard)(z).shape == (60, 50)
    z, rows = standard(z), probe.within_span(z[train], standard)(z)
    assert rows.shape == (60, 20)
    np.testing.assert_allclose(rows[train] @ rows.T, z[train] @ z.T)
    for c in (1e-3, 1e-1, 10.0):
        options = {"C": c, "max_iter": 2000, "tol": 1e-8}
        whole = LogisticRegression(**options).fit(z[train], y[train])
        narrow = LogisticRegression(**options).fit(rows[train], y[train])
        np.testing.assert_allclose(
            whole.predict_proba(z), narrow.predict_proba(rows), rtol=0, atol=1e-3
        )


def test_test_labels_choose_nothing(graph, redrawn):
    y = graph.y.copy()
    y[graph.test_mask] = np.random.default_rng(0).integers(0, 3, graph.test_mask.sum())
    honest = linear_probe(graph.x, graph)
    blind = linear_probe(graph.x, with_labels(graph, y, **masks_of(graph)))
    assert (blind.strength, blind.val_accuracy) == (honest.strength, honest.val_accuracy)
    assert blind.accuracy < honest.accuracy


def as_collection(graph, rows=None):
    """The parts of the graph's split as three graphs, and the rows of `rows` in their order."""
    nodes = [np.flatnonzero(mask) for mask in masks_of(graph).values()]
    no_edges = np.zeros((2, 0), dtype=np.int64)
    parts = [[Graph.from_edge_index(no_edges, graph.x[n], graph.y[n])] for n in nodes]
    return GraphCollection(*parts), (graph.x if rows is None else rows)[np.concatenate(nodes)]


def test_embeddings_of_test_nodes_change_only_their_own_predictions(graph, redrawn, monkeypatch):
    predictions = []
    fit = probe.fit_logistic

    class Kept:
        def __init__(self, model):
            self.model = model

        def predict(self, rows):
            predictions.append(self.model.predict(rows))
            return predictions[-1]

    def kept(z, y, strength, start=None):
        return Kept(fit(z, y, strength, start and start.model))

    monkeypatch.setattr(probe, "fit_logistic", kept)
    test = np.flatnonzero(graph.test_mask)
    loud = graph.x.copy()
    loud[test[:30]] *= 1e4
    results = []
    for z in (graph.x, loud):
        predictions.clear()
        results.append((linear_probe(z, graph), *map(list, predictions)))
    (honest, *theirs), (moved, *ours) = results
    assert theirs[:-1] == ours[:-1]  # of train and validation nodes, on every split
    assert theirs[-1][30:] == ours[-1][30:]  # of the test nodes that are as they were
    assert (moved.strength, moved.val_accuracy) == (honest.strength, honest.val_accuracy)


def test_a_collection_of_graphs_hides_its_test_graphs_from_the_probe(graph):
    collection, z = as_collection(graph)
    _, loud = as_collection(graph, np.where(graph.test_mask[:, None], graph.x * 1e4, graph.x))
    honest, moved = linear_probe(z, collection), linear_probe(loud, collection)
    assert (moved.strength, moved.val_accuracy) == (honest.strength, honest.val_accuracy)
    assert honest == dataclasses.replace(linear_probe(graph.x, graph), split="given")


def test_one_loud_test_node_costs_no_other_node_its_class(graph):
    loud = graph.x.copy()
    loud[np.flatnonzero(graph.test_mask)[0]] *= 1e4
    honest, moved = linear_probe(graph.x, graph), linear_probe(loud, graph)
    assert abs(moved.accuracy - honest.accuracy) <= 1.01 / 80
    counts = [probe_confusion(z, graph, strength=1.0).counts for z in (graph.x, loud)]
    assert np.abs(counts[0] - counts[1]).sum() <= 2
    assert transfer_probe(loud, graph, [graph.x[graph.test_mask]])[1] == honest.accuracy


def test_validation_nodes_do_not_change_each_other(graph):
    known = graph.train_mask | graph.val_mask
    y, train = graph.y[known], graph.train_mask[known]
    loud = graph.x[known].copy()
    loud[np.flatnonzero(~train)[0]] *= 1e4
    found = [validation_score(z, y, train, splits=1) for z in (graph.x[known], loud)]
    assert abs(found[0] - found[1]) <= 1.01 / 80


def test_without_a_split_it_draws_one_that_is_disjoint_and_repeatable(graph, monkeypatch):
    monkeypatch.setattr(probe, "FEW_LABELS", 0)
    free = with_labels(graph, graph.y)
    first, second = linear_probe(graph.x, free, seed=0), linear_probe(graph.x, free, seed=0)
    assert first == second
    assert first.split == "random"
    assert sum(first.nodes) == graph.num_nodes
    assert linear_probe(graph.x, free, seed=1) != first


def test_unlabelled_nodes_are_left_out(graph):
    y = graph.y.copy()
    y[np.flatnonzero(graph.test_mask)[:10]] = -1
    assert linear_probe(graph.x, with_labels(graph, y, **masks_of(graph))).nodes == (80, 80, 70)


@pytest.mark.parametrize(
    ("mask", "name"),
    [("train_mask", "train"), ("val_mask", "validation"), ("test_mask", "test")],
)
def test_a_part_without_labels_is_refused(graph, mask, name):
    y = np.where(getattr(graph, mask), -1, graph.y)
    bare = with_labels(graph, y, **masks_of(graph))
    with pytest.raises(GraphError, match=f"^probe: no labelled node among the {name} nodes$"):
        linear_probe(graph.x, bare)


def test_choosing_by_validation_needs_no_test_label(graph):
    y = np.where(graph.test_mask, -1, graph.y)
    train, val, test = node_split(with_labels(graph, y, **masks_of(graph)), y, 0)
    assert (len(train), len(val), len(test)) == (80, 80, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("train", "test"), "train and test nodes are given, validation nodes are not"),
        (("train",), "train nodes are given, validation and test nodes are not"),
        (("val", "test"), "validation and test nodes are given, train nodes are not"),
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_half_a_split_is_refused_not_replaced(graph, given, message, empty):
    nobody = np.zeros(graph.num_nodes, dtype=bool) if empty else None
    masks = {
        f"{name}_mask": getattr(graph, f"{name}_mask") if name in given else nobody
        for name in ("train", "val", "test")
    }
    with pytest.raises(GraphError, match=f"^probe: {message}; give all three or none$"):
        linear_probe(graph.x, with_labels(graph, graph.y, **masks))


def test_empty_masks_are_not_a_split(graph):
    nobody = dict.fromkeys(masks_of(graph), np.zeros(graph.num_nodes, dtype=bool))
    found = linear_probe(graph.x, with_labels(graph, graph.y, **nobody))
    assert found.split == "cross-validation"


@pytest.mark.parametrize("seed", [-1, 2**32, 2**70])
def test_any_seed_draws_a_split(graph, seed, monkeypatch):
    assert linear_probe(graph.x, with_labels(graph, graph.y), seed=seed).folds > 1
    monkeypatch.setattr(probe, "FEW_LABELS", 0)
    assert linear_probe(graph.x, with_labels(graph, graph.y), seed=seed).split == "random"


def test_embeddings_may_be_tensors_tables_or_rows(graph):
    expected = linear_probe(graph.x, graph)
    tensor = torch.tensor(graph.x, requires_grad=True)
    halves = [tensor[:100], tensor[100:]]
    for z in (tensor, halves, list(tensor), graph.x.tolist(), tuple(map(tuple, graph.x.tolist()))):
        assert linear_probe(z, graph) == expected


@pytest.mark.parametrize(
    ("z", "message"),
    [
        ([], "probe: the list of embeddings is empty"),
        (np.ones((240, 0)), "probe: embeddings must be numbers [nodes, dim]; got float64 (240, 0)"),
        (
            np.ones((240, 2), dtype=complex),
            "probe: embeddings must be numbers [nodes, dim]; got complex",
        ),
        ([[1.0, 2.0], [1.0]], "probe: entry 1 of the list of embeddings has shape (1,)"),
        ([np.ones((100, 2)), np.ones((140, 3))], "probe: entry 1 of the list of embeddings"),
        ([[1.0, [2.0]]], "probe: embeddings: not a rectangular array"),
        ([1.0, 2.0], "probe: entry 0 of the list of embeddings has shape ()"),
    ],
)
def test_what_is_not_a_table_is_refused_in_one_line(graph, z, message):
    with pytest.raises(GraphError) as caught:
        linear_probe(z, graph)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named_by_its_place(graph, value, monkeypatch):
    monkeypatch.setattr(probe, "_BLOCK_ROWS", 100)
    z = graph.x.copy()
    z[203, 4] = z[210, 2] = value
    with pytest.raises(GraphError, match=f"^embeddings: {value} at row 203, column 4$"):
        linear_probe(z, graph)
    huge = graph.x.astype(np.float64)
    huge[3, 5] = 1e300
    with pytest.raises(GraphError, match="values of column 5 are too large to be squared"):
        linear_probe(huge, graph)


def test_constant_columns_are_harmless(graph):
    z = np.hstack([graph.x, np.zeros((graph.num_nodes, 2))])
    assert linear_probe(z, graph).accuracy == linear_probe(graph.x, graph).accuracy


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e-20, 1.7e9])
def test_a_column_that_is_constant_on_train_rows_alone_is_harmless(graph, kind, value):
    constant = np.full((graph.num_nodes, 1), value, dtype=kind)
    rounding = np.random.default_rng(0).choice([-1, 0, 1], (80, 1)) * np.finfo(kind).eps
    constant[graph.train_mask] *= 1 + rounding.astype(kind)
    constant[graph.test_mask] += 1e6
    z = np.hstack([graph.x.astype(kind), constant])
    assert linear_probe(z, graph) == linear_probe(graph.x.astype(kind), graph)
    assert not standardiser(z[graph.train_mask])(z)[:, -1].any()


def test_a_small_spread_is_no_constant():
    z = np.random.default_rng(0).normal(1000, 0.01, size=(50, 3))
    assert np.allclose(standardiser(z)(z).std(0), 1)


def test_a_handful_of_train_nodes_suffices(graph):
    first = [int(np.flatnonzero(graph.y == label)[0]) for label in range(2)]
    rest = np.setdiff1d(np.arange(graph.num_nodes), first)
    masks = {"train_mask": first, "val_mask": rest[:20], "test_mask": rest[20:]}
    few = with_labels(graph, graph.y, **masks)
    z = np.hstack([graph.x, np.eye(graph.num_nodes)[:, :3]])  # mostly columns without a train value
    scaled = standardiser(z[first])(z)
    assert np.isfinite(scaled).all()
    assert np.allclose(np.abs(scaled[first][:, :12]), 1)  # of two rows each is one deviation away
    assert linear_probe(z, few).nodes[0] == 2


def test_errors(graph):
    unlabelled = graph.replace(y=None)
    with pytest.raises(GraphError, match="no labels"):
        linear_probe(graph.x, unlabelled)
    with pytest.raises(GraphError, match=r"embeddings \(3, 12\) for a graph of 240 nodes"):
        linear_probe(graph.x[:3], graph)
    with pytest.raises(GraphError, match="fewer than two classes"):
        linear_probe(graph.x, with_labels(graph, np.zeros(graph.num_nodes, int), **masks_of(graph)))
    with pytest.raises(GraphError, match="too few labelled nodes"):
        linear_probe(np.ones((2, 1)), Graph.from_edge_index([[0], [1]], [[1.0], [2.0]], [0, 1]))


def test_witness_pipeline_agrees_on_an_easy_problem(graph):
    z = np.eye(3)[graph.y] + np.random.default_rng(0).normal(size=(graph.num_nodes, 3)) * 0.1
    witness = make_pipeline(StandardScaler(), LogisticRegression())
    witness.fit(z[graph.train_mask], graph.y[graph.train_mask])
    assert (
        linear_probe(z, graph).accuracy
        == witness.score(z[graph.test_mask], graph.y[graph.test_mask])
        == 1
    )


def test_rare_words_keep_their_zeros_and_share_a_scale():
    random = np.random.default_rng(0)
    dense = random.normal(3, 2, size=(200, 2))
    words = (random.random((200, 5)) < [0.4, 0.2, 0.1, 0.05, 0.0]) * 3.0
    z = np.concatenate([dense, words], axis=1)
    scaled = standardiser(z)(z)
    assert np.allclose(scaled[:, :2].mean(0), 0)
    assert np.allclose(scaled[:, :2].std(0), 1)
    assert np.allclose(scaled[:, 2:], words / 3)


def test_words_as_they_are_score_above_words_standardised():
    """Rare words that say nothing must not drown the few that tell the classes apart."""
    random = np.random.default_rng(1)
    y, node = np.repeat([0, 1], 300), np.arange(600)
    told = random.random((600, 8)) < np.where(y[:, None] == 0, 0.3, 0.05)
    noise = random.random((600, 400)) < 0.01
    z = np.concatenate([told, noise], axis=1).astype(np.float32)
    graph = Graph.from_edge_index(
        np.zeros((2, 0), dtype=np.int64),
        z,
        y=y,
        train_mask=node % 10 == 0,
        val_mask=node % 10 == 1,
        test_mask=node % 10 > 1,
    )
    loud = StandardScaler().fit_transform(z) + 1e-9  # no zero is left
    assert linear_probe(z, graph).accuracy > linear_probe(loud, graph).accuracy + 0.05


def test_the_same_rows_score_as_the_probe_does(graph):
    test = np.flatnonzero(graph.test_mask)
    noise = np.random.default_rng(0).normal(size=graph.x.shape)
    own, same, noisy = transfer_probe(graph.x, graph, [graph.x[test], noise[test]])
    assert own == same == linear_probe(graph.x, graph).accuracy
    assert noisy < own


def test_arrays_must_fit(graph):
    with pytest.raises(GraphError, match="do not fit"):
        transfer_probe(graph.x, graph, [graph.x])


def test_the_probe_leaves_out_nodes_without_any_of_several_labels(graph):
    y = np.stack([graph.y == 0, graph.y > 0], axis=1).astype(int)
    y[::3] = -1
    some = Graph.from_edge_index(graph.edge_index(), graph.x, y)
    z = np.random.default_rng(0).normal(size=(graph.num_nodes, 4)).astype(np.float32)
    result = linear_probe(z, some, steps=5)
    labelled = (graph.num_nodes * 2) // 3
    assert result.nodes == (labelled, 0, labelled)
    parts = node_split(some, some.y, 0)
    assert (np.concatenate(parts) % 3 != 0).all()
    part = np.arange(graph.num_nodes) % 3
    y[::3], y[1::6] = 0, -1
    masks = {"train_mask": part == 0, "val_mask": part == 1, "test_mask": part == 2}
    some = Graph.from_edge_index(graph.edge_index(), graph.x, y, **masks)
    third = graph.num_nodes // 3
    assert [len(nodes) for nodes in node_split(some, some.y, 0)] == [third, third // 2, third]


def few_labels(labelled=150, classes=2, **about):
    random = np.random.default_rng(0)
    y = random.integers(0, classes, 400)
    z = random.normal(size=(400, 6)) + y[:, None]
    y[labelled:] = -1
    return z, Graph.from_edge_index([[0], [1]], z, y, **about)


def calibrated(z, targets, **how):
    """What the embeddings of the labelled nodes alone tell."""
    standard = {"z": standardiser(z)}
    return fit_calibrated({"z": z[:150]}, targets[:150], seed=3, standard=standard, **how)


def test_few_labels_are_cross_validated():
    z, graph = few_labels()
    found = linear_probe(z, graph, seed=3)
    expected = calibrated(z, np.eye(2, dtype=int)[graph.y], several=False)
    assert (found.split, found.folds, found.nodes) == ("cross-validation", 10, (150, 0, 150))
    assert found.accuracy == expected.error.accuracy
    assert found.macro_f1 == expected.error.macro_f1
    area = roc_auc_score(graph.y[:150], expected.held_out[:, 1])
    assert found.roc_auc == pytest.approx(area)
    counts = probe_confusion(z, graph, strength=found.strength, seed=3).counts
    assert counts.sum() == 150
    assert scores_text(dataclasses.asdict(found)).endswith(
        "(150 labelled nodes, each held out in one of 10 folds)"
    )


def test_few_nodes_with_several_labels_are_cross_validated():
    z, graph = few_labels(classes=3)
    y = np.stack([graph.y == 0, graph.y > 0], axis=1).astype(int)
    y[150:] = -1
    several = Graph.from_edge_index([[0], [1]], z, y)
    found = linear_probe(z, several, seed=3)
    expected = calibrated(z, y, several=True)
    assert (found.split, found.folds, found.nodes) == ("cross-validation", 10, (150, 0, 150))
    assert found.micro_f1 == found.val_micro_f1 == expected.error.micro_f1
    assert (found.macro_f1, found.majority) == (expected.error.macro_f1, expected.error.majority)
    assert scores_text(dataclasses.asdict(found)).endswith(
        "(150 labelled nodes, each held out in one of 10 folds)"
    )


def test_given_splits_and_many_labels_are_not_cross_validated():
    z, graph = few_labels()
    parts = np.arange(400) % 3 == [[0], [1], [2]]
    masks = dict(zip(("train_mask", "val_mask", "test_mask"), parts, strict=True))
    _, split = few_labels(**masks)
    assert not is_cross_validated(split, split.y)
    assert is_cross_validated(graph, graph.y)
    assert not is_cross_validated(graph, np.zeros(FEW_LABELS))
    assert is_cross_validated(graph, np.zeros(FEW_LABELS - 1))
    assert linear_probe(z, split).split == "given"
    with pytest.raises(GraphError, match="two classes need two each"):
        linear_probe(np.eye(3), Graph.from_edge_index([[0], [1]], np.eye(3), [0, 1, 2]))
