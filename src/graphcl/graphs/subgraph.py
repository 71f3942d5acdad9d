"""The subgraph that inductive training may use: the training nodes and the edges among them."""

import numpy as np

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph

_ROWS = 16384  # rows per block: a second copy of all entries might not fit in memory


def training_subgraph(graph: Graph) -> Graph:
    """Returns the subgraph of the training nodes and the edges among them, without labels.

    It contains no feature and no edge of a validation or test node, so these nodes are unseen for
    an encoder that is trained on it.

    Raises:
        GraphError: the graph has no training nodes.
    """
    if graph.train_mask is None or not graph.train_mask.any():
        raise GraphError(f"{graph.name}: has no train_mask; inductive training needs one")
    graph.check()
    nodes = np.flatnonzero(graph.train_mask)
    new_number = np.full(graph.num_nodes, -1, dtype=np.int64)  # −1: not a training node
    new_number[nodes] = np.arange(len(nodes))
    parts, weights, degrees = [], [], np.zeros(len(nodes), dtype=np.int64)
    for start in range(0, len(nodes), _ROWS):
        block = nodes[start : start + _ROWS]
        # The positions of all entries of the block's rows, which may be anywhere in `indices`.
        counts = graph.indptr[block + 1] - graph.indptr[block]
        offsets = np.repeat(graph.indptr[block] - (counts.cumsum() - counts), counts)
        entries = offsets + np.arange(len(offsets))
        around = new_number[graph.indices[entries]]
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
