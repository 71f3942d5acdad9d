r"""Links: scores of pairs, likely links that are missing, and how far to trust them.

The score of a pair is the cosine of its embeddings, or one by common neighbours. `evaluate_links`
says what each is worth on a graph.

Embeddings of two types are not compared with each other, because nothing has brought them into one
space. Of a relation of a typed graph, a source u is compared with the sources that a target v has,
and v with the targets that u has:

.. math::
    s(u, v) = \tfrac12 \cos\Big(z_u, \sum_{w \in N_v} \hat z_w\Big)
            + \tfrac12 \cos\Big(z_v, \sum_{w \in N_u} \hat z_w\Big)

with unit vectors :math:`\hat z`: customers like those who bought it, and products like those that
she bought. A node without edges of the relation adds 0.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.answers.inputs import chosen_rows, embeddings_of, graph_of, ids_of
from graphcl.answers.similar import nearest_without
from graphcl.errors import GraphError, option, require
from graphcl.evaluation.links import (
    STRUCTURAL,
    HeldOutEdges,
    LinkScores,
    cosines,
    hold_out_edges,
    judge_links,
    neighbourhoods,
    overlap,
)
from graphcl.evaluation.nearest import EXACT_ROWS, build_index, unit_rows
from graphcl.files.records import Answer
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Relation
from graphcl.settings import LINKS_BY
from graphcl.store.columns import rows_of

Array = npt.NDArray[Any]
PER_NODE = 50  # nearest nodes in which the links of a large graph are searched
_BLOCK_PAIRS = 1 << 24  # similarities held at once


@dataclass(frozen=True, eq=False, repr=False)
class Links(Answer):
    """Pairs of nodes and their scores.

    Attributes:
        pairs: numbers of the nodes, ``[n, 2]``.
        source: ids of the first nodes.
        target: ids of the second nodes.
        scores: ``[n]``; the higher, the more likely a link.
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


@dataclass(frozen=True, repr=False)
class LinkEvaluation(Answer):
    """What scores of pairs are worth on a graph.

    Attributes:
        scores: by ``embeddings``, ``common_neighbours``, ``adamic_adar`` and ``features``.
        held_out: number of linked pairs that were removed before training.
        negatives: pairs that are not linked, per removed pair.
        share: of the linked pairs that was removed.
        seed: decides which.
        after: the day after which the pairs were linked; empty if they were removed at random.
    """

    scores: dict[str, LinkScores]
    held_out: int
    negatives: int
    share: float
    seed: int
    after: str = ""

    def columns(self) -> dict[str, Any]:
        """Returns a row per score."""
        table: dict[str, Any] = {"score": list(self.scores)}
        for name in ("roc_auc", "average_precision", "mrr"):
            table[name] = [getattr(one, name) for one in self.scores.values()]
        scores = list(self.scores.values())
        for k in scores[0].hits if scores else ():  # those that mean something among so few pairs
            table[f"hits@{k}"] = [one.hits[k] for one in scores]
        return table


def links(
    source: Any,
    pairs: Any = None,
    *,
    graph: Any = None,
    nodes: Any = None,
    rows: Any = None,
    k: int = 10,
    relation: str | None = None,
    by: str = "embeddings",
    index: Any = None,
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
        rows: instead of `nodes`: row numbers, a range or a mask.
        k: number of missing links.
        relation: of a typed graph: the name of the relation; not needed if it has one. Its scores
            are those of `graphcl.answers.linking`.
        by: ``embeddings``, whose cosine is the score; ``common_neighbours`` or ``adamic_adar``,
            which need the graph and no embeddings: `source` may be None. Of a typed graph,
            ``embeddings``.
        index: over the embeddings, as `graphcl neighbors` keeps one in a run; None builds one if
            the graph is large.

    Raises:
        GraphError: an id is unknown, or there is no graph to tell what is missing.
    """
    require(by in LINKS_BY, "links", option("by"), f"one of {', '.join(LINKS_BY)}", by)
    require(k >= 1, "links", "k", "at least 1", k)
    if graph is None and (pairs is None or by != LINKS_BY[0]):
        raise GraphError("links: missing links need the graph; pass graph=, or pairs to score")
    everywhere = nodes is None and rows is None
    graph = graph_of(graph)
    if relation is not None or (isinstance(graph, Graph) and not graph.is_plain):
        only = f"{LINKS_BY[0]} for a typed graph"
        require(by == LINKS_BY[0], "links", option("by"), only, by)
        found = meant_relation(graph, relation)
        z = source.transform(graph) if hasattr(source, "transform") else source
        scores = RelationScores.of(z, found, graph)
        ends = (graph.nodes[found.source], graph.nodes[found.target])
        ids: Any = tuple(ids_of(one, range(one.num_nodes)) for one in ends)
        of = None if everywhere else chosen_rows(ids[0], nodes, rows, f"links: {found.source}")
        return relation_links(scores, ids, pairs=pairs, rows=of, k=k)
    z = None if source is None and by != LINKS_BY[0] else embeddings_of(source, graph, "links")
    ids = ids_of(graph, range(graph.num_nodes) if z is None else z)
    if pairs is not None:
        whole = graph if isinstance(graph, Graph) else None  # of nodes alone there are ids
        return score_pairs(z, ids, pairs, whole, by=by)
    of = None if everywhere else chosen_rows(ids, nodes, rows, "links")
    return missing_links(z, ids, graph, rows=of, k=k, by=by, index=index)


def meant_relation(graph: Any, name: str | None = None) -> Relation:
    """Returns a relation of a typed graph; not named, the only one.

    Raises:
        GraphError: the graph is not typed, or it has several relations and none is named.
    """
    if not isinstance(graph, Graph) or graph.is_plain:
        raise GraphError(f"links: {option('relation')} is of a graph with types; got {name!r}")
    if name is not None:
        return graph.relation(name)
    if len(graph.relations) != 1:
        names = ", ".join(":".join(key) for key in graph.relations)
        first = next(iter(graph.relations))[1]
        raise GraphError(
            f"links: the graph has several relations ({names}); name one: "
            f"{option('relation', first)}"
        )
    return graph.only_relation


def _rows_of_pairs(pairs: Any, ids: tuple[Any, Any]) -> Array:
    """Returns the rows of pairs of ids, ``[n, 2]``; the two ends may have ids of their own."""
    given = list(pairs.tolist() if isinstance(pairs, np.ndarray) else pairs)
    if any(isinstance(pair, str) or len(pair) != 2 for pair in given):
        raise GraphError("links: pairs must be pairs of ids, [n, 2]")
    ends = [rows_of([pair[end] for pair in given], ids[end], "links", GraphError) for end in (0, 1)]
    return np.stack(ends, axis=1)


def _are_edges(relation: Relation, pairs: Array) -> Array:
    """Returns which pairs of a source and a target are edges."""
    found = np.zeros(len(pairs), np.bool_)
    for place, (u, v) in enumerate(pairs.tolist()):
        sources = relation.indices[relation.indptr[v] : relation.indptr[v + 1]]
        at = int(np.searchsorted(sources, u))
        found[place] = at < len(sources) and sources[at] == u
    return found


@dataclass(frozen=True, eq=False)
class RelationScores:
    """Scores of all pairs of a relation, as products of two rows.

    Attributes:
        left: a row for each source.
        right: a row for each target.
        relation: its edges are not missing.
        once: whether (u, v) and (v, u) are one pair.
    """

    left: Array
    right: Array
    relation: Relation
    once: bool = False

    @classmethod
    def of(cls, z: Any, relation: Relation, graph: Graph | None = None) -> "RelationScores":
        """Prepares the scores of a relation from embeddings by type, which must fit the graph."""
        kinds = (relation.source, relation.target)
        if not isinstance(z, Mapping) or not {*kinds} <= set(z):
            raise GraphError(
                "links: of a typed graph, embeddings are a dictionary by type, as transform "
                "returns it"
            )
        sizes = {} if graph is None else {kind: graph.nodes[kind].num_nodes for kind in kinds}
        for kind, expected in sizes.items():
            if len(z[kind]) != expected:
                raise GraphError(
                    f"links: {len(z[kind])} embeddings of {kind}; it has {expected} nodes"
                )
        sources, targets = (unit_rows(z[kind]) for kind in kinds)
        known = _adjacency(relation, len(sources))
        half = np.float32(np.sqrt(0.5))
        left = half * np.concatenate([sources, unit_rows(known.T.tocsr() @ targets)], axis=1)
        right = half * np.concatenate([unit_rows(known @ sources), targets], axis=1)
        return cls(left, right, relation)

    def pairs(self, pairs: Array) -> Array:
        """Returns the scores of pairs ``[n, 2]``: sources, targets."""
        found: Array = np.einsum("ij,ij->i", self.left[pairs[:, 0]], self.right[pairs[:, 1]])
        return found

    def missing(self, rows: Array | None, k: int) -> tuple[Array, Array]:
        """Returns the k best pairs that are no edges, best first: of each source, or in all."""
        known = _adjacency(self.relation, len(self.left)).T.tocsr()
        blocks = _row_blocks(rows, len(self.left), len(self.right))
        found = (self._best(known, some, k, once=self.once and rows is None) for some in blocks)
        return _best_pairs(found, k, together=rows is None)

    def _best(
        self, known: scipy.sparse.csr_array, some: Array, k: int, *, once: bool
    ) -> tuple[Array, Array]:
        """Compares some sources with all targets, and keeps the k best pairs."""
        count = len(self.right)
        table = self.left[some] @ self.right.T
        taken = known[some].tocoo()
        table[taken.coords[0], taken.coords[1]] = -np.inf
        if once:
            table[np.arange(count)[None, :] <= some[:, None]] = -np.inf
        elif self.relation.source == self.relation.target:
            table[np.arange(len(some)), some] = -np.inf
        flat = table.ravel()
        best = _best(flat, min(k, len(flat)))
        best = best[flat[best] > -np.inf]
        return np.stack([some[best // count], best % count], axis=1), flat[best]


def _adjacency(relation: Relation, sources: int) -> scipy.sparse.csr_array:
    """Returns the sources of each target, CSR ``[targets, sources]``; parallel edges count."""
    ones = np.ones(len(relation.indices), np.float32)
    shape = (len(relation.indptr) - 1, sources)
    return scipy.sparse.csr_array((ones, relation.indices, relation.indptr), shape=shape)


def relation_links(
    scores: RelationScores,
    ids: tuple[Any, Any],
    *,
    pairs: Any = None,
    rows: Array | None = None,
    k: int = 20,
) -> Links:
    """Returns scores of given pairs, or likely links that a relation of a typed graph lacks.

    Args:
        scores: of the relation.
        ids: of the sources and of the targets.
        pairs: pairs of ids to score.
        rows: numbers of sources, of each of which the links are; None means all together.
        k: number of links.
    """
    require(k >= 1, "links", "k", "at least 1", k)
    linked = None
    if pairs is not None:
        listed = _rows_of_pairs(pairs, ids)
        found, linked = scores.pairs(listed), _are_edges(scores.relation, listed)
    else:
        listed, found = scores.missing(rows, k)
    return Links(listed, ids[0][listed[:, 0]], ids[1][listed[:, 1]], found, linked)


def score_pairs(
    z: Any, ids: Any, pairs: Any, graph: Graph | None = None, *, by: str = "embeddings"
) -> Links:
    """Returns the scores of pairs of ids of a plain graph."""
    numbers = _rows_of_pairs(pairs, (ids, ids))
    linked = None
    if graph is not None:
        graph.check()
        linked = _are_edges(graph.only_relation, numbers)
    if graph is None or by not in STRUCTURAL:
        scores = cosines(z, numbers)
    else:
        scores = overlap(*neighbourhoods(graph, by), numbers)
    return Links(numbers, ids[numbers[:, 0]], ids[numbers[:, 1]], scores, linked)


def missing_links(
    z: Any,
    ids: Array,
    graph: Graph,
    *,
    rows: Array | None = None,
    k: int = 10,
    index: Any = None,
    exact_rows: int = EXACT_ROWS,
    by: str = "embeddings",
) -> Links:
    """Returns the `k` most likely links that a plain graph lacks: of some rows each, or in all.

    Args:
        z: embeddings.
        ids: of the nodes.
        graph: its edges are left out.
        rows: nodes; None means the whole graph.
        k: number of links.
        index: over the rows of `z`, to be searched; None builds one where all pairs are too many.
        exact_rows: up to this many nodes, all pairs are compared if there is no index.
        by: ``embeddings``, or a score by the edges alone; pairs without a common neighbour are then
            left out.
    """
    require(k >= 1, "links", "k", "at least 1", k)
    graph.check()
    if by in STRUCTURAL:
        found = _by_neighbours(graph, rows, k, by)
        pairs, scores = _best_pairs(found, k, together=rows is None)
        return Links(pairs, ids[pairs[:, 0]], ids[pairs[:, 1]], scores)
    unit = unit_rows(z)
    if index is None and len(unit) > exact_rows:
        index = build_index(unit)
    if index is None:
        pairs, scores = RelationScores(unit, unit, graph.only_relation, once=True).missing(rows, k)
    elif rows is not None:
        found = (_of_node(unit, graph, int(row), k, index) for row in rows)
        pairs, scores = _best_pairs(found, k, together=False)
    else:
        pairs, scores = _best_pairs(_of_large_graph(unit, graph, index), k, together=True)
    return Links(pairs, ids[pairs[:, 0]], ids[pairs[:, 1]], scores)


def _by_neighbours(
    graph: Graph, rows: Array | None, k: int, by: str
) -> Iterator[tuple[Array, Array]]:
    """Yields the k best pairs with common neighbours that are no edges, block by block of rows."""
    first, second = neighbourhoods(graph, by)
    n, reached = graph.num_nodes, second.T.tocsr()
    for some in _row_blocks(rows, n, n):
        table = (first[some] @ reached).tocoo()
        edges = first[some].tocoo()
        sources, targets = some[table.coords[0]], table.coords[1].astype(np.int64)
        known = np.isin(sources * n + targets, some[edges.coords[0]] * n + edges.coords[1])
        kept = ~known & (sources < targets if rows is None else sources != targets)
        new, scores = np.stack([sources, targets], axis=1)[kept], table.data[kept]
        top = _best(scores, min(k, len(scores)))
        yield new[top], scores[top]


def _row_blocks(rows: Array | None, sources: int, targets: int) -> Iterator[Array]:
    """Yields some rows one by one, or all in blocks whose similarities fit in memory."""
    every = np.arange(sources) if rows is None else rows
    block = max(1, _BLOCK_PAIRS // max(1, targets)) if rows is None else 1
    for start in range(0, len(every), block):
        yield every[start : start + block]


def _of_node(unit: Array, graph: Graph, row: int, k: int, index: Any) -> tuple[Array, Array]:
    taken = np.append(graph.indices[graph.indptr[row] : graph.indptr[row + 1]], row)
    keys, scores = nearest_without(unit, unit[row], k, taken, index)
    return np.stack([np.full(len(keys), row), keys], axis=1), scores


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


def _of_large_graph(unit: Array, graph: Graph, index: Any) -> Iterator[tuple[Array, Array]]:
    """Yields pairs of every node and the nearest `PER_NODE` that are no edges, and their scores."""
    n = len(unit)
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
        yield new, cosines(unit, new).astype(np.float32)


def _best_pairs(
    found: Iterable[tuple[Array, Array]], k: int, *, together: bool
) -> tuple[Array, Array]:
    """Returns the k best pairs in all, or of each block; best first, and each pair once."""
    best = [(np.zeros((0, 2), np.int64), np.zeros(0, np.float32))]
    for pairs, scores in found:
        before = best.pop() if together else best[0]
        every, of_every = np.concatenate([before[0], pairs]), np.concatenate([before[1], scores])
        _, first = np.unique(every, axis=0, return_index=True)
        every, of_every = every[first], of_every[first]
        order = np.lexsort((every[:, 1], every[:, 0], -of_every))[:k]
        best.append((every[order], of_every[order]))
    pairs, scores = (np.concatenate(part) for part in zip(*best, strict=True))
    return pairs, scores


def evaluate_links(
    model: Any,
    graph: Any,
    *,
    share: float = 0.1,
    negatives: int = 100,
    seed: int = 0,
    relation: str | None = None,
    held: HeldOutEdges | None = None,
) -> LinkEvaluation:
    """Says what link scores are worth on a graph, on edges that nothing has seen.

    A share of the linked pairs is removed, a new model with the same settings is trained on the
    rest, and each removed pair is ranked among pairs that are not linked: by the cosine of the
    embeddings, by common neighbours, by Adamic–Adar and by the cosine of the features. All that
    joins a removed pair goes: see `graphcl.evaluation.links.hold_out_edges`. A column that you
    computed from the edges yourself stays as it is, and may give removed pairs away.

    Args:
        model: its settings are used; it is not changed.
        graph: one graph; of a typed one, the links of one relation are judged, beside the number
            of edges that a target has.
        share: of the linked pairs that is removed.
        negatives: pairs per removed pair.
        seed: decides which pairs.
        relation: of a typed graph: the name of the relation; not needed if it has one.
        held: links to judge instead; nothing is removed then.
    """
    from sklearn.base import clone

    graph = graph_of(graph)
    if not isinstance(graph, Graph):
        raise GraphError("links: an evaluation takes one graph")
    typed = relation is not None or not graph.is_plain
    if typed:
        relation = ":".join(meant_relation(graph, relation).key)
    if held is None:
        held = hold_out_edges(graph, relation, share=share, negatives=negatives, seed=seed)
    z = clone(model).set_output(transform="default").fit_transform(held.graph)
    if typed:
        popular = np.diff(held.relation.indptr).astype(np.float64)
        by = RelationScores.of(z, held.relation).pairs(held.pairs)
        scores = held.rank({"embeddings": by, "popularity": popular[held.pairs[:, 1]]})
    else:
        scores = judge_links(held, np.asarray(z))
    return LinkEvaluation(scores, len(held.edges), negatives, share, seed)
