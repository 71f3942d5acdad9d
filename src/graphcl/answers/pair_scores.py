r"""Scores of pairs by one thing alone: embeddings, common neighbours, or likeness to neighbours.

Each scores given pairs, and finds the best pairs that lack a link.

Embeddings of two types are not compared with each other, because nothing has brought them into one
space. Of a relation of a typed graph, a source u is compared with the sources that a target v has,
and v with the targets that u has:

.. math::
    s(u, v) = \tfrac12 \cos\Big(z_u, \sum_{w \in N_v} \hat z_w\Big)
            + \tfrac12 \cos\Big(z_v, \sum_{w \in N_u} \hat z_w\Big)

with unit vectors :math:`\hat z`: customers like those who bought it, and products like those that
she bought. A node without edges of the relation adds 0.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graphcl.answers.similar import nearest_without
from graphcl.arrays import Array, blocks
from graphcl.evaluation.links import (
    adjacency,
    contains,
    cosines,
    neighbourhoods,
    overlap,
    pair_codes,
)
from graphcl.evaluation.unsupervised import EXACT_ROWS, build_index, unit_rows
from graphcl.graphs.relation import Relation

PER_NODE = 50  # nearest nodes in which the links of a large graph are searched
_BLOCK_PAIRS = 1 << 24  # similarities held at once


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
