"""The probe: logistic regression on frozen embeddings, the paper's linear evaluation."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from graphcl.arrays import Array, blocks
from graphcl.errors import GraphError, demand
from graphcl.evaluation.failure import majority_share
from graphcl.evaluation.logistic import MultilabelResult, Scores, multilabel_probe
from graphcl.graphs.collection import (
    GraphCollection,
    Labelled,
    as_graph,
    is_foreign,
    of_labelled_type,
)
from graphcl.graphs.graph import Graph
from graphcl.graphs.interchange import embedding_table
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.validation import is_labelled, node_fields
from graphcl.seeding import derive
from graphcl.settings import PROBE_STEPS

_BLOCK_ROWS = 1 << 18
FEW_LABELS = 500  # of fewer, a random tenth is too few to learn from
CROSS_VALIDATION = "cross-validation"
REDRAWN = 5
REDRAWN_NODES = 4000  # train and validation nodes; with more, one split is reliable enough
STRENGTHS = tuple(10.0 ** (k / 2) for k in range(-8, 5))  # C from 1e-4 to 1e2, in half decades


@dataclass(frozen=True, repr=False, kw_only=True)
class PredictionResult(Scores):
    """Scores of predicted classes on the test nodes; `ProbeResult` says what they are."""

    val_accuracy: float


@dataclass(frozen=True, repr=False, kw_only=True)
class ProbeResult(PredictionResult):
    """Scores of the probe on the test nodes.

    Attributes:
        accuracy: fraction of test nodes classified correctly.
        micro_f1: equals the accuracy, as each node has one class.
        macro_f1: mean of the F1 scores of the classes.
        val_accuracy: accuracy on the validation nodes at the chosen strength.
        split: ``given``; or, if the graph has none, ``random`` or ``cross-validation``.
        nodes: numbers of train, validation and test nodes used; in cross-validation, of all
            labelled nodes, of none, and of those that were held out in turn.
        majority: share of the largest class among the test nodes: the accuracy of giving all nodes
            one class.
        strength: C of scikit-learn's `LogisticRegression`, chosen without the test nodes.
        roc_auc: for two classes, the chance that the probe ranks a node of the second above one of
            the first; 0.5 means that it knows nothing. None for more classes.
        folds: of the cross-validation; 0 where there is one split.
    """

    strength: float
    roc_auc: float | None
    folds: int = 0


def is_cross_validated(graph: Labelled, y: Array) -> bool:
    """Returns whether the probe holds out every labelled node in turn.

    It does so where a graph has no split and fewer than `FEW_LABELS` nodes with labels: a tenth of
    153 are 15 to learn from, and say little of what all 153 can do. A split that is given is used.
    """
    alone = not isinstance(graph, GraphCollection) and not (graph.has_split or graph.split_gap)
    return alone and int(is_labelled(y).sum()) < FEW_LABELS


def cross_validate(
    z: Array, y: Array, seed: int = 0
) -> tuple[ProbeResult | MultilabelResult, Array]:
    """Returns the scores of `graphcl.predict`'s cross-validation, and the held-out classes.

    Args:
        z: embeddings of all nodes.
        y: classes, −1 where there is none; or several labels per node.
        seed: decides the folds.

    Returns:
        The scores, and for every node the class that it had when it was held out; −1 if it never
        was, as the only node of a class is not. Several labels have no such class.
    """
    from graphcl.evaluation.calibration import fit_calibrated

    check_embeddings(z)
    labelled, several, held = np.flatnonzero(is_labelled(y)), y.ndim == 2, np.full(len(y), -1)
    classes, codes = (np.zeros(0), None) if several else np.unique(y[labelled], return_inverse=True)
    demand(several or len(classes) >= 2, "probe: the labelled nodes hold fewer than two classes")
    targets = y[labelled] if codes is None else codes[:, None] == np.arange(len(classes))
    probe = fit_calibrated(
        {"embeddings": z[labelled]},
        targets.astype(np.int64),
        several=several,
        seed=abs(seed),
        standard={"embeddings": standardiser(z)},
    )
    error = probe.error
    if error is None:
        few = " to hold some out" if several else ": two classes need two each"
        raise GraphError(f"probe: too few labelled nodes{few}")
    found: Any = {
        "accuracy": error.accuracy,
        "micro_f1": error.micro_f1,
        "macro_f1": error.macro_f1,
        "split": CROSS_VALIDATION,
        "nodes": (len(labelled), 0, error.nodes),
        "folds": error.folds,
        "majority": error.majority,
    }
    if codes is None:
        strength = 1 / (probe.strength * len(labelled))
        return MultilabelResult(
            val_micro_f1=error.micro_f1,
            **found,
            strength=strength,
            strengths=(),
            steps=0,
            optimiser="",
        ), held
    there = ~np.isnan(probe.held_out).any(axis=1)
    guess, truth = probe.held_out[there], codes[there]
    found["majority"] = majority_share(truth)
    held[labelled[there]] = classes[guess.argmax(axis=1)]
    area = _roc_auc(guess[:, 1], truth) if len(classes) == 2 else None
    found |= {"strength": probe.strength, "roc_auc": area}
    return ProbeResult(val_accuracy=error.accuracy, **found), held


def linear_probe(
    z: Any,
    graph: Any,
    seed: int = 0,
    *,
    steps: int = PROBE_STEPS,
    device: str = "auto",
    on_step: Callable[[int], None] = lambda _: None,
) -> ProbeResult | MultilabelResult:
    """Trains logistic regression on train nodes and scores it on test nodes.

    If each node has one class, the regression is multinomial, on embeddings that are standardised
    by column, by the train rows alone (see `standardiser`). The strength of the L2 penalty is the
    one of `STRENGTHS` with the highest validation accuracy (the strongest penalty on a tie). This
    accuracy is the mean over the given split and `REDRAWN` others, because with a few hundred nodes
    one split chooses by chance. The others are drawn from the train and validation nodes, with as
    many train nodes of each class. The regression that is scored is trained on the given train
    nodes only.

    The probe never learns from a test node: neither its label nor its embedding changes the
    classifier, the strength, or another node's prediction. What an encoder may see is another
    matter: in the transductive setting it is trained on the features and edges of all nodes, test
    nodes included, without labels; in the inductive setting on those of the training nodes alone.

    Where a graph has no split and few labels, every labelled node is held out in turn: see
    `is_cross_validated`. The scores are then those that `graphcl.predict` expects.

    If a node has several labels, there is one regression per label: see `multilabel_probe`.

    Args:
        z: embeddings, ``[num_nodes, dim]``; for a collection, a list of such arrays or one array of
            all their rows, in the order of its graphs. Of a typed graph, by type: the type that has
            labels is scored.
        graph: their graph, or collection of graphs; gives the labels and the split. The labelled
            nodes of a graph without masks are split at random, 10 % / 10 % / 80 % of each class, or
            cross-validated if they are few. Or labels alone, as `Graph.from_edge_index` takes them.
        seed: decides the random split or the folds; nothing else here is random.
        steps: number of updates with several labels per node; see `multilabel_probe`.
        device: where to train with several labels per node.
        on_step: called after each of these steps with its number.

    Raises:
        GraphError: there are no labels, fewer than two classes, or the embeddings do not fit.
    """
    if not isinstance(graph, Labelled) and is_foreign(graph):
        graph = as_graph(graph)
    z, graph = of_labelled_type(z, graph, "probe")
    z = embedding_table(z, "probe")
    if not isinstance(graph, Labelled):
        graph = Nodes(**node_fields("node", {"num_nodes": len(z), "y": graph}))
    z, y = embedding_table(z, "probe", graph.num_nodes), graph.y
    if y is None:
        raise GraphError("probe: the graph has no labels")
    require_classes(y, "probe")
    if is_cross_validated(graph, y):
        return cross_validate(z, y, seed)[0]
    train, val, test = scored_split(graph, y, seed)
    alone = not isinstance(graph, GraphCollection) and not graph.has_split
    split = "random" if alone else "given"
    if y.ndim == 2:
        return multilabel_probe(
            (z[train], z[val], z[test]),
            (y[train], y[val], y[test]),
            steps=steps,
            device=device,
            split=split,
            on_step=on_step,
        )
    demand(len(np.unique(y[train])) >= 2, "probe: the training nodes hold fewer than two classes")
    check_embeddings(z)
    strength = best_strength(z[np.concatenate([train, val])], y[train], y[val])
    standard, best = fit_probe(z[train], y[train], strength)
    val_accuracy = float((best.predict(standard(z[val])) == y[val]).mean())
    rows, classes, area = standard(z[test]), np.unique(y[train]), None
    predicted = best.predict(rows)
    # Test nodes that lack one of two classes have no ROC-AUC.
    if len(classes) == 2 and np.array_equal(np.unique(y[test]), classes):
        area = _roc_auc(best.decision_function(rows), y[test] == classes[1])
    accuracy = float((predicted == y[test]).mean())
    return ProbeResult(
        accuracy=accuracy,
        micro_f1=accuracy,
        macro_f1=f1(y[test], predicted),
        val_accuracy=val_accuracy,
        strength=strength,
        split=split,
        nodes=(len(train), len(val), len(test)),
        majority=majority_share(y[test]),
        roc_auc=area,
    )


def _roc_auc(scores: Array, truth: Array) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, scores))


def fit_probe(z: Array, y: Array, strength: float) -> tuple[Callable[[Array], Array], Any]:
    """Returns what standardises embeddings by the rows `z`, and the regression of these rows."""
    standard = standardiser(z)
    return standard, fit_logistic(standard(z), y, strength)


def transfer_probe(z: Any, graph: Graph, others: Sequence[Any], seed: int = 0) -> list[float]:
    """Trains the probe on `z` and returns its accuracy on the test rows of `z`, then on `others`.

    The strength is chosen on the validation rows of `z`. All embeddings are standardised by the
    train rows of `z`, so the probe depends neither on its test rows nor on the other embeddings.

    Args:
        z: embeddings of the original graph, ``[num_nodes, dim]``.
        graph: gives the labels and the split.
        others: embeddings of the test nodes in other versions of the graph, in the order of their
            numbers, each ``[test nodes, dim]``.
        seed: decides the split of a graph without masks.

    Raises:
        GraphError: there is not one class per node, or the shapes do not fit.
    """
    demand(
        graph.y is not None and graph.y.ndim == 1,
        f"probe: {graph.name} has no single class per node",
    )
    train, val, test = scored_split(graph, graph.y, seed)
    z = np.asarray(z)
    fitting = (len(test), z.shape[-1])
    demand(
        len(z) == graph.num_nodes and all(np.shape(other) == fitting for other in others),
        f"probe: embeddings do not fit {graph.name} and its {len(test)} test nodes",
    )
    check_embeddings(z)
    y = graph.y
    strength = best_strength(z[np.concatenate([train, val])], y[train], y[val])
    standard, probe = fit_probe(z[train], y[train], strength)
    every = (standard(np.asarray(rows)) for rows in (z[test], *others))
    return [float((probe.predict(rows) == y[test]).mean()) for rows in every]


def fit_logistic(z: Array, y: Array, strength: float, start: Any = None) -> Any:
    """Fits multinomial logistic regression; it continues from `start` if that is given."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    if start is None:
        start = LogisticRegression(max_iter=300, warm_start=True)
    with warnings.catch_warnings():
        # The weakest penalties may not converge, but they overfit and validation rejects them.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        return start.set_params(C=strength).fit(z, y)


def logistic_path(z: Array, y: Array, strengths: Iterable[float]) -> Iterator[Any]:
    """Yields one regression, fitted again for each strength, from where the last one ended."""
    classifier = None
    for strength in strengths:
        classifier = fit_logistic(z, y, strength, classifier)
        yield classifier


def best_strength(z: Array, y_train: Array, y_val: Array) -> float:
    """Returns the strength with the highest mean validation accuracy over several splits.

    `z` are the embeddings of the train nodes, then of the validation nodes.
    """
    y = np.concatenate([y_train, y_val])
    given = np.arange(len(y)) < len(y_train)
    random, others = np.random.default_rng(0), REDRAWN if len(y) <= REDRAWN_NODES else 0
    splits = [given, *(redraw(y, given, random) for _ in range(others))]
    accuracy = strength_scores(
        z, y, splits, STRENGTHS, lambda one, rows, truth: (one.predict(rows) == truth).mean()
    )
    return float(STRENGTHS[int(accuracy.sum(axis=0).argmax())])  # on a tie the strongest penalty


def strength_scores(
    z: Array,
    y: Array,
    splits: Iterable[Array],
    strengths: Sequence[float],
    score: Callable[[Any, Array, Array], float],
) -> Array:
    """Returns validation scores for every split and strength, ``[splits, strengths]``.

    Each split is standardised by its own train rows, as a probe that is scored will be by those it
    has.

    Args:
        z: embeddings of train and validation nodes.
        y: their classes.
        splits: which of them are train nodes, for each split.
        strengths: C, ascending.
        score: takes a regression, and rows and classes of validation nodes.
    """
    scores = []
    with threadpool_limits(1):  # the products are too small for threads
        for train in splits:
            rows = within_span(z[train], standardiser(z[train]))(z)
            path = logistic_path(rows[train], y[train], strengths)
            scores.append([score(one, rows[~train], y[~train]) for one in path])
    return np.array(scores)


def within_span(z: Array, standard: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Returns what standardises rows, in a basis of the span of the rows `z` if that is narrower.

    The penalty keeps the weights of a logistic regression in this span, so the problem is the same
    with fewer columns: 140 instead of 512 on Cora.
    """
    if len(z) >= z.shape[1]:
        return standard
    basis = np.linalg.qr(standard(z).T)[0]
    return lambda rows: standard(rows) @ basis


def redraw(y: Array, given: Array, random: np.random.Generator) -> Array:
    """Draws other nodes to train on, as many of each class as in `given`."""
    drawn = np.zeros_like(given)
    for label, count in zip(*np.unique(y[given], return_counts=True), strict=True):
        drawn[random.choice(np.flatnonzero(y == label), count, replace=False)] = True
    return drawn


def f1(y: Array, predicted: Array, average: str = "macro", weight: Array | None = None) -> float:
    """Returns scikit-learn's F1 score; a class that neither array has scores 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(y, predicted, average=average, zero_division=0, sample_weight=weight))


def standardiser(z: Array) -> Callable[[Array], Array]:
    """Returns a function that standardises rows by `column_scales` of `z`."""
    mean, scale = column_scales(z)
    return lambda rows: (rows.astype(np.float64) - mean) / scale


def column_scales(z: Array) -> tuple[Array, Array]:
    """Returns what to take from each column, and what to divide it by, to standardise it.

    `z` are the rows that may be learned from: the probe passes its train rows, so no other row
    changes what becomes of a row.

    Columns that are 0 in more than half of the rows, such as words, keep their zeros and share one
    scale, the root mean square of all their non-zero values. If each were divided by its own
    deviation, rare columns would have the largest values, and a word of a single training node
    would dominate the others.

    A column that is constant in `z`, up to rounding, becomes 0 everywhere: it tells a classifier
    nothing, and divided by a deviation of next to 0 it would drown all others in rows outside `z`.

    A large table is read in blocks, so that no second one of float64 is held.

    Raises:
        GraphError: a value is not finite, or too large to be squared.
    """
    check_embeddings(z)
    mean = sum(block.astype(np.float64).sum(axis=0) for block in _blocks(z)) / len(z)
    filled = sum(np.count_nonzero(block, axis=0) for block in _blocks(z))
    rare = 2 * filled < len(z)
    mean = np.where(rare, 0, mean)
    squares = sum(((block.astype(np.float64) - mean) ** 2).sum(axis=0) for block in _blocks(z))
    shared = squares[rare].sum() / max(filled[rare].sum(), 1)
    spread = np.sqrt(np.where(rare & (filled > 0), shared, squares / len(z)))
    # A constant of float32 varies by 1e-7 of itself, and the mean of many rows is rounded too.
    own = np.finfo(z.dtype if z.dtype.kind == "f" else np.float64).eps
    rounding = max(4 * own, len(z) * np.finfo(np.float64).eps)
    return mean, np.where(spread > rounding * np.abs(mean), spread, np.inf)


def check_embeddings(z: Array) -> None:
    """Checks every row: values are finite, and the squares of a column have a finite sum.

    Raises:
        GraphError: this is not so; it names the first value that is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        summed = sum((4 * block.astype(np.float64) ** 2).sum(axis=0) for block in _blocks(z))
    if np.isfinite(summed).all():
        return
    for number, block in enumerate(_blocks(z)):
        wrong = np.argwhere(~np.isfinite(block))
        if len(wrong):
            row, column = wrong[0].tolist()
            value, row = block[row, column], number * _BLOCK_ROWS + row
            raise GraphError(f"embeddings: {value} at row {row}, column {column}")
    column = int(np.flatnonzero(~np.isfinite(summed))[0])
    raise GraphError(f"embeddings: values of column {column} are too large to be squared")


def _blocks(z: Array) -> Iterator[Array]:
    """Returns blocks of rows; a table in shards reads each when it comes."""
    return (z[some] for some in blocks(len(z), _BLOCK_ROWS))


def scored_split(
    graph: Labelled, y: Array, seed: int, *, owner: str = "probe"
) -> tuple[Array, Array, Array]:
    """Returns `node_split`, and requires labelled test nodes."""
    train, val, test = node_split(graph, y, seed, owner=owner)
    demand(len(test), f"{owner}: no labelled node among the test nodes")
    return train, val, test


def require_classes(y: Array, owner: str) -> None:
    """Refuses a number to predict, where classes are to be told apart.

    Raises:
        GraphError: the label is a number.
    """
    demand(y.dtype.kind != "f", f"{owner}: the label is a number, not a class; predict answers it")


def node_split(
    graph: Labelled, y: Array, seed: int, *, owner: str = "probe"
) -> tuple[Array, Array, Array]:
    """Returns the numbers of the labelled nodes for train, validation and test.

    A given split may have no labelled test nodes: choosing by validation does not need any.

    Raises:
        GraphError: a part of the split is not given, or train or validation nodes have no label.
    """
    require_classes(y, owner)
    labelled = is_labelled(y)
    if isinstance(graph, GraphCollection):
        ends = np.cumsum(graph.split_nodes)[:2]
        train, val, test = (nodes[labelled[nodes]] for nodes in np.split(np.arange(len(y)), ends))
        demand(
            len(train) and len(val) and len(test),
            f"{owner}: needs labelled nodes in train, validation and test graphs",
        )
        return train, val, test
    gap = graph.split_gap
    demand(not gap, f"{owner}: {gap}; give all three or none")
    if graph.has_split:
        train, val, test = (
            np.flatnonzero(np.logical_and(mask, labelled))
            for mask in (graph.train_mask, graph.val_mask, graph.test_mask)
            if mask is not None
        )
        for name, nodes in (("train", train), ("validation", val)):
            demand(len(nodes), f"{owner}: no labelled node among the {name} nodes")
        return train, val, test
    return draw_split(y, lambda members: max(1, members // 10), seed, owner=owner)


def draw_split(
    y: Array, count: Callable[[int], int], seed: int, *, owner: str
) -> tuple[Array, Array, Array]:
    """Draws train nodes of each class, as many validation nodes, and leaves the rest to test.

    `count` is how many of so many members of a class to train on. With several labels per node, all
    labelled nodes are one class.

    Raises:
        GraphError: a part is empty.
    """
    parts: tuple[list[Array], list[Array], list[Array]] = ([], [], [])
    random = np.random.default_rng(seed if seed >= 0 else derive(seed, "split"))
    classes, labelled = y if y.ndim == 1 else np.zeros(len(y)), is_labelled(y)
    for label in np.unique(classes[labelled]):
        members = random.permutation(np.flatnonzero(labelled & (classes == label)))
        some = count(len(members))
        for part, nodes in zip(parts, np.split(members, [some, 2 * some]), strict=True):
            part.append(nodes)
    demand(
        all(sum(map(len, part)) for part in parts),
        f"{owner}: too few labelled nodes to split into train, validation and test",
    )
    train, val, test = (np.sort(np.concatenate(part)) for part in parts)
    return train, val, test
