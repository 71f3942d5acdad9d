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
from functools import cache, cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import Array, blocks
from graphcl.errors import GraphError
from graphcl.evaluation.folds import Division, Part, ascending, divide
from graphcl.evaluation.logistic import Fitted, fit_logistic_batch
from graphcl.evaluation.prediction_error import PredictionError, measure
from graphcl.evaluation.probe import STRENGTHS as WIDE_STRENGTHS
from graphcl.evaluation.probe import check_embeddings, standardiser, within_span
from graphcl.evaluation.smoothing import (
    HOPS,
    MOST_VALUES,
    NOTHING,
    Around,
    Smoothing,
    hops,
    weigh_hops,
)
from graphcl.version import package_version

Tables = Mapping[str, Array]  # several tables of the same nodes, by name
STEPS = 40  # of a regression; more change probabilities by less than 0.002 in the mean
STRENGTHS = tuple(one for one in WIDE_STRENGTHS if one < 0.2)  # T makes up for weaker penalties
_TEMPERATURES = np.geomspace(1 / 64, 256, 60)
_LEVELS = np.concatenate([[0.001, 0.01], np.arange(0.04, 0.97, 0.04), [0.98, 0.99, 0.999]])
_FINE = np.linspace(0.001, 0.999, 500)  # levels between which the loss is interpolated
_LEAST_WEIGHT = 0.01  # of a strength that is worth its time
_BLOCK = 1 << 16  # rows that are scored at a time


@dataclass(frozen=True)
class Term:
    """A part of the average: an input and a strength. The place counts strengths, per input."""

    place: int
    temperature: float
    weight: float

    @property
    def input(self) -> int:
        """The number of the input."""
        return self.place // len(STRENGTHS)

    @property
    def strength(self) -> float:
        """C of the penalty."""
        return float(STRENGTHS[self.place % len(STRENGTHS)])


_UNKNOWN = [Term(STRENGTHS.index(0.01), 1.0, 1.0)]  # where no held-out label tells


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Scores of held-out nodes for every input and strength; a node has a row per division."""

    rows: Array  # the labelled node of each row
    part: Array  # the number of the regression that was fitted without it
    folds: int
    scores: Array  # [inputs · strengths, rows, outputs]
    targets: Array  # [rows, outputs]
    shares: Array  # [rows, outputs]: log, of the nodes that the row's regression was fitted to
    several: bool

    @cached_property
    def temperatures(self) -> Array:
        """Those that lead to the levels of confidence, ``[inputs · strengths, levels]``.

        It is the mean confidence if all classes were equally frequent, so it falls with the
        temperature: level 0 is chance, level 1 certainty.
        """
        some = np.linspace(0, len(self.rows) - 1, min(len(self.rows), 2000)).astype(np.int64)
        chance = 0.5 if self.several else 1 / self.targets.shape[1]
        scores = self.scores[:, some] - self.shares[some]
        reached = np.stack([_confidence(scores / one, self.several) for one in _TEMPERATURES])
        levels = (reached.T - chance) / (1 - chance)
        logs = [np.interp(-_LEVELS, -one, np.log(_TEMPERATURES)) for one in levels]
        return np.asarray(np.exp(np.array(logs)))

    @cached_property
    def losses(self) -> Array:
        """−log p of what is true, in each row, ``[inputs · strengths, levels, rows]``."""
        found: Array = np.empty((*self.temperatures.shape, len(self.rows)), np.float32)
        for level in range(self.temperatures.shape[1]):
            one = self.temperatures[:, level, None, None]
            scores = _tempered(self.scores, one, self.shares)
            found[:, level] = _loss(scores, self.targets, self.several)
        return found

    def choose(self) -> list[Term]:
        """Returns inputs and strengths with weights and temperatures, by the labels of the rows."""
        from scipy.interpolate import PchipInterpolator

        _, node, times = np.unique(self.rows, return_inverse=True, return_counts=True)
        once = 1 / times[node]  # a node counts once, however often it was held out
        loss = self.losses @ once
        fine = PchipInterpolator(_LEVELS, loss, axis=1)(_FINE)
        likelihood = np.exp(fine.min(axis=1, keepdims=True) - fine)
        level = (likelihood @ _FINE) / likelihood.sum(axis=1)
        evidence = np.log(likelihood.sum(axis=1)) - fine.min(axis=1)
        weight = np.exp(evidence - evidence.max())
        weight /= weight.sum()
        return [
            Term(
                place,
                float(np.exp(np.interp(level[place], _LEVELS, np.log(self.temperatures[place])))),
                float(weight[place]),
            )
            for place in np.flatnonzero(weight >= min(_LEAST_WEIGHT, weight.max())).tolist()
        ]


@dataclass(frozen=True, eq=False)
class Fit:
    """What is fitted to labels: it takes long, and is nothing but numbers.

    Attributes:
        terms: of the average.
        regressions: by the number of the input; those without weight are not kept.
        error: see `CalibratedProbe`.
        held_out: likewise.
        shares: likewise.
    """

    terms: list[Term]
    regressions: dict[int, Fitted]
    error: PredictionError | None
    held_out: Array
    shares: Array

    def arrays(self) -> dict[str, Array]:
        """Returns its tables by name."""
        found = {"held_out": self.held_out, "shares": self.shares}
        for number, one in self.regressions.items():
            found |= {f"weight-{number}": one.weight.numpy(), f"bias-{number}": one.bias.numpy()}
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns the rest of it."""
        error = None if self.error is None else asdict(self.error)
        return {"terms": [asdict(one) for one in self.terms], "error": error}

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
                each = tuple((first, second) for first, second in error["by_class"])
                error = PredictionError(**{**error, "by_class": each})
            regressions = {
                number: Fitted(
                    torch.from_numpy(arrays[f"weight-{number}"]),
                    torch.from_numpy(arrays[f"bias-{number}"]),
                )
                for number in sorted({one.input for one in terms})
            }
            return cls(terms, regressions, error, arrays["held_out"], arrays["shares"])
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
    """

    several: bool
    weights: dict[str, float]
    strength: float
    temperature: float
    error: PredictionError | None
    held_out: Array
    shares: Array
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
        if self.shares[0] > 1 - _LEAST_WEIGHT:
            return None
        everywhere = self.probabilities(around.tables)
        everywhere[around.rows] = targets
        return Smoothing.of(self.shares, around.means, everywhere)


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
    chosen = (weights, best.strength, best.temperature, found.error, held_out, found.shares)
    shares = log_shares(targets, several)
    return CalibratedProbe(several, *chosen, found.regressions, found.terms, shares, prepare)


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
    terms, error, hop_shares = _UNKNOWN, None, np.array(NOTHING)
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
            hop_shares, found = _smooth_folds(
                around, division, each, fits, prepare, targets, several
            )
        held_out = _mean_of_rows(found, held.rows, len(targets))
        nodes = len(np.unique(held.rows))
        error = measure(found, held.targets, several, nodes=nodes, folds=division.folds)
    every = [(np.arange(len(targets)), np.zeros(0, np.int64))]
    fitted = {
        number: _fit_parts(rows[number], targets, every, several)[0]
        for number in sorted({term.input for term in terms})
    }
    return Fit(terms, fitted, error, held_out, hop_shares)


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
) -> tuple[Array, Array]:
    """Returns how much each hop counts, and held-out probabilities that are smoothed.

    Every part has probabilities of all nodes, by its regressions and its terms, with the truth of
    its train nodes. Its own share of hops comes from pairs, so none of its labels takes part in it.
    """
    parts, rows = division.parts, _prepared(prepare, list(around.tables.values()))

    def hops_of(number: int, train: Array, test: Array, terms: list[Term]) -> Any:
        log = log_shares(targets[train], several).astype(np.float32)
        found = average(terms, _TermScores([one[number] for one in fits], rows), log, several)
        found[around.rows[train]] = targets[train]
        return test, hops(around.means, found, around.rows[test]), targets[test]

    inner: list[list[Any]] = [[] for _ in parts]
    for number, (one, other, (train, _)) in enumerate(division.pairs, start=len(parts)):
        for mine, test in ((one, parts[other][1]), (other, parts[one][1])):
            inner[mine].append(hops_of(number, train, test, each[mine]))
    outer = [hops_of(number, *parts[number], each[number]) for number in range(len(parts))]
    found = [
        np.einsum("k,kno->no", weigh_hops(some, several), own)
        for some, (_, own, _) in zip(inner, outer, strict=True)
    ]
    return weigh_hops(outer, several), np.concatenate(found)


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


def log_shares(targets: Array, several: bool) -> Array:
    """Returns the log of the classes' shares or, with `several`, of the labels' odds.

    Half a node is added to each, so that a class without nodes has a finite share.
    """
    there = targets.sum(axis=0) + 0.5
    return np.asarray(np.log(there / ((len(targets) + 1 - there) if several else there.sum())))


def _tempered(scores: Array, temperature: Any, shares: Array) -> Array:
    return np.asarray((scores - shares) / temperature + shares)


def average(terms: list[Term], scores: Any, shares: Array, several: bool) -> Array:
    """Returns the mean of probabilities by weight; scores are those of each place."""
    total = sum(term.weight for term in terms)
    tempered = (_tempered(scores[term.place], term.temperature, shares) for term in terms)
    each = (_to_probabilities(one, several) for one in tempered)
    return np.asarray(sum(term.weight / total * one for term, one in zip(terms, each, strict=True)))


def _to_probabilities(scores: Array, several: bool) -> Array:
    from scipy.special import expit

    return np.asarray(expit(scores) if several else _over_outputs(torch.softmax, scores))


def _over_outputs(function: Callable[[Tensor, int], Tensor], scores: Array) -> Array:
    """Returns a function of torch over the last axis.

    With that axis first, a processor takes many rows at once, which is five times as fast.
    """
    return np.asarray(function(torch.from_numpy(scores).movedim(-1, 0), 0).movedim(0, -1))


def _confidence(scores: Array, several: bool) -> Array:
    """Returns the mean confidence of each table of ``[tables, rows, outputs]``."""
    probability = _to_probabilities(scores, several)
    best = np.maximum(probability, 1 - probability) if several else probability.max(axis=-1)
    return np.asarray(best.reshape(len(scores), -1).mean(axis=1))


def _loss(scores: Array, targets: Array, several: bool) -> Array:
    from scipy.special import log_expit

    if several:
        right = targets * log_expit(scores) + (1 - targets) * log_expit(-scores)
    else:
        right = targets * _over_outputs(torch.log_softmax, scores)
    return np.asarray(-right.sum(axis=-1))
