"""The edges of one kind, between nodes of two types or of one."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphcl.arrays import Floats, Integers
from graphcl.graphs.nodes import freeze

Key = tuple[str, str, str]
NODE = "node"  # the type of the nodes of a plain graph
EDGE: Key = (NODE, "edge", NODE)  # its relation


@dataclass(frozen=True, eq=False)
class Relation:
    """The edges of one kind, from nodes of a source type to nodes of a target type, read-only.

    They are CSR by target: the sources of target u are
    ``indices[indptr[u] : indptr[u + 1]]``, in ascending order. The encoder also uses the reverse
    direction, so it need not be given. An undirected relation, within one type, has each edge
    twice, and both directions are the same.

    Attributes:
        source: the type of the edges' sources.
        name: the relation's name.
        target: the type of their targets.
        indptr: row pointers, ``[targets + 1]``.
        indices: source of each entry.
        edge_weight: float32, positive, one per entry, and equal in both directions of an undirected
            edge; None if edges are unweighted. `graphcl.kernels.adjacency` says how they are used.
        edge_features: float32 ``[entries, features]``, or None. Only with them can two entries have
            the same ends.
        undirected: whether both directions are one.
        edge_ids: of an undirected relation, the number of the edge behind each entry; None if its
            entries tell it, as they do where no two edges have the same ends.
        self_loops_removed: number of self-loops in the input; the mean over a relation within one
            type has the node itself in it.
        preparation: what turned the columns of a table into `edge_features`, or None.
    """

    source: str
    name: str
    target: str
    indptr: Integers
    indices: Integers
    edge_weight: Floats | None = None
    edge_features: Floats | None = None
    undirected: bool = False
    edge_ids: Integers | None = None
    self_loops_removed: int = 0
    preparation: Any = None

    def __post_init__(self) -> None:
        freeze(self)

    @property
    def key(self) -> Key:
        """``(source type, name, target type)``."""
        return (self.source, self.name, self.target)

    @property
    def num_edges(self) -> int:
        """Number of edges; each undirected edge counts once."""
        return len(self.indices) // 2 if self.undirected else len(self.indices)

    @property
    def num_edge_features(self) -> int:
        """The width of `edge_features`; 0 without them."""
        return 0 if self.edge_features is None else int(self.edge_features.shape[1])

    def edge_index(self) -> Integers:
        """Returns sources and targets of the entries, ``[2, entries]``, in their order."""
        return np.stack([np.asarray(self.indices, np.int64), self.targets()])

    def targets(self) -> Integers:
        """Returns the target of each entry."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
