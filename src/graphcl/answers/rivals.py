"""What one would do without embeddings: scikit-learn's usual models on the columns of a table.

They are one answer for all nodes; a penalised regression; boosted trees; and boosted trees that
also see the means of the neighbours' columns. Each predicts every labelled node without having seen
it, so that they can be measured beside `graphcl.predict`. Their time is bounded: trees look at the
`TREE_COLUMNS` columns that differ most between the classes of the nodes they learn from, and no
model learns from more than `MOST_ROWS` nodes.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_selection import SelectKBest, f_classif, f_regression
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, StandardScaler
from threadpoolctl import threadpool_limits

from graphcl.arrays import Array
from graphcl.evaluation.folds import ascending, deal

Make = Callable[[Any, Array, int], Any]  # rows, targets and a seed to a model
MOST_ROWS = 5000  # labelled nodes
MOST_LABELS = 20  # of several per node; each needs a model of its own
FOLDS, FEWER_FOLDS, FEW_NODES = 5, 3, 300
TREE_COLUMNS, DENSE_COLUMNS = 128, 2000  # the most that trees, and regressions on dense tables, see
STRENGTHS = np.logspace(-4, 1, 6)  # C of logistic regression; 1 / C is the penalty of ridge


@dataclass(frozen=True, eq=False)
class Rival:
    """A plain model; it is fitted when somebody asks.

    Attributes:
        name: what it is.
        neighbours: whether it also sees the means of the neighbours' columns.
        fit: returns scikit-learn's model, fitted to the labelled nodes; of several labels per node,
            a list with one for each.
        ask: returns what it says of labelled nodes that it has not seen.
        shape: of an answer.
    """

    name: str
    neighbours: bool
    fit: Callable[[], Any]
    ask: Callable[[], Array]
    shape: tuple[int, ...]

    @cached_property
    def held_out(self) -> Array:
        """Probabilities ``[labelled, outputs]``, or numbers ``[labelled]``, of nodes not seen.

        They are NaN for nodes that it was not asked about.
        """
        return self.ask()

    @cached_property
    def _fitted(self) -> Any:
        return self.fit()

    def predict(self, x: Any, means: Any = None) -> Array:
        """Returns probabilities ``[nodes, outputs]`` or numbers ``[nodes]`` of any nodes.

        Args:
            x: their columns.
            means: the means of their neighbours' columns, if the model sees them.
        """
        rows = side_by_side(x, means) if self.neighbours else x
        return ask_model(self._fitted, rows, self.shape)


def plain_rivals(
    x: Any, means: Any, targets: Array, *, kind: str, seed: int = 0, names: Any = None
) -> list[Rival]:
    """Returns plain models of the labelled nodes.

    Args:
        x: the columns of the labelled nodes, dense or sparse ``[labelled, columns]``.
        means: the means of their neighbours' columns, or None.
        targets: 0/1 ``[labelled, outputs]``; of the kind ``number``, numbers ``[labelled]``.
        kind: ``classes`` that exclude each other, ``several`` labels per node, or a ``number``.
        seed: decides the folds.
        names: ids of the nodes: what is random follows their order. (default: that of the rows)

    Returns:
        Nothing for more than `MOST_LABELS` labels per node, and the first alone without columns.
    """
    random, shape = np.random.default_rng(seed), targets.shape[1:]
    if kind == "several" and shape[0] > MOST_LABELS:
        return []
    order = np.arange(len(targets)) if names is None else ascending(names)
    if len(order) > MOST_ROWS:
        order = order[np.sort(random.choice(len(order), MOST_ROWS, replace=False))]
    number, exclusive = kind == "number", kind == "classes"
    y = targets[order].astype(np.float64 if number else np.int64)
    y = y.argmax(axis=1) if exclusive else y
    groups = y if exclusive else np.zeros(len(y), np.int64)
    most = FOLDS if len(y) <= FEW_NODES else FEWER_FOLDS
    folds = int(np.clip(np.median(np.bincount(groups)[groups]), 2, most))
    fold = deal(groups, folds, random)
    own = scipy.sparse.csr_array(x) if scipy.sparse.issparse(x) else np.asarray(x)
    plans: list[tuple[str, Make, bool]] = [("median" if number else "majority", _one_answer, False)]
    if own.shape[1]:
        regression = "ridge regression" if number else "logistic regression"
        plans += [(regression, _regression, False), ("boosted trees", boosted_trees, False)]
        plans += [] if means is None else [("boosted trees with neighbours", boosted_trees, True)]

    def ask(make: Make, rows: Any) -> Array:
        held = np.full((len(targets), *shape), np.nan)
        for asked in (fold == place for place in (np.unique(fold) if len(y) > 1 else ())):
            model = fit_model(make, rows[~asked], y[~asked], seed)
            held[order[asked]] = ask_model(model, rows[asked], shape)
        return held

    found = []
    for name, make, neighbours in plans:
        rows = (side_by_side(own, means) if neighbours else own)[order]
        fit = partial(fit_model, make, rows, y, seed)
        found.append(Rival(name, neighbours, fit, partial(ask, make, rows), shape))
    return found


def side_by_side(x: Any, means: Any) -> Any:
    """Returns two tables with the same rows as one, sparse if one of them is."""
    if scipy.sparse.issparse(x) or scipy.sparse.issparse(means):
        return scipy.sparse.hstack([x, means], format="csr")
    return np.hstack([x, means])


def fit_model(make: Make, rows: Any, y: Array, seed: int) -> Any:
    """Fits a model, or one for each of several labels; one answer for all if nothing differs."""
    if y.ndim == 2:
        return [fit_model(make, rows, label, seed) for label in y.T]
    if len(y) < 3 or (y == y[0]).all():
        make = _one_answer
    with threadpool_limits(1), warnings.catch_warnings():  # so little work is slower on threads
        # Of constant columns, rare classes, and penalties too weak to converge.
        warnings.simplefilter("ignore")
        return make(rows, y, seed).fit(rows, y)


def ask_model(model: Any, rows: Any, shape: tuple[int, ...]) -> Array:
    """Returns what a fitted model says; a class that it has not seen has the probability 0."""
    if isinstance(model, list):
        return np.column_stack([ask_model(one, rows, (2,))[:, 1] for one in model])
    if not shape:
        return np.asarray(model.predict(rows))
    found: Array = np.zeros((rows.shape[0], *shape))
    with threadpool_limits(1):
        found[:, model.classes_] = model.predict_proba(rows)
    return found


def _one_answer(_: Any, y: Array, __: int) -> Any:
    return DummyRegressor(strategy="median") if y.dtype.kind == "f" else DummyClassifier()


def _regression(rows: Any, y: Array, _: int) -> Any:
    sparse = scipy.sparse.issparse(rows)
    if y.dtype.kind == "f":  # the penalty by leaving one out, which is slow for a sparse table
        model = RidgeCV(1 / STRENGTHS, cv=3 if sparse else None)
    elif np.bincount(y).max() < 3:
        model = LogisticRegression(C=0.1)
    else:
        model = LogisticRegressionCV(Cs=STRENGTHS, cv=3, scoring="neg_log_loss", tol=1e-3)
    words = sparse or 2 * np.count_nonzero(rows) < rows.size  # a rare one is not to be the largest
    best = _best(rows, y, np.inf if sparse else DENSE_COLUMNS)
    return make_pipeline(best, MaxAbsScaler() if words else StandardScaler(), model)


def boosted_trees(rows: Any, y: Array, seed: int, **settings: Any) -> Any:
    """Returns boosted trees, not fitted, on the columns of `rows` that tell most of `y`.

    `settings` are arguments of scikit-learn's model that are to differ.
    """
    number = y.dtype.kind == "f"
    boosting = HistGradientBoostingRegressor if number else HistGradientBoostingClassifier
    # Small trees and large steps: as good as the defaults on Cora, in a fifth of the time.
    # Without a penalty, boosting diverges on many rare classes.
    usual: Any = {
        "max_iter": 50,
        "max_leaf_nodes": 8,
        "learning_rate": 0.2,
        "l2_regularization": 1,
        "min_samples_leaf": int(np.clip(len(y) // 20, 2, 20)),
    }
    model = boosting(**(usual | settings), random_state=seed)
    sparse = scipy.sparse.issparse(rows)
    dense = FunctionTransformer(lambda one: one.toarray(), accept_sparse=True)
    best = _best(rows, y, TREE_COLUMNS)
    return make_pipeline(best, dense if sparse else "passthrough", model)


def _best(rows: Any, y: Array, most: float) -> Any:
    """Returns what keeps the columns that tell most by an F-test."""
    score = f_regression if y.dtype.kind == "f" else f_classif
    return SelectKBest(score, k=most) if rows.shape[1] > most else "passthrough"
