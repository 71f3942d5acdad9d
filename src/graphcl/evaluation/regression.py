r"""A probe for a number: ridge regressions, averaged, with intervals that hold what they say.

As in `graphcl.evaluation.calibration`, labelled nodes are held out in turn, regressions are fitted
to every *input* with every strength of the penalty, and none of them is chosen: predictions are
averaged, weighted by the likelihood of the held-out values. A term's errors are Laplacian with a
scale of its own: what counts is the mean absolute error, and a few far values do not decide. All
scales are equally credible beforehand, so the likelihood of n values with held-out errors e is

.. math:: \Big( \sum_i |e_i| \Big)^{-n} .

From few values the weights are nearly equal and the average is cautious; from many, the best term
has nearly all of the weight. A fold's weights come from regressions that were fitted without it.

Values of 0 and more that span a decade are also predicted on a log scale, which competes with the
others by the errors of its values. What is predicted is then a median.

A regression without some nodes S follows from that with all nodes: with its hat matrix H and its
errors r, the errors of S are :math:`(I - H_{SS})^{-1} r_S`. So every input has one
eigendecomposition, however many folds there are.

Intervals are conformal: around a prediction, by the ⌈(n + 1) · level⌉-th smallest of the n errors
of held-out nodes. If nodes are exchangeable, they hold the truth as often as `level` says, up to
what the final regression gains from a fold more. They are as wide everywhere or, on a log scale,
by the same factor. From fewer than level / (1 − level) values, nobody can know: they are infinite.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from graphcl.arrays import Array, blocks
from graphcl.errors import require
from graphcl.evaluation.folds import ascending
from graphcl.evaluation.probe import check_embeddings, standardiser, within_span
from graphcl.files.records import Answer
from graphcl.graphs.validation import as_numbers

_Seen = tuple[
    Array, Array
]  # nodes, and their held-out predictions [inputs, strengths, nodes, scales]
LEVEL = 0.9
# Noise to signal. The penalty is this times the mean square of the rows' lengths.
STRENGTHS = 10.0 ** np.arange(-3, 5)
FOLDS, FOLD_NODES = 20, 100  # at least so many folds, of at most so many nodes
FEW_NODES = 300  # of more, not all other folds tell the weights of a fold, but the two beside it
MOST_FITTED = 20_000  # values; more do not change the regression's first digits
_LEAST_WEIGHT = 0.01  # of a term that is worth its time
_BEYOND = np.array([1, 0])  # how far predictions may go beyond what was seen, on each scale
_BLOCK = 1 << 16  # rows that are predicted at a time


@dataclass(frozen=True, repr=False)
class NumberError(Answer):
    """How far predictions of a number are off, measured on labelled nodes that were held out.

    Attributes:
        mae: mean absolute error.
        rmse: root of the mean squared error.
        r2: share of the values' variance that is explained; 0 is the mean for all nodes, and also
            what a constant has.
        baseline_mae: the mean absolute error of one answer for all nodes, their median.
        coverage: fraction of held-out values within their interval, which is made of the errors of
            the other folds; None if there are no intervals.
        level: the fraction that is wanted.
        nodes: how many nodes were held out, each in turn.
        folds: into how many parts.
        how: ``cross-validation``, or ``held-out nodes``.
    """

    mae: float
    rmse: float
    r2: float
    baseline_mae: float
    coverage: float | None
    level: float
    nodes: int
    folds: int
    how: str = "cross-validation"

    @property
    def headline(self) -> tuple[str, float, float]:
        """What matters most, its value, and that of one answer for all nodes."""
        return "R²", self.r2, 0.0


@dataclass(frozen=True, eq=False)
class NumberProbe:
    """Ridge regressions, averaged over inputs, strengths of the penalty, and scales.

    Attributes:
        weights: how much each input counts, by its name; together 1.
        level: how often the truth is within the intervals.
        logarithmic: the weight of predictions on a log scale.
        error: measured on folds; None for one value.
        held_out: the value of every labelled node by regressions that were fitted without it; NaN
            for those that were never held out.
    """

    weights: dict[str, float]
    level: float
    logarithmic: float
    error: NumberError | None
    held_out: Array
    _terms: Array  # their weights, [inputs, strengths, scales]
    _ridges: list["_Ridge"]
    _prepare: list[Callable[[Array], Array]]
    _scale: "_Scale"
    _width: float

    def predict(self, inputs: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Returns the value of each row, and the ends of its interval, which may be infinite.

        Args:
            inputs: rows of the tables that the probe was fitted to, in their order.
        """
        value: Array = np.zeros(len(next(iter(inputs.values()))))
        every = zip(self._terms, self._ridges, self._prepare, inputs.values(), strict=True)
        for weights, ridge, prepare, table in every:
            for block in blocks(len(value) if weights.any() else 0, _BLOCK):
                value[block] += self._scale.mean(ridge.predict(prepare(table[block])), weights)
        log = self.logarithmic > 0.5 and bool(np.isfinite(self._width))
        middle = self._scale.there(value, log)
        low, high = (self._scale.back(middle + end, log) for end in (-self._width, self._width))
        return value, low, high


def fit_regression(
    inputs: Mapping[str, Array],
    values: Array,
    *,
    seed: int = 0,
    standard: Mapping[str, Callable[[Array], Array]] | None = None,
    names: Any = None,
    level: float = LEVEL,
) -> NumberProbe:
    """Fits a probe on labelled nodes and measures its error on folds of them.

    Args:
        inputs: tables of the labelled nodes ``[labelled, columns]``, by name.
        values: the number of each, ``[labelled]``.
        seed: decides the folds.
        standard: standardises rows of each input. (default: by `inputs`)
        names: ids of the nodes: folds are drawn in their order, so that those of a node do not
            depend on its row. (default: in the order of rows)
        level: how often the truth is to be within the intervals.

    Raises:
        GraphError: a value or an embedding is not finite.
        ParameterError: there is no value, or `level` is no fraction.
    """
    require(0 < level < 1, "predict", "level", "between 0 and 1", level)
    require(len(values) > 0, "predict", "values", "at least one", len(values))
    values = as_numbers(values, "predict")
    random = np.random.default_rng(seed)
    order = np.arange(len(values)) if names is None else ascending(names)
    if len(order) > MOST_FITTED:
        order = order[np.sort(random.choice(len(order), MOST_FITTED, replace=False))]
    held_out, values = np.full(len(values), np.nan), values[order]
    scale = _Scale.of(values)
    scaled = np.stack([scale.there(values, log) for log in scale.logs], axis=-1)
    prepare, ridges, width, error = [], [], np.inf, None
    with threadpool_limits(1):  # the products are too small for threads
        for name, table in inputs.items():
            check_embeddings(table)
            how = standard[name] if standard else standardiser(table[order])
            prepare.append(within_span(table[order], how))
            ridges.append(_Ridge(prepare[-1](table[order]), scaled))
        parts = min(len(values), max(FOLDS, -(-len(values) // FOLD_NODES)))
        folds = np.array_split(random.permutation(len(values)), parts)
        terms, found = _hold_out(ridges, folds if parts > 1 else [], scale)
    by_log = float(terms[..., 1:].sum())
    if parts > 1:
        held_out[order] = found
        apart = np.abs(scale.there(values, by_log > 0.5) - scale.there(found, by_log > 0.5))
        inside = [apart[one] <= half_width(np.delete(apart, one), level) for one in folds]
        width, covered = half_width(apart, level), float(np.concatenate(inside).mean())
        error = measure_number(found, values, coverage=covered, level=level, folds=parts)
    weights = dict(zip(inputs, terms.sum(axis=(1, 2)).tolist(), strict=True))
    learned = (terms, ridges, prepare, scale, width)
    return NumberProbe(weights, level, by_log, error, held_out, *learned)


@dataclass(frozen=True)
class _Scale:
    """How values are looked at: in units of the largest and, if they span a decade, as logarithms.

    With zeros among them, the smallest positive value is added first.
    """

    unit: float
    shift: float
    least: float  # of what a logarithm is taken
    logs: tuple[bool, ...]

    @classmethod
    def of(cls, values: Array) -> "_Scale":
        unit = max(float(np.abs(values).max()), np.finfo(np.float64).tiny)
        least = float(values[values > 0].min(initial=unit)) / unit
        spans = values.min() >= 0 and least <= 0.1
        shift = least if values.min() == 0 else 0.0
        return cls(unit, shift, least / 10, (False, True) if spans else (False,))

    def there(self, values: Array, log: bool) -> Array:
        """Returns values on a scale."""
        found: Array = values / self.unit
        return np.log(np.maximum(found + self.shift, self.least)) if log else found

    def back(self, scaled: Array, log: bool) -> Any:
        """Returns what they stand for."""
        with np.errstate(over="ignore"):
            return (np.maximum(np.exp(scaled) - self.shift, 0) if log else scaled) * self.unit

    def mean(self, scaled: Array, weights: Array) -> Array:
        """Returns the average of ``[…, strengths, rows, scales]`` by weight, as values."""
        found: Array = np.zeros(scaled.shape[-2])
        for place, log in enumerate(self.logs):
            each = self.back(scaled[..., place], log).reshape(-1, len(found))
            found += weights[..., place].ravel() @ each
        return found


def _range(values: Array) -> tuple[Array, Array]:
    """Returns between which numbers predictions have to be, on each scale.

    A line may go on beyond what was seen for as far again; an exponential of a line may not.
    """
    low, high = values.min(axis=0), values.max(axis=0)
    beyond = (high - low) * _BEYOND[: len(low)]
    return low - beyond, high + beyond


class _Ridge:
    """Ridge regressions on one table, for every strength and for values on every scale."""

    def __init__(self, rows: Array, values: Array) -> None:
        self._mean, self._centre, self.values = rows.mean(axis=0), values.mean(axis=0), values
        centred = rows - self._mean
        sizes, self._basis = np.linalg.eigh(centred.T @ centred)
        self._rows = centred @ self._basis
        length = max(float(sizes.sum()) / len(rows), 1e-30)
        self._shrink = 1 / (sizes.clip(min=0) + length * STRENGTHS[:, None])
        self._weights = self._shrink[:, :, None] * (self._rows.T @ (values - self._centre))
        self._errors = values - self._centre - self._rows @ self._weights

    def predict(self, rows: Array) -> Any:
        """Returns predictions ``[strengths, rows, scales]``."""
        found = ((rows - self._mean) @ self._basis) @ self._weights + self._centre
        return found.clip(*_range(self.values))

    def without(self, nodes: Array) -> Any:
        """Returns predictions of nodes by regressions that are fitted without them, as above."""
        own = self._rows[nodes]
        hat = (own * self._shrink[:, None]) @ own.T + 1 / len(self._rows)
        errors = np.linalg.solve(np.eye(len(nodes)) - hat, self._errors[:, nodes])
        return (self.values[nodes] - errors).clip(*_range(np.delete(self.values, nodes, axis=0)))


def _hold_out(ridges: list[_Ridge], folds: list[Array], scale: _Scale) -> tuple[Array, Array]:
    """Returns the weights of all terms, and the value of every node when it was held out.

    A fold's weights are chosen by regressions that were fitted without it.
    """
    scaled, count = ridges[0].values, len(folds)
    none = np.zeros((len(ridges), len(STRENGTHS), 0, scaled.shape[1]))
    seen: list[_Seen] = [(np.zeros(0, np.int64), none)]
    others: list[list[_Seen]] = [list(seen) for _ in folds]
    near = count // 2 if len(scaled) <= FEW_NODES else 1
    for one, step in product(range(count if count > 2 else 0), range(1, near + 1)):
        other, cut = (one + step) % count, len(folds[one])
        both = np.concatenate([folds[one], folds[other]])
        found = np.stack([ridge.without(both) for ridge in ridges])
        others[other].append((both[:cut], found[:, :, :cut]))
        others[one].append((both[cut:], found[:, :, cut:]))
    held: Array = np.empty(len(scaled))
    for nodes, some in zip(folds, others, strict=True):
        seen.append((nodes, np.stack([ridge.without(nodes) for ridge in ridges])))
        held[nodes] = scale.mean(seen[-1][1], _weigh(some, scaled, scale))
    return _weigh(seen, scaled, scale), held


def _weigh(seen: Iterable[_Seen], scaled: Array, scale: _Scale) -> Array:
    """Returns the weights of terms by the likelihood of held-out values, together 1."""
    nodes = np.concatenate([some for some, _ in seen])
    found = np.concatenate([some for _, some in seen], axis=2)
    errors = [
        scale.back(found[..., place], log) / scale.unit - scaled[nodes, 0]
        for place, log in enumerate(scale.logs)
    ]
    likelihood = -len(nodes) * np.log(np.abs(np.stack(errors, axis=-1)).sum(axis=2) + 1e-12)
    weights: Array = np.exp(likelihood - likelihood.max())
    weights[weights < _LEAST_WEIGHT] = 0  # the largest is 1
    return np.asarray(weights / weights.sum())


def half_width(errors: Array, level: float) -> float:
    """Returns the ⌈(n + 1) · level⌉-th smallest error; infinite if there are not so many."""
    rank = int(np.ceil((len(errors) + 1) * level - 1e-9))
    return float(np.sort(errors)[rank - 1]) if rank <= len(errors) else np.inf


def measure_number(
    found: Array,
    values: Array,
    *,
    coverage: float | None = None,
    level: float = LEVEL,
    folds: int = 1,
    how: str = "cross-validation",
) -> NumberError:
    """Compares predicted values with the truth."""
    unit = float(np.abs(values).max()) or 1.0  # squares of large numbers are not finite
    missed, truth = (found - values) / unit, values / unit
    squares, variance = float(np.square(missed).mean()), float(truth.var())
    return NumberError(
        mae=float(np.abs(missed).mean()) * unit,
        rmse=squares**0.5 * unit,
        r2=1 - squares / variance if variance > 0 else 0.0,
        baseline_mae=float(np.abs(truth - np.median(truth)).mean()) * unit,
        coverage=coverage,
        level=level,
        nodes=len(values),
        folds=folds,
        how=how,
    )
