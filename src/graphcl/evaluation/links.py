r"""How well scores of pairs find edges that were held out, beside three simple scores.

Some edges are removed before anything is learned. Each removed edge (u, v) is then ranked among
pairs (u, w) that are no edges. The simple scores see the remaining edges, or the features, alone:

.. math::
    \text{common neighbours} &= |N_u \cap N_v| \\
    \text{Adamic–Adar} &= \sum_{w \in N_u \cap N_v} 1 / \log |N_w| \\
    \text{features} &= \cos(x_u, x_v)
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, require
from graphcl.evaluation.nearest import unit_rows
from graphcl.graphs.graph import Graph

Array = npt.NDArray[Any]
HITS = (1, 10, 50)
_BLOCK = 1 << 16  # pairs that are scored at a time


@dataclass(frozen=True)
class LinkScores:
    """How well one score ranks held-out edges.

    Attributes:
        roc_auc: the chance that a held-out edge scores above a pair that is no edge.
        average_precision: over held-out edges and all pairs that they are compared with; by chance
            it is 1 / (1 + negatives).
        mrr: mean of 1 / rank of each held-out edge among its own pairs; ties count half.
        hits: fraction of held-out edges with rank 1, and among the first 10 and 50.
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
        edges: the removed edges, ``[held, 2]``, in a random direction.
        negatives: for each, nodes w for which (u, w) is no edge of the whole graph,
            ``[held, negatives]``.
    """

    graph: Graph
    edges: Array
    negatives: Array


def hold_out_edges(
    graph: Graph, *, share: float = 0.1, negatives: int = 100, seed: int = 0
) -> HeldOutEdges:
    """Removes a share of the edges at random, and draws pairs that are no edges.

    Args:
        graph: any graph.
        share: of the edges.
        negatives: pairs per removed edge, with the same first node and a second one drawn evenly
            among all nodes that are not linked to it. A node may be drawn twice.
        seed: decides both.

    Raises:
        GraphError: too few edges, or a node that is linked to all others.
    """
    require(0 < share < 1, "links", "share", "in (0, 1)", share)
    require(negatives >= 1, "links", "negatives", "at least 1", negatives)
    random = np.random.default_rng(seed)
    rows, columns = graph.edge_index()
    once = np.flatnonzero(rows < columns)
    count = round(share * len(once))
    if count < 1 or count >= len(once):
        raise GraphError(f"{graph.name}: {len(once)} edges are too few to hold out {share:.0%}")
    held = np.sort(random.choice(once, count, replace=False))
    codes = np.sort(rows[held] * np.int64(graph.num_nodes) + columns[held])
    entry = np.minimum(rows, columns) * np.int64(graph.num_nodes) + np.maximum(rows, columns)
    kept = ~_contains(codes, entry)
    degrees = np.bincount(rows[kept], minlength=graph.num_nodes)
    rest = replace(
        graph,
        indptr=np.concatenate([[0], np.cumsum(degrees)]).astype(graph.indptr.dtype),
        indices=np.ascontiguousarray(graph.indices[kept]),
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[kept],
        store=None,
    )
    edges = np.stack([rows[held], columns[held]], axis=1)
    turned = random.random(count) < 0.5
    edges[turned] = edges[turned][:, ::-1]
    return HeldOutEdges(rest, edges, _draw_negatives(graph, edges[:, 0], negatives, random))


def _draw_negatives(graph: Graph, first: Array, count: int, random: np.random.Generator) -> Array:
    n = graph.num_nodes
    full = np.flatnonzero(np.diff(graph.indptr)[first] >= n - 1)
    if len(full):
        raise GraphError(f"{graph.name}: node {first[full[0]]} is linked to all others")
    rows, columns = graph.edge_index()
    codes = rows * np.int64(n) + columns  # sorted, as CSR is
    found = random.integers(0, n, (len(first), count))
    while True:
        wrong = (found == first[:, None]) | _contains(codes, first[:, None] * np.int64(n) + found)
        if not wrong.any():
            return found
        found[wrong] = random.integers(0, n, int(wrong.sum()))


def _contains(codes: Array, wanted: Array) -> Array:
    """Returns which of `wanted` are among the sorted `codes`."""
    place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    found: Array = codes[place] == wanted
    return found


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
        hits={k: float((rank <= k).mean()) for k in HITS},
    )


def judge_links(held: HeldOutEdges, z: Any) -> dict[str, LinkScores]:
    """Ranks held-out edges by the cosine of embeddings, and by the three simple scores.

    `z` are embeddings of all nodes by an encoder that was trained on `held.graph` alone.
    """
    first = np.repeat(held.edges[:, 0], held.negatives.shape[1])
    pairs = np.concatenate([held.edges, np.stack([first, held.negatives.ravel()], axis=1)])
    adjacency = _adjacency(held.graph)
    degree = np.diff(held.graph.indptr)
    # A common neighbour has two neighbours at least, so that its logarithm is not 0.
    weight = 1 / np.log(np.maximum(degree, 2))
    by = {
        "embeddings": cosines(unit_rows(z), pairs),
        "common_neighbours": _overlap(adjacency, adjacency, pairs),
        "adamic_adar": _overlap(adjacency, adjacency * weight[None, :], pairs),
        "features": cosines(held.graph.x, pairs),
    }
    count = len(held.edges)
    return {
        name: rank_edges(scores[:count], scores[count:].reshape(held.negatives.shape))
        for name, scores in by.items()
    }


def _adjacency(graph: Graph) -> scipy.sparse.csr_array:
    ones = np.ones(len(graph.indices))
    shape = (graph.num_nodes, graph.num_nodes)
    return scipy.sparse.csr_array((ones, graph.indices, graph.indptr), shape=shape)


def _overlap(first: Any, second: Any, pairs: Array) -> Array:
    first, second = scipy.sparse.csr_array(first), scipy.sparse.csr_array(second)
    blocks = [pairs[start : start + _BLOCK] for start in range(0, len(pairs), _BLOCK)]
    return np.concatenate(
        [np.asarray((first[b[:, 0]] * second[b[:, 1]]).sum(axis=1)).ravel() for b in blocks]
    )


def cosines(x: Any, pairs: Array) -> Array:
    """Returns the cosine of two rows for every pair; 0 where a row is all 0."""
    found = []
    for start in range(0, len(pairs), _BLOCK):
        block = pairs[start : start + _BLOCK]
        if scipy.sparse.issparse(x):
            a, b = x[block[:, 0]], x[block[:, 1]]
            product = np.asarray((a * b).sum(axis=1)).ravel()
            lengths = [np.sqrt(np.asarray((one * one).sum(axis=1)).ravel()) for one in (a, b)]
        else:
            a, b = (np.asarray(x[block[:, side]], np.float64) for side in (0, 1))
            product = np.einsum("ij,ij->i", a, b)
            lengths = [np.linalg.norm(one, axis=1) for one in (a, b)]
        scale = lengths[0] * lengths[1]
        found.append(np.divide(product, scale, out=np.zeros(len(block)), where=scale > 0))
    return np.concatenate(found) if found else np.zeros(0)
