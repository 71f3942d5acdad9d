r"""What sets groups of nodes apart: numbers, categories, words and features, with honest counts.

A number is compared by Cohen's d, the difference of two means in units of the pooled standard
deviation, and Welch's test; a category, word or feature by the logarithm of the odds ratio, with
half a node added to each of the four counts, and Fisher's exact test. A group is compared with all
other nodes. Of all these tests together, the false discovery rate is held at 5 % (Benjamini and
Hochberg, 1995), and differences of less than 0.2 standard deviations are left out however certain
they are. A log odds ratio counts as :math:`\sqrt3/\pi` times as many (Chinn, 2000). First come
those whose effect is large even at the lower end of its 95 % interval.

Columns took part in making the groups. So a profile describes the groups; it does not prove that
there are any.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Array
from graphcl.tabular.originals import FEATURES, FLAGS, Original
from graphcl.tabular.preparation import CATEGORY, DATE, NUMBER, TEXT

LEVEL = 0.05  # false discovery rate
LEAST = 0.2  # standard deviations: a small effect by Cohen's scale
SHOWN = 8  # differences of a group
OF_COLUMN = {CATEGORY: 2, TEXT: 4, FLAGS: 6, FEATURES: 6}  # at most in a profile; of others, 1
FEWEST = 5  # nodes that have a value; fewer tell nothing
WORDS = 5_000
BLOCK = 1 << 23  # numbers that are compared at a time

Item = tuple[str, str, str]  # the column, its kind, and what is compared
# Items, and figures [8, groups, items]: four sides, the effect, its size in standard deviations,
# the lower end of the 95 % interval of that, and p.
Tests = tuple[Sequence[Item], Array]


@dataclass(frozen=True)
class Difference:
    """One thing that sets a group apart from all other nodes.

    Attributes:
        what: what is compared: ``age``, ``region = North``, ``notes has “zoo”``.
        kind: ``number`` or ``date``, whose means are compared; of others, counts are.
        inside: the group's mean, or how many of its nodes have it.
        known: how many of its nodes are counted: those whose cell is not empty.
        outside: the mean or number of the others.
        known_outside: how many of them are counted.
        effect: Cohen's d of means; the log odds ratio of counts. Above 0 the group has more.
        q: the false discovery rate at which it would just be reported.
    """

    what: str
    kind: str
    inside: float
    known: int
    outside: float
    known_outside: int
    effect: float
    q: float

    def sides(self) -> tuple[str, str]:
        """Returns what the group has, and what the others have."""
        if self.kind == DATE:
            day = [str(np.datetime64(int(one), "D")) for one in (self.inside, self.outside)]
            return day[0], day[1]
        if self.kind == NUMBER:
            return _number(self.inside), _number(self.outside)
        return (
            f"{int(self.inside):,} of {self.known:,}",
            f"{int(self.outside):,} of {self.known_outside:,}",
        )

    def __str__(self) -> str:
        inside, outside = self.sides()
        if self.kind not in (NUMBER, DATE):
            return f"{self.what}: {inside} against {outside} (log odds {self.effect:+.1f})"
        nodes = f"{self.known:,} and {self.known_outside:,} nodes"
        return f"{self.what}: mean {inside} against {outside} (d {self.effect:+.1f}; {nodes})"


def _number(mean: float) -> str:
    return f"{mean:,.0f}" if abs(mean) >= 1000 else f"{mean:.4g}"


def profiles(
    assigned: Array, columns: Sequence[Original], *, most: int = SHOWN
) -> tuple[tuple[Difference, ...], ...]:
    """Returns what sets each group apart, the clearest first.

    Args:
        assigned: the group of each node; −1 is none, and is compared with no other.
        columns: of all nodes.
        most: how many differences of each group.
    """
    from scipy.stats import false_discovery_control

    count = int(assigned.max(initial=-1)) + 1
    members = scipy.sparse.csr_array(assigned == np.arange(count)[:, None]).astype(np.float64)
    blocks = list(_tests(columns, members)) if count > 1 else []
    items = [item for some, _ in blocks for item in some]
    if not items:
        return ((),) * count
    figures = np.concatenate([one for _, one in blocks], axis=2)
    *sides, effect, strength, certain, p = figures
    q = false_discovery_control(p, axis=None).reshape(p.shape)
    found = []
    for group in range(count):
        places = np.flatnonzero((q[group] <= LEVEL) & (strength[group] >= LEAST))
        kept, seen = list[Difference](), dict[tuple[str, str], int]()
        for place in places[np.argsort(-certain[group, places], kind="stable")].tolist():
            column, kind, what = items[place]
            seen[column, kind] = seen.get((column, kind), 0) + 1
            if seen[column, kind] <= OF_COLUMN.get(kind, 1):
                inside, known, outside, others = (float(one[group, place]) for one in sides)
                told = (inside, int(known), outside, int(others), float(effect[group, place]))
                shown = NUMBER if kind == FEATURES else kind
                kept.append(Difference(what, shown, *told, float(q[group, place])))
        found.append(tuple(kept[:most]))
    return tuple(found)


def _tests(columns: Sequence[Original], members: Any) -> Iterator[Tests]:
    """Yields the tests of each column; a missing cell is one more thing that a node may have."""
    for one in columns:
        name, kind, values = one.name, one.kind, one.values
        lost = np.zeros(1, np.bool_)
        if kind == FEATURES:
            some = max(1, BLOCK // max(1, len(values)))
            for start in range(0, len(one.items), some):
                items = [(name, kind, item) for item in one.items[start : start + some]]
                yield _means(items, values[:, start : start + some], members)
        elif kind == FLAGS:
            yield _shares([(name, kind, item) for item in one.items], values, members)
        elif kind in (NUMBER, DATE):
            yield _means([(name, kind, name)], values[:, None], members)
            lost = np.isnan(values)
        else:
            lost = np.array([text is None for text in values])
            yield _shares(*_values(one), members, ~lost)
        if lost.any():
            flag = scipy.sparse.csr_array(lost[:, None])
            yield _shares([(name, "missing", f"{name} is missing")], flag, members)


def _values(one: Original) -> tuple[list[Item], Any]:
    """Returns the categories or words of a column, and which nodes have them."""
    from sklearn.feature_extraction.text import CountVectorizer

    how: dict[str, Any] = {"binary": True, "min_df": min(FEWEST, len(one.values))}
    if one.kind == CATEGORY:  # a cell is one word
        how |= {"analyzer": lambda text: [text] if text else []}
    counter = CountVectorizer(max_features=WORDS, **how)
    try:
        flags = counter.fit_transform([text or "" for text in one.values])
    except ValueError:  # none is frequent enough
        return [], scipy.sparse.csr_array((len(one.values), 0))
    names = counter.get_feature_names_out().tolist()
    written = "{0} = {1}" if one.kind == CATEGORY else "{0} has “{1}”"
    return [(one.name, one.kind, written.format(one.name, name)) for name in names], flags


def _means(items: Sequence[Item], values: Array, members: Any) -> Tests:
    """Compares the means of columns, ``[nodes, items]`` with NaN where a value is missing."""
    from scipy.stats import ttest_ind_from_stats

    values = np.asarray(values, np.float64)
    there = ~np.isnan(values)
    centre = np.where(there, values, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    moved = np.where(there, values - centre, 0)  # or squares of large numbers would cancel
    powers = (there.astype(np.float64), moved, moved**2)
    inside = [np.asarray(members @ one) for one in powers]
    outside = [one.sum(axis=0) - part for one, part in zip(powers, inside, strict=True)]
    with np.errstate(all="ignore"):
        (n, mean, spread), (m, other, other_spread) = map(_moments, (inside, outside))
        pooled = np.sqrt(((n - 1) * spread**2 + (m - 1) * other_spread**2) / (n + m - 2))
        effect = (mean - other) / pooled
        error = np.sqrt(1 / n + 1 / m + effect**2 / (2 * (n + m)))
        p = ttest_ind_from_stats(mean, spread, n, other, other_spread, m, equal_var=False).pvalue
    fits = (n >= 2) & (m >= 2) & np.isfinite(effect) & np.isfinite(p)
    effect, p = np.where(fits, effect, 0), np.where(fits, p, 1)
    sides = (mean + centre, n, other + centre, m)
    return items, np.stack([*sides, effect, np.abs(effect), np.abs(effect) - 1.96 * error, p])


def _moments(sums: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Returns the number, the mean and the standard deviation from sums of powers."""
    n, total, square = sums
    return n, total / n, np.sqrt(np.maximum(square - total**2 / n, 0) / (n - 1))


def _shares(items: Sequence[Item], flags: Any, members: Any, known: Array | None = None) -> Tests:
    """Compares how many nodes have something; `known` are the nodes that count, or None."""
    from scipy.stats import hypergeom

    known = np.ones(flags.shape[0]) if known is None else known.astype(np.float64)
    flags = scipy.sparse.csc_array(flags, dtype=np.float64)
    total = np.asarray(flags.sum(axis=0)).ravel()
    often = np.flatnonzero(total >= FEWEST)
    inside = np.asarray((members @ flags[:, often]).todense())
    of = np.broadcast_to((members @ known)[:, None], inside.shape)
    outside, others = total[often] - inside, known.sum() - of
    four = [one + 0.5 for one in (inside, of - inside, outside, others - outside)]
    effect = np.log(four[0] * four[3] / (four[1] * four[2]))
    error = np.sqrt(sum(1 / one for one in four))
    drawn = (int(known.sum()), total[often].astype(int), of.astype(int))
    tails = hypergeom.sf(inside - 1, *drawn), hypergeom.cdf(inside, *drawn)
    p, scale = np.clip(2 * np.minimum(*tails), 0, 1), math.sqrt(3) / math.pi
    strength = np.abs(effect) * scale
    figures = (inside, of, outside, others, effect, strength, strength - 1.96 * error * scale, p)
    return [items[place] for place in often.tolist()], np.stack(figures)
