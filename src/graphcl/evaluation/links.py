r"""How well scores of pairs find edges that were held out, beside three simple scores.

Some linked pairs are removed before anything is learned, with all that joins them. Each removed
pair (u, v) is then ranked among pairs (u, w) that are not linked. The simple scores see the
remaining edges, or the features, alone:

.. math::
    \text{common neighbours} &= |N_u \cap N_v| \\
    \text{Adamic–Adar} &= \sum_{w \in N_u \cap N_v} 1 / \log |N_w| \\
    \text{features} &= \cos(x_u, x_v)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Array, blocks, sized_blocks
from graphcl.errors import GraphError, counted, demand, require
from graphcl.evaluation.unsupervised import unit_rows
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Relation
from graphcl.graphs.structural import follow_edges
from graphcl.settings import LINKS_BY

HITS = (1, 10, 50)
STRUCTURAL = LINKS_BY[2:]  # scores by the edges alone
_BLOCK = 1 << 16  # pairs that are scored at a time


@dataclass(frozen=True)
class LinkScores:
    """How well one score ranks held-out edges.

    Attributes:
        roc_auc: the chance that a held-out edge scores above a pair that is no edge.
        average_precision: over held-out edges and all pairs that they are compared with; by chance
            it is 1 / (1 + negatives).
        mrr: mean of 1 / rank of each held-out edge among its own pairs; ties count half.
        hits: fraction of held-out edges with rank 1, and among the first 10 and 50; only of ranks
            that an edge can miss, that is, up to the number of its pairs.
    """

    roc_auc: float
    average_precision: float
    mrr: float
    hits: dict[int, float]


@dataclass(frozen=True, eq=False)
class HeldOutEdges:
    """A graph without some of its edges, and what they are compared with.

    Attributes:
        graph: what remains; all nodes are there.
        relation: what remains of the edges that are judged.
        edges: the removed pairs, ``[held, 2]``: sources and targets. Where a pair is linked in both
            directions, as in a plain graph, the direction is random.
        negatives: for each, nodes w for which u and w are not linked in the whole graph,
            ``[held, negatives]``.
    """

    graph: Any
    relation: Relation
    edges: Array
    negatives: Array

    @property
    def pairs(self) -> Array:
        """The removed pairs, then what they are compared with, ``[held · (1 + negatives), 2]``."""
        first = np.repeat(self.edges[:, 0], self.negatives.shape[1])
        return np.concatenate([self.edges, np.stack([first, self.negatives.ravel()], axis=1)])

    def rank(self, by: Mapping[str, Array]) -> dict[str, LinkScores]:
        """Judges scores of `pairs`, by name."""
        count, shape = len(self.edges), self.negatives.shape
        return {
            name: rank_edges(scores[:count], scores[count:].reshape(shape))
            for name, scores in by.items()
        }


def hold_out_edges(
    graph: Graph,
    relation: str | None = None,
    *,
    share: float = 0.1,
    negatives: int = 100,
    seed: int = 0,
    held: Array | None = None,
) -> HeldOutEdges:
    """Removes a share of the linked pairs at random, and draws pairs that are not linked.

    Whatever joins a removed pair goes: parallel edges with what they carry, the other direction,
    and edges of other relations between the two types, of which one may be this one read backwards.
    Features that `structural_features` computed from the edges are computed from those that remain.

    Args:
        graph: a plain or a typed graph.
        relation: of a typed graph: the relation that is judged.
        share: of the pairs that it links.
        negatives: pairs per removed pair, with the same source and a target drawn evenly among all
            nodes that no edge joins to it, in any direction. A node may be drawn twice.
        seed: decides both.
        held: the `pair_codes` of pairs to remove instead of a share of them.

    Raises:
        GraphError: too few edges, or a source that is linked to all targets.
    """
    require(0 < share < 1, "links", "share", "in (0, 1)", share)
    require(negatives >= 1, "links", "negatives", "at least 1", negatives)
    random = np.random.default_rng(seed)
    graph.check()
    whole = graph.relation(relation or next(iter(graph.relations))[1])
    name = graph.name if graph.is_plain else f"relation {':'.join(whole.key)}"
    codes = {key: pair_codes(one, whole) for key, one in graph.relations.items()}
    targets = len(whole.indptr) - 1
    listed = np.unique(codes[whole.key])
    linked = np.unique(np.concatenate([one for one in codes.values() if one is not None]))
    sources = graph.nodes[whole.source].num_nodes
    pairs = sources * (targets - 1) // 2 if whole.source == whole.target else sources * targets
    demand(len(linked) < pairs, f"{name}: every pair is already linked")
    count = round(share * len(listed)) if held is None else len(held)
    if held is None and not 1 <= count < len(listed):
        number = counted(len(listed), "linked pair")
        raise GraphError(f"{name}: {number}: too few to hold out {share:.0%}")
    held = np.sort(random.choice(listed, count, replace=False)) if held is None else np.sort(held)
    edges = np.stack([held // targets, held % targets], axis=1)
    if whole.source == whole.target:
        sources, ends = whole.edge_index()
        directed = np.unique(sources * np.int64(targets) + ends)
        there, back = (
            contains(directed, one[:, 0] * np.int64(targets) + one[:, 1])
            for one in (edges, edges[:, ::-1])
        )
        either = random.random(count) < 0.5
        # A source that is linked to all others has nothing to be compared with.
        degrees = np.bincount(np.concatenate([linked // targets, linked % targets]))
        full = degrees[edges] == targets - 1
        either = np.where(full[:, 0] == full[:, 1], either, full[:, 0])
        turned = np.where(there & back, either, back)
        edges[turned] = edges[turned][:, ::-1]
    ids = graph.nodes[whole.source].ids
    drawn = _draw_negatives(whole, edges[:, 0], linked, negatives, random, name, ids)
    rest = {
        key: one if codes[key] is None else _without(one, contains(held, codes[key]))
        for key, one in graph.relations.items()
    }
    left = rest[whole.key]
    nodes = dict(graph.nodes)
    if whole.source == whole.target:
        own = nodes[whole.source]
        nodes[whole.source] = replace(own, x=follow_edges(own.x, whole, left))
    return HeldOutEdges(replace(graph, nodes=nodes, relations=rest, store=None), left, edges, drawn)


def pair_codes(relation: Relation, judged: Relation) -> Any:
    """Returns a number for the pair of each entry, of pairs that another relation may have too.

    Directions are forgotten: within one type the lower node is first, else the judged relation's
    source. None if the two relations do not join the same types.
    """
    first, second = relation.edge_index()
    ends = (relation.source, relation.target)
    if ends == (judged.target, judged.source) and ends[0] != ends[1]:
        first, second = second, first
    elif ends != (judged.source, judged.target):
        return None
    if ends[0] == ends[1]:
        first, second = np.minimum(first, second), np.maximum(first, second)
    return first * np.int64(len(judged.indptr) - 1) + second


def _without(relation: Relation, gone: Array) -> Relation:
    """Returns the relation without some of its entries."""
    kept = ~gone
    degrees = np.bincount(relation.targets()[kept], minlength=len(relation.indptr) - 1)
    fields = ("indices", "edge_weight", "edge_features", "edge_ids")
    given = {name: getattr(relation, name) for name in fields}
    left: dict[str, Any] = {name: None if one is None else one[kept] for name, one in given.items()}
    if left["edge_ids"] is not None:
        left["edge_ids"] = np.unique(left["edge_ids"], return_inverse=True)[1].reshape(-1)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(relation.indptr.dtype)
    return replace(relation, indptr=indptr, **left)


def _draw_negatives(
    relation: Relation,
    first: Array,
    linked: Array,
    count: int,
    random: np.random.Generator,
    name: str,
    ids: Any,
) -> Array:
    """Returns targets that the sources `first` are not linked to, ``[sources, count]``."""
    within, targets = relation.source == relation.target, len(relation.indptr) - 1
    ends = [linked // targets, *([linked % targets] if within else [])]
    degree = np.bincount(np.concatenate(ends), minlength=int(first.max()) + 1)
    full = np.flatnonzero(degree[first] >= targets - within)
    if len(full):
        raise GraphError(f"{name}: node {ids[first[full[0]]]} is linked to all others")
    found = random.integers(0, targets, (len(first), count))
    while True:
        low, high = np.broadcast_to(first[:, None], found.shape), found
        if within:
            low, high = np.minimum(low, high), np.maximum(low, high)
        wrong = contains(linked, low * np.int64(targets) + high)
        if within:
            wrong |= found == first[:, None]
        if not wrong.any():
            return found
        found[wrong] = random.integers(0, targets, int(wrong.sum()))


def contains(codes: Array, wanted: Array) -> Array:
    """Returns which of `wanted` are among the sorted `codes`."""
    place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return np.asarray(codes[place] == wanted)


def rank_edges(positive: Array, negative: Array) -> LinkScores:
    """Scores a ranking: `positive` ``[held]``, and `negative` ``[held, negatives]``."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    above = (negative > positive[:, None]).sum(axis=1)
    level = (negative == positive[:, None]).sum(axis=1)
    rank = 1 + above + level / 2
    truth = np.concatenate([np.ones(positive.size), np.zeros(negative.size)])
    scores = np.concatenate([positive, negative.ravel()])
    return LinkScores(
        roc_auc=float(roc_auc_score(truth, scores)),
        average_precision=float(average_precision_score(truth, scores)),
        mrr=float((1 / rank).mean()),
        hits={k: float((rank <= k).mean()) for k in HITS if k <= negative.shape[1]},
    )


def simple_scores(held: HeldOutEdges, z: Any) -> dict[str, Array]:
    """Returns scores of `held.pairs` by the cosine of embeddings, and by three simple things.

    `z` are embeddings of all nodes by an encoder that was trained on `held.graph` alone.
    """
    pairs = held.pairs
    return {
        "embeddings": cosines(unit_rows(z), pairs),
        **{name: overlap(*neighbourhoods(held.relation, name), pairs) for name in STRUCTURAL},
        "features": cosines(held.graph.x, pairs),
    }


def adjacency(relation: Relation, sources: int) -> Any:
    """Returns the sources of each target, CSR ``[targets, sources]``; parallel edges count."""
    ones = np.ones(len(relation.indices), np.float32)
    shape = (len(relation.indptr) - 1, sources)
    return scipy.sparse.csr_array((ones, relation.indices, relation.indptr), shape=shape)


def neighbourhoods(relation: Relation, by: str = "common_neighbours") -> tuple[Any, Any]:
    """Returns two CSR matrices: the product of row u and row v is the score of (u, v).

    The relation is within one type, and either direction makes neighbours. `by` is one of
    `STRUCTURAL`.
    """
    near = adjacency(relation, len(relation.indptr) - 1)
    if not relation.undirected:
        near = (near + near.T).tocsr()
    near = near.astype(np.float64)
    near.sum_duplicates()
    near.data[:] = 1
    if by == "common_neighbours":
        return near, near
    # A common neighbour has two neighbours at least, so that its logarithm is not 0.
    weight = 1 / np.log(np.maximum(np.diff(near.indptr), 2))
    return near, scipy.sparse.csr_array(near * weight[None, :])


def overlap(first: Any, second: Any, pairs: Array) -> Array:
    """Returns the products of rows of two matrices, for every pair."""
    found = np.zeros(len(pairs))
    sizes = np.diff(first.indptr)[pairs[:, 0]] + np.diff(second.indptr)[pairs[:, 1]]
    for some in sized_blocks(sizes):  # a hub's row is there once for each of its pairs
        product = first[pairs[some, 0]] * second[pairs[some, 1]]
        found[some] = np.asarray(product.sum(axis=1)).ravel()
    return found


def cosines(x: Any, pairs: Array) -> Array:
    """Returns the cosine of two rows for every pair; 0 where a row is all 0."""
    found = np.zeros(len(pairs))
    for some in blocks(len(pairs), _BLOCK):
        a, b = (x[pairs[some, side]].astype(np.float64) for side in (0, 1))
        product, of_a, of_b = (
            np.asarray((one * other).sum(axis=1)).ravel() for one, other in ((a, b), (a, a), (b, b))
        )
        scale = np.sqrt(of_a) * np.sqrt(of_b)
        np.divide(product, scale, out=found[some], where=scale > 0)
    return found
