r"""Groups of similar nodes, what sets them apart, and whether they would be found again.

What sets a group apart are numbers, categories, words and features, with honest counts. A number is
compared by Cohen's d, the difference of two means in units of the pooled standard deviation, and
Welch's test; a category, word or feature by the logarithm of the odds ratio, with half a node added
to each of the four counts, and Fisher's exact test. A group is compared with all other nodes. Of
all these tests together, the false discovery rate is held at 5 % (Benjamini and Hochberg, 1995),
and differences of less than 0.2 standard deviations are left out however certain they are. A log
odds ratio counts as :math:`\sqrt3/\pi` times as many (Chinn, 2000). First come those whose effect
is large even at the lower end of its 95 % interval.

Columns took part in making the groups. So a profile describes the groups; it does not prove that
there are any.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.answers.inputs import embeddings_of, graph_of, ids_of
from graphcl.arrays import Array, blocks
from graphcl.errors import GraphError, counted, demand, option, require
from graphcl.evaluation.unsupervised import SAMPLE, by_size, sampled_rows, silhouette, unit_rows
from graphcl.files.records import Answer
from graphcl.graphs.graph import Graph
from graphcl.seeding import derive
from graphcl.tabular.originals import FEATURES, FLAGS, Original, originals
from graphcl.tabular.preparation import CATEGORY, DATE, NUMBER, TEXT

LEVEL = 0.05  # false discovery rate
LEAST = 0.2  # standard deviations: a small effect by Cohen's scale
SHOWN = 8  # differences of a group
OF_COLUMN = {CATEGORY: 2, TEXT: 4, FLAGS: 6, FEATURES: 6}  # at most in a profile; of others, 1
FEWEST = 5  # nodes that have a value; fewer tell nothing
WORDS = 5_000
BLOCK = 1 << 23  # numbers that are compared at a time
METHODS = ("kmeans", "hdbscan")
COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
KEPT = 24  # groups that are described
AGAIN = 5  # times that the nodes are grouped again, to see whether groups stay
MOST_FITTED = 20_000  # rows that HDBSCAN compares with each other; the others follow the nearest
DIMENSIONS = 15  # principal components that it sees: in more, all distances are alike
_BLOCK, _ROWS = 4096, 1 << 16  # rows that HDBSCAN assigns, and that are read, at a time

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


@dataclass(frozen=True)
class Stability:
    """Whether groups are found again, with other seeds, in halves of the nodes.

    Attributes:
        times: how often the nodes were grouped again.
        agreement: the adjusted Rand index with the first partition, on the mean: 1 is the same
            partition, 0 is chance.
        groups: of each group the Jaccard index with the group that is most like it, on the mean:
            above 0.75 it is stable, below 0.5 it dissolves (Hennig, 2007).
    """

    times: int
    agreement: float
    groups: tuple[float, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Groups(Answer):
    """A partition of the nodes.

    Attributes:
        ids: of the nodes, ``[N]``.
        assigned: the group of each node, ``[N]``; 0 is the largest. −1 is none (HDBSCAN alone).
        sizes: nodes per group, largest first.
        closeness: the cosine of each node's embedding with its group's centre, ``[N]``; NaN for a
            node in no group.
        typical: per group the numbers of the nodes that are nearest to its centre, nearest first.
        silhouette: mean of (b − a) / max(a, b), where a is a node's mean distance to its own group
            and b that to the nearest other one: 1 is clear-cut, 0 is overlapping. None for fewer
            than two groups. On a sample of 5,000 nodes.
        tried: the silhouette of each number of groups that was tried.
        method: ``kmeans`` or ``hdbscan``.
        profiles: what sets each group apart, the clearest first: see
            `graphcl.answers.grouping.Difference`. Empty where nothing is known but embeddings.
        stability: None for fewer than two groups, or too few nodes.
    """

    ids: Array
    assigned: Array
    sizes: tuple[int, ...]
    closeness: Array
    typical: tuple[Array, ...]
    silhouette: float | None
    tried: dict[int, float]
    method: str
    profiles: tuple[tuple[Difference, ...], ...] = ()
    stability: Stability | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def title(self) -> str:
        """Returns what is said above the table."""
        return f"Groups: {len(self.ids):,} nodes, {self.said().splitlines()[0]}"

    def columns(self) -> dict[str, Any]:
        """Returns the table that `graphcl cluster` writes; groups are counted from 1, 0 is none."""
        closeness = [None if np.isnan(one) else one for one in self.closeness.tolist()]
        return {"id": self.ids, "group": self.assigned + 1, "closeness": closeness}

    def said(self) -> str:
        """Returns in words how many groups there are, and whether they would be found again."""
        how = f"; the number with the highest silhouette of {len(self.tried)} tried"
        score = "" if self.silhouette is None else f", silhouette {self.silhouette:.3f}"
        outside = int((self.assigned < 0).sum())
        left = f"; {counted(outside, 'node')} in none" if outside else ""
        lines = [f"{counted(len(self), 'group')} by {self.method}{score}{left}"]
        lines[0] += how if len(self.tried) > 1 else ""
        if self.stability is not None:
            lines.append(
                f"grouped again {self.stability.times} times, by other seeds, in halves of the "
                f"nodes: adjusted Rand index {self.stability.agreement:.2f} (1 is the same groups, "
                "0 is chance)"
            )
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """Returns the figures that are printed as JSON and kept for the report."""
        named = [np.asarray(self.ids[some]).tolist() for some in self.typical[:KEPT]]
        told = [
            [asdict(one) | {"sides": one.sides(), "text": str(one)} for one in some]
            for some in self.profiles[:KEPT]
        ]
        return {
            "text": self.said(),
            "method": self.method,
            "groups": len(self),
            "chosen_by": "silhouette" if len(self.tried) > 1 else None,
            "silhouette": self.silhouette,
            "tried": {str(count): score for count, score in self.tried.items()},
            "sizes": list(self.sizes[:KEPT]),
            "outside": int((self.assigned < 0).sum()),
            "typical": named,
            "profiles": told,
            "stability": None if self.stability is None else asdict(self.stability),
        }


def cluster(
    source: Any,
    count: int | None = None,
    *,
    graph: Any = None,
    method: str = "kmeans",
    least: int | None = None,
    typical: int = 5,
    columns: Sequence[Original] | None = None,
    seed: int = 0,
) -> Groups:
    """Groups nodes by their embeddings, which are first scaled to length 1.

    Args:
        source: embeddings ``[num_nodes, dim]``; a fitted model, which then embeds `graph`; or the
            path of a folder of shards, which `graphcl embed RUN PARTS` wrote; they stay on disk.
        count: number of groups of k-means. None chooses among 2, 3, 4, 5, 6, 8, 10, 12, 16 and 20
            the one with the highest silhouette on a sample of 5,000 nodes.
        graph: gives ids, and features for the profiles; needed if `source` is a model. Of shards,
            the path of the store in parts.
        method: ``kmeans``, or ``hdbscan``, which finds the number of groups itself and leaves out
            nodes between them; it sees the first 15 principal components, and of more than 20,000
            nodes a sample, whose groups the others join by their nearest neighbour in it.
        least: the smallest group of HDBSCAN; None means a hundredth of the nodes, at least 5.
        typical: how many nodes nearest to each centre are named.
        columns: what profiles compare; None takes those of `graph`.
        seed: decides samples and first centres.

    Raises:
        GraphError: fewer nodes than groups, or an embedding that is not finite.
    """
    require(method in METHODS, "cluster", option("method"), " or ".join(METHODS), method)
    number: Any = count  # perhaps a graph, given in its place
    whole = count is None or (isinstance(number, Integral) and count >= 2)
    require(whole, "cluster", option("count"), "a whole number of at least 2", count)
    require(least is None or least >= 2, "cluster", option("least"), "at least 2", least)
    by_hdbscan = method == "hdbscan"
    chosen = count is None or not by_hdbscan
    require(chosen, "cluster", option("count"), "left out with hdbscan", count)
    require(least is None or by_hdbscan, "cluster", option("least"), "None with kmeans", least)
    graph = graph_of(graph)
    given = embeddings_of(source, graph, "cluster")
    ids, z = ids_of(graph, given), given if hasattr(given, "shards") else np.asarray(given)
    demand(
        all(np.isfinite(z[one]).all() for one in blocks(len(z), _ROWS)),
        "cluster: an embedding is not finite",
    )
    if len(z) <= (count or 2):
        nodes = "1 node is" if len(z) == 1 else f"{len(z):,} nodes are"
        raise GraphError(f"cluster: {nodes} too few for {count or 2} groups")
    unit: Any = _UnitRows(z) if hasattr(z, "shards") else unit_rows(z)
    least = least or max(5, len(z) // 100)
    assigned, score, tried = _partition(unit, by_hdbscan, count, least, seed)
    demand(
        count is None or assigned.max() + 1 >= count,
        f"cluster: fewer than {count} distinct embeddings",
    )
    groups = _described(unit, ids, assigned, score, tried, method, typical)
    if columns is None and isinstance(graph, Graph):
        columns = originals(replace(graph.only_type, degree=graph.degrees()))
    again = _stability(unit, groups, by_hdbscan, least, seed)
    return replace(groups, profiles=profiles(assigned, columns or ()), stability=again)


class _UnitRows:
    """Embeddings on disk, whose rows are scaled to length 1 as they are read."""

    def __init__(self, z: Any) -> None:
        self.z, self.shape = z, z.shape

    def __len__(self) -> int:
        return len(self.z)

    def __getitem__(self, rows: Any) -> Array:
        return unit_rows(self.z[rows])


def _partition(
    unit: Any, by_hdbscan: bool, count: int | None, least: int, seed: int
) -> tuple[Array, float | None, dict[int, float]]:
    """Returns the group of each row, the silhouette, and that of each number that was tried."""
    if by_hdbscan:
        return _hdbscan(unit, least, seed)
    return _kmeans(unit, COUNTS if count is None else (count,), seed)


def _kmeans(
    unit: Any, counts: tuple[int, ...], seed: int
) -> tuple[Array, float | None, dict[int, float]]:
    """The centres are fitted on a sample, and every row is assigned to the nearest of them."""
    from sklearn.cluster import KMeans

    drawn = unit[sampled_rows(len(unit), seed, SAMPLE)]
    distinct = len(np.unique(drawn, axis=0))
    random_state = derive(seed, "clusters") % 2**32
    fitted = {
        count: KMeans(count, n_init=3, random_state=random_state).fit(drawn)
        for count in counts
        if count < distinct
    }
    tried = {count: silhouette(drawn, one.labels_, seed=seed) for count, one in fitted.items()}
    if not tried:
        return np.zeros(len(unit), np.int64), None, tried
    best = max(reversed(tried), key=lambda count: tried[count])
    each = [fitted[best].predict(unit[rows]) for rows in blocks(len(unit), _ROWS)]
    return by_size(np.concatenate(each).astype(np.int64)), tried[best], tried


def _stability(
    unit: Any, groups: Groups, by_hdbscan: bool, least: int, seed: int
) -> Stability | None:
    """Groups half of a sample again, with other seeds and the same number of groups."""
    from sklearn.metrics import adjusted_rand_score
    from sklearn.metrics.cluster import contingency_matrix

    count, sample = len(groups), sampled_rows(len(unit), seed, 2 * SAMPLE)
    half = len(sample) // 2
    if count < 2 or half <= count:
        return None
    scores, alike = [], np.full((AGAIN, count), np.nan)
    for turn in range(AGAIN):
        other = derive(seed, f"again {turn}") % 2**31
        rows = np.sort(np.random.default_rng(other).choice(sample, half, replace=False))
        found, _, _ = _partition(unit[rows], by_hdbscan, count, max(2, least // 2), other)
        before = groups.assigned[rows]
        scores.append(float(adjusted_rand_score(before, found)))
        both = contingency_matrix(before, found)
        either = both.sum(axis=1)[:, None] + both.sum(axis=0) - both
        there = np.unique(before)
        best = (both / either)[:, np.unique(found) >= 0].max(axis=1, initial=0)
        alike[turn, there[there >= 0]] = best[there >= 0]
    kept = np.nansum(alike, axis=0) / np.maximum(1, (~np.isnan(alike)).sum(axis=0))
    return Stability(AGAIN, float(np.mean(scores)), tuple(kept.tolist()))


def _hdbscan(unit: Any, least: int, seed: int) -> tuple[Array, float | None, dict[int, float]]:
    from sklearn.cluster import HDBSCAN
    from sklearn.decomposition import PCA

    rows = sampled_rows(len(unit), seed, MOST_FITTED)
    near = unit[rows]
    axes = PCA(min(DIMENSIONS, *near.shape), svd_solver="covariance_eigh")
    seen = axes.fit_transform(near.astype(np.float64))
    labels = HDBSCAN(min_cluster_size=min(least, len(seen)), copy=True).fit_predict(seen)
    assigned = np.full(len(unit), -1, np.int64)
    assigned[rows] = labels
    others = np.setdiff1d(np.arange(len(unit)), rows)
    for some in blocks(len(others), _BLOCK):
        block = others[some]
        assigned[block] = labels[(unit[block] @ near.T).argmax(axis=1)]
    assigned = by_size(assigned)
    inside = np.flatnonzero(assigned >= 0)
    score = None
    if len(inside) and assigned.max() >= 1:
        inside = inside[sampled_rows(len(inside), seed, SAMPLE)]
        score = silhouette(unit[inside], assigned[inside], seed=seed)
    return assigned, score, {}


def _described(
    unit: Any,
    ids: Array,
    assigned: Array,
    score: float | None,
    tried: dict[int, float],
    method: str,
    typical: int,
) -> Groups:
    sizes = np.bincount(assigned[assigned >= 0], minlength=int(assigned.max(initial=-1)) + 1)
    closeness, sums = np.full(len(unit), np.nan, np.float32), np.zeros((len(sizes), unit.shape[1]))
    for rows in blocks(len(unit), _ROWS):
        inside = assigned[rows] >= 0
        np.add.at(sums, assigned[rows][inside], unit[rows][inside].astype(np.float64))
    centres = unit_rows(sums) if len(sizes) else sums
    for rows in blocks(len(unit), _ROWS):
        cosines = np.einsum("nd,nd->n", unit[rows], centres[assigned[rows]]) if len(sizes) else 0
        closeness[rows] = np.where(assigned[rows] >= 0, cosines, np.nan)
    members = [np.flatnonzero(assigned == group) for group in range(len(sizes))]
    nearest = [some[np.argsort(-closeness[some], kind="stable")[:typical]] for some in members]
    return Groups(
        ids, assigned, tuple(sizes.tolist()), closeness, tuple(nearest), score, tried, method
    )
