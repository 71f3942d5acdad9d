"""Links: scores of pairs, likely links that are missing, and how far to trust them.

The score of a pair is the cosine of its embeddings. `evaluate_links` says what it is worth on a
graph, beside simpler scores.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.answers.inputs import embeddings_of, ids_of, rows_of
from graphcl.errors import GraphError, require
from graphcl.evaluation.links import LinkScores, cosines, hold_out_edges, judge_links
from graphcl.evaluation.nearest import EXACT_ROWS, build_index, unit_rows
from graphcl.graphs.graph import Graph
from graphcl.graphs.typed import TypedGraph

Array = npt.NDArray[Any]
PER_NODE = 50  # nearest nodes in which the links of a large graph are searched
_BLOCK_PAIRS = 1 << 24  # similarities held at once


@dataclass(frozen=True, eq=False)
class Links:
    """Pairs of nodes and their scores.

    Attributes:
        pairs: numbers of the nodes, ``[n, 2]``.
        source: ids of the first nodes.
        target: ids of the second nodes.
        scores: cosines of their embeddings, ``[n]``; the higher, the more likely a link.
        linked: whether the graph has the edge already; None without a graph.
    """

    pairs: Array
    source: Array
    target: Array
    scores: Array
    linked: Array | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def columns(self) -> dict[str, Any]:
        """Returns the table that `graphcl links` writes."""
        table: dict[str, Any] = {"source": self.source, "target": self.target}
        table["score"] = self.scores.astype(np.float32)
        if self.linked is not None and self.linked.any():
            table["linked"] = self.linked
        return table


@dataclass(frozen=True)
class LinkEvaluation:
    """What scores of pairs are worth on a graph.

    Attributes:
        scores: by ``embeddings``, ``common_neighbours``, ``adamic_adar`` and ``features``.
        held_out: number of edges that were removed before training.
        negatives: pairs that are no edges, per removed edge.
        share: of the edges that was removed.
        seed: decides which.
    """

    scores: dict[str, LinkScores]
    held_out: int
    negatives: int
    share: float
    seed: int


def links(
    source: Any,
    pairs: Any = None,
    *,
    graph: Any = None,
    nodes: Any = None,
    k: int = 10,
    relation: str | None = None,
) -> Links:
    """Returns scores of given pairs, or the most likely links that a graph does not have.

    Args:
        source: embeddings ``[num_nodes, dim]``; a fitted model, which then embeds `graph`; or, to
            score pairs, the path of a folder of shards, which `graphcl embed RUN PARTS` wrote. Of a
            typed graph, a dictionary of embeddings by type.
        pairs: pairs of ids to score, ``[n, 2]``. Without a graph, ids are those in `.parquet`
            shards, else row numbers.
        graph: the graph; needed for missing links, which leave out its edges; and of a typed graph
            always. Pairs are then a source and a target of its `relation`, and `nodes` sources.
        nodes: ids of nodes; the k most likely missing links of each are returned, best first.
            With neither `pairs` nor `nodes`, those of the whole graph. Above 20,000 nodes an index
            is searched: it finds nearly all, and per node among the nearest `PER_NODE`.
        k: number of missing links.
        relation: of a typed graph: the name of the relation; not needed if it has one. Its scores
            are those of `graphcl.answers.typed_links`.

    Raises:
        GraphError: an id is unknown, or there is no graph to tell what is missing.
    """
    if relation is not None or _is_typed(graph):
        from graphcl.answers.typed_links import links_of_relation

        return links_of_relation(source, graph, relation, pairs=pairs, nodes=nodes, k=k)
    z = embeddings_of(source, graph, "links")
    ids = ids_of(graph, z)
    if pairs is not None:
        return score_pairs(z, ids, pairs, graph)
    if graph is None:
        raise GraphError("links: missing links need the graph; pass graph=, or pairs to score")
    rows = None if nodes is None else rows_of(nodes, ids, "links", GraphError)
    return missing_links(z, ids, graph, rows=rows, k=k)


def _is_typed(graph: Any) -> bool:
    return hasattr(graph, "node_types") or isinstance(graph, TypedGraph)


def score_pairs(z: Any, ids: Any, pairs: Any, graph: Graph | None = None) -> Links:
    """Returns the scores of pairs of ids."""
    given = list(pairs.tolist() if isinstance(pairs, np.ndarray) else pairs)
    if any(isinstance(pair, str) or len(pair) != 2 for pair in given):
        raise GraphError("links: pairs must be pairs of ids, [n, 2]")
    flat = rows_of([one for pair in given for one in pair], ids, "links", GraphError)
    numbers = flat.reshape(-1, 2)
    linked = None if graph is None else _are_edges(graph, numbers)
    scores = cosines(z, numbers)
    return Links(numbers, ids[numbers[:, 0]], ids[numbers[:, 1]], scores, linked)


def _are_edges(graph: Graph, pairs: Array) -> Array:
    graph.check()
    found = np.zeros(len(pairs), np.bool_)
    for place, (u, v) in enumerate(pairs.tolist()):
        neighbours = graph.indices[graph.indptr[u] : graph.indptr[u + 1]]
        at = int(np.searchsorted(neighbours, v))
        found[place] = at < len(neighbours) and neighbours[at] == v
    return found


def missing_links(
    z: Array,
    ids: Array,
    graph: Graph,
    *,
    rows: Array | None = None,
    k: int = 10,
    index: Any = None,
    exact_rows: int = EXACT_ROWS,
) -> Links:
    """Returns the `k` most likely links that the graph lacks: of each of some rows, or in all.

    Args:
        z: embeddings.
        ids: of the nodes.
        graph: its edges are left out.
        rows: nodes; None means the whole graph.
        k: number of links.
        index: over the rows of `z`, to be searched; None builds one where all pairs are too many.
        exact_rows: up to this many nodes, all pairs are compared if there is no index.
    """
    require(k >= 1, "links", "k", "at least 1", k)
    graph.check()
    unit = unit_rows(z)
    if index is None and len(unit) > exact_rows:
        index = build_index(unit)
    if rows is not None:
        found = [_of_node(unit, graph, int(row), k, index) for row in rows]
        pairs, scores = (np.concatenate(part) for part in zip(*found, strict=True))
    elif index is None:
        pairs, scores = _of_graph(unit, graph, k)
    else:
        pairs, scores = _of_large_graph(unit, graph, k, index)
    return Links(pairs, ids[pairs[:, 0]], ids[pairs[:, 1]], scores)


def _of_node(unit: Array, graph: Graph, row: int, k: int, index: Any) -> tuple[Array, Array]:
    neighbours = graph.indices[graph.indptr[row] : graph.indptr[row + 1]]
    taken = np.append(neighbours, row)
    if index is None:
        scores = unit @ unit[row]
        scores[taken] = -np.inf
        keys = _best(scores, min(k, len(unit) - len(taken)))
    else:
        found = index.search(unit[row], min(len(unit), k + len(taken)))
        keys = found.keys.astype(np.int64)
        keys = keys[~np.isin(keys, taken)][:k]
    scores = unit[keys] @ unit[row]
    order = np.lexsort((keys, -scores))
    return np.stack([np.full(len(keys), row), keys], axis=1)[order], scores[order]


def _best(scores: Array, k: int) -> Array:
    """Returns the places of the k highest scores, the first of equals before later ones."""
    if k <= 0:
        return np.zeros(0, np.int64)
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > least)
        level = np.flatnonzero(scores == least)[: k - len(above)]
        return np.sort(np.concatenate([above, level]))
    return np.arange(len(scores))


def _of_graph(unit: Array, graph: Graph, k: int) -> tuple[Array, Array]:
    """Compares all pairs, block by block, and keeps the k best."""
    n = len(unit)
    pairs, scores = np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
    block = max(1, _BLOCK_PAIRS // n)
    for start in range(0, n, block):
        stop = min(start + block, n)
        similar = unit[start:stop] @ unit.T
        entries = slice(int(graph.indptr[start]), int(graph.indptr[stop]))
        own = np.repeat(np.arange(stop - start), np.diff(graph.indptr[start : stop + 1]))
        similar[own, graph.indices[entries]] = -np.inf
        similar[np.arange(n)[None, :] <= np.arange(start, stop)[:, None]] = -np.inf  # once each
        flat = similar.ravel()
        best = _best(flat, min(k, len(flat)))
        best = best[flat[best] > -np.inf]
        new = np.stack([start + best // n, best % n], axis=1)
        pairs, scores = _merge(pairs, scores, new, flat[best], k)
    return pairs, scores


def _of_large_graph(unit: Array, graph: Graph, k: int, index: Any) -> tuple[Array, Array]:
    """Keeps the k best among the nearest `PER_NODE` nodes of every node."""
    n = len(unit)
    pairs, scores = np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
    for start in range(0, n, 16384):
        rows = np.arange(start, min(start + 16384, n))
        found = index.search(unit[rows], min(n, PER_NODE + 1), threads=0)
        keys = np.asarray(found.keys).reshape(len(rows), -1).astype(np.int64)
        first, second = np.repeat(rows, keys.shape[1]), keys.ravel()
        low, high = np.minimum(first, second), np.maximum(first, second)
        codes = np.unique((low * np.int64(n) + high)[low != high])
        new = np.stack([codes // n, codes % n], axis=1)
        own, entries = graph.indptr[start], graph.indptr[rows[-1] + 1]
        sources = np.repeat(rows, np.diff(graph.indptr[start : rows[-1] + 2]))
        targets = graph.indices[own:entries].astype(np.int64)
        edges = np.minimum(sources, targets) * np.int64(n) + np.maximum(sources, targets)
        new = new[~np.isin(codes, edges)]
        pairs, scores = _merge(pairs, scores, new, cosines(unit, new).astype(np.float32), k)
    return pairs, scores


def _merge(pairs: Array, scores: Array, new: Array, of_new: Array, k: int) -> tuple[Array, Array]:
    """Returns the k best of two lists of pairs, best first; a pair that is in both counts once."""
    every, of_every = np.concatenate([pairs, new]), np.concatenate([scores, of_new])
    _, first = np.unique(every, axis=0, return_index=True)
    every, of_every = every[first], of_every[first]
    order = np.lexsort((every[:, 1], every[:, 0], -of_every))[:k]
    return every[order], of_every[order]


def evaluate_links(
    model: Any,
    graph: Any,
    *,
    share: float = 0.1,
    negatives: int = 100,
    seed: int = 0,
    relation: str | None = None,
) -> LinkEvaluation:
    """Says what link scores are worth on a graph, on edges that nothing has seen.

    A share of the edges is removed, a new model with the same settings is trained on the rest, and
    each removed edge is ranked among pairs that are no edges: by the cosine of the embeddings, by
    common neighbours, by Adamic–Adar and by the cosine of the features.

    Args:
        model: its settings are used; it is not changed.
        graph: one graph; of a typed one, the links of one relation are judged, beside the number
            of edges that a target has.
        share: of the edges that is removed.
        negatives: pairs per removed edge.
        seed: decides which edges and pairs.
        relation: of a typed graph: the name of the relation; not needed if it has one.
    """
    from sklearn.base import clone

    if relation is not None or _is_typed(graph):
        from graphcl.answers.typed_links import evaluate_relation, one_relation

        typed, found = one_relation(graph, relation)
        return evaluate_relation(
            model, typed, ":".join(found.key), share=share, negatives=negatives, seed=seed
        )
    if not isinstance(graph, Graph):
        raise GraphError("links: an evaluation takes one graph")
    held = hold_out_edges(graph, share=share, negatives=negatives, seed=seed)
    z = np.asarray(clone(model).set_output(transform="default").fit_transform(held.graph))
    return LinkEvaluation(judge_links(held, z), len(held.edges), negatives, share, seed)
