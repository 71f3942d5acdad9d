"""What inductive training may see of a graph: its training nodes and the edges among them."""

import numpy as np

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph

_ROWS = 16384  # a block of rows: the graph's entries need not fit in memory a second time


def training_subgraph(graph: Graph) -> Graph:
    """Returns the subgraph of the training nodes and the edges among them; without labels.

    Nothing of a validation or test node, neither a feature nor an edge, is in it: the encoder
    that is trained on it meets them as unseen.

    Raises:
        GraphError: the graph has no training nodes.
    """
    if graph.train_mask is None or not graph.train_mask.any():
        raise GraphError(f"{graph.name}: has no train_mask; inductive training needs one")
    graph.check()
    nodes = np.flatnonzero(graph.train_mask)
    number = np.full(graph.num_nodes, -1, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    parts, weights, degrees = [], [], np.zeros(len(nodes), dtype=np.int64)
    for start in range(0, len(nodes), _ROWS):
        block = nodes[start : start + _ROWS]
        counts = graph.indptr[block + 1] - graph.indptr[block]
        offsets = np.repeat(graph.indptr[block] - (counts.cumsum() - counts), counts)
        entries = offsets + np.arange(len(offsets))
        around = number[graph.indices[entries]]
        rows = np.repeat(np.arange(len(block)), counts)
        degrees[start : start + _ROWS] = np.bincount(rows[around >= 0], minlength=len(block))
        parts.append(around[around >= 0])
        if graph.edge_weight is not None:
            weights.append(graph.edge_weight[entries[around >= 0]])
    return Graph(
        indptr=np.concatenate([[0], degrees.cumsum()]),
        indices=np.concatenate(parts),
        x=graph.x[nodes],
        edge_weight=np.concatenate(weights) if weights else None,
        node_ids=nodes if graph.node_ids is None else graph.node_ids[nodes],
        name=f"{graph.name} (training nodes)",
    )
