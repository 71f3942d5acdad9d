"""The estimator beside a graph that grows; what it does is in `graphcl.estimator.live`."""

from typing import Any

from graphcl.devices import resolve_device
from graphcl.errors import GraphError
from graphcl.estimator.live import Live, Rows
from graphcl.estimator.saving import Saved
from graphcl.estimator.typed import as_typed
from graphcl.graphs.collection import GraphCollection, as_graphs


class Growing(Saved):
    """The part of the estimator that embeds nodes which a graph does not have yet."""

    def live(self, graph: Any, *, node_type: str | None = None) -> Live:
        """Returns the model beside a graph, for many calls of its `embed_new`.

        Args:
            graph: one graph, in memory or mapped from a store.
            node_type: of a graph with types: that of the new nodes.
        """
        fitted = self._require_fitted("live")
        given = as_typed(graph) or as_graphs(graph)
        if isinstance(given, GraphCollection):
            raise GraphError(f"{given.name}: new nodes join one graph, not several")
        return Live(fitted, given, resolve_device(self.device), node_type)

    def embed_new(
        self,
        features: Any,
        neighbours: Any,
        *,
        graph: Any,
        edges: Any = None,
        weights: Any = None,
        node_type: str | None = None,
    ) -> Rows:
        """Returns embeddings of nodes that are not in `graph` yet, without rebuilding it.

        They are those that the grown graph embedded whole would have: on a CPU bit for bit, with
        the encoders `mean` and `residual` on dense features without edge weights; else to 1e-6 of
        the largest. The features are what the graph's `x` holds; the model scales them. For many
        calls, `live` saves the preparation.

        Args:
            features: of one node ``[P]``, or of several ``[n, P]``.
            neighbours: of one node: nodes of the graph, by row number or by id as text; it may be
                empty. Of several nodes: such a list for each. In a graph with types, each neighbour
                is ``RELATION/ID``, and ``<RELATION/ID`` an edge towards the new node, of a directed
                relation within its type.
            graph: the graph that they join.
            edges: edges among the new nodes: pairs of places in `features`, and a weight as a third
                number if there is one.
            weights: of the edges to `neighbours`, in their form; None is 1 everywhere.
            node_type: of a graph with types: that of the new nodes.

        Returns:
            ``[dim]`` for one node, ``[n, dim]`` for several.

        Raises:
            GraphError: features, neighbours, edges or weights do not fit the graph.
        """
        live = self.live(graph, node_type=node_type)
        return live.embed_new(features, neighbours, edges=edges, weights=weights)
