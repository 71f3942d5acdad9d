r"""A probe that gives probabilities, from few labels, and says honestly how often it is wrong.

Labelled nodes are divided into folds. Every fold is scored by regressions that were fitted without
it, for every strength of the penalty: the *held-out* scores s. Each fold takes as many nodes of a
class as the others do. Otherwise a held-out node's class has fewer train nodes than the rest, and
with five labels a class its scores are worse than chance. Probabilities are

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
11/12. The regressions are then fitted on all labelled nodes.

The error that is reported is that of the folds. A fold's shares, weights and temperatures come from
regressions, and from scores of other nodes, that were fitted without it: its labels take no part in
anything by which its nodes are scored. The division into folds alone looks at all labels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.errors import GraphError
from graphcl.evaluation.failure import majority_share
from graphcl.evaluation.logistic import Fitted, fit_logistic_batch
from graphcl.evaluation.probe import STRENGTHS as WIDE_STRENGTHS
from graphcl.evaluation.probe import check_embeddings, f1, standardiser, within_span
from graphcl.files.records import Answer

Array = npt.NDArray[Any]
Inputs = Array | Mapping[str, Array]  # embeddings, or several tables of the same nodes by name
_Part = tuple[Array, Array]  # train nodes, and the test nodes that they score
BINS = 10
FOLDS = 5
MORE_FOLDS, FEW_NODES = 10, 300  # of so few nodes, each fold's regression needs all it can get
FITS, FEWER_FITS = 20, 10  # regressions in several divisions: with few nodes, one is chance
NEAR, NEARER = 2, 1  # folds on either side whose nodes tell the terms of a fold: all of five
REPEATED_NODES = 2000  # above, one division will do
MOST_TESTED = 20_000  # labelled nodes in folds; more do not change the error's first digits
STRENGTHS = tuple(one for one in WIDE_STRENGTHS if one < 0.2)  # T makes up for weaker penalties
_TEMPERATURES = np.geomspace(1 / 64, 256, 60)
_LEVELS = np.concatenate([[0.001, 0.01], np.arange(0.04, 0.97, 0.04), [0.98, 0.99, 0.999]])
_FINE = np.linspace(0.001, 0.999, 500)  # levels between which the loss is interpolated
_LEAST_WEIGHT = 0.01  # of a strength that is worth its time
_BLOCK = 1 << 16  # rows that are scored at a time
_VALUES = 1 << 24  # inputs and outputs of regressions that are fitted at once, 64 MB


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
        temperatures: Array = np.exp(np.array(logs))
        return temperatures

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
        likelihood = np.exp(fine.min() - fine)
        weight = likelihood.sum(axis=1) / likelihood.sum()
        level = (likelihood @ _FINE) / likelihood.sum(axis=1).clip(min=1e-300)
        return [
            Term(
                place,
                float(np.exp(np.interp(level[place], _LEVELS, np.log(self.temperatures[place])))),
                float(weight[place]),
            )
            for place in np.flatnonzero(weight >= min(_LEAST_WEIGHT, weight.max())).tolist()
        ]


@dataclass(frozen=True, repr=False)
class PredictionError(Answer):
    """How often predictions are wrong, measured on labelled nodes that were held out.

    Attributes:
        accuracy: fraction of nodes whose most probable class is right; with several labels per
            node, the fraction of pairs of node and label that are right.
        macro_f1: mean of the F1 scores of the classes or labels.
        micro_f1: equals the accuracy for one class per node; with several labels, F1 over all
            pairs of node and label.
        log_loss: mean of −log p of what is true, per node or per pair of node and label.
        calibration_error: ECE with `BINS` bins: how far confidence is from the fraction that is
            right, on average. It is 0 if of all answers with probability 0.8, 80 % are right.
        majority: the score of one answer for all nodes: accuracy, or micro-F1 for several labels.
        standard_error: of the accuracy, for so many nodes: from ten labels, nobody can know it
            better than this.
        nodes: how many nodes were held out, each in turn.
        folds: into how many parts.
        how: ``cross-validation``, or ``held-out nodes``.
    """

    accuracy: float
    macro_f1: float
    micro_f1: float
    log_loss: float
    calibration_error: float
    majority: float
    standard_error: float
    nodes: int
    folds: int
    how: str = "cross-validation"


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
    """

    several: bool
    weights: dict[str, float]
    strength: float
    temperature: float
    error: PredictionError | None
    held_out: Array
    _fitted: dict[int, Fitted]  # by the number of the input; those without weight are not kept
    _terms: list[Term]
    _shares: Array
    _prepare: list[Callable[[Array], Array]]

    def probabilities(self, inputs: Inputs) -> Array:
        """Returns the probability of every class or label, float32 ``[rows, outputs]``.

        Args:
            inputs: rows of the tables that the probe was fitted to, in their order.
        """
        tables, count = _tables(inputs), len(STRENGTHS)
        found = []
        for start in range(0, len(tables[0]), _BLOCK):
            block = [table[start : start + _BLOCK] for table in tables]
            scores: Array = np.zeros((len(tables) * count, len(block[0]), self.held_out.shape[1]))
            for number, fitted in self._fitted.items():
                own = _scores(fitted, self._prepare[number](block[number]))
                scores[number * count : (number + 1) * count] = own
            found.append(average(self._terms, scores, self._shares, self.several))
        wide = self.held_out.shape[1]
        return np.concatenate([np.zeros((0, wide)), *found]).astype(np.float32)


def fit_calibrated(
    inputs: Inputs,
    targets: Array,
    *,
    several: bool,
    seed: int = 0,
    standard: Callable[[Array], Array] | Mapping[str, Callable[[Array], Array]] | None = None,
    names: Any = None,
) -> CalibratedProbe:
    """Fits a probe on labelled nodes and measures its error on folds of them.

    Args:
        inputs: embeddings of the labelled nodes, ``[labelled, dim]``; or several tables of them, by
            name.
        targets: 0/1 ``[labelled, outputs]``; without `several`, one 1 in each row.
        several: whether a node may have several labels.
        seed: decides the folds.
        standard: standardises rows, by all nodes where they are known: ten do not tell a column's
            deviation; of several inputs, for each. (default: by `inputs`)
        names: ids of the nodes: folds are drawn in their order, so that those of a node do not
            depend on its row. (default: in the order of rows)

    Raises:
        GraphError: there is nothing to tell apart, or an embedding is not finite.
    """
    labels = list(inputs) if isinstance(inputs, Mapping) else ["embeddings"]
    order = np.arange(len(targets)) if names is None else _ascending(names)
    tables, targets = [table[order] for table in _tables(inputs)], targets[order]
    for table in tables:
        check_embeddings(table)
    counts = targets.sum(axis=0)
    varied = ((counts > 0) & (counts < len(targets))).sum()
    if varied < (1 if several else 2):
        what = "label that some nodes have and others lack" if several else "second class"
        raise GraphError(f"predict: the labelled nodes hold no {what}")
    how = standard if isinstance(standard, Mapping) else dict.fromkeys(labels, standard)
    prepare = [
        within_span(table, how[name] or standardiser(table))
        for name, table in zip(labels, tables, strict=True)
    ]
    rows = [one(table) for one, table in zip(prepare, tables, strict=True)]
    shares = log_shares(targets, several)
    held, each = _hold_out(rows, targets, several, np.random.default_rng(seed))
    terms, error = held.choose() if held is not None else _UNKNOWN, None
    held_out = np.full(targets.shape, np.nan)
    if held is not None:
        error, ordered = _judge(held, each, len(targets))
        held_out = np.empty_like(ordered)
        held_out[order] = ordered
    fitted = {}
    for number in sorted({term.input for term in terms}):
        problem = (_tensor(rows[number]), _tensor(targets))
        fitted[number] = fit_logistic_batch([problem], STRENGTHS, softmax=not several)[0]
    best = max(terms, key=lambda term: term.weight)
    total, weights = sum(term.weight for term in terms), dict.fromkeys(labels, 0.0)
    for term in terms:
        weights[labels[term.input]] += term.weight / total
    chosen = (weights, best.strength, best.temperature, error, held_out)
    return CalibratedProbe(several, *chosen, fitted, terms, shares, prepare)


def _tables(inputs: Inputs) -> list[Array]:
    return list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]


def _ascending(names: Any) -> Array:
    """Returns the order of ids: as numbers if they are numbers, or else as texts."""
    given = np.asarray(names)
    if given.dtype.kind not in "iu":
        given = np.array([str(one) for one in given.tolist()], dtype=object)
    found: Array = np.argsort(given, kind="stable")
    return found


def _judge(held: HeldOut, each: list[list[Term]], labelled: int) -> tuple[PredictionError, Array]:
    """Returns the error, and the mean held-out probabilities of each labelled node.

    `each` are the terms of every part, chosen without its nodes.
    """
    found: Array = np.zeros(held.targets.shape)
    for part, terms in enumerate(each):
        mine = held.part == part
        found[mine] = average(terms, held.scores[:, mine], held.shares[mine], held.several)
    means, times = np.zeros((labelled, held.targets.shape[1])), np.zeros(labelled)
    np.add.at(means, held.rows, found)
    np.add.at(times, held.rows, 1)
    with np.errstate(invalid="ignore"):
        means /= times[:, None]
    nodes = int((times > 0).sum())
    return measure(found, held.targets, held.several, nodes=nodes, folds=held.folds), means


def _hold_out(
    tables: list[Array], targets: Array, several: bool, random: np.random.Generator
) -> tuple[HeldOut | None, list[list[Term]]]:
    """Returns held-out scores, and for each part the terms that are chosen without its nodes.

    There are none if no class has two nodes.
    """
    kinds = targets.argmax(axis=1) if not several else _rarest(targets)
    counts = np.bincount(kinds)
    # The only node of a class would be scored by a regression that has never seen the class.
    testable = np.flatnonzero((counts[kinds] > 1) | several)
    if len(testable) < 2 or (not several and len(np.unique(kinds[testable])) < 2):
        return None, []
    if len(testable) > MOST_TESTED:
        testable = np.sort(random.choice(testable, MOST_TESTED, replace=False))
    always = np.setdiff1d(np.arange(len(targets)), testable)[:MOST_TESTED]
    few = len(testable) <= FEW_NODES
    most, fits, near = (MORE_FOLDS, FITS, NEAR) if few else (FOLDS, FEWER_FITS, NEARER)
    folds = int(np.clip(np.median(counts[kinds[testable]]), 2, min(most, len(testable))))
    repeats = fits // folds if len(testable) <= REPEATED_NODES else 1
    parts: list[_Part] = []
    pairs: list[tuple[int, int, _Part]] = []  # without two folds of a division
    for _ in range(repeats):
        place, first = deal(kinds[testable], folds, random), len(parts)
        for number in range(folds):
            test = testable[place == number]
            train = np.concatenate([testable[place != number], always])
            if len(test) and _tells(targets[train]):
                parts.append((train, test))
        numbers = range(first, len(parts))
        for one, other in combinations(numbers, 2):
            if min(other - one, len(numbers) - (other - one)) <= near:
                train = np.setdiff1d(parts[one][0], parts[other][1])
                if _tells(targets[train]):
                    both = np.concatenate([parts[one][1], parts[other][1]])
                    pairs.append((one, other, (train, both)))
    if not parts:
        return None, []
    every = [*parts, *(pair for _, _, pair in pairs)]
    of_each = [_score_parts(table, targets, every, several) for table in tables]
    scores = [np.concatenate(some) for some in zip(*of_each, strict=True)]
    held = _gather(parts, scores[: len(parts)], targets, folds, several)
    inner: list[tuple[list[_Part], list[Array]]] = [([], []) for _ in parts]
    for (one, other, (train, both)), found in zip(pairs, scores[len(parts) :], strict=True):
        cut = len(parts[one][1])
        for number, some in ((other, slice(cut)), (one, slice(cut, None))):
            inner[number][0].append((train, both[some]))
            inner[number][1].append(found[:, some])
    each = [
        _gather(*some, targets, folds, several).choose() if some[0] else _UNKNOWN for some in inner
    ]
    return held, each


def _tells(targets: Array) -> bool:
    """Returns whether there is something to learn from these labels."""
    return len(targets) > 0 and bool((targets.sum(axis=0) < len(targets)).any())


def _gather(
    parts: list[_Part], scores: list[Array], targets: Array, folds: int, several: bool
) -> HeldOut:
    """Returns the scores of all parts; a row's shares are those of its own train nodes."""
    sizes = [len(test) for _, test in parts]
    every = np.concatenate([test for _, test in parts])
    shares = np.stack([log_shares(targets[train], several) for train, _ in parts])
    part = np.repeat(np.arange(len(parts)), sizes)
    found = np.concatenate(scores, axis=1)
    return HeldOut(every, part, folds, found, targets[every], shares[part], several)


def _score_parts(z: Array, targets: Array, parts: list[_Part], several: bool) -> list[Array]:
    """Fits regressions on train nodes, as many at once as memory allows; scores the test nodes."""
    outputs = targets.shape[1] * len(STRENGTHS)
    together = max(1, _VALUES // (len(z) * (z.shape[1] + outputs)))
    scores: list[Array] = []
    for start in range(0, len(parts), together):
        some = parts[start : start + together]
        problems = [(_tensor(z[train]), _tensor(targets[train])) for train, _ in some]
        fitted = fit_logistic_batch(problems, STRENGTHS, softmax=not several)
        scores += [_scores(one, z[test]) for one, (_, test) in zip(fitted, some, strict=True)]
    return scores


def _rarest(targets: Array) -> Array:
    """Returns the rarest label of each node, by which several labels are spread over folds."""
    counts = np.where(targets > 0, targets.sum(axis=0), np.inf)
    rarest: Array = np.where(targets.any(axis=1), counts.argmin(axis=1), targets.shape[1])
    return rarest


def deal(kinds: Array, folds: int, random: np.random.Generator) -> Array:
    """Deals the nodes of every class to the folds in turn; returns the fold of each node.

    A class that is in every fold begins with the first: classes of equal size are equal in every
    fold. Smaller ones go on where the last one ended, or all would be in the first fold.
    """
    place, first = np.empty(len(kinds), np.int64), 0
    for kind in np.unique(kinds):
        members = random.permutation(np.flatnonzero(kinds == kind))
        small = len(members) < folds
        place[members] = (first * small + np.arange(len(members))) % folds
        first += len(members) * small
    return place


def _scores(fitted: Fitted, z: Array) -> Array:
    found: Array = fitted.scores(_tensor(z)).numpy().astype(np.float64)
    return found


def _tensor(values: Array) -> Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float32)


def measure(
    probability: Array,
    targets: Array,
    several: bool,
    *,
    nodes: int,
    folds: int = 1,
    how: str = "cross-validation",
) -> PredictionError:
    """Compares probabilities ``[rows, outputs]`` with the truth, 0/1 of the same shape."""
    tiny = np.finfo(np.float64).tiny
    if several:
        given = probability > 0.5
        right = (given == targets).mean()
        loss = -np.log(np.maximum(np.where(targets > 0, probability, 1 - probability), tiny)).mean()
        micro, macro = (f1(targets, given, average) for average in ("micro", "macro"))
        majority = majority_share(targets)
    else:
        truth, guess = targets.argmax(axis=1), probability.argmax(axis=1)
        right = micro = (truth == guess).mean()
        loss = -np.log(np.maximum(probability[np.arange(len(truth)), truth], tiny)).mean()
        macro = f1(truth, guess)
        majority = majority_share(truth)
    return PredictionError(
        accuracy=float(right),
        macro_f1=macro,
        micro_f1=float(micro),
        log_loss=float(loss),
        calibration_error=calibration_error(probability, targets, several),
        majority=majority,
        standard_error=float(np.sqrt(right * (1 - right) / nodes)),
        nodes=nodes,
        folds=folds,
        how=how,
    )


def calibration_error(probability: Array, targets: Array, several: bool) -> float:
    """Returns the expected calibration error (ECE), with `BINS` bins of equal width.

    Answers are grouped by their probability. In each group, the mean probability is compared with
    the fraction that is right, and the differences are averaged, weighted by the groups' sizes. An
    answer is the most probable class of a node; with `several`, every pair of node and label.
    """
    if several:
        confidence, right = probability.ravel(), targets.ravel() > 0
    else:
        confidence = probability.max(axis=1)
        right = probability.argmax(axis=1) == targets.argmax(axis=1)
    group = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(group, weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / max(1, len(confidence)))


def log_shares(targets: Array, several: bool) -> Array:
    """Returns the log of the classes' shares or, with `several`, of the labels' odds.

    Half a node is added to each, so that a class without nodes has a finite share.
    """
    there = targets.sum(axis=0) + 0.5
    found: Array = np.log(there / ((len(targets) + 1 - there) if several else there.sum()))
    return found


def _tempered(scores: Array, temperature: Any, shares: Array) -> Array:
    found: Array = (scores - shares) / temperature + shares
    return found


def average(terms: list[Term], scores: Array, shares: Array, several: bool) -> Array:
    """Returns the mean of probabilities by weight; scores are ``[places, rows, outputs]``."""
    total = sum(term.weight for term in terms)
    found: Array = np.zeros(scores.shape[1:])
    for term in terms:
        tempered = _tempered(scores[term.place], term.temperature, shares)
        found += term.weight / total * _to_probabilities(tempered, several)
    return found


def _to_probabilities(scores: Array, several: bool) -> Array:
    from scipy.special import expit, softmax

    found: Array = expit(scores) if several else softmax(scores, axis=-1)
    return found


def _confidence(scores: Array, several: bool) -> Array:
    """Returns the mean confidence of each table of ``[tables, rows, outputs]``."""
    probability = _to_probabilities(scores, several)
    best = np.maximum(probability, 1 - probability) if several else probability.max(axis=-1)
    found: Array = best.reshape(len(scores), -1).mean(axis=1)
    return found


def _loss(scores: Array, targets: Array, several: bool) -> Array:
    from scipy.special import log_expit, log_softmax

    if several:
        right = targets * log_expit(scores) + (1 - targets) * log_expit(-scores)
    else:
        right = targets * log_softmax(scores, axis=-1)
    found: Array = -right.sum(axis=-1)
    return found
