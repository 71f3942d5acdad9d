r"""Links of one relation of a typed graph: a source is likely linked to a target that suits it.

Embeddings of two types are not compared with each other, because nothing has brought them into one
space. A source u is compared with the sources that a target v has, and v with the targets that u
has:

.. math::
    s(u, v) = \tfrac12 \cos\Big(z_u, \sum_{w \in N_v} \hat z_w\Big)
            + \tfrac12 \cos\Big(z_v, \sum_{w \in N_u} \hat z_w\Big)

with unit vectors :math:`\hat z`: customers like those who bought it, and products like those that
she bought. A node without edges of the relation adds 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.answers.inputs import ids_of
from graphcl.answers.linking import Links
from graphcl.errors import GraphError, require
from graphcl.evaluation.links import HeldOutEdges, LinkScores
from graphcl.evaluation.nearest import unit_rows
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Relation
from graphcl.store.ids import rows_of

Array = npt.NDArray[Any]
_BLOCK_PAIRS = 1 << 24  # scores held at once
NAMES = {"embeddings": "embeddings", "popularity": "popularity of the target"}


@dataclass(frozen=True, eq=False)
class RelationScores:
    """Scores of all pairs of a relation, as products of two rows.

    Attributes:
        left: a row for each source.
        right: a row for each target.
        known: sources of each target, CSR ``[targets, sources]``.
        within: whether both ends are of one type.
    """

    left: Array
    right: Array
    known: scipy.sparse.csr_array
    within: bool

    @classmethod
    def of(cls, z: Mapping[str, Any], relation: Relation) -> "RelationScores":
        """Prepares the scores of a relation from embeddings by type."""
        sources = unit_rows(np.asarray(z[relation.source]))
        targets = unit_rows(np.asarray(z[relation.target]))
        ones = np.ones(len(relation.indices), np.float32)
        shape = (len(targets), len(sources))
        known = scipy.sparse.csr_array((ones, relation.indices, relation.indptr), shape=shape)
        known.data = np.ones(len(known.data), np.float32)
        of_target = _unit(known @ sources)
        of_source = _unit(known.T.tocsr() @ targets)
        half = np.float32(np.sqrt(0.5))
        left = half * np.concatenate([sources, of_source], axis=1)
        right = half * np.concatenate([of_target, targets], axis=1)
        return cls(left, right, known, relation.source == relation.target)

    def pairs(self, pairs: Array) -> Array:
        """Returns the scores of pairs ``[n, 2]``: sources, targets."""
        found: Array = np.einsum("ij,ij->i", self.left[pairs[:, 0]], self.right[pairs[:, 1]])
        return found

    def linked(self, pairs: Array) -> Array:
        """Returns which pairs are edges."""
        codes = _codes(self.known)
        wanted = pairs[:, 1] * np.int64(self.known.shape[1]) + pairs[:, 0]
        found: Array = np.isin(wanted, codes)
        return found

    def best(self, rows: Array, k: int) -> tuple[Array, Array]:
        """Returns the k best pairs that are no edges, of some sources, best first."""
        pairs, scores = np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
        of_source = self.known.T.tocsr()
        count = len(self.right)
        block = max(1, _BLOCK_PAIRS // max(1, count))
        for start in range(0, len(rows), block):
            some = rows[start : start + block]
            table = self.left[some] @ self.right.T
            taken = of_source[some].tocoo()
            table[taken.coords[0], taken.coords[1]] = -np.inf
            if self.within:
                table[np.arange(len(some)), some] = -np.inf
            flat = table.ravel()
            place = np.argpartition(-flat, k)[:k] if k < len(flat) else np.arange(len(flat))
            place = place[flat[place] > -np.inf]
            new = np.stack([some[place // count], place % count], axis=1)
            pairs, scores = np.concatenate([pairs, new]), np.concatenate([scores, flat[place]])
            order = np.lexsort((pairs[:, 1], pairs[:, 0], -scores))[:k]
            pairs, scores = pairs[order], scores[order]
        return pairs, scores


def _unit(rows: Any) -> Array:
    """Returns rows of length 1; a row of zeros stays."""
    dense: Array = np.asarray(rows, np.float32)
    lengths = np.linalg.norm(dense, axis=1, keepdims=True)
    found: Array = np.divide(dense, lengths, out=np.zeros_like(dense), where=lengths > 0)
    return found


def _codes(known: scipy.sparse.csr_array) -> Array:
    targets = np.repeat(np.arange(known.shape[0]), np.diff(known.indptr))
    codes: Array = targets * np.int64(known.shape[1]) + known.indices
    return codes


def one_relation(graph: Any, relation: str | None) -> tuple[Graph, Relation]:
    """Returns a typed graph, perhaps from PyG's `HeteroData`, and the relation that is meant.

    Raises:
        GraphError: the graph is not typed, or it has several relations and none is named.
    """
    typed = Graph.from_pyg(graph) if hasattr(graph, "node_types") else graph
    if not isinstance(typed, Graph) or typed.is_plain:
        raise GraphError("links: a relation is of a typed graph; pass it as graph=")
    if relation is not None:
        return typed, typed.relation(relation)
    if len(typed.relations) != 1:
        names = ", ".join(":".join(key) for key in typed.relations)
        raise GraphError(f"links: the graph has several relations ({names}); name one: relation=")
    return typed, next(iter(typed.relations.values()))


def links_of_relation(
    source: Any, graph: Any, relation: str | None, *, pairs: Any, nodes: Any, k: int
) -> Links:
    """Returns what `graphcl.links` does for a typed graph."""
    typed, found = one_relation(graph, relation)
    z = source.transform(typed) if hasattr(source, "transform") else source
    if not isinstance(z, Mapping) or not {found.source, found.target} <= set(z):
        raise GraphError(
            "links: of a typed graph, embeddings are a dictionary by type, as transform returns it"
        )
    for kind in (found.source, found.target):
        expected = typed.nodes[kind].num_nodes
        if len(z[kind]) != expected:
            raise GraphError(f"links: {len(z[kind])} embeddings of {kind}; it has {expected} nodes")
    scores = RelationScores.of(z, found)
    ids = (
        ids_of(typed.nodes[found.source], scores.left),
        ids_of(typed.nodes[found.target], scores.right),
    )
    if pairs is None:
        rows = None if nodes is None else rows_of(nodes, ids[0], "links", GraphError)
        return relation_links(scores, ids, rows=rows, k=k)
    given = list(pairs.tolist() if isinstance(pairs, np.ndarray) else pairs)
    if any(isinstance(pair, str) or len(pair) != 2 for pair in given):
        raise GraphError("links: pairs must be pairs of ids, [n, 2]")
    ends = [
        rows_of([pair[place] for pair in given], ids[place], "links", GraphError)
        for place in range(2)
    ]
    listed = np.stack(ends, axis=1)
    linked = scores.linked(listed)
    return Links(listed, ids[0][ends[0]], ids[1][ends[1]], scores.pairs(listed), linked)


def relation_links(
    scores: RelationScores, ids: tuple[Array, Array], *, rows: Array | None = None, k: int = 20
) -> Links:
    """Returns likely links that a relation lacks: of each of some sources, or in all.

    Args:
        scores: of the relation.
        ids: of the sources and of the targets.
        rows: numbers of sources; None means all of them together.
        k: number of links.
    """
    require(k >= 1, "links", "k", "at least 1", k)
    if rows is None:
        pairs, found = scores.best(np.arange(len(scores.left)), k)
    else:
        each = [scores.best(np.array([row]), k) for row in rows]
        pairs, found = (np.concatenate(part) for part in zip(*each, strict=True))
    return Links(pairs, ids[0][pairs[:, 0]], ids[1][pairs[:, 1]], found)


def judge_relation(held: HeldOutEdges, z: Mapping[str, Any]) -> dict[str, LinkScores]:
    """Ranks held-out edges by `RelationScores`, and by the number of edges of the target.

    `z` are embeddings by type, of an encoder that was trained on `held.graph` alone.
    """
    popular = np.diff(held.relation.indptr).astype(np.float64)
    scores = RelationScores.of(z, held.relation).pairs(held.pairs)
    return held.rank({"embeddings": scores, "popularity": popular[held.pairs[:, 1]]})
