r"""A probe that gives probabilities, from few labels, and says honestly how often it is wrong.

Labelled nodes are divided into folds. Every fold is scored by regressions that were fitted without
it, for every strength of the penalty: the *held-out* scores s. Probabilities are

.. math:: p \propto \pi \exp((s - \log \pi) / T) ,

with the classes' shares π of the labelled nodes: the temperature T (Guo et al., 2017) weakens or
sharpens what embeddings say, not how frequent classes are. Several labels per node have a sigmoid
and odds instead.

There may be several *inputs*, each a table of the same nodes: embeddings, own columns, means of
neighbours. Regressions are fitted to each.

From ten nodes, neither input nor strength nor temperature can be known, and the best of many is
best by chance. So none is chosen: probabilities are averaged over inputs and strengths, weighted by
the likelihood of the held-out labels. A temperature is stated as the mean confidence that it leads
to if all classes are equally frequent. Every confidence is equally credible beforehand; T is that
of the mean afterwards. Of two classes, ten right answers of ten lead to a confidence of about
11/12. The regressions are then fitted on all labelled nodes. With the graph around them, the
average is smoothed over its edges as much as held-out labels say: `graphcl.evaluation.smoothing`.

The error that is reported is that of the folds. A fold's shares, weights and temperatures come from
regressions, and from scores of other nodes, that were fitted without it: its labels take no part in
anything by which its nodes are scored. So it is with the smoothing. The division into folds alone
looks at all labels.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import Array, blocks
from graphcl.errors import GraphError
from graphcl.evaluation.folds import Division, Part, ascending, divide
from graphcl.evaluation.logistic import Fitted, fit_logistic_batch
from graphcl.evaluation.prediction_error import PredictionError, measure
from graphcl.evaluation.probe import check_embeddings, standardiser, within_span
from graphcl.evaluation.smoothing import (
    HOPS,
    MOST_VALUES,
    NOTHING,
    Around,
    HeldOutSmoothed,
    Smoothing,
    choose_exponent,
    hops,
    sharpen,
    weigh_hops,
)
from graphcl.evaluation.terms import (
    LEAST_WEIGHT,
    STRENGTHS,
    HeldOut,
    Term,
    average,
    log_shares,
)
from graphcl.version import package_version

Tables = Mapping[str, Array]  # several tables of the same nodes, by name
STEPS = 40  # of a regression; more change probabilities by less than 0.002 in the mean
_BLOCK = 1 << 16  # rows that are scored at a time


@dataclass(frozen=True, eq=False)
class _Smoothed:
    """How probabilities are smoothed, and those of held-out nodes.

    Attributes:
        shares: how much each hop counts.
        exponent: how much the result is sharpened.
        held_out: smoothed and sharpened probabilities of the rows of all parts.
    """

    shares: Array
    exponent: float
    held_out: Array


_NOT_SMOOTHED = _Smoothed(np.array(NOTHING), 1.0, np.zeros((0, 0)))
_UNKNOWN = [Term(STRENGTHS.index(0.01), 1.0, 1.0)]  # where no held-out label tells


@dataclass(frozen=True, eq=False)
class Fit:
    """What is fitted to labels: it takes long, and is nothing but numbers.

    Attributes:
        terms: of the average.
        regressions: by the number of the input; those without weight are not kept.
        error: see `CalibratedProbe`.
        held_out: likewise.
        shares: likewise.
        exponent: likewise.
    """

    terms: list[Term]
    regressions: dict[int, Fitted]
    error: PredictionError | None
    held_out: Array
    shares: Array
    exponent: float

    def arrays(self) -> dict[str, Array]:
        """Returns its tables by name."""
        found = {"held_out": self.held_out, "shares": self.shares}
        for number, one in self.regressions.items():
            found |= {f"weight-{number}": one.weight.numpy(), f"bias-{number}": one.bias.numpy()}
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns the rest of it."""
        error = None if self.error is None else asdict(self.error)
        terms = [asdict(term) for term in self.terms]
        return {"terms": terms, "error": error, "exponent": self.exponent}

    @classmethod
    def of(cls, arrays: Mapping[str, Array], about: Mapping[str, Any]) -> Self:
        """Returns what `arrays` and `to_json` say.

        Raises:
            ValueError: something in it is not as they would say it.
        """
        try:
            terms = [Term(**one) for one in about["terms"]]
            error = about["error"]
            if error is not None:
                error = PredictionError.from_json(error)
            regressions = {
                number: Fitted(
                    torch.from_numpy(arrays[f"weight-{number}"]),
                    torch.from_numpy(arrays[f"bias-{number}"]),
                )
                for number in sorted({one.input for one in terms})
            }
            exponent = float(about["exponent"])
            return cls(terms, regressions, error, arrays["held_out"], arrays["shares"], exponent)
        except (TypeError, KeyError) as wrong:
            raise ValueError(str(wrong)) from None

    def suits(self, widths: list[int], targets: Array) -> bool:
        """Returns whether it can be of inputs of so many columns, and of these targets."""
        outputs, count = targets.shape[1], len(STRENGTHS)
        fits = self.held_out.shape == targets.shape and self.shares.shape == (HOPS + 1,)
        fits = fits and bool(self.terms) and all(0 <= one.input < len(widths) for one in self.terms)
        return fits and all(
            one.weight.shape == (count, widths[number], outputs)
            and one.bias.shape == (count, outputs)
            and one.weight.dtype == one.bias.dtype == torch.float32
            for number, one in self.regressions.items()
        )


Recall = Callable[[str, Callable[[Fit], bool], Callable[[], Fit]], Fit]


@dataclass(frozen=True, eq=False)
class CalibratedProbe:
    """Logistic regressions with temperatures, averaged over inputs and strengths of the penalty.

    Attributes:
        several: whether a node may have several labels; otherwise classes exclude each other.
        weights: how much each input counts, by its name; together 1.
        strength: C of the penalty that has the largest weight.
        temperature: what its scores are divided by; above 1 makes probabilities more cautious.
        error: measured on folds; None if there were too few labels for that.
        held_out: the probabilities of every labelled node by regressions that were fitted without
            it, ``[labelled, outputs]``; NaN for those that were never held out.
        shares: how much each hop counts in `smoothing`.
        exponent: how much smoothed probabilities are sharpened.
    """

    several: bool
    weights: dict[str, float]
    strength: float
    temperature: float
    error: PredictionError | None
    held_out: Array
    shares: Array
    exponent: float
    _fitted: dict[int, Fitted]  # by the number of the input; those without weight are not kept
    _terms: list[Term]
    _log_shares: Array
    _prepare: list[Callable[[Array], Array]]

    def probabilities(self, inputs: Tables) -> Array:
        """Returns the probability of every class or label, float32 ``[rows, outputs]``.

        Args:
            inputs: rows of the tables that the probe was fitted to, in their order.
        """
        tables = list(inputs.values())
        found = [np.zeros((0, self.held_out.shape[1]))]
        for some in blocks(len(tables[0]), _BLOCK):
            rows = _prepared(self._prepare, [table[some] for table in tables])
            scores = _TermScores(self._fitted, rows)
            found.append(average(self._terms, scores, self._log_shares, self.several))
        return np.concatenate(found).astype(np.float32)

    def smoothing(self, around: Around, targets: Array) -> Smoothing | None:
        """Returns what smooths these probabilities over edges; None if held-out labels forbid it.

        Args:
            around: the graph, as the probe was fitted with it.
            targets: of the labelled nodes.
        """
        if self.shares[0] > 1 - LEAST_WEIGHT:
            return None
        everywhere = self.probabilities(around.tables)
        everywhere[around.rows] = targets
        how = (self.shares, self.exponent, self._log_shares, self.several)
        return Smoothing.of(*how, around.means, everywhere)


def fit_calibrated(
    inputs: Tables,
    targets: Array,
    *,
    several: bool,
    seed: int = 0,
    standard: Mapping[str, Callable[[Array], Array]] | None = None,
    names: Any = None,
    around: Around | None = None,
    recall: Recall | None = None,
) -> CalibratedProbe:
    """Fits a probe on labelled nodes and measures its error on folds of them.

    Args:
        inputs: tables of the labelled nodes, ``[labelled, columns]``, by name.
        targets: 0/1 ``[labelled, outputs]``; without `several`, one 1 in each row.
        several: whether a node may have several labels.
        seed: decides the folds.
        standard: standardises rows of each input, by all nodes where they are known: ten do not
            tell a column's deviation. (default: by `inputs`)
        names: ids of the nodes: folds are drawn in their order, so that those of a node do not
            depend on its row. (default: in the order of rows)
        around: the graph, over whose edges probabilities may be smoothed. (default: they are not)
        recall: returns what was fitted before, or fits: it is given a digest of all that the fit
            depends on, what tells whether something can be of it, and what fits. (default: it fits)

    Raises:
        GraphError: there is nothing to tell apart, or an embedding is not finite.
    """
    labels = list(inputs)
    order = np.arange(len(targets)) if names is None else ascending(names)
    tables, targets = [table[order] for table in inputs.values()], targets[order]
    for table in tables:
        check_embeddings(table)
    counts = targets.sum(axis=0)
    varied = ((counts > 0) & (counts < len(targets))).sum()
    if varied < (1 if several else 2):
        what = "label that some nodes have and others lack" if several else "second class"
        raise GraphError(f"predict: the labelled nodes hold no {what}")
    prepare = [
        within_span(table, standard[name] if standard else standardiser(table))
        for name, table in zip(labels, tables, strict=True)
    ]
    rows = [one(table) for one, table in zip(prepare, tables, strict=True)]
    if around is not None:
        around = replace(around, rows=around.rows[order])

    def fit() -> Fit:
        return _fit(rows, targets, prepare, around, several=several, seed=seed)

    if recall is None:
        found = fit()
    else:
        widths = [table.shape[1] for table in rows]
        digest = _digest(rows, targets, around, several, seed)
        found = recall(digest, lambda one: one.suits(widths, targets), fit)
    held_out = np.full(targets.shape, np.nan)
    held_out[order] = found.held_out
    best = max(found.terms, key=lambda term: term.weight)
    total, weights = sum(term.weight for term in found.terms), dict.fromkeys(labels, 0.0)
    for term in found.terms:
        weights[labels[term.input]] += term.weight / total
    return CalibratedProbe(
        several=several,
        weights=weights,
        strength=best.strength,
        temperature=best.temperature,
        error=found.error,
        held_out=held_out,
        shares=found.shares,
        exponent=found.exponent,
        _fitted=found.regressions,
        _terms=found.terms,
        _log_shares=log_shares(targets, several),
        _prepare=prepare,
    )


def _fit(
    rows: list[Array],
    targets: Array,
    prepare: list[Callable[[Array], Array]],
    around: Around | None,
    *,
    several: bool,
    seed: int,
) -> Fit:
    """Fits regressions to prepared rows, and weighs them by those that were held out in turn."""
    division = divide(targets, several, np.random.default_rng(seed))
    terms, error, smoothed = _UNKNOWN, None, _NOT_SMOOTHED
    held_out = np.full(targets.shape, np.nan)
    if division is not None:
        held, each, fits = _hold_out(rows, targets, several, division)
        terms, found = held.choose(), np.zeros(held.targets.shape)
        for part, some in enumerate(each):  # by the terms of every part, without its nodes
            mine = held.part == part
            found[mine] = average(some, held.scores[:, mine], held.shares[mine], several)
        jobs = len(division.parts) + 2 * len(division.pairs)  # each takes its time
        values = 0 if around is None else jobs * around.means.shape[0] * targets.shape[1]
        if around is not None and values <= MOST_VALUES:
            smoothed = _smooth_folds(around, division, each, fits, prepare, targets, several)
            found = smoothed.held_out
        held_out = _mean_of_rows(found, held.rows, len(targets))
        nodes = len(np.unique(held.rows))
        error = measure(found, held.targets, several, nodes=nodes, folds=division.folds)
    every = [(np.arange(len(targets)), np.zeros(0, np.int64))]
    fitted = {
        number: _fit_parts(rows[number], targets, every, several)[0]
        for number in sorted({term.input for term in terms})
    }
    return Fit(terms, fitted, error, held_out, smoothed.shares, smoothed.exponent)


def _digest(
    rows: list[Array], targets: Array, around: Around | None, several: bool, seed: int
) -> str:
    """Returns a digest of all that `_fit` depends on, down to the last bit of a table.

    Regressions are of the columns that they were fitted to: where a basis of these came out
    otherwise, the digest is another.
    """
    tables: list[Any] = [targets, *rows]
    if around is not None:
        means = around.means
        tables += [around.rows, means.indptr, means.indices, means.data, *around.tables.values()]
    digest = hashlib.blake2b(repr((package_version(), several, seed, STEPS, STRENGTHS)).encode())
    for table in tables:
        array = np.ascontiguousarray(table)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.view(np.uint8).reshape(-1).data)
    return digest.hexdigest()[:32]


def _mean_of_rows(found: Array, rows: Array, count: int) -> Array:
    """Returns the mean of what was found of each node, NaN for none."""
    means, times = np.zeros((count, found.shape[1])), np.zeros(count)
    np.add.at(means, rows, found)
    np.add.at(times, rows, 1)
    with np.errstate(invalid="ignore"):
        return np.asarray(means / times[:, None])


def _smooth_folds(
    around: Around,
    division: Division,
    each: list[list[Term]],
    fits: list[list[Fitted]],
    prepare: list[Callable[[Array], Array]],
    targets: Array,
    several: bool,
) -> _Smoothed:
    """Returns how probabilities are smoothed and sharpened, and held-out ones that are.

    Every part has probabilities of all nodes, by its regressions and its terms, with the truth of
    its train nodes. Its own share of hops and its exponent come from pairs, so none of its labels
    takes part in them.
    """
    parts, rows = division.parts, _prepared(prepare, list(around.tables.values()))

    def hops_of(number: int, train: Array, test: Array, terms: list[Term]) -> _Hops:
        log = log_shares(targets[train], several).astype(np.float32)
        found = average(terms, _TermScores([one[number] for one in fits], rows), log, several)
        found[around.rows[train]] = targets[train]
        near = hops(around.means, found, around.rows[test])
        return _Hops(test, near, targets[test], log)

    inner: list[list[_Hops]] = [[] for _ in parts]
    for number, (one, other, (train, _)) in enumerate(division.pairs, start=len(parts)):
        for mine, test in ((one, parts[other][1]), (other, parts[one][1])):
            inner[mine].append(hops_of(number, train, test, each[mine]))
    outer = [hops_of(number, *parts[number], each[number]) for number in range(len(parts))]
    held_out = []
    for others, own in zip(inner, outer, strict=True):
        shares, exponent = _choose_smoothing(others, several)
        held_out.append(sharpen(own.mean(shares), exponent, own.log_shares, several))
    shares, exponent = _choose_smoothing(outer, several)
    return _Smoothed(shares, exponent, np.concatenate(held_out))


@dataclass(frozen=True, eq=False)
class _Hops:
    """Held-out nodes of a part, with their hops."""

    nodes: Array
    near: Array  # [hops, nodes, outputs]
    targets: Array
    log_shares: Array

    def mean(self, shares: Array) -> Array:
        """Returns smoothed probabilities."""
        return np.asarray(np.einsum("k,kno->no", shares, self.near))


def _choose_smoothing(each: list[_Hops], several: bool) -> tuple[Array, float]:
    """Returns how much each hop counts, and the exponent; what is not smoothed is not sharpened."""
    shares = weigh_hops([(some.nodes, some.near, some.targets) for some in each], several)
    if shares[0] > 1 - LEAST_WEIGHT:
        return shares, 1.0
    smoothed = [
        HeldOutSmoothed(some.nodes, some.mean(shares), some.targets, some.log_shares)
        for some in each
    ]
    return shares, choose_exponent(smoothed, several)


def _prepared(
    prepare: list[Callable[[Array], Array]], tables: list[Array]
) -> Callable[[int], Tensor]:
    """Returns what returns an input, prepared for the regressions; each at its first use."""
    return cache(lambda number: _tensor(prepare[number](tables[number])))


@dataclass(frozen=True)
class _TermScores:
    """Scores of rows for each place, computed when they are asked for."""

    fits: Any  # of each input
    rows: Callable[[int], Tensor]  # as `_prepared` returns them

    def __getitem__(self, place: int) -> Array:
        number, which = divmod(place, len(STRENGTHS))
        fitted = self.fits[number]
        scores = self.rows(number) @ fitted.weight[which] + fitted.bias[which]
        return np.asarray(scores.cpu())


def _hold_out(
    tables: list[Array], targets: Array, several: bool, division: Division
) -> tuple[HeldOut, list[list[Term]], list[list[Fitted]]]:
    """Returns held-out scores, the terms of each part, and the regressions of each input.

    The terms of a part are chosen without its nodes. Regressions are those of all parts, then of
    all pairs.
    """
    parts, pairs = division.parts, division.pairs
    every = [*parts, *(pair for _, _, pair in pairs)]
    fitted = [_fit_parts(table, targets, every, several) for table in tables]
    scores = [  # of each part, by every input and strength
        np.concatenate([_scores(own, z[test]) for own, z in zip(fits, tables, strict=True)])
        for (_, test), *fits in zip(every, *fitted, strict=True)
    ]
    held = _gather(parts, scores[: len(parts)], targets, division.folds, several)
    inner: list[tuple[list[Part], list[Array]]] = [([], []) for _ in parts]
    for (one, other, (train, both)), found in zip(pairs, scores[len(parts) :], strict=True):
        cut = len(parts[one][1])
        for number, some in ((other, slice(cut)), (one, slice(cut, None))):
            inner[number][0].append((train, both[some]))
            inner[number][1].append(found[:, some])
    each = [
        _gather(*some, targets, division.folds, several).choose() if some[0] else _UNKNOWN
        for some in inner
    ]
    return held, each, fitted


def _gather(
    parts: list[Part], scores: list[Array], targets: Array, folds: int, several: bool
) -> HeldOut:
    """Returns the scores of all parts; a row's shares are those of its own train nodes."""
    sizes = [len(test) for _, test in parts]
    every = np.concatenate([test for _, test in parts])
    shares = np.stack([log_shares(targets[train], several) for train, _ in parts])
    part = np.repeat(np.arange(len(parts)), sizes)
    found = np.concatenate(scores, axis=1)
    return HeldOut(every, part, folds, found, targets[every], shares[part], several)


def _fit_parts(z: Array, targets: Array, parts: list[Part], several: bool) -> list[Fitted]:
    """Fits regressions on train nodes."""
    problems = ((_tensor(z[train]), _tensor(targets[train])) for train, _ in parts)
    return list(fit_logistic_batch(problems, STRENGTHS, softmax=not several, steps=STEPS))


def _scores(fitted: Fitted, z: Array) -> Array:
    return np.asarray(fitted.scores(_tensor(z)).cpu().numpy().astype(np.float64))


def _tensor(values: Array) -> Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float32)
