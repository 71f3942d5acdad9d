"""Groups of similar nodes: k-means with the number of groups chosen, or HDBSCAN."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.answers.inputs import embeddings_of, graph_of, ids_of
from graphcl.errors import GraphError, counted, option, require
from graphcl.evaluation.nearest import unit_rows
from graphcl.evaluation.unsupervised import CLUSTER_COUNTS, by_size, sampled_rows, silhouette
from graphcl.evaluation.unsupervised import cluster as kmeans
from graphcl.files.records import Answer

Array = npt.NDArray[Any]
METHODS = ("kmeans", "hdbscan")
MOST_FITTED = 20_000  # rows that HDBSCAN compares with each other; the others follow the nearest
DIMENSIONS = 15  # principal components that it sees: in more, all distances are alike
_BLOCK = 4096


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
    """

    ids: Array
    assigned: Array
    sizes: tuple[int, ...]
    closeness: Array
    typical: tuple[Array, ...]
    silhouette: float | None
    tried: dict[int, float]
    method: str

    def __len__(self) -> int:
        return len(self.sizes)

    def title(self) -> str:
        """Returns what is said above the table."""
        silhouette = "" if self.silhouette is None else f", silhouette {self.silhouette:.3f}"
        sizes = ", ".join(f"{size:,}" for size in self.sizes[:6]) + ", …" * (len(self.sizes) > 6)
        groups = counted(len(self), "group")
        return f"Groups: {groups} of {len(self.ids):,} nodes ({sizes}){silhouette}"

    def columns(self) -> dict[str, Any]:
        """Returns the table that `graphcl cluster` writes; groups are counted from 1, 0 is none."""
        closeness = [None if np.isnan(one) else one for one in self.closeness.tolist()]
        return {"id": self.ids, "group": self.assigned + 1, "closeness": closeness}


def cluster(
    source: Any,
    count: int | None = None,
    *,
    graph: Any = None,
    method: str = "kmeans",
    least: int | None = None,
    typical: int = 5,
    seed: int = 0,
) -> Groups:
    """Groups nodes by their embeddings, which are first scaled to length 1.

    Args:
        source: embeddings ``[num_nodes, dim]``; a fitted model, which then embeds `graph`; or the
            path of a folder of shards, which `graphcl embed RUN PARTS` wrote; they are read whole.
        count: number of groups of k-means. None chooses among 2, 3, 4, 5, 6, 8, 10, 12, 16 and 20
            the one with the highest silhouette on a sample of 5,000 nodes.
        graph: gives ids; needed if `source` is a model. Of shards, the path of the store in parts.
        method: ``kmeans``, or ``hdbscan``, which finds the number of groups itself and leaves out
            nodes between them; it sees the first 15 principal components, and of more than 20,000
            nodes a sample, whose groups the others join by their nearest neighbour in it.
        least: the smallest group of HDBSCAN; None means a hundredth of the nodes, at least 5.
        typical: how many nodes nearest to each centre are named.
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
    require(count is None or not by_hdbscan, "cluster", option("count"), "None with hdbscan", count)
    require(least is None or by_hdbscan, "cluster", option("least"), "None with kmeans", least)
    graph = graph_of(graph)
    given = embeddings_of(source, graph, "cluster")
    ids, z = ids_of(graph, given), np.asarray(given)
    if not np.isfinite(z).all():
        raise GraphError("cluster: an embedding is not finite")
    if len(z) <= (count or 2):
        nodes = "1 node is" if len(z) == 1 else f"{len(z):,} nodes are"
        raise GraphError(f"cluster: {nodes} too few for {count or 2} groups")
    unit = unit_rows(z)
    if by_hdbscan:
        assigned, score, tried = _hdbscan(unit, least or max(5, len(z) // 100), seed)
    else:
        found = kmeans(unit, CLUSTER_COUNTS if count is None else (count,), seed=seed)
        assigned, score, tried = found.assigned, found.silhouette, found.tried
        if count is not None and len(found.sizes) < count:
            raise GraphError(f"cluster: fewer than {count} distinct embeddings")
    return _described(unit, ids, assigned, score, tried, method, typical)


def _hdbscan(unit: Array, least: int, seed: int) -> tuple[Array, float | None, dict[int, float]]:
    from sklearn.cluster import HDBSCAN

    rows = sampled_rows(len(unit), seed, MOST_FITTED)
    drawn = unit[rows].astype(np.float64)
    centred = drawn - drawn.mean(axis=0)
    _, _, axes = np.linalg.svd(centred.T @ centred if len(drawn) > unit.shape[1] else centred)
    seen = centred @ axes[:DIMENSIONS].T
    labels = HDBSCAN(min_cluster_size=min(least, len(seen)), copy=True).fit_predict(seen)
    assigned = np.full(len(unit), -1, np.int64)
    assigned[rows] = labels
    others = np.setdiff1d(np.arange(len(unit)), rows)
    for start in range(0, len(others), _BLOCK):
        block = others[start : start + _BLOCK]
        assigned[block] = labels[(unit[block] @ unit[rows].T).argmax(axis=1)]
    assigned = by_size(assigned)
    inside = np.flatnonzero(assigned >= 0)
    score = None
    if len(inside) and assigned.max() >= 1:
        score = silhouette(unit[inside], assigned[inside], seed=seed)
    return assigned, score, {}


def _described(
    unit: Array,
    ids: Array,
    assigned: Array,
    score: float | None,
    tried: dict[int, float],
    method: str,
    typical: int,
) -> Groups:
    closeness = np.full(len(unit), np.nan, np.float32)
    nearest = []
    count = int(assigned.max(initial=-1)) + 1
    for group in range(count):
        members = np.flatnonzero(assigned == group)
        centre = unit_rows(unit[members].mean(axis=0, dtype=np.float64)[None])[0]
        closeness[members] = unit[members] @ centre
        order = np.argsort(-closeness[members], kind="stable")[:typical]
        nearest.append(members[order])
    sizes = np.bincount(assigned[assigned >= 0], minlength=count)
    return Groups(
        ids, assigned, tuple(sizes.tolist()), closeness, tuple(nearest), score, tried, method
    )
