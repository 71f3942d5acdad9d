r"""Scores of pairs: by one thing alone, and by a small model of links, which also gives reasons.

Each scores given pairs, and finds the best pairs that lack a link.

One thing alone are embeddings, or common neighbours, or likeness to neighbours. Embeddings of two
types are not compared with each other, because nothing has brought them into one space. Of a
relation of a typed graph, a source u is compared with the sources that a target v has, and v with
the targets that u has:

.. math::
    s(u, v) = \tfrac12 \cos\Big(z_u, \sum_{w \in N_v} \hat z_w\Big)
            + \tfrac12 \cos\Big(z_v, \sum_{w \in N_u} \hat z_w\Big)

with unit vectors :math:`\hat z`: customers like those who bought it, and products like those that
she bought. A node without edges of the relation adds 0.

The model is learned from pairs of the graph itself. Some linked pairs are removed with all that
joins them, and the rest is embedded again by the same encoder. So nothing that is known of a
removed pair comes from its own edge, as nothing does of a pair whose link is missing. A logistic
regression on the columns below, their squares and products then tells removed pairs (u, v) from
pairs (u, w) that are not linked. Among these are few of those that rank high, so the best pairs by
each thing alone are added, in a graph that is not too large: each with the weight that it has among
all pairs.

With unit vectors :math:`\hat z`, the targets :math:`O_u` that u has, the sources :math:`I_v` that v
has, and within one type the neighbours :math:`N` in either direction:

.. math::
    \text{likeness} &= \cos\Big(z_u, \sum_{w \in I_v} \hat z_w\Big),\;
                       \cos\Big(z_v, \sum_{w \in O_u} \hat z_w\Big) \\
    \text{degrees} &= \log(1 + |O_u|),\; \log(1 + |I_v|) \\
    \text{paths} &= \log\Big(1 + \sum_{b \in O_u} \sum_{a \in I_b \cap I_v}
                    1 / \sqrt{|I_b| |O_a|}\Big) \\
    \text{distance} &= 2, 3 \text{ or } 4 \text{ (more)} \\
    \text{within a type} &= \cos(z_u, z_v),\; z_u \cdot z_v,\;
        \log(1 + |N_u \cap N_v|),\; \log\Big(1 + \sum_{w \in N_u \cap N_v} 1 / \log |N_w|\Big)

In a plain graph (u, v) and (v, u) are one pair: of two columns for its ends, the lower is first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.linalg import norm
from threadpoolctl import threadpool_limits

from graphcl.answers.similar import nearest_without
from graphcl.arrays import Array, blocks, sized_blocks
from graphcl.errors import counted, demand
from graphcl.evaluation.links import (
    HeldOutEdges,
    adjacency,
    contains,
    cosines,
    hold_out_edges,
    neighbourhoods,
    overlap,
    pair_codes,
)
from graphcl.evaluation.unsupervised import EXACT_ROWS, build_index, unit_rows
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Relation

PER_NODE = 50  # nearest nodes in which the links of a large graph are searched
_BLOCK_PAIRS = 1 << 24  # similarities held at once
COLUMNS = ("likeness", "likeness", "degrees", "degrees", "paths", "paths")
WITHIN = ("cosine", "cosine", "common", "common")  # also known within one type
# Pairs that are removed at a time, and in all: where a graph has few, several times.
SHARE, MOST, TIMES, LEAST = 0.1, 2000, 5, 20
NEGATIVES = 20  # pairs that are not linked, for each that was removed
RIVALS = 5000  # best pairs by each thing alone
_LEAST_WEIGHT = 5e-4  # of such a pair; below, they change nothing
STRENGTH = 0.3  # of the regression: scikit-learn's C
REASONS = 3  # of a link, at most
_BLOCK = 1 << 13  # pairs whose embeddings are held at once
_NUMBERS = 1 << 24  # paths from sources to all nodes, held at once


@dataclass(frozen=True, eq=False)
class RelationScores:
    """Scores of all pairs of a relation, as products of two rows.

    Attributes:
        left: a row for each source.
        right: a row for each target.
        known: the edges, which are not missing, CSR ``[sources, targets]``.
        same: whether a source and a target of the same number are one node.
        once: whether (u, v) and (v, u) are one pair.
    """

    left: Array
    right: Array
    known: Any
    same: bool = False
    once: bool = False

    @classmethod
    def of(cls, z: Any, relation: Relation) -> "RelationScores":
        """Prepares the scores of a relation from embeddings by type."""
        sources, targets = (unit_rows(z[kind]) for kind in relation.key[::2])
        known = adjacency(relation, len(sources))
        half = np.float32(np.sqrt(0.5))
        left = half * np.concatenate([sources, unit_rows(known.T.tocsr() @ targets)], axis=1)
        right = half * np.concatenate([unit_rows(known @ sources), targets], axis=1)
        within = relation.source == relation.target
        return cls(left, right, known.T.tocsr(), within, once=relation.undirected)

    def pairs(self, pairs: Array) -> Array:
        """Returns the scores of pairs ``[n, 2]``: sources, targets."""
        return np.asarray(np.einsum("ij,ij->i", self.left[pairs[:, 0]], self.right[pairs[:, 1]]))

    def missing(self, rows: Array | None, k: int) -> tuple[Array, Array]:
        """Returns the k best pairs that are no edges, best first: of each source, or in all."""
        # Some rows one by one, or all in blocks whose similarities fit in memory.
        every = np.arange(len(self.left)) if rows is None else rows
        size = max(1, _BLOCK_PAIRS // max(1, len(self.right))) if rows is None else 1
        each = (every[some] for some in blocks(len(every), size))
        found = (self._best(some, k, once=self.once and rows is None) for some in each)
        return best_pairs(found, k, together=rows is None)

    def _best(self, some: Array, k: int, *, once: bool) -> tuple[Array, Array]:
        """Compares some sources with all targets, and keeps the k best pairs."""
        count = len(self.right)
        table = self.left[some] @ self.right.T
        taken = self.known[some].tocoo()
        table[taken.coords[0], taken.coords[1]] = -np.inf
        if once:
            table[np.arange(count)[None, :] <= some[:, None]] = -np.inf
        elif self.same:
            table[np.arange(len(some)), some] = -np.inf
        flat = table.ravel()
        best = _best(flat, min(k, len(flat)))
        best = best[flat[best] > -np.inf]
        return np.stack([some[best // count], best % count], axis=1), flat[best]


@dataclass(frozen=True, eq=False)
class CosineScores:
    """Scores of pairs of a plain graph by the cosine of their embeddings.

    Attributes:
        z: the embeddings; those of shards stay on disk.
        relation: its edges are not missing; None if pairs alone are scored.
        index: over the embeddings, to be searched; None builds one where all pairs are too many.
    """

    z: Any
    relation: Any
    index: Any = None

    def pairs(self, pairs: Array) -> Array:
        """Returns the scores of pairs ``[n, 2]``."""
        return cosines(self.z, pairs)

    def why(self, pairs: Array) -> Array:
        """Returns no reasons: the score is the only one."""
        return np.full(len(pairs), None)

    def missing(self, rows: Array | None, k: int) -> tuple[Array, Array]:
        """Returns the k best pairs that are no edges, best first: of each row, or in all."""
        unit, index = self._unit, self.index
        if index is None and len(unit) <= EXACT_ROWS:
            known = adjacency(self.relation, len(unit))
            return RelationScores(unit, unit, known, same=True, once=True).missing(rows, k)
        index = build_index(unit) if index is None else index
        if rows is None:
            return best_pairs(self._of_all(unit, index), k, together=True)
        found = (self._of_node(unit, index, row, k) for row in rows.tolist())
        return best_pairs(found, k, together=False)

    @cached_property
    def _unit(self) -> Array:
        return unit_rows(self.z)

    def _of_node(self, unit: Array, index: Any, row: int, k: int) -> tuple[Array, Array]:
        indptr, indices = self.relation.indptr, self.relation.indices
        taken = np.append(indices[indptr[row] : indptr[row + 1]], row)
        keys, scores = nearest_without(unit, unit[row], k, taken, index)
        return np.stack([np.full(len(keys), row), keys], axis=1), scores

    def _of_all(self, unit: Array, index: Any) -> Iterator[tuple[Array, Array]]:
        """Yields pairs of every node and the nearest `PER_NODE` that are no edges, with scores."""
        n, linked = len(unit), np.unique(pair_codes(self.relation, self.relation))
        for start in range(0, n, 16384):
            rows = np.arange(start, min(start + 16384, n))
            found = index.search(unit[rows], min(n, PER_NODE + 1), threads=0)
            keys = np.asarray(found.keys).reshape(len(rows), -1).astype(np.int64)
            first, second = np.repeat(rows, keys.shape[1]), keys.ravel()
            low, high = np.minimum(first, second), np.maximum(first, second)
            codes = np.unique((low * np.int64(n) + high)[low != high])
            codes = codes[~contains(linked, codes)]
            new = np.stack([codes // n, codes % n], axis=1)
            yield new, cosines(unit, new).astype(np.float32)


@dataclass(frozen=True, eq=False)
class NeighbourScores:
    """Scores of pairs of a plain graph by their common neighbours.

    Attributes:
        relation: the edges.
        by: ``common_neighbours`` or ``adamic_adar``.
    """

    relation: Any
    by: str

    def pairs(self, pairs: Array) -> Array:
        """Returns the scores of pairs ``[n, 2]``."""
        return overlap(*self._tables, pairs)

    def missing(self, rows: Array | None, k: int) -> tuple[Array, Array]:
        """Returns the k best pairs with common neighbours that are no edges, best first."""
        return best_pairs(self._of_blocks(rows, k), k, together=rows is None)

    @cached_property
    def _tables(self) -> tuple[Any, Any]:
        return neighbourhoods(self.relation, self.by)

    def _of_blocks(self, rows: Array | None, k: int) -> Iterator[tuple[Array, Array]]:
        first, second = self._tables
        n, reached = first.shape[0], second.T.tocsr()
        each: Any = rows
        if rows is None:
            paths = np.cumsum(first @ np.diff(first.indptr))
            cuts = np.searchsorted(paths, np.arange(_BLOCK_PAIRS, paths[-1], _BLOCK_PAIRS))
            each = np.split(np.arange(n), np.unique(cuts))
        for some in map(np.atleast_1d, each):
            table = (first[some] @ reached).tocoo()
            edges = first[some].tocoo()
            sources, targets = some[table.coords[0]], table.coords[1].astype(np.int64)
            known = np.isin(sources * n + targets, some[edges.coords[0]] * n + edges.coords[1])
            kept = ~known & (sources < targets if rows is None else sources != targets)
            new, scores = np.stack([sources, targets], axis=1)[kept], table.data[kept]
            top = _best(scores, min(k, len(scores)))
            yield new[top], scores[top]


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


def best_pairs(
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


@dataclass(frozen=True, eq=False)
class PairColumns:
    """What a model of links sees of pairs of a relation.

    Attributes:
        rows: embeddings of the sources and of the targets, of length 1.
        lengths: of these embeddings.
        out: which targets each source has, CSR ``[sources, targets]``.
        into: which sources of the graph each target has, CSR.
        known: embeddings of the graph's sources, of length 1. They are those in `rows`, unless
            these are of new nodes.
        spread: `into`, each entry divided by the roots of the degrees of its two ends.
        near: within one type, the neighbours of sources and of targets, and the latter divided by
            the logarithms of their degrees.
        once: whether (u, v) and (v, u) are one pair.
    """

    rows: tuple[Array, Array]
    lengths: tuple[Array, Array]
    out: Any
    into: Any
    known: Array
    spread: Any
    near: tuple[Any, Any, Any] | None
    once: bool

    @classmethod
    def of(cls, z: Any, relation: Relation) -> Self:
        """Prepares the columns of a relation from embeddings, of several types by type.

        Raises:
            GraphError: an embedding is no finite number.
        """
        ends = [z[kind] if isinstance(z, Mapping) else z for kind in relation.key[::2]]
        lengths = (norm(ends[0], axis=1), norm(ends[1], axis=1))
        demand(
            all(np.isfinite(one).all() for one in lengths),
            "links: embeddings must be finite numbers",
        )
        into = adjacency(relation, len(ends[0])).copy()
        into.sum_duplicates()  # of parallel edges
        into.data[:] = 1
        scale = [1 / np.sqrt(np.maximum(into.sum(axis=axis), 1)) for axis in (1, 0)]
        within = relation.source == relation.target
        first = unit_rows(ends[0])
        second = first if within else unit_rows(ends[1])
        near = None
        if within:
            near = (*neighbourhoods(relation), neighbourhoods(relation, "adamic_adar")[1])
        return cls(
            rows=(first, second),
            lengths=lengths,
            out=into.T.tocsr(),
            into=into,
            known=first,
            spread=scipy.sparse.csr_array(into * scale[0][:, None] * scale[1][None, :]),
            near=near,
            once=relation.undirected,
        )

    def of_new(self, z: Array, neighbours: list[Array]) -> Self:
        """Returns the columns of pairs whose sources are new nodes of a plain graph.

        Args:
            z: their embeddings.
            neighbours: the rows of each one's neighbours.
        """
        first = np.repeat(np.arange(len(z)), [len(some) for some in neighbours])
        second = np.concatenate([np.zeros(0, np.int64), *neighbours])
        shape, ones = (len(z), len(self.rows[1])), np.ones(len(first), np.float32)
        out = scipy.sparse.csr_array((ones, (first, second)), shape=shape)
        out.data[:] = 1  # of neighbours that are named twice
        near = None if self.near is None else (out, *self.near[1:])
        rows, lengths = (unit_rows(z), self.rows[1]), (norm(z, axis=1), self.lengths[1])
        return replace(self, rows=rows, lengths=lengths, out=out, near=near)

    @property
    def names(self) -> tuple[str, ...]:
        """What each column is of."""
        return COLUMNS if self.near is None else COLUMNS + WITHIN

    def table(self, pairs: Array) -> Array:
        """Returns the columns of pairs, ``[n, columns]``."""
        found = np.zeros((len(pairs), len(self.names)))
        (first, at_first), (second, at_second) = (
            np.unique(end, return_inverse=True) for end in pairs.T
        )
        out, into = self.out[first], self.into[second]
        # Of the sources that a target has, and of the targets that a source has, their means.
        means = unit_rows(into @ self.known), unit_rows(out @ self.rows[1])
        sums = np.log1p(out.sum(axis=1))[at_first], np.log1p(into.sum(axis=1))[at_second]
        order = np.argsort(at_first, kind="stable")  # a source is looked at once
        for start in range(0, len(order), _BLOCK):
            some = order[start : start + _BLOCK]
            u, v = self.rows[0][pairs[some, 0]], self.rows[1][pairs[some, 1]]
            found[some, 0] = np.einsum("ij,ij->i", u, means[0][at_second[some]])
            found[some, 1] = np.einsum("ij,ij->i", v, means[1][at_first[some]])
            if self.near is not None:
                found[some, 6] = np.einsum("ij,ij->i", u, v)
        found[:, 2], found[:, 3] = sums
        if self.once:
            found[:, :2], found[:, 2:4] = np.sort(found[:, :2]), np.sort(found[:, 2:4])
        paths = np.zeros(len(pairs))
        paths[order] = self._paths(out, at_first[order], pairs[order, 1])
        found[:, 4], found[:, 5] = np.log1p(paths), np.where(paths > 0, 3, 4)
        if self.near is not None:
            found[:, 7] = found[:, 6] * self.lengths[0][pairs[:, 0]] * self.lengths[1][pairs[:, 1]]
            found[:, 8], found[:, 9] = (overlap(self.near[0], one, pairs) for one in self.near[1:])
            found[found[:, 8] > 0, 5] = 2
            found[:, 8:] = np.log1p(found[:, 8:])
        return found

    def _paths(self, out: Any, place: Array, targets: Array) -> Array:
        """Returns sums over paths of three edges, from sources to targets.

        Args:
            out: the edges of the sources.
            place: of the source of each pair among these, in ascending order.
            targets: of each pair.
        """
        found, sizes = np.zeros(len(targets)), np.diff(self.into.indptr)[targets]
        block = max(1, _NUMBERS // max(1, self.into.shape[1]))
        for start in range(0, out.shape[0], block):
            begin, end = np.searchsorted(place, [start, start + block])
            reached = (out[start : start + block] @ self.spread).toarray()
            for some in sized_blocks(sizes[begin:end], begin):
                ends = self.into[targets[some]].tocoo()
                sums = reached[place[some][ends.coords[0]] - start, ends.coords[1]]
                found[some] = np.bincount(ends.coords[0], sums, minlength=some.stop - some.start)
        return found


@dataclass(frozen=True, eq=False)
class LinkModel:
    """A logistic regression that tells missing links from other pairs.

    Attributes:
        names: what the columns are of, as `PairColumns.names`.
        classifier: on columns, their squares and products.
        range: the lowest and the highest number that it has seen in each column, ``[2, columns]``.
            Beyond them it guesses nothing: numbers are cut off there.
        usual: the means of columns over pairs that are not linked; reasons are against these.
    """

    names: tuple[str, ...]
    classifier: Any
    range: Array
    usual: Array

    @classmethod
    def fit(
        cls,
        graph: Graph,
        relation: str | None,
        embed: Callable[[Graph], Any],
        rivals: Callable[[HeldOutEdges, Any, int], Array],
        *,
        seed: int = 0,
    ) -> Self:
        """Learns from the edges of one relation of a graph.

        Args:
            graph: all else of it is known to the model, too.
            relation: its name; None in a plain graph.
            embed: embeds the graph without some edges.
            rivals: returns pairs that are not linked in such a graph, given its embeddings: the
                best so many by each thing alone.
            seed: decides which pairs are removed, and what they are compared with.

        Raises:
            GraphError: there is too little to learn from.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import PolynomialFeatures, StandardScaler

        edges = (graph.only_relation if relation is None else graph.relation(relation)).num_edges
        share = min(SHARE, MOST / max(1, edges))
        parts = []
        for number in range(int(min(TIMES, np.ceil(MOST / max(1, share * edges))))):
            held = hold_out_edges(
                graph, relation, share=share, negatives=NEGATIVES, seed=seed + number
            )
            z, pairs = embed(held.graph), held.pairs
            columns = PairColumns.of(z, held.relation)
            # So many of all pairs were drawn; of the best, every one is there.
            weight = held.negatives.size / (np.prod(columns.out.shape) / (1 + columns.once))
            best = rivals(held, z, RIVALS) if weight > _LEAST_WEIGHT else pairs[:0]
            both = np.concatenate([held.edges, held.edges[:, :: -1 if columns.once else 1]])
            wide = [columns.out.shape[1], 1]
            best = best[~np.isin(best @ wide, both @ wide)]
            truth = np.arange(len(pairs) + len(best)) < len(held.edges)
            every = np.where(np.arange(len(truth)) < len(pairs), 1, weight / (1 + weight))
            parts.append((columns.table(np.concatenate([pairs, best])), truth, every))
        table, truth, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        demand(
            truth.sum() >= LEAST,
            f"{counted(int(truth.sum()), 'linked pair')}: too few to learn from",
        )
        powers = PolynomialFeatures(2, include_bias=False)
        regression = LogisticRegression(C=STRENGTH, max_iter=1000)
        classifier = make_pipeline(StandardScaler(), powers, StandardScaler(), regression)
        with threadpool_limits(1):  # the products are too small for threads
            classifier.fit(table, truth, logisticregression__sample_weight=weights)
        span = np.stack([table.min(axis=0), table.max(axis=0)])
        usual = np.average(table[~truth], axis=0, weights=weights[~truth])
        return cls(columns.names, classifier, span, usual)

    def score(self, table: Array) -> Array:
        """Returns the log-odds that pairs with these columns are linked."""
        rows = np.clip(np.vstack([table, self.usual]), *self.range)  # one at least
        with threadpool_limits(1):
            return np.asarray(self.classifier.decision_function(rows))[:-1]

    def reasons(self, table: Array) -> Array:
        """Returns what speaks for each pair, in words, the strongest first.

        The weight of a reason is what the log-odds lose if its columns were those of a usual pair
        that is not linked. Reasons that speak against a link are not named.
        """
        kinds, lost = list(dict.fromkeys(self.names)), []
        for kind in kinds:
            usual = np.where([name == kind for name in self.names], self.usual, table)
            lost.append(self.score(table) - self.score(usual))
        found = np.empty(len(table), object)
        for place, weights in enumerate(np.transpose(lost)):
            said = dict(zip(kinds, self._say(table[place]), strict=True))
            order = [kinds[at] for at in np.argsort(-weights, kind="stable") if weights[at] > 0]
            named = [said[kind] for kind in order if said[kind]]
            found[place] = "; ".join(named[:REASONS]) or "little speaks for it"
        return found

    def _say(self, row: Array) -> list[str]:
        """Returns each kind of columns in words; empty if there is nothing to name."""
        first, second = np.expm1(row[2:4])
        said = [
            f"like the other's neighbours ({max(row[:2]):.2f})" if max(row[:2]) > 0 else "",
            f"degrees {first:.0f} and {second:.0f}",
            "joined by paths of three edges" if row[4] > 0 else "",
        ]
        if len(row) == len(COLUMNS):
            return said
        common = round(float(np.expm1(row[8])))
        shared = counted(common, "common neighbour") if common else ""
        return [*said, f"cosine {row[6]:.2f}", shared]
