"""What a trial shows without labels: embeddings of some nodes, and what they could tell.

Trials also embed damaged versions of the graph, which lack some links and some values of features.
The versions are the same for all trials, so what these make of them can be compared.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.evaluation.recovery import principal_targets
from graphcl.graphs.damage import hidden_features, missing_links
from graphcl.graphs.graph import Graph
from graphcl.seeding import derive

SAMPLE = 2_000  # nodes that are looked at, at most
HIDDEN = 0.2  # share of the links, and of the values of features, that a version lacks
LEAST_NODES = 20
COLUMNS = 4_096  # of the features that are looked at, at most
MOST_NEIGHBOURS = 256

Array = npt.NDArray[Any]
Embed = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Evidence:
    """A graph without labels, and what of it trials are compared by.

    Attributes:
        graph: what trials train on.
        nodes: the nodes that are looked at, ascending, ``[S]``.
        links: the graph's links among `nodes` as places in it, ``[2, links]``; each once.
        seed: what the damaged versions are drawn by.
        count: how many damaged versions there are.
    """

    graph: Graph
    nodes: Array
    links: Array
    seed: int
    count: int

    @classmethod
    def of(cls, graph: Graph, *, seed: int, sample: int = SAMPLE, versions: int = 0) -> "Evidence":
        """Draws nodes; a graph that is mapped from a store is checked first.

        Raises:
            GraphError: the graph has too few nodes.
        """
        graph.check()
        if graph.num_nodes < LEAST_NODES:
            raise GraphError(
                f"{graph.name}: has {graph.num_nodes} nodes; choosing without labels needs "
                f"{LEAST_NODES}"
            )
        bare = replace(graph, y=None)
        random = np.random.default_rng(derive(seed, "evidence") % 2**63)
        nodes = sampled_nodes(bare, sample, random)
        return cls(bare, nodes, links_among(bare, nodes), seed, versions)

    def version(self, number: int) -> Graph:
        """Returns a damaged version of the graph.

        It is drawn anew each time, always the same: copies of a large graph need much memory.
        """
        random = np.random.default_rng(derive(self.seed, "version", number) % 2**63)
        return hidden_features(missing_links(self.graph, HIDDEN, random), HIDDEN, random)

    def hidden(self, number: int) -> Array:
        """Returns which of `links` a version lacks, ``[links]`` booleans."""
        there = links_among(self.version(number), self.nodes)
        return ~np.isin(_codes(self.links), _codes(there))

    def observe(self, embed: Embed) -> npt.NDArray[np.float32]:
        """Returns the embeddings of the nodes, ``[1 + count, S, dim]``.

        The first are those in the graph, the others those in its versions.
        """
        shown = [np.asarray(embed(self.graph))[self.nodes]]
        shown += [np.asarray(embed(self.version(n)))[self.nodes] for n in range(self.count)]
        return np.stack(shown).astype(np.float32)

    @cached_property
    def own(self) -> Array:
        """The principal components of the nodes' features, ``[S, components]``."""
        return principal_targets(self.features())

    @cached_property
    def around(self) -> Array:
        """The principal components of the mean features of neighbours, ``[S, components]``."""
        return principal_targets(self.features_around())

    def features(self) -> Array:
        """Returns the features of the nodes, dense, ``[S, P]``; of many columns, `COLUMNS`."""
        return self._rows(self.nodes)

    def features_around(self) -> Array:
        """Returns the mean features of each node's neighbours, ``[S, P]``; without any, zeros.

        Of many neighbours, at most `MOST_NEIGHBOURS` are read.
        """
        indptr, indices = self.graph.indptr, self.graph.indices
        rows = np.zeros((len(self.nodes), min(COLUMNS, self.graph.num_features)))
        for place, u in enumerate(self.nodes):
            others = np.asarray(indices[indptr[u] : indptr[u + 1]])
            others = others[:: max(1, -(-len(others) // MOST_NEIGHBOURS))]
            if len(others):
                rows[place] = self._rows(others).mean(axis=0)
        return rows

    def _rows(self, nodes: Array) -> Array:
        x: Any = self.graph.x
        rows = x[nodes]  # first: the table may be mapped, and too large to copy
        if rows.shape[1] > COLUMNS:
            drawn = np.random.default_rng(0).choice(rows.shape[1], COLUMNS, replace=False)
            rows = rows[:, np.sort(drawn)]
        dense = rows.toarray() if scipy.sparse.issparse(rows) else rows
        return np.asarray(dense, dtype=np.float64)


def sampled_nodes(graph: Graph, count: int, random: np.random.Generator) -> Array:
    """Returns all nodes, or about `count`: half of them drawn, and a neighbour of each of these.

    Nodes that are all drawn one by one would have hardly a link among them in a large graph.
    """
    if graph.num_nodes <= count:
        return np.arange(graph.num_nodes)
    drawn = np.sort(random.choice(graph.num_nodes, count // 2, replace=False))
    start, degree = np.asarray(graph.indptr[drawn]), np.diff(graph.indptr)[drawn]
    linked = degree > 0
    place = start[linked] + (random.random(int(linked.sum())) * degree[linked]).astype(np.int64)
    return np.unique(np.concatenate([drawn, np.asarray(graph.indices)[place]]).astype(np.int64))


def links_among(graph: Graph, nodes: Array) -> Array:
    """Returns the links with both ends among `nodes`, each once, as places in `nodes`."""
    place = np.full(graph.num_nodes, -1, np.int64)
    place[nodes] = np.arange(len(nodes))
    found = []
    for own, u in enumerate(nodes):
        others = place[np.asarray(graph.indices[graph.indptr[u] : graph.indptr[u + 1]])]
        others = others[others > own]
        found.append(np.stack([np.full(len(others), own), others]))
    return np.concatenate(found, axis=1)


def _codes(links: Array) -> Array:
    codes: Array = links[0] * (1 << 32) + links[1]
    return codes
