r"""What sets a group of nodes apart from all other nodes, beyond chance.

Every column is tested in every group. A number or a date is tested by its ranks (Wilcoxon, Mann
and Whitney), so that its distribution does not matter; what a node has or lacks, which is a
category, a word, an empty cell or a sparse feature, by Fisher's exact test. The rank test takes a
normal distribution where that is close, and a bound that holds for groups of any size where it is
not (see `_rank_sum_p`). Of all tests together, the false discovery rate is held at 5 % (Benjamini
and Hochberg, 1995): if no column has to do with the groups, at most one table in 20 has anything
listed. `benchmarks/group_profiles.py` measures that.

Differences of less than 0.2 standard deviations (of ranks) are left out however certain they are.
A log odds ratio counts as :math:`\sqrt3/\pi` times as many (Chinn, 2000). First come those whose
effect is large even at the lower end of its 95 % interval.

The tests compare a column with groups that are given. Columns that took part in making the groups
differ between them by construction: a profile describes groups, and does not prove that there are
any.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Array, blocks
from graphcl.tabular.originals import FEATURES, FLAGS, Original
from graphcl.tabular.preparation import CATEGORY, DATE, NUMBER, TEXT

LEVEL = 0.05  # false discovery rate
LEAST = 0.2  # standard deviations: a small effect by Cohen's scale
SHOWN = 8  # differences of a group
OF_COLUMN = {CATEGORY: 2, TEXT: 4, FLAGS: 6, FEATURES: 6}  # at most in a profile; of others, 1
FEWEST = 5  # nodes that have a value; fewer tell nothing
WORDS = 5_000
BLOCK = 1 << 23  # numbers that are compared at a time
TESTS = (
    "numbers by a rank-sum test, counts by Fisher's exact test; false discovery rate 5 % over all "
    "columns and groups"
)
MISSING = "missing"
MEDIAN, MEAN = "median", "mean"

# A rank sum counts as normal from this many nodes per unit of squared skewness or of excess
# kurtosis of the ranks. Of a value that one node in 100 has, that is 20 expected nodes.
NORMAL_FROM = 20
# Where Chernoff's bound is tried, in units of 1 / standard deviation of the ranks.
_EXPONENTS = np.geomspace(0.01, 100, 80)


@dataclass(frozen=True)
class Difference:
    """One thing that sets a group apart from all other nodes.

    Attributes:
        what: what is compared: ``age``, ``region = North``, ``notes has “zoo”``.
        kind: ``number`` or ``date``, whose ranks are compared; of others, counts are.
        inside: the group's median, or how many of its nodes have it.
        known: how many of its nodes are counted: those whose cell is not empty.
        outside: the median or number of the others.
        known_outside: how many of them are counted.
        effect: Cliff's delta of numbers: the share of pairs of a node inside and a node outside
            in which the one inside has more, minus the share in which it has less. The log odds
            ratio of counts. Above 0 the group has more.
        q: the false discovery rate at which it would just be reported.
        average: ``median``; ``mean`` where the medians are equal; empty for counts.
    """

    what: str
    kind: str
    inside: float
    known: int
    outside: float
    known_outside: int
    effect: float
    q: float
    average: str = ""

    def sides(self) -> tuple[str, str]:
        """Returns what the group has, and what the others have."""
        if self.kind == DATE:
            return _day(self.inside), _day(self.outside)
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
        return (
            f"{self.what}: {self.average} {inside} against {outside} "
            f"(Cliff's delta {self.effect:+.2f}; {nodes})"
        )


def _day(days: float) -> str:
    return str(np.datetime64(round(days), "D"))


def _number(average: float) -> str:
    return f"{average:,.0f}" if abs(average) >= 1000 else f"{average:.4g}"


@dataclass(frozen=True, eq=False)
class _Item:
    """One thing that is tested: a number with its values, or something that nodes have or lack."""

    column: str
    kind: str
    text: str
    numbers: Array | None = None  # [nodes], NaN where the cell is empty


@dataclass(frozen=True, eq=False)
class _Tests:
    """The tests of some items in every group; arrays are ``[groups, items]``.

    Attributes:
        items: what is tested.
        having: how many nodes of the group have it; of numbers, 0.
        known: how many nodes of the group have a value.
        having_outside: of all other nodes.
        known_outside: of all other nodes.
        effect: see `Difference`.
        strength: the size of the effect in standard deviations.
        certain: the lower end of its 95 % interval.
        p: of the test.
    """

    items: Sequence[_Item]
    having: Array
    known: Array
    having_outside: Array
    known_outside: Array
    effect: Array
    strength: Array
    certain: Array
    p: Array


def profiles(
    assigned: Array, columns: Sequence[Original], *, most: int = SHOWN
) -> tuple[tuple[Difference, ...], ...]:
    """Returns what sets each group apart, the clearest first.

    Args:
        assigned: the group of each node; −1 marks a node in no group, which counts among the
            others of every group.
        columns: of all nodes.
        most: how many differences of each group.
    """
    from scipy.stats import false_discovery_control

    count = int(assigned.max(initial=-1)) + 1
    if count < 2:
        return ((),) * count
    members = scipy.sparse.csr_array(assigned == np.arange(count)[:, None]).astype(np.float64)
    tested = [tests for tests in _all_tests(columns, members) if tests.items]
    if not tested:
        return ((),) * count
    p = np.concatenate([tests.p for tests in tested], axis=1)
    q = false_discovery_control(p, axis=None).reshape(p.shape)
    ends = np.cumsum([len(tests.items) for tests in tested])[:-1]
    rates = np.split(q, ends, axis=1)
    return tuple(
        _profile(group, assigned == group, tested, [rate[group] for rate in rates], most)
        for group in range(count)
    )


def _profile(
    group: int, inside: Array, tested: Sequence[_Tests], rates: Sequence[Array], most: int
) -> tuple[Difference, ...]:
    """Returns the differences of one group; `rates` are the q of the items of `tested`."""
    found = []
    for tests, q in zip(tested, rates, strict=True):
        listed = (q <= LEVEL) & (tests.strength[group] >= LEAST)
        found += [(tests, place, float(q[place])) for place in np.flatnonzero(listed).tolist()]
    found.sort(key=lambda one: -one[0].certain[group, one[1]])
    kept = list[Difference]()
    of_column = dict[tuple[str, str], int]()
    for tests, place, q_value in found:
        item = tests.items[place]
        key = (item.column, item.kind)
        of_column[key] = of_column.get(key, 0) + 1
        if of_column[key] <= OF_COLUMN.get(item.kind, 1):
            kept.append(_difference(tests, group, place, inside, q_value))
        if len(kept) == most:
            break
    return tuple(kept)


def _difference(tests: _Tests, group: int, place: int, inside: Array, q: float) -> Difference:
    item, at = tests.items[place], (group, place)
    average = ""
    group_value, other_value = float(tests.having[at]), float(tests.having_outside[at])
    if item.numbers is not None:
        values = np.asarray(item.numbers, np.float64)
        finite = np.isfinite(values)
        group_values, other_values = values[finite & inside], values[finite & ~inside]
        average = MEDIAN
        group_value, other_value = float(np.median(group_values)), float(np.median(other_values))
        if group_value == other_value:  # as of counts that are mostly 0
            average = MEAN
            group_value, other_value = _mean(group_values), _mean(other_values)
    return Difference(
        what=item.text,
        kind=NUMBER if item.kind == FEATURES else item.kind,
        inside=group_value,
        known=int(tests.known[at]),
        outside=other_value,
        known_outside=int(tests.known_outside[at]),
        effect=float(tests.effect[at]),
        q=q,
        average=average,
    )


def _mean(values: Array) -> float:
    return float((values / len(values)).sum())  # the sum of large values might overflow


def _all_tests(columns: Sequence[Original], members: Any) -> Iterator[_Tests]:
    """Yields the tests of each column; a missing cell is one more thing that a node may have."""
    for column in columns:
        name, kind, values = column.name, column.kind, column.values
        if kind == FEATURES:
            width = max(1, BLOCK // max(1, len(values)))
            for start in range(0, len(column.items), width):
                block = values[:, start : start + width]
                texts = column.items[start : start + width]
                pairs = zip(texts, block.T, strict=True)
                items = [_Item(name, kind, text, numbers) for text, numbers in pairs]
                yield _rank_tests(items, block, members)
            continue
        if kind == FLAGS:
            yield _share_tests([_Item(name, kind, text) for text in column.items], values, members)
            continue
        if kind in (NUMBER, DATE):
            missing = np.isnan(values)
            yield _number_tests(column, missing, members)
        else:
            missing = np.array([text is None for text in values], np.bool_)
            yield _text_tests(column, missing, members)
        if missing.any():
            flag = scipy.sparse.csr_array(missing[:, None])
            yield _share_tests([_Item(name, MISSING, f"{name} is missing")], flag, members)


def _number_tests(column: Original, missing: Array, members: Any) -> _Tests:
    """Tests the ranks of a column; one with two values is a question that has a yes and a no."""
    distinct = np.unique(column.values[~missing])
    if column.kind == NUMBER and len(distinct) == 2:
        item = _Item(column.name, CATEGORY, f"{column.name} = {_number(distinct[1])}")
        flags = scipy.sparse.csr_array((column.values == distinct[1])[:, None])
        return _share_tests([item], flags, members, ~missing)
    item = _Item(column.name, column.kind, column.name, column.values)
    return _rank_tests([item], column.values[:, None], members)


def _text_tests(column: Original, missing: Array, members: Any) -> _Tests:
    """Tests the categories or words of a column."""
    from sklearn.feature_extraction.text import CountVectorizer

    settings: dict[str, Any] = {"binary": True, "min_df": min(FEWEST, len(column.values))}
    if column.kind == CATEGORY:  # a cell is one word
        settings["analyzer"] = lambda text: [text] if text else []
    counter = CountVectorizer(max_features=WORDS, **settings)
    try:
        flags = counter.fit_transform([text or "" for text in column.values])
        values = counter.get_feature_names_out().tolist()
    except ValueError:  # none is frequent enough
        flags = scipy.sparse.csr_array((len(column.values), 0))
        values = []
    form = "{0} = {1}" if column.kind == CATEGORY else "{0} has “{1}”"
    items = [_Item(column.name, column.kind, form.format(column.name, value)) for value in values]
    return _share_tests(items, flags, members, ~missing)


def _rank_tests(items: Sequence[_Item], values: Array, members: Any) -> _Tests:
    """Compares the ranks of columns, ``[nodes, items]`` with NaN where a value is missing.

    With n nodes inside, m outside and midranks r around their mean, S is the sum of r inside. Over
    all ways to choose the n nodes, S has mean 0 and variance n·m / (n + m) · Var(r); Cliff's delta
    is 2·S / (n·m).
    """
    from scipy.stats import rankdata

    finite = np.isfinite(values)
    ranks = rankdata(np.where(finite, values, np.inf), axis=0)  # missing values come last
    total = finite.sum(axis=0)
    ranks = np.where(finite, ranks - (total + 1) / 2, 0)
    n = np.asarray(members @ finite.astype(np.float64))
    m = total - n
    sums = np.asarray(members @ ranks)
    squares = np.asarray(members @ ranks**2)
    outside_squares = (ranks**2).sum(axis=0) - squares
    with np.errstate(all="ignore"):
        effect = 2 * sums / (n * m)
        inside_spread = squares - sums**2 / n
        outside_spread = outside_squares - sums**2 / m  # the sum outside is −S
        pooled = np.sqrt((inside_spread + outside_spread) / (n + m - 2))
        smallest = 0.01 * ranks.std(axis=0)  # a column that is constant on both sides has no spread
        strength = np.abs(sums / n + sums / m) / np.maximum(pooled, smallest)
        error = np.sqrt(1 / n + 1 / m + strength**2 / (2 * (n + m)))
    possible = (n >= 1) & (m >= 1) & np.isfinite(effect) & np.isfinite(strength)
    p = np.ones(sums.shape)
    for place in np.flatnonzero(possible.any(axis=0)).tolist():
        own = ranks[finite[:, place], place]
        p[:, place] = _rank_sum_p(own, sums[:, place], n[:, place])
    effect = np.where(possible, effect, 0)
    strength = np.where(possible, strength, 0)
    certain = np.where(possible, strength - 1.96 * error, 0)
    nothing = np.zeros(sums.shape)
    return _Tests(
        items, nothing, n, nothing, m, effect, strength, certain, np.where(possible, p, 1)
    )


def _rank_sum_p(ranks: Array, sums: Array, sizes: Array) -> Array:
    r"""Returns the two-sided p of each group's sum of ranks.

    A normal distribution is close unless the group is small and a few values stand far apart from
    most others, as rare counts do. There it would promise too much, and Chernoff's bound is taken:
    for every t > 0,

    .. math:: P(S \ge s) \le \exp(-ts) \left(\frac1N \sum_i \exp(t r_i)\right)^n

    which holds for a draw without replacement too (Hoeffding, 1963). It is of the smaller side.

    Args:
        ranks: midranks of all nodes that have a value, around their mean.
        sums: of each group.
        sizes: nodes of each group that have a value.
    """
    total = len(ranks)
    variance = float((ranks**2).mean())
    if variance == 0:
        return np.ones(len(sums))
    skewness = float((ranks**3).mean()) / variance**1.5
    kurtosis = float((ranks**4).mean()) / variance**2 - 3
    smaller = np.minimum(sizes, total - sizes)
    p = _normal_p(ranks, sums, sizes, variance * total / (total - 1))
    few = np.flatnonzero((smaller < NORMAL_FROM * max(skewness**2, kurtosis)) & (smaller > 0))
    if len(few):
        signs = np.sign(sums[few]) * np.where(sizes[few] <= total - sizes[few], 1, -1)
        exponents = _EXPONENTS / math.sqrt(variance)
        levels, counts = np.unique(ranks, return_counts=True)
        for sign in (-1.0, 1.0):
            here = few[signs == sign]
            means = _log_means(sign * levels, counts, exponents)
            bounds = smaller[here] * means[:, None] - exponents[:, None] * np.abs(sums[here])
            p[here] = np.minimum(1, 2 * np.exp(bounds.min(axis=0)))
        p[few[signs == 0]] = 1
    return p


def _normal_p(ranks: Array, sums: Array, sizes: Array, variance: float) -> Array:
    """Returns the two-sided p of a normal distribution, corrected for steps between ranks."""
    from scipy.stats import norm

    total = len(ranks)
    step = np.diff(np.unique(ranks)).min()
    spread = np.sqrt(sizes * (total - sizes) / total * variance)
    beyond = np.maximum(np.abs(sums) - step / 2, 0)
    with np.errstate(all="ignore"):
        return np.where(spread > 0, 2 * norm.sf(beyond / spread), 1.0)


def _log_means(levels: Array, counts: Array, exponents: Array) -> Array:
    """Returns log mean exp(t·r) for each exponent t."""
    found = []
    for some in blocks(len(exponents), max(1, BLOCK // len(levels))):
        powers = np.multiply.outer(exponents[some], levels)
        largest = powers.max(axis=1, keepdims=True)
        means = np.exp(powers - largest) @ (counts / counts.sum())
        found.append(largest[:, 0] + np.log(means))
    return np.concatenate(found)


def _share_tests(
    items: Sequence[_Item], flags: Any, members: Any, known: Array | None = None
) -> _Tests:
    """Compares how many nodes have something; `known` are the nodes that count, or None for all."""
    from scipy.stats import hypergeom

    counted = np.ones(flags.shape[0]) if known is None else known.astype(np.float64)
    flags = scipy.sparse.csc_array(flags, dtype=np.float64)
    total = np.asarray(flags.sum(axis=0)).ravel()
    often = np.flatnonzero(total >= FEWEST)
    inside = np.asarray((members @ flags[:, often]).todense())
    size = np.broadcast_to((members @ counted)[:, None], inside.shape)
    outside = total[often] - inside
    others = counted.sum() - size
    # Half a node is added to each of the four counts, so that none is 0.
    cells = [count + 0.5 for count in (inside, size - inside, outside, others - outside)]
    effect = np.log(cells[0] * cells[3] / (cells[1] * cells[2]))
    error = np.sqrt(sum(1 / count for count in cells))
    drawn = (int(counted.sum()), total[often].astype(int), size.astype(int))
    p = 2 * np.minimum(hypergeom.sf(inside - 1, *drawn), hypergeom.cdf(inside, *drawn))
    scale = math.sqrt(3) / math.pi
    strength = np.abs(effect) * scale
    return _Tests(
        items=[items[place] for place in often.tolist()],
        having=inside,
        known=size,
        having_outside=outside,
        known_outside=others,
        effect=effect,
        strength=strength,
        certain=strength - 1.96 * error * scale,
        p=np.clip(p, 0, 1),
    )
