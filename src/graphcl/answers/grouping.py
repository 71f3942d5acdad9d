"""Groups of similar nodes, and whether they would be found again.

What sets a group apart is in `graphcl.answers.profiles`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from graphcl.answers.inputs import embeddings_of, graph_of, ids_of
from graphcl.answers.ordering import id_order, inverse
from graphcl.answers.profiles import TESTS, Difference, profiles
from graphcl.arrays import Array, Integers, blocks
from graphcl.errors import GraphError, counted, demand, option, require
from graphcl.evaluation.unsupervised import SAMPLE, by_size, sampled_rows, silhouette, unit_rows
from graphcl.files.records import Answer
from graphcl.graphs.graph import Graph
from graphcl.seeding import derive
from graphcl.tabular.originals import Original, originals

METHODS = ("kmeans", "hdbscan")
COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
KEPT = 24  # groups that are described
AGAIN = 5  # times that the nodes are grouped again, to see whether groups stay
MOST_FITTED = 20_000  # rows that HDBSCAN compares with each other; the others follow the nearest
DIMENSIONS = 15  # principal components that it sees: in more, all distances are alike
_BLOCK, _ROWS = 4096, 1 << 16  # rows that HDBSCAN assigns, and that are read, at a time


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
            `graphcl.answers.profiles.Difference`. Empty where nothing is known but embeddings.
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
            "profile_tests": TESTS,
            "stability": None if self.stability is None else asdict(self.stability),
        }


def cluster(
    source: Any,
    count: int | None = None,
    *,
    graph: Any = None,
    ids: Any = None,
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
        ids: of the nodes; None takes those of `graph`. Groups do not depend on the order of rows:
            nodes are grouped in the order of their ids.
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
    z = given if hasattr(given, "shards") else np.asarray(given)
    ids = ids_of(graph, given) if ids is None else ids
    if len(ids) != len(z):
        raise GraphError(f"cluster: {len(ids):,} ids for {len(z):,} embeddings")
    demand(
        all(np.isfinite(z[one]).all() for one in blocks(len(z), _ROWS)),
        "cluster: an embedding is not finite",
    )
    if len(z) <= (count or 2):
        nodes = "1 node is" if len(z) == 1 else f"{len(z):,} nodes are"
        raise GraphError(f"cluster: {nodes} too few for {count or 2} groups")
    order = id_order(ids)
    unit: Any = _UnitRows(z, order)
    if not hasattr(z, "shards"):
        unit = unit_rows(z if order is None else z[order])
    least = least or max(5, len(z) // 100)
    assigned, score, tried = _partition(unit, by_hdbscan, count, least, seed)
    demand(
        count is None or assigned.max() + 1 >= count,
        f"cluster: fewer than {count} distinct embeddings",
    )
    groups = _described(unit, ids, assigned, score, tried, method, typical)
    if columns is None and isinstance(graph, Graph):
        columns = originals(replace(graph.only_type, degree=graph.degrees()))
    groups = replace(groups, stability=_stability(unit, groups, by_hdbscan, least, seed))
    if order is not None:
        groups = _in_rows(groups, order)
    return replace(groups, profiles=profiles(groups.assigned, columns or ()))


def _in_rows(groups: Groups, order: Integers) -> Groups:
    """Returns groups of nodes in the order of `order` as those of the rows themselves."""
    places = inverse(order)
    return replace(
        groups,
        assigned=groups.assigned[places],
        closeness=groups.closeness[places],
        typical=tuple(order[rows] for rows in groups.typical),
    )


class _UnitRows:
    """Embeddings on disk, whose rows are scaled to length 1 as they are read, in some order."""

    def __init__(self, z: Any, order: Integers | None = None) -> None:
        self.z, self.shape, self.order = z, z.shape, order

    def __len__(self) -> int:
        return len(self.z)

    def __getitem__(self, rows: Any) -> Array:
        return unit_rows(self.z[rows if self.order is None else self.order[rows]])


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
